// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/comm/caller.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/device/in_flight.hpp>
#include <collprobe/replica/detail/difference_exchange.hpp>
#include <collprobe/replica/detail/difference_search.hpp>
#include <collprobe/replica/disagreement.hpp>
#include <collprobe/replica/replica.hpp>
#include <collprobe/scan/statistics.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// Options of `agreement`. Equal on all ranks.
struct agreement_options {
    int max_buffers = 64; ///< largest length of a list
    /// The rank whose bits are right, where the caller knows one: the rank that read the checkpoint, say. `locate` and
    /// repairs then compare with that rank, whatever most ranks hold. -1: with what most ranks hold, right or wrong.
    int reference_rank = -1;
};

struct repair_result;

/// Compares what the ranks hold (results, weights, optimizer state), and finds which ranks differ and where. For a step
/// that must not wait, `probed::expect_equal` tells later whether all hold the same: README.md.
///
/// Shapes: a list of buffers of any element types and counts (0 too). Every rank gives its own list. If a count or a
/// type differs, or a buffer is missing, the ranks disagree on that buffer.
/// Equal buffers always agree. Different buffers agree only if their 64-bit digests are equal: with probability about
/// 2^-64 (`digest_state` states the exceptions).
/// Preconditions: collective, all ranks make the same calls. One thread at a time.
/// Stream behaviour: the calls block the host, with the deadline of the communicator's `synchronize` if it has one. The
/// messages bypass the communicator's adaptors.
/// Errors: `invalid_argument` for a null or misaligned buffer (of count above 0), for too long a list and in a capture;
/// `mismatch` if the ranks have made different numbers of comparisons; `unsupported` inside an NCCL group; those of the
/// communicator.
template <communicator Comm>
class agreement {
public:
    using device = typename Comm::device;
    using stream_ref = stream_ref_of<Comm>;

    /// Allocates all memory, on the communicator's device: 1.2 MiB, 96 bytes a rank, and 56 bytes for each buffer; on a
    /// GPU 1 MiB more. `comm` must outlive this object.
    explicit agreement(Comm& comm, agreement_options options = {}, call_site where = call_site::current())
        : comm_(&comm), options_(options)
    {
        const caller who(comm, "agreement", where);
        who.require(options.max_buffers >= 1, "max_buffers must be at least 1");
        who.require(options.reference_rank >= -1 && options.reference_rank < comm.size(),
            "reference_rank must be a rank of the communicator, or -1");
        const auto scope = comm.device_scope();
        memory_ = detail::in_flight<detail::difference_memory<device>>(
            comm.timeout_ms(), static_cast<std::uint64_t>(comm.size()), room());
    }
    /// A moved-from object can only be destroyed or assigned to.
    agreement(agreement&&) = default;
    agreement& operator=(agreement&&) = default;
    /// Waits for work that a call left behind when it threw, at most the communicator's time-out; after that leaks the
    /// memory.
    ~agreement() = default;

    Comm& communicator() const noexcept { return *comm_; }

    /// Whether all ranks hold the same. Equal on all ranks.
    /// Cost: one read of the buffers, and one all-reduce (max) of `16 * max_buffers + 16` bytes.
    bool agreed(view<const replica> buffers, stream_ref stream, call_site where = call_site::current())
    {
        const auto scope = comm_->device_scope();
        return compare(buffers, stream, {*comm_, "agreed", where});
    }

    /// Finds which ranks differ, in which elements, and by which bits: one `disagreement` for each buffer that differs,
    /// none if all ranks hold the same. Equal on all ranks. Each damaged rank has its own `difference`. A difference is
    /// missed only if the digests of its block are equal.
    /// Cost: that of `agreed`. For each buffer that differs: all-gathers of 24 and of 48 bytes; some rounds (two for
    /// one damaged place in 1 GiB), each of one read of the remaining blocks and an all-reduce of at most 64 KiB; and a
    /// broadcast of the blocks that differ.
    std::vector<disagreement> locate(
        view<const replica> buffers, stream_ref stream, call_site where = call_site::current())
    {
        std::vector<disagreement> reports;
        for (detail::located_difference& found : find(buffers, stream, "locate", where))
            reports.push_back(std::move(found.report));
        return reports;
    }

private:
    using caller = detail::caller<Comm>;
    template <collprobe::communicator C>
    friend repair_result majority_repair(agreement<C>&, view<const replica>, stream_ref_of<C>, call_site);

    /// As `locate`, with the blocks to restore.
    std::vector<detail::located_difference> find(
        view<const replica> buffers, stream_ref stream, const char* call, call_site where)
    {
        const auto scope = comm_->device_scope();
        std::vector<detail::located_difference> all;
        if (compare(buffers, stream, {*comm_, call, where})) return all;
        for (std::uint64_t b = 0; b < room(); ++b) {
            if (is_equal(b)) continue;
            detail::difference_exchange<Comm> ranks(*comm_, *memory_, buffers, b, stream, where);
            detail::located_difference found = ranks.locate(memory_->held[b], options_.reference_rank);
            found.report.buffer = static_cast<int>(b);
            if (!found.report.others.empty()) all.push_back(std::move(found));
        }
        return all;
    }
    /// Sends the blocks found from one of the reference's holders (number `turn`, modulo their count) to the other
    /// ranks. Returns the number of bytes sent.
    std::uint64_t restore(const detail::located_difference& found, int turn, view<const replica> buffers,
        stream_ref stream, call_site where)
    {
        const auto scope = comm_->device_scope();
        const std::vector<int>&holders = found.report.holders, &others = found.report.others;
        const bool take = std::binary_search(others.begin(), others.end(), comm_->rank());
        detail::difference_exchange<Comm> ranks(
            *comm_, *memory_, buffers, static_cast<std::uint64_t>(found.report.buffer), stream, where);
        return ranks.restore(found, holders[static_cast<std::size_t>(turn) % holders.size()], take);
    }

    std::uint64_t room() const noexcept { return static_cast<std::uint64_t>(options_.max_buffers); }
    /// What the last comparison found: of a buffer, or (index `room()`) of its number.
    bool is_equal(std::uint64_t index) const { return detail::is_equal_pair(memory_->host_keys.data(), index); }

    bool compare(view<const replica> buffers, stream_ref stream, const caller& who)
    {
        who.require_immediate();
        who.require(buffers.count() <= room(), "more buffers than agreement_options::max_buffers");
        for (std::uint64_t b = 0; b < buffers.count(); ++b) {
            const auto bytes = static_cast<std::uint64_t>(bytes_of(buffers[b].type));
            const std::string flaw = bytes == 0 ? std::string(" is of no element type")
                                                : detail::flaw_of_buffer(buffers[b].data, buffers[b].count, bytes);
            if (!flaw.empty()) who.fail(status::invalid_argument, "buffer " + std::to_string(b) + flaw);
        }
        if constexpr (detail::can_capture<stream_ref>)
            who.require(!stream.capturing(who.where()), "the stream is capturing");
        detail::difference_memory<device>& memory = *memory_;
        const view<std::uint64_t> keys(memory.keys), host_keys(memory.host_keys.data(), keys.count());
        host_keys[2 * room()] = host_keys[2 * room() + 1] = 0; // no number, should the answer never come
        ++number_;
        detail::enqueue_marked(memory.done, stream, [&, this] {
            for (std::uint64_t b = 0; b < room(); ++b) {
                memory.held[b] = {};
                if (b >= buffers.count()) continue;
                const view<const std::uint8_t> bytes = buffers[b].bytes();
                memory.held[b] = {0, buffers[b].count, static_cast<std::uint64_t>(buffers[b].type)};
                device::reduce(stream, detail::digest_reducer<std::uint8_t>(bytes), bytes.count(),
                    &memory.held[b].digest, memory.workspace);
            }
            device::for_each(
                stream, room() + 1, detail::write_keys{memory.held.data(), room(), number_, keys.data()});
            comm_->innermost().all_reduce(
                view<const std::uint64_t>(keys), keys, reduction::max, stream, who.where());
            device::copy(stream, view<const std::uint64_t>(keys), host_keys, who.where());
        });
        comm_->synchronize(stream, who.where());
        if (!is_equal(room())) who.fail(status::mismatch, "the ranks are not at the same comparison");
        for (std::uint64_t b = 0; b < room(); ++b) {
            if (!is_equal(b)) return false;
        }
        return true;
    }

    Comm* comm_;
    agreement_options options_;
    detail::in_flight<detail::difference_memory<device>> memory_;
    std::uint64_t number_ = 0; ///< of comparisons
};

} // namespace collprobe
