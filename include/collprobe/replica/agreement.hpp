// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/comm/adaptor.hpp>
#include <collprobe/comm/caller.hpp>
#include <collprobe/comm/capabilities.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/fixed_array.hpp>
#include <collprobe/device/in_flight.hpp>
#include <collprobe/replica/detail/agreement_slots.hpp>
#include <collprobe/replica/detail/difference_exchange.hpp>
#include <collprobe/replica/detail/difference_search.hpp>
#include <collprobe/replica/disagreement.hpp>
#include <collprobe/replica/replica.hpp>
#include <collprobe/scan/digest_reducer.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// Options of `agreement`. Equal on all ranks.
struct agreement_options {
    int max_buffers = 64; ///< largest length of a list
    int checks_in_flight = 4; ///< checks whose answers were not read yet
    std::uint64_t scratch_bytes = 1 << 20; ///< bytes that a search or a repair sends at a time; at least 4096
    /// The rank whose bits are right, where the caller knows one: the rank that read the checkpoint, say. `locate` and
    /// repairs then compare with that rank, whatever most ranks hold. -1: with what most ranks hold, right or wrong.
    int reference_rank = -1;
};

/// Checks whether all ranks hold the same bits: of a result, of weights, of optimizer state.
///
/// Shapes: a list of buffers of any element types and counts (0 too). Every rank gives its own list. If a count or a
/// type differs, or a buffer is missing, the ranks disagree on that buffer.
/// Equal buffers always agree. Different buffers agree only if their 64-bit digests are equal: with probability about
/// 2^-64 (`digest_state` states the exceptions).
/// Preconditions: collective, all ranks make the same calls, except `poll` and `wait`. One thread at a time.
/// Stream behaviour: `check` is enqueued and `poll` returns its answer, without host synchronisation or allocation. The
/// other functions block the host, with the deadline of the communicator's `synchronize` if it has one. The messages
/// bypass the communicator's adaptors.
/// Errors: `invalid_argument` for a null or misaligned buffer (of count above 0), for too long a list and in a capture;
/// `mismatch` if the ranks are at different checks; `unsupported` inside an NCCL group; those of the communicator.
/// Cost of a check: one read of the buffers, and one all-reduce (max) of `16 * max_buffers + 16` bytes.
template <communicator Comm>
    requires has_all_reduce<Comm, std::uint64_t> && has_all_gather<Comm, std::uint64_t>
    && has_broadcast<Comm, std::uint8_t>
class agreement {
public:
    using device = typename Comm::device;
    using stream_ref = stream_ref_of<Comm>;

    /// Allocates all memory, on the communicator's device: 136 KiB, `scratch_bytes`, 80 bytes a rank, and 41 bytes for
    /// each buffer and check in flight; on a GPU 2 MiB more. `comm` must outlive this object.
    explicit agreement(Comm& comm, agreement_options options = {}, call_site where = call_site::current())
        : comm_(&comm), options_(options)
    {
        const caller who(comm, "agreement", where);
        who.require(options.max_buffers >= 1 && options.checks_in_flight >= 1 && options.scratch_bytes >= 4096,
            "max_buffers and checks_in_flight must be at least 1, scratch_bytes at least 4096");
        who.require(options.reference_rank >= -1 && options.reference_rank < comm.size(),
            "reference_rank must be a rank of the communicator, or -1");
        differs_ = detail::fixed_array<std::uint8_t>(room());
        unread_ = detail::fixed_array<std::uint8_t>(room());
        const auto scope = detail::enter_device(comm);
        memory_ = detail::in_flight<detail::agreement_memory<device>>(detail::timeout_of(comm), comm.size(), room(),
            options.checks_in_flight, options.scratch_bytes);
    }
    /// Legal while checks are under way. A moved-from object can only be destroyed or assigned to.
    agreement(agreement&&) = default;
    agreement& operator=(agreement&&) = default;
    /// Waits until no stream uses this object's buffers, at most the communicator's time-out; after that leaks them.
    ~agreement() = default;

    Comm& communicator() const noexcept { return *comm_; }

    /// Enqueues a check. The buffers must not change until the stream has run it.
    /// If `checks_in_flight` answers are unread, waits for the oldest and adds its disagreements to the next answer. So
    /// no disagreement is lost, but the answer does not tell which of the two checks found it.
    void check(view<const replica> buffers, stream_ref stream, call_site where = call_site::current())
    {
        const auto scope = detail::enter_device(*comm_);
        require_buffers(buffers, {*comm_, "check", where}, stream);
        if (started_ - read_ == in_flight()) {
            (void)wait(where);
            for (std::size_t b = 0; b < room(); ++b) unread_[b] = differs_[b];
        }
        enqueue(slot_of(started_), buffers, stream, where);
        ++started_;
    }

    /// Reads the answer of the oldest unread check; returns false if it has not arrived. Never blocks. `agree` is equal
    /// on all ranks.
    bool poll(bool& agree, call_site where = call_site::current())
    {
        if (read_ == started_) return false;
        const slot& oldest = slot_of(read_);
        try {
            if (!oldest.done.query()) return false;
        } catch (...) {
            ++read_; // the check failed: it will never have an answer
            throw;
        }
        ++read_;
        agree = read(oldest, {*comm_, "poll", where});
        return true;
    }

    /// Waits for the answer of the oldest unread check and returns `agree`; returns true if no check is unread.
    bool wait(call_site where = call_site::current())
    {
        if (read_ == started_) return true;
        detail::await(*comm_, slot_of(read_).done, where);
        bool agree = true;
        (void)poll(agree, where);
        return agree;
    }

    /// For each of `max_buffers` list entries: 1 if the buffer differed in the last answer, else 0.
    view<const std::uint8_t> differing() const noexcept { return {differs_.data(), differs_.size()}; }

    /// Makes a check and waits for its answer. Unread answers of other checks stay unread.
    bool agreed(view<const replica> buffers, stream_ref stream, call_site where = call_site::current())
    {
        const auto scope = detail::enter_device(*comm_);
        const caller who(*comm_, "agreed", where);
        require_buffers(buffers, who, stream);
        return agreed_now(buffers, stream, who);
    }

    /// Finds which ranks differ, in which elements, and by which bits. Call it after a check found a disagreement. If
    /// the ranks agree by now, the verdict says so. It is equal on all ranks. Each damaged rank has its own
    /// `difference`. A difference is missed only if the digests of its block are equal.
    /// Cost: a check. For each buffer that differs: two all-gathers of 40 bytes; some rounds (two for one damaged place
    /// in 1 GiB), each of one read of the remaining blocks, a broadcast of at most 32 KiB and an all-reduce of 4 KiB;
    /// and a broadcast of the blocks that differ.
    agreement_verdict locate(view<const replica> buffers, stream_ref stream, call_site where = call_site::current())
    {
        agreement_verdict verdict;
        for (detail::located_difference& found : find(buffers, stream, "locate", where))
            verdict.buffers.push_back(std::move(found.report));
        verdict.agree = verdict.buffers.empty();
        return verdict;
    }

    /// For repairs: as `locate`, and returns the blocks to restore.
    std::vector<detail::located_difference> find(
        view<const replica> buffers, stream_ref stream, const char* call, call_site where)
    {
        const auto scope = detail::enter_device(*comm_);
        const caller who(*comm_, call, where);
        require_buffers(buffers, who, stream);
        std::vector<detail::located_difference> all;
        if (agreed_now(buffers, stream, who)) return all;
        const slot& seen = memory_->slots.back();
        for (std::uint64_t b = 0; b < room(); ++b) {
            if (seen.agrees(b)) continue;
            detail::difference_exchange<Comm> ranks = about(b, buffers, stream, where);
            const detail::fixed_array<detail::held_buffer> held = ranks.hold(seen.digests.data() + b);
            detail::located_difference found
                = detail::locate_difference({held.data(), held.size()}, options_.reference_rank, ranks);
            found.report.buffer = static_cast<int>(b);
            if (!found.report.others.empty()) all.push_back(std::move(found));
        }
        return all;
    }
    /// For repairs: sends the blocks found from one of the reference's holders (number `turn`, modulo their count) to
    /// the other ranks. Returns the number of bytes sent.
    std::uint64_t restore(const detail::located_difference& found, int turn, view<const replica> buffers,
        stream_ref stream, call_site where)
    {
        const auto scope = detail::enter_device(*comm_);
        const std::vector<int>& holders = found.report.holders;
        bool take = false;
        for (const int rank : found.report.others) take = take || rank == comm_->rank();
        detail::difference_exchange<Comm> ranks
            = about(static_cast<std::uint64_t>(found.report.buffer), buffers, stream, where);
        ranks.compare_with(found.wanted);
        return ranks.restore(found.search, holders[static_cast<std::size_t>(turn) % holders.size()], take);
    }

private:
    using caller = detail::caller<Comm>;
    using slot = detail::agreement_slot<device>;

    std::uint64_t room() const noexcept { return static_cast<std::uint64_t>(options_.max_buffers); }
    std::uint64_t in_flight() const noexcept { return static_cast<std::uint64_t>(options_.checks_in_flight); }
    slot& slot_of(std::uint64_t check) const noexcept
    {
        return memory_->slots[static_cast<std::size_t>(check % in_flight())];
    }

    detail::difference_exchange<Comm> about(
        std::uint64_t buffer, view<const replica> buffers, stream_ref stream, call_site where)
    {
        const replica* const mine = buffer < buffers.count() ? &buffers[buffer] : nullptr;
        return {*comm_, memory_->search, mine, stream, where};
    }

    void enqueue(slot& to, view<const replica> buffers, stream_ref stream, call_site where)
    {
        to.number = ++number_;
        to.host[2 * room()] = 0; // an answer that arrives is above 0
        for (std::uint64_t b = 0; b < buffers.count(); ++b) to.types[b] = static_cast<std::uint8_t>(buffers[b].type);
        detail::enqueue_marked(to.done, stream, [&] {
            if (memory_->reduced.recorded()) detail::wait_inside(stream, memory_->reduced, where);
            detail::enqueue_marked(memory_->reduced, stream, [&, this] {
                for (std::uint64_t b = 0; b < buffers.count(); ++b) {
                    const view<const std::uint8_t> bytes = buffers[b].bytes();
                    device::reduce(stream, detail::digest_reducer<std::uint8_t>{bytes}, bytes.count(),
                        to.digests.data() + b, memory_->workspace);
                }
            });
            device::for_each(stream, room() + 1, detail::write_keys{to.digests.data(), to.types.data(), buffers.count(),
                room(), to.number, to.message.data()});
            const view<std::uint64_t> message(to.message.data(), to.message.size());
            detail::innermost(*comm_).all_reduce(
                view<const std::uint64_t>(message), message, reduction::max, stream, where);
            device::copy(stream, view<const std::uint64_t>(message),
                view<std::uint64_t>(to.host.data(), to.host.size()), where);
        });
    }

    bool agreed_now(view<const replica> buffers, stream_ref stream, const caller& who)
    {
        slot& to = memory_->slots.back();
        enqueue(to, buffers, stream, who.where());
        detail::synchronize(*comm_, stream, who.where());
        require_same_check(to, who);
        for (std::uint64_t b = 0; b < room(); ++b) {
            if (!to.agrees(b)) return false;
        }
        return true;
    }

    bool read(const slot& from, const caller& who)
    {
        require_same_check(from, who);
        bool agree = true;
        for (std::size_t b = 0; b < room(); ++b) {
            differs_[b] = unread_[b] != 0 || !from.agrees(b) ? 1 : 0;
            unread_[b] = 0;
            agree = agree && differs_[b] == 0;
        }
        return agree;
    }

    void require_same_check(const slot& seen, const caller& who) const
    {
        if (seen.host[2 * room()] == 0)
            who.fail(status::device_failure, "the answer never arrived: work on the check's stream failed");
        if (!seen.agrees(room())) who.fail(status::mismatch, "the ranks are not at the same check");
    }

    void require_buffers(view<const replica> buffers, const caller& who, stream_ref stream) const
    {
        who.require_immediate();
        std::string wrong;
        if (buffers.count() > room()) wrong = "more buffers than agreement_options::max_buffers";
        for (std::uint64_t b = 0; wrong.empty() && b < buffers.count(); ++b) {
            const auto bytes = static_cast<std::uint64_t>(bytes_of(buffers[b].type));
            const std::string flaw = bytes == 0 ? std::string(" is of no element type")
                                                : detail::flaw_of_buffer(buffers[b].data, buffers[b].count, bytes);
            if (!flaw.empty()) wrong = "buffer " + std::to_string(b) + flaw;
        }
        if constexpr (detail::can_capture<stream_ref>) {
            if (wrong.empty() && stream.capturing(who.where())) wrong = "the stream is capturing";
        }
        if (!wrong.empty()) who.refuse(collective::all_reduce, stream, wrong);
    }

    Comm* comm_;
    agreement_options options_;
    detail::in_flight<detail::agreement_memory<device>> memory_;
    detail::fixed_array<std::uint8_t> differs_; ///< of the last answer
    detail::fixed_array<std::uint8_t> unread_; ///< of answers that were dropped unread
    std::uint64_t started_ = 0;
    std::uint64_t read_ = 0;
    std::uint64_t number_ = 0; ///< of checks, including those that block
};

} // namespace collprobe
