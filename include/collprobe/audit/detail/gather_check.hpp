// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include <collprobe/audit/detail/gather_verdict.hpp>
#include <collprobe/comm/adaptor.hpp>
#include <collprobe/comm/caller.hpp>
#include <collprobe/comm/capabilities.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/wait.hpp>
#include <collprobe/device/in_flight.hpp>
#include <collprobe/scan/digest_reducer.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

template <class Device>
struct gather_memory {
    explicit gather_memory(std::uint64_t ranks)
        : own(1), owners(ranks), received(ranks), report(receiver_report::words),
          reports(ranks * receiver_report::words)
    {
        Device::load_kernels();
    }

    bool finished_by(deadline until) const noexcept { return detail::finished_by(until, use.done); }

    typename Device::template buffer<std::uint64_t> own; ///< the digest of this rank's shard
    typename Device::template buffer<std::uint64_t> owners;
    typename Device::template buffer<std::uint64_t> received;
    typename Device::template buffer<std::uint64_t> report;
    typename Device::template buffer<std::uint64_t> reports;
    typename Device::workspace reduces;
    ordered_use<Device> use;
};

/// Checks that every rank received from an all-gather what the owners of the shards sent, by exact digests.
/// Use: `check.before<float>(shard, stream)`, the all-gather, `check.after<float>(whole, verdict.data(), stream)`.
/// `before` digests this rank's shard, `after` digests all shards received, and the ranks exchange the digests through
/// the innermost communicator. Damage to a digest shows as damage of its shard. Works in place and out of place.
/// There is no tolerance and no false alarm. Damage is missed with probability 2^-62 or less (`digest_state`). Damage
/// that happened before `before` is not seen.
/// Blame: a receiver, if its copy differs while most ranks hold the owner's bits. The owner, if most receivers, or one
/// receiver and the owner itself, hold the same wrong bits. With two ranks the two cases cannot be told apart.
/// Preconditions: all ranks call `before` and `after` around the same all-gather (collective); one such pair at a time.
/// Stream behaviour: everything is enqueued; the host neither waits nor allocates. Calls of one object may be on
/// different streams, and may be captured.
/// Errors: `unsupported` inside an NCCL group.
/// Cost: one read of the shard and one of the result (a launch for each shard), and all-gathers of 8 and of 136 bytes
/// a rank.
template <communicator Comm>
class gather_check {
public:
    using device = typename Comm::device;
    using stream_ref = stream_ref_of<Comm>;

    /// Allocates. The object refers to `comm`, which must outlive it.
    explicit gather_check(Comm& comm) : comm_(&comm)
    {
        const auto scope = enter_device(comm);
        memory_ = in_flight<gather_memory<device>>(timeout_of(comm), ranks());
    }
    /// Legal while calls are under way. A moved-from object can only be destroyed or assigned to.
    gather_check(gather_check&&) = default;
    gather_check& operator=(gather_check&&) = default;
    /// Refers to `comm` from now on; for a communicator that was moved.
    void rebind(Comm& comm) noexcept { comm_ = &comm; }
    /// Waits for the work that uses the memory, at most the communicator's time-out; after that the memory is leaked.
    ~gather_check() = default;

    /// Digests this rank's shard. Call it before the all-gather.
    /// \throws error `invalid_argument` for a null view with a count above 0; `unsupported` inside an NCCL group.
    template <element T>
    void before(std::type_identity_t<view<const T>> send, stream_ref stream, call_site where = call_site::current())
    {
        const caller who(*comm_, "gather_check::before", where);
        require_not_null(send, "send", who);
        who.require_immediate();
        const auto scope = enter_device(*comm_);
        pending_ = {send.size_bytes(), true};
        enqueue_marked(memory_->use.wait_for_last(stream, where), stream, [&] {
            take_digest(send, memory_->own.data(), stream);
        });
    }

    /// Compares the shards received and writes the verdict to `*out`, memory that the device can write. Call it behind
    /// the all-gather.
    /// Shapes: `receive` holds all shards, `size()` times as many elements as `send`.
    /// \throws error `invalid_argument` if `receive` does not match the last `before`; those of the communicator.
    template <element T>
    void after(std::type_identity_t<view<const T>> receive, gather_verdict* out, stream_ref stream,
        call_site where = call_site::current())
    {
        const caller who(*comm_, "gather_check::after", where);
        require_not_null(receive, "receive", who);
        who.require(out != nullptr, "out is null");
        who.require(pending_.is_valid, "there was no call of before");
        who.require(receive.size_bytes() == ranks() * pending_.bytes,
            "receive does not have size() times as many bytes as send had");
        who.require_immediate();
        const auto scope = enter_device(*comm_);
        pending_.is_valid = false;
        const std::uint64_t count = receive.count() / ranks();
        gather_memory<device>& memory = *memory_;
        enqueue_marked(memory.use.wait_for_last(stream, where), stream, [&] {
            auto& world = innermost(*comm_);
            for (std::uint64_t rank = 0; rank < ranks(); ++rank) {
                take_digest(receive.part(rank * count, count), memory.received.data() + rank, stream);
            }
            world.all_gather(view<const std::uint64_t>(memory.own), view<std::uint64_t>(memory.owners), stream, where);
            device::sum_each(stream, 1,
                compare_shards{memory.owners.data(), memory.received.data(), ranks(), memory.report.data()});
            world.all_gather(
                view<const std::uint64_t>(memory.report), view<std::uint64_t>(memory.reports), stream, where);
            device::sum_each(stream, 1, judge_gather{memory.reports.data(), ranks(), out});
        });
    }

private:
    using caller = detail::caller<Comm>;

    struct pair_of_calls {
        std::uint64_t bytes = 0;
        bool is_valid = false; ///< `before` was called
    };

    std::uint64_t ranks() const noexcept { return static_cast<std::uint64_t>(comm_->size()); }
    template <class T>
    void take_digest(view<const T> of, std::uint64_t* to, stream_ref stream)
    {
        device::reduce(stream, digest_reducer<T>{of}, of.count(), to, memory_->reduces);
    }
    /// Digests read bytes, so any address is valid.
    template <class T>
    static void require_not_null(view<T> data, const char* argument, const caller& who)
    {
        who.require_readable(view(reinterpret_cast<const unsigned char*>(data.data()), data.size_bytes()), argument);
    }

    Comm* comm_;
    pair_of_calls pending_;
    in_flight<gather_memory<device>> memory_;
};

} // namespace collprobe::detail
