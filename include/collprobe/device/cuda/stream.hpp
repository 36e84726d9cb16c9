// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <string>
#include <utility>

#include <collprobe/detail/ref.hpp>
#include <collprobe/detail/serial.hpp>
#include <collprobe/detail/wait.hpp>
#include <collprobe/device/cuda/detail/event_pool.hpp>
#include <collprobe/device/cuda/error.hpp>
#include <collprobe/order/hooks.hpp>

/// Streams and events of CUDA, with the names and errors of the host's (device/host/stream.hpp). Only `synchronize`
/// blocks the host. After the first use nothing here creates or allocates anything.
namespace collprobe::inline COLLPROBE_ABI::cuda {

class event;

/// The identity of the stream that a handle means on the calling thread: equal only for the same stream. A new stream
/// may have the handle of a destroyed one, and `cudaStreamPerThread` is another stream on every thread.
struct stream_id {
    unsigned long long number = 0; ///< CUDA's; where it has none, the handle and `of_handle`
    std::uint64_t thread = 0; ///< of streams that belong to a thread
    static constexpr unsigned long long of_handle = 1ull << 63; ///< no number of CUDA's has this bit
    friend bool operator==(stream_id, stream_id) = default;
};

namespace detail {

/// Whether a null handle means cudaStreamPerThread in this translation unit, instead of cudaStreamLegacy.
#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
constexpr bool null_is_per_thread = true;
#else
constexpr bool null_is_per_thread = false;
#endif

} // namespace detail

/// A borrowed `cudaStream_t`, for instance the trainer's. Copy it freely; it must not outlive the stream. Any thread
/// may use it.
///
/// It may be a default stream: `cudaStream_t{}`, `cudaStreamLegacy` or `cudaStreamPerThread`. The literals `nullptr`
/// and `0` are rejected, because they are usually mistakes. The conversion replaces `cudaStream_t{}` by the default
/// stream that it means in that translation unit, which may be compiled for legacy or for per-thread default streams.
/// The library's own code is shared by units of both kinds; there the linker would choose the meaning of a null
/// handle.
class stream_ref {
public:
    // The parameter makes a separate function for each kind of translation unit.
    template <bool per_thread = detail::null_is_per_thread>
    stream_ref(cudaStream_t handle) noexcept
        : handle_(handle != nullptr ? handle : per_thread ? cudaStreamPerThread : cudaStreamLegacy)
    {
    }
    stream_ref(std::nullptr_t) = delete;
    stream_ref(int) = delete;

    /// Never null.
    /// \throws error `invalid_argument` if the `stream` was moved from: CUDA would take a null handle for a default
    ///   stream.
    cudaStream_t get(call_site where = call_site::current()) const
    {
        if (handle_ != nullptr) return handle_;
        collprobe::detail::refuse(
            "stream", "the stream was moved from: CUDA would take its null handle for a default stream", where);
    }

    /// Whether it is the legacy default stream.
    bool is_default() const noexcept { return handle_ == cudaStreamLegacy; }
    /// Whether it is the per-thread default stream, another one on every thread.
    bool is_per_thread() const noexcept { return handle_ == cudaStreamPerThread; }

    /// Whether it is ordered against the legacy default stream. A stream is, unless it was created as non-blocking.
    bool blocking(call_site where = call_site::current()) const
    {
        unsigned int flags = 0;
        check(cudaStreamGetFlags(get(where), &flags), "cudaStreamGetFlags", device_, handle_, where);
        return (flags & cudaStreamNonBlocking) == 0;
    }

    /// In a capture another one than outside: CUDA does not tell the number of a stream that is being captured.
    stream_id id(call_site where = call_site::current()) const
    {
        stream_id own{stream_id::of_handle | reinterpret_cast<std::uintptr_t>(get(where))};
        if (!is_default() && !capturing(where))
            check(cudaStreamGetId(handle_, &own.number), "cudaStreamGetId", device_, handle_, where);
        if (is_per_thread()) own.thread = collprobe::detail::number_of_thread();
        return own;
    }

    /// The ordinal of its device. CUDA before 12.8 cannot tell the device of a borrowed handle: the current device is
    /// taken there, so a trainer's stream must belong to the current device.
    int device(call_site where = call_site::current()) const
    {
        if (device_ >= 0) return device_;
        int ordinal = -1;
        check(detail::device_of(get(where), ordinal), "cudaStreamGetDevice", detail::current_device(), handle_,
            where);
        return ordinal;
    }

    /// Whether a capture is under way on it, valid or not.
    bool capturing(call_site where = call_site::current()) const
    {
        const device_guard current(device_, where);
        cudaStreamCaptureStatus state = cudaStreamCaptureStatusNone;
        check(cudaStreamIsCapturing(get(where), &state), "cudaStreamIsCapturing", device_, handle_, where);
        return state != cudaStreamCaptureStatusNone;
    }
    /// The number of the capture under way on it, which no other capture ever has. 0 if no capture is under way or
    /// the capture is not valid any more.
    unsigned long long capture_number(call_site where = call_site::current()) const
    {
        cudaStreamCaptureStatus state = cudaStreamCaptureStatusNone;
        unsigned long long number = 0;
        check(cudaStreamGetCaptureInfo(get(where), &state, &number), "cudaStreamGetCaptureInfo", device_, handle_,
            where);
        return state == cudaStreamCaptureStatusNone ? 0 : number;
    }

    /// Work enqueued from now on runs after the work that `awaited` captured, on whatever device that was. No host
    /// synchronisation. Waiting for an event of a capture makes this stream part of that capture.
    /// \throws error `invalid_argument` if the event was never recorded (CUDA would silently not wait), if it was
    ///   recorded in a capture that has ended or is not this stream's, or if this stream is in a capture and the
    ///   event is not (CUDA would give up the capture); `device_failure`.
    void wait(const event& awaited, call_site where = call_site::current()) const;

    /// Blocks the caller until all work enqueued before the call is done.
    /// \throws error `invalid_argument` while the stream is capturing (the capture stays valid);
    /// `device_failure` if the device failed.
    void synchronize(call_site where = call_site::current()) const
    {
        refuse_capture(where);
        const device_guard current(device_, where);
        const detail::relaxed_capture_mode relaxed;
        const order_hooks::point here = order_hooks::now(*this);
        check(cudaStreamSynchronize(handle_), "cudaStreamSynchronize", device_, handle_, where);
        order_hooks::reached(here);
    }
    /// The same with a deadline, by polling; a negative number of milliseconds means none. Takes an event from the
    /// pool.
    /// \throws error `timeout` if work is left then.
    void synchronize(std::int64_t timeout_ms, call_site where = call_site::current()) const;

    /// Whether all work enqueued so far is done. Never blocks, never throws and says nothing of
    /// errors: true as well if the device has failed. False while the stream is capturing.
    bool query() const noexcept
    {
        if (handle_ == nullptr) return true; // moved from: it has no work
        const device_guard current(device_, std::nothrow);
        const detail::relaxed_capture_mode relaxed;
        cudaStreamCaptureStatus state = cudaStreamCaptureStatusNone;
        if (const cudaError_t code = cudaStreamIsCapturing(handle_, &state); code != cudaSuccess) {
            detail::forget(code);
            return code != cudaErrorStreamCaptureImplicit;
        }
        if (state != cudaStreamCaptureStatusNone) return false;
        const order_hooks::point here = order_hooks::now(*this);
        const cudaError_t code = cudaStreamQuery(handle_);
        order_hooks::reached(here, code == cudaSuccess);
        if (code != cudaSuccess) detail::forget(code);
        return code != cudaErrorNotReady;
    }

    friend bool operator==(stream_ref a, stream_ref b) noexcept { return a.handle_ == b.handle_; }

private:
    friend class stream;
    stream_ref(cudaStream_t handle, int device) noexcept : handle_(handle), device_(device) {}
    void refuse_capture(call_site where) const
    {
        collprobe::detail::require(!capturing(where), "synchronize",
            "the stream is capturing: what it records runs when the graph is launched, so there is nothing to wait for",
            where);
    }
    cudaStream_t handle_;
    int device_ = -1; // known of a `stream`
};

/// An owned stream of the current device, which is not ordered against the default stream. The destructor does not
/// wait: as with `cudaStreamDestroy`, work enqueued before it still runs. So synchronise before you free memory that
/// the work uses.
///
/// An object that was moved from has no work, and all but its `query` throws `invalid_argument`.
class stream : public stream_ref {
public:
    stream(call_site where = call_site::current()) : stream_ref(nullptr, -1)
    {
        check(cudaGetDevice(&device_), "cudaGetDevice", -1, where);
        const detail::relaxed_capture_mode relaxed;
        check(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags",
            device_, where);
    }
    stream(stream&& other) noexcept
        : stream_ref(std::exchange(other.handle_, nullptr), std::exchange(other.device_, -1))
    {
    }
    stream& operator=(stream&& other) noexcept
    {
        std::swap(handle_, other.handle_);
        std::swap(device_, other.device_);
        return *this;
    }
    ~stream()
    {
        if (handle_ == nullptr) return;
        const device_guard current(device_, std::nothrow);
        order_hooks::stream_ended(*this);
        if (const cudaError_t code = cudaStreamDestroy(handle_); code != cudaSuccess) detail::forget(code);
    }
};

/// A point in a stream. A record captures the work enqueued so far and replaces the earlier record. It does not
/// affect streams and threads that already wait. A copy marks the same point and keeps it: a new record of the
/// original does not affect its copies.
///
/// The CUDA event comes from a pool (event_pool) at the first record and goes back at the end. A record on a stream
/// of another device, or while copies exist, takes another CUDA event. One thread at a time may use an `event`;
/// copies are independent.
class event {
public:
    event() noexcept = default;

    /// Captures the work enqueued on `on` before this call. During a capture it marks a point of the graph; streams
    /// can wait for that point and the host cannot. On failure the earlier record stays.
    void record(stream_ref on, call_site where = call_site::current())
    {
        const int device = on.device(where);
        const device_guard current(device, where);
        const unsigned long long capture = on.capture_number(where);
        if (point_.is_sole() && point_->device == device) {
            record(*point_, on, where);
        } else {
            auto fresh = detail::event_pool::take(device, where);
            record(*fresh, on, where);
            point_ = std::move(fresh);
        }
        stream_ = on.get();
        capture_ = capture;
        order_hooks::record(order_, on, point_->handle);
    }
    bool recorded() const noexcept { return static_cast<bool>(point_); }
    /// The CUDA event of the last record, for calls outside this library; null if there is none.
    cudaEvent_t get() const noexcept { return point_ ? point_->handle : nullptr; }

    /// Whether the captured work is done. Never blocks; invalidates no capture.
    /// \throws error `invalid_argument` if the event was never recorded, or last in a capture; `device_failure`.
    bool query(call_site where = call_site::current()) const
    {
        require_host_visible("query", where);
        return poll(where);
    }
    /// Blocks the caller until the captured work is done. Errors as `query`.
    void synchronize(call_site where = call_site::current()) const
    {
        require_host_visible("synchronize", where);
        const device_guard current(point_->device, where);
        const detail::relaxed_capture_mode relaxed;
        check(cudaEventSynchronize(get()), "cudaEventSynchronize", point_->device, stream_, where);
        order_hooks::reached(order_);
    }
    /// The same with a deadline, by polling; a negative number of milliseconds means none.
    /// \throws error `timeout` if work is left then.
    void synchronize(std::int64_t timeout_ms, call_site where = call_site::current()) const
    {
        if (timeout_ms < 0) return synchronize(where);
        require_host_visible("synchronize", where);
        wait_until_done(timeout_ms, "the work captured by the event", where);
    }

private:
    friend class stream_ref;

    static void record(const detail::event_node& point, stream_ref on, call_site where)
    {
        check(cudaEventRecord(point.handle, on.get()), "cudaEventRecord", point.device, on.get(), where);
    }

    bool poll(call_site where) const
    {
        // The polling thread may be one that has set no device.
        const device_guard current(point_->device, where);
        const detail::relaxed_capture_mode relaxed;
        const cudaError_t code = cudaEventQuery(get());
        if (code == cudaErrorNotReady) {
            detail::forget(code);
            return false;
        }
        check(code, "cudaEventQuery", point_->device, stream_, where);
        order_hooks::reached(order_);
        return true;
    }

    void wait_until_done(std::int64_t timeout_ms, const char* what, call_site where) const
    {
        const auto until = collprobe::detail::deadline::in_ms(timeout_ms);
        for (unsigned round = 0; !poll(where); ++round) {
            if (until.passed()) {
                throw error(status::timeout,
                    std::string(what) + " did not finish within " + std::to_string(timeout_ms) + " ms on "
                        + detail::describe(point_->device, stream_),
                    {.call = "synchronize", .where = where});
            }
            collprobe::detail::back_off(round);
        }
    }

    void require_recorded(const char* call, call_site where) const
    {
        collprobe::detail::require(
            recorded(), call, "the event was never recorded, so there is nothing to wait for", where);
    }
    void require_host_visible(const char* call, call_site where) const
    {
        require_recorded(call, where);
        collprobe::detail::require(capture_ == 0, call,
            "the event was recorded in a capture: it is a point of a graph, which only streams can wait for", where);
    }

    collprobe::detail::ref<detail::event_node> point_;
    cudaStream_t stream_ = nullptr; // for messages only: it may be gone
    unsigned long long capture_ = 0;
    [[no_unique_address]] order_hooks::point order_;
};

inline void stream_ref::wait(const event& awaited, call_site where) const
{
    awaited.require_recorded("wait", where);
    const device_guard current(device_, where);
    const cudaError_t code = cudaStreamWaitEvent(get(where), awaited.get(), 0);
    if (code == cudaSuccess) {
        order_hooks::wait(*this, awaited.order_, where);
        return;
    }
    if (code == cudaErrorCapturedEvent || code == cudaErrorStreamCaptureIsolation
        || code == cudaErrorStreamCaptureMerge) {
        detail::forget(code);
        const char* const misuse = awaited.capture_ == 0
            ? "the stream is capturing, and the event was recorded outside the capture"
            : "the event was recorded in a capture that has ended or is not the stream's";
        collprobe::detail::refuse(
            "wait", std::string(misuse) + ": cudaStreamWaitEvent says " + detail::describe(code), where);
    }
    check(code, "cudaStreamWaitEvent", device_, handle_, where);
}

inline void stream_ref::synchronize(std::int64_t timeout_ms, call_site where) const
{
    if (timeout_ms < 0) return synchronize(where);
    refuse_capture(where);
    event last;
    last.record(*this, where);
    last.wait_until_done(timeout_ms, "work on the stream", where);
}

} // namespace collprobe::cuda
