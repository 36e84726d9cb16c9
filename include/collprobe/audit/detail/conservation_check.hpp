// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

#include <collprobe/audit/conservation_bound.hpp>
#include <collprobe/comm/adaptor.hpp>
#include <collprobe/comm/caller.hpp>
#include <collprobe/comm/capabilities.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/wait.hpp>
#include <collprobe/device/in_flight.hpp>
#include <collprobe/scan/sketch.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// The memory of a check.
template <class Device>
struct conservation_memory {
    explicit conservation_memory(std::uint64_t bins) : sketches(4 * bins), scratch(sketch_scratch_numbers<Device>(bins))
    {
        Device::load_kernels();
    }
    /// The sketch of the inputs, followed by that of the result.
    template <element T>
    sketch_sum<T>* input() const noexcept
    {
        return reinterpret_cast<sketch_sum<T>*>(sketches.data());
    }
    template <element T>
    sketch_sum<T>* result(std::uint64_t bins) const noexcept
    {
        return input<T>() + sketch_numbers<T>(bins);
    }

    bool finished_by(deadline until) const noexcept { return detail::finished_by(until, done); }

    typename Device::template buffer<double> sketches;
    typename Device::template buffer<double> scratch;
    typename Device::workspace reduces;
    typename Device::event done; ///< end of the last call: no work after it uses the memory
};

/// Checks by a linear checksum whether the result of an all-reduce or reduce-scatter is the sum or average of the
/// ranks' inputs. Use: `check.before<float>(gradient, stream)`, the collective (it may overwrite the gradient), then
/// `check.after<float>(gradient, reduction::sum, verdict.data(), stream)`.
/// `before` sketches the rank's input. `after` adds the sketches over the ranks, sketches the result and compares bin
/// by bin, up to a bound for rounding (`conservation_bound`). Integer sums must match exactly. Every rank judges its
/// own result. If an input is not finite, nothing is checked. A result that is not finite is a violation if no sum of
/// the inputs can overflow. README.md says what is seen and what is not.
/// Preconditions: all ranks call `before` and `after` around the same collective, with the same options (collective).
/// Stream behaviour: everything is enqueued; the host neither waits nor allocates. Use one object on one stream, or
/// order the streams. Calls may be captured; their graphs must not be launched once the object is gone.
/// Errors: `unsupported` inside an NCCL group.
/// Cost: a read of the input, one of the result, and an all-reduce of 16 bytes a bin (8 for integers; twice that for a
/// reduce-scatter). Memory on the device: 48 bytes a bin on the CPU, 2 KiB a bin (8 MiB in all) on a GPU.
/// Source: K.-H. Huang and J. Abraham, "Algorithm-based fault tolerance for matrix operations" (1984).
template <communicator Comm>
class conservation_check {
public:
    using device = typename Comm::device;
    using stream_ref = stream_ref_of<Comm>;

    /// Allocates. The object refers to `comm`, which must outlive it. The checksums go through the innermost
    /// communicator, so adaptors in `comm` do not see them.
    /// \throws error `invalid_argument` unless the number of bins is a power of two from 64 to 2^20 and `sigmas` is
    ///   finite and above 0.
    explicit conservation_check(Comm& comm, const conservation_options& options = {},
        call_site where = call_site::current())
        : comm_(&comm), options_(options), terms_(terms_of(options.order, comm.size()))
    {
        require_sketch_options(options_.sketch, "conservation_check", where);
        if (!is_finite(options_.sigmas) || options_.sigmas <= 0)
            caller(comm, "conservation_check", where)
                .fail(status::invalid_argument, "sigmas must be finite and above 0");
        const auto scope = enter_device(comm);
        memory_ = in_flight<conservation_memory<device>>(
            timeout_of(comm), options_.sketch.bins);
    }
    /// Legal while calls are under way. A moved-from object can only be destroyed or assigned to.
    conservation_check(conservation_check&&) = default;
    conservation_check& operator=(conservation_check&&) = default;
    /// Refers to `comm` from now on; for a communicator that was moved.
    void rebind(Comm& comm) noexcept { comm_ = &comm; }
    /// Waits for the work that uses the memory, at most the communicator's time-out; after that the memory is leaked.
    ~conservation_check() = default;

    const conservation_options& options() const noexcept { return options_; }

    /// Sketches this rank's input. Call it before the collective.
    /// \throws error `invalid_argument` for a null or misaligned view; `unsupported` inside an NCCL group.
    template <element T>
    void before(std::type_identity_t<view<const T>> send, stream_ref stream, call_site where = call_site::current())
    {
        const caller who(*comm_, "conservation_check::before", where);
        who.require_readable(send, "send");
        who.require_immediate();
        const auto scope = enter_device(*comm_);
        pending_ = {send.count(), element_traits<T>::type, true};
        marked(stream, [&] { enqueue_sketch<T>(stream, source_of<T>(send), memory_->template input<T>()); });
    }

    /// Compares and writes this rank's verdict to `*out`, memory that the device can write. Call it behind the
    /// collective.
    /// Shapes: `receive` is the whole result, with as many elements as `send`.
    /// \throws error `invalid_argument` if `receive` does not match the last `before`; those of the communicator.
    template <element T>
    void after(std::type_identity_t<view<const T>> receive, reduction operation, conservation_result* out,
        stream_ref stream, call_site where = call_site::current())
    {
        require_fit<T>(receive, receive.count(), out, {*comm_, "conservation_check::after", where});
        judge<T>(source_of<T>(receive), receive.count(), 1, operation, out, stream, where);
    }

    /// As `after`, behind a reduce-scatter; `receive` is this rank's part. The same message also adds the sketches of
    /// all parts. So all ranks get the same verdict, which does not tell which rank's part was damaged.
    template <element T>
    void after_reduce_scatter(std::type_identity_t<view<const T>> receive, reduction operation,
        conservation_result* out, stream_ref stream, call_site where = call_site::current())
    {
        const std::uint64_t count = receive.count() * static_cast<std::uint64_t>(comm_->size());
        require_fit<T>(receive, count, out, {*comm_, "conservation_check::after_reduce_scatter", where});
        const std::uint64_t first = receive.count() * static_cast<std::uint64_t>(comm_->rank());
        judge<T>(source_of<T>(receive, first), count, 2, operation, out, stream, where);
    }

private:
    using caller = detail::caller<Comm>;

    struct expectation {
        std::uint64_t count = 0;
        element_type type = element_type::float32;
        bool is_valid = false;
    };

    template <element T>
    sketch_source<T> source_of(view<const T> data, std::uint64_t first = 0) const noexcept
    {
        return {data, first, options_.sketch.bins, options_.sketch.seed};
    }
    template <element T>
    void enqueue_sketch(stream_ref stream, const sketch_source<T>& source, sketch_sum<T>* to)
    {
        detail::enqueue_sketch<device>(stream, source, to, reinterpret_cast<sketch_sum<T>*>(memory_->scratch.data()));
    }

    /// `result`: a whole result, or this rank's part of a result of `count` elements. `added_up`: number of sketches
    /// (of the inputs, of the result) that are still to be added over the ranks.
    template <element T>
    void judge(const sketch_source<T>& result, std::uint64_t count, std::uint64_t added_up,
        reduction operation, conservation_result* out, stream_ref stream, call_site where)
    {
        const std::uint32_t bins = options_.sketch.bins;
        pending_.is_valid = false;
        const auto scope = enter_device(*comm_);
        sketch_sum<T>* const of_input = memory_->template input<T>();
        sketch_sum<T>* const of_result = memory_->template result<T>(bins);
        const auto judge = judge_conservation<T>(of_input, of_result, bins, (count + bins - 1) / bins,
            operation, options_.order, comm_->size(), options_.sigmas, terms_);
        marked(stream, [&] {
            if (!judge.can_check) {
                // This holds on all ranks or on none, so nothing needs to be sent.
                device::fill(stream, view<conservation_result>(out, 1), {0, judge.limit, 0, false, true}, where);
                return;
            }
            enqueue_sketch<T>(stream, result, of_result);
            const view<sketch_sum<T>> sums(of_input, added_up * sketch_numbers<T>(options_.sketch));
            innermost(*comm_).all_reduce(view<const sketch_sum<T>>(sums), sums, reduction::sum, stream, where);
            device::reduce(stream, judge, bins, out, memory_->reduces);
        });
    }

    /// Records `done`, except in a capture: an event of a capture is not valid outside its graph.
    template <class Enqueue>
    void marked(stream_ref stream, const Enqueue& enqueue)
    {
        if constexpr (can_capture<stream_ref>) {
            if (stream.capturing(call_site::current())) return enqueue();
        }
        enqueue_marked(memory_->done, stream, enqueue);
    }

    template <element T>
    void require_fit(
        view<const T> receive, std::uint64_t count, const conservation_result* out, const caller& who) const
    {
        who.require_readable(receive, "receive");
        who.require_immediate();
        who.require(out != nullptr, "out is null");
        who.require(pending_.is_valid, "there was no call of before");
        if (pending_.type == element_traits<T>::type && pending_.count == count) return;
        who.fail(status::invalid_argument,
            "receive has " + std::to_string(receive.count()) + " elements of " + element_traits<T>::name
                + ", but before was given " + std::to_string(pending_.count) + " of " + name(pending_.type));
    }

    Comm* comm_;
    conservation_options options_;
    rounded_terms terms_;
    expectation pending_;
    in_flight<conservation_memory<device>> memory_;
};

} // namespace collprobe::detail
