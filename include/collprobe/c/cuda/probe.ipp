// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/c/detail/probe.hpp>
#include <collprobe/device/cuda/device.hpp>
#include <collprobe/device/host/device.hpp>

/// The probe around anything, with buffers on a GPU. Included where the kernels are compiled.
///
/// The reads are kernels on the streams of the caller. The exchange is the work of a thread, which enqueues on a stream
/// of its own and calls the caller's function when that stream has come to the message. So no stream ever waits for the
/// function: with a callback of CUDA (`cudaLaunchHostFunc`), a program that synchronises the device, as `cudaFree` does
/// too, would wait for peers; and for ever, if it holds a lock that the function needs, as Python's.
namespace collprobe::inline COLLPROBE_ABI::c {

namespace {

/// The thread of the exchange and its stream.
struct exchange_lane {
    int ordinal = cuda::device::current_ordinal(call_site{});
    cuda::stream stream{call_site{}};
    std::vector<unsigned char> sent; ///< copies for the caller's function
    std::vector<unsigned char> received;
    host::stream thread; ///< goes first
};

/// CUDA, with one more stream: that of the exchange. No capture is possible.
struct exchanging_device {
    class event;
    /// A stream of the caller, or that of the exchange.
    class stream_ref {
    public:
        stream_ref(cuda::stream_ref on) noexcept : on_(on) {}
        stream_ref(exchange_lane& lane) : on_(lane.stream), lane_(&lane) {}

        auto id(call_site where) const { return on_.id(where); }
        void wait(const event& awaited, call_site where) const;
        void synchronize(call_site where) const
        {
            if (lane_ != nullptr) lane_->thread.synchronize(where);
            on_.synchronize(where);
        }
        cuda::stream_ref caller() const noexcept { return on_; }
        exchange_lane* lane() const noexcept { return lane_; }

        /// Enqueues `work(stream)`.
        template <class Work>
        void enqueue(const Work& work) const
        {
            if (lane_ == nullptr) return work(on_);
            lane_->thread.enqueue([lane = lane_, work] {
                const cuda::device_guard current(lane->ordinal, call_site{});
                work(cuda::stream_ref(lane->stream));
            });
        }

    private:
        cuda::stream_ref on_;
        exchange_lane* lane_ = nullptr;
    };
    /// A stream for the time in which memory is prepared.
    struct stream : cuda::stream {
        stream() : cuda::stream(call_site{}) {}
    };

    class event {
    public:
        void record(stream_ref on)
        {
            of_exchange_ = on.lane() != nullptr;
            if (!of_exchange_) return of_caller_.record(on.caller(), call_site{});
            on.enqueue([](cuda::stream_ref stream) { stream.synchronize(call_site{}); });
            by_thread_.record(on.lane()->thread);
        }
        bool recorded() const noexcept { return of_exchange_ ? by_thread_.recorded() : of_caller_.recorded(); }
        bool query() const { return of_exchange_ ? by_thread_.query(call_site{}) : of_caller_.query(call_site{}); }
        void synchronize(std::int64_t timeout_ms) const
        {
            if (of_exchange_) by_thread_.synchronize(timeout_ms, call_site{});
            else of_caller_.synchronize(timeout_ms, call_site{});
        }

    private:
        friend class stream_ref;
        cuda::event of_caller_;
        host::event by_thread_;
        bool of_exchange_ = false;
    };

    template <class T>
    using buffer = cuda::buffer<T>;
    template <class T>
    using host_buffer = cuda::pinned_buffer<T>;
    using workspace = cuda::workspace;
    static constexpr const char* name = "cuda";
    static constexpr std::uint64_t body_bytes = cuda::device::body_bytes;

    template <class T>
    static void copy(stream_ref on, view<const T> source, view<T> destination, call_site where = {})
    {
        on.enqueue([=](cuda::stream_ref stream) { cuda::device::copy(stream, source, destination, where); });
    }
    template <class T>
    static void zero(stream_ref on, view<T> destination, call_site where = {})
    {
        on.enqueue([=](cuda::stream_ref stream) { cuda::device::zero(stream, destination, where); });
    }
    template <class Body>
    static void for_each(stream_ref on, std::uint64_t count, Body body)
    {
        on.enqueue([=](cuda::stream_ref stream) { cuda::device::for_each(stream, count, body); });
    }
    template <class Reducer, class Result>
    static void reduce(stream_ref on, Reducer reducer, std::uint64_t count, Result* result, workspace& scratch,
        reduction_times times = {})
    {
        on.enqueue([=, at = &scratch](cuda::stream_ref stream) {
            cuda::device::reduce(stream, reducer, count, result, *at, times);
        });
    }
};

void exchanging_device::stream_ref::wait(const event& awaited, call_site where) const
{
    if (awaited.of_exchange_) {
        // The exchange comes behind itself. A stream of the caller has nothing of it to wait for.
        if (lane_ == nullptr) awaited.synchronize(-1);
        return;
    }
    enqueue([point = awaited.of_caller_, where](cuda::stream_ref stream) { stream.wait(point, where); });
}

/// A communicator whose one collective is the all-gather of the caller.
class cuda_callback_communicator : public collectives<cuda_callback_communicator, exchanging_device> {
public:
    cuda_callback_communicator(step_exchange& by, int ordinal) noexcept : by_(&by), ordinal_(ordinal) {}
    int rank() const noexcept { return static_cast<int>(by_->heading.rank); }
    int size() const noexcept { return static_cast<int>(by_->heading.ranks); }
    const std::string& name() const noexcept { return by_->name; }
    std::int64_t timeout_ms() const noexcept { return -1; } // the caller's function has one of its own
    static constexpr bool has_collective(collective what) noexcept { return what == collective::all_gather; }
    cuda::device_guard device_scope() const { return cuda::device_guard(ordinal_, call_site{}); }

    template <element T>
    void make(const collective_call& call, stream_ref on) const
    {
        const view<const unsigned char> from = call.bytes_sent(rank());
        const view<unsigned char> to(static_cast<unsigned char*>(call.receive), call.bytes_received().size_bytes());
        step_heading own = by_->heading;
        own.bytes = from.size_bytes();
        on.enqueue([by = by_, calls = by_->shown, own, from, to, lane = on.lane()](cuda::stream_ref stream) {
            lane->sent.resize(from.size());
            lane->received.resize(to.size());
            cuda::device::copy(stream, from, view<unsigned char>(lane->sent), call_site{});
            stream.synchronize(call_site{});
            if (!by->run(own, calls, lane->sent.data(), lane->received.data(), from.size())) return;
            cuda::device::copy(
                stream, view<const unsigned char>(view<unsigned char>(lane->received)), to, call_site{});
        });
    }

private:
    step_exchange* by_;
    int ordinal_;
};

struct cuda_streams {
    exchange_lane* messages;

    exchanging_device::stream_ref of(collprobeStream_t on) const
    {
        const cuda::stream_ref stream(on);
        if (!stream.capturing(call_site{})) return stream;
        throw error(status::unsupported,
            "stream: it is capturing a graph, which would repeat the read and not the exchange: show calls outside",
            {.where = {}});
    }
    exchanging_device::stream_ref exchange(collprobeStream_t) const { return *messages; }
};

class cuda_probe : exchange_lane, public probe_of<cuda_callback_communicator, cuda_streams> {
public:
    cuda_probe(step_exchange& exchange, const probe_options& options)
        : probe_of(options, cuda_streams{this}, exchange, exchange_lane::ordinal)
    {
    }

private:
    /// A loss in memory of the device is copied on the caller's stream, because the exchange reads it later.
    void end_step(std::uint64_t step, const step_observation& seen, collprobeStream_t on) override
    {
        if (seen.loss.single() == nullptr) return probe_of::end_step(step, seen, on);
        const cuda::device_guard current(exchange_lane::ordinal, call_site{});
        const cuda::stream_ref caller = streams_.of(on).caller();
        const view<float> kept(losses_.data() + steps_++ % losses_.size(), 1);
        cuda::device::copy(caller, view<const float>(seen.loss.single(), 1), kept, call_site{});
        exchanging_device::event done;
        done.record(caller);
        const exchanging_device::stream_ref messages(*this);
        messages.wait(done, call_site{});
        step_observation copied = seen;
        copied.loss = static_cast<const float*>(kept.data());
        probe_.end_step(step, copied, messages, call_site{});
    }

    cuda::buffer<float> losses_{5}; ///< more than steps can be under way
    std::uint64_t steps_ = 0;
};

} // namespace
} // namespace collprobe::c

namespace collprobe::inline COLLPROBE_ABI {

c::any_probe* c::make_cuda_probe(step_exchange& exchange, const probe_options& options)
{
    // Ranks on GPUs may be late, however many processors this machine has.
    probe_options timed = options;
    timed.lateness_floor_ns = detail::usual_lateness_floor_ns;
    return new cuda_probe(exchange, timed);
}

} // namespace collprobe
