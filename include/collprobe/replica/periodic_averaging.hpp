// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <collprobe/comm/caller.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/wait.hpp>
#include <collprobe/device/in_flight.hpp>
#include <collprobe/replica/detail/average_replicas.hpp>
#include <collprobe/replica/replica.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// The interval between averages, and the memory for them. Equal on all ranks.
struct periodic_options {
    std::uint64_t interval = 10; ///< H: number of steps from one average to the next
    /// Elements of float scratch memory on the device for elements narrower than float. Larger buffers are averaged
    /// in pieces.
    std::uint64_t scratch_elements = std::uint64_t{1} << 20;
    /// PAFT assumes that the average itself is never hit, so it uses the innermost communicator. With true it goes
    /// through the adaptors too, such as a fault injector.
    bool through_adaptors = false;
};

/// Averages replicas that drift apart, every H steps (PAFT-Sync, algorithm 1). Each step, behind the optimiser, call
/// `repair.step(stream)` of a `periodic_averaging repair(comm, weights, {.interval = 10})`.
/// It bounds the drift without detecting it, and spreads errors to all ranks: sigma^2 / M of the noise remains.
/// `majority_repair` is exact if most ranks are right.
/// Shapes: floating-point buffers of any types, borrowed; the same list and counts on all ranks. Narrower elements
/// are sent and added as float, and rounded once. Equal replicas keep their bits if the number of ranks is a power of
/// two.
/// Result: all ranks hold the same bits, unless an adaptor changes what a rank receives (`through_adaptors`). In that
/// case `majority_repair` gives all ranks the bits that most received.
/// Preconditions: one thread at a time.
/// Stream behaviour: enqueued on `stream`; the host neither waits nor allocates. `average` may be captured if there are
/// no elements narrower than float.
/// Errors: `invalid_argument` for integers (repair those by majority), null or misaligned buffers, interval 0; those of
/// the communicator.
/// Cost: an all-reduce of the buffers every H steps; narrower elements are sent as 4 bytes, with two more passes.
template <communicator Comm>
class periodic_averaging {
public:
    using device = typename Comm::device;
    using stream_ref = stream_ref_of<Comm>;

    /// Takes ownership of the communicator, which `communicator()` returns.
    periodic_averaging(Comm comm, view<const replica> buffers, const periodic_options& options = {},
        call_site where = call_site::current())
        : comm_(std::move(comm)), buffers_(buffers.begin(), buffers.end()), options_(options)
    {
        detail::require_averages(comm_, buffers_, "buffers", "periodic_averaging", where);
        const detail::caller<Comm> who(comm_, "periodic_averaging", where);
        who.require(options.interval != 0, "interval must not be 0");
        who.require(options.scratch_elements != 0, "scratch_elements must not be 0");
        const auto scope = comm_.device_scope();
        memory_ = detail::in_flight<memory>(
            comm_.timeout_ms(), detail::scratch_for(buffers_, options.scratch_elements));
        device::load_kernels();
    }
    /// A single buffer is not a list. Pass `std::vector<replica> list{view(weights)}`.
    template <detail::buffer_and_no_list_of_replicas Buffer>
    periodic_averaging(const Comm&, const Buffer&, const periodic_options& = {}) = delete;
    /// Legal while an average is under way. A moved-from object can only be destroyed or assigned to.
    periodic_averaging(periodic_averaging&&) = default;
    periodic_averaging& operator=(periodic_averaging&& other) noexcept
    {
        return detail::replace(*this, std::move(other));
    }
    /// Waits until no work uses the scratch memory, at most the communicator's time-out; after that it is leaked.
    ~periodic_averaging() = default;

    /// Ends one step and enqueues an average after every H-th. Returns whether it enqueued one.
    /// Collective at every H-th call.
    bool step(stream_ref stream, call_site where = call_site::current())
    {
        if (++steps_ % options_.interval != 0) return false;
        average(stream, where);
        return true;
    }

    /// Enqueues an average now, in any step. Collective.
    void average(stream_ref stream, call_site where = call_site::current())
    {
        const auto scope = comm_.device_scope();
        if (memory_->scratch.size() != 0 && memory_->done.recorded()) stream.wait(memory_->done, where);
        detail::enqueue_marked(memory_->done, stream, [&] {
            detail::with_route(comm_, options_.through_adaptors, [&](auto& route) {
                for (const replica& each : buffers_) {
                    detail::average_replica(route, each, each, view<float>(memory_->scratch), stream, where);
                }
            });
        });
        ++rounds_;
    }

    Comm& communicator() noexcept { return comm_; }
    view<const replica> buffers() const noexcept { return buffers_; }
    std::uint64_t rounds() const noexcept { return rounds_; } ///< averages enqueued so far
    /// Bytes that this rank handed to all-reduces; a ring sends 2 (n-1)/n of that.
    std::uint64_t bytes() const noexcept { return rounds_ * detail::averaged_bytes(buffers_); }

private:
    struct memory {
        explicit memory(std::uint64_t elements) : scratch(elements) {}
        bool finished_by(detail::deadline until) const noexcept { return detail::finished_by(until, done); }

        typename device::template buffer<float> scratch;
        typename device::event done;
    };

    Comm comm_;
    std::vector<replica> buffers_;
    periodic_options options_;
    detail::in_flight<memory> memory_;
    std::uint64_t steps_ = 0;
    std::uint64_t rounds_ = 0;
};

} // namespace collprobe
