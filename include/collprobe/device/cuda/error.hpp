// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <new>
#include <string>
#include <utility>

#include <cuda_runtime_api.h>

#include <collprobe/core/error.hpp>

namespace collprobe::inline COLLPROBE_ABI::cuda {

namespace detail {

/// Clears the calling thread's last error if it is `code`. An error that the library has thrown, or the answer "not
/// ready", must not turn up again at the caller's next `cudaGetLastError`. An older error of the caller stays. An
/// error that makes the context unusable stays too, because CUDA keeps it.
inline void forget(cudaError_t code) noexcept
{
    if (cudaPeekAtLastError() == code) (void)cudaGetLastError();
}

/// The calling thread's device; -1 if CUDA cannot say.
inline int current_device() noexcept
{
    int ordinal = -1;
    const cudaError_t code = cudaGetDevice(&ordinal);
    if (code == cudaSuccess) return ordinal;
    forget(code);
    return -1;
}

/// The device of a stream. A default stream belongs to the current device. With a runtime or a driver before 12.8
/// CUDA cannot tell the device, and the current device is taken for every stream: make the stream's device current
/// there.
inline cudaError_t device_of(cudaStream_t stream, int& ordinal) noexcept
{
#if CUDART_VERSION >= 12080
    // A newer runtime may run on an older driver.
    const cudaError_t code = cudaStreamGetDevice(stream, &ordinal);
    if (code != cudaErrorCallRequiresNewerDriver && code != cudaErrorNotSupported) return code;
    forget(code);
#else
    (void)stream;
#endif
    return cudaGetDevice(&ordinal);
}

/// A function of CUDA's driver, by its name and the version of CUDA in which it came; null if CUDA finds none. The
/// program need not be linked to the driver's library.
inline void* driver_function(const char* name, [[maybe_unused]] unsigned int version) noexcept
{
    void* found = nullptr;
    cudaDriverEntryPointQueryResult status = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    const cudaError_t code = cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &status);
#else
    const cudaError_t code = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &status);
#endif
    if (code != cudaSuccess) forget(code);
    return code == cudaSuccess && status == cudaDriverEntryPointSuccess ? found : nullptr;
}

/// Whether a device has its primary context, which takes hundreds of megabytes. The question creates no context. True
/// if CUDA cannot tell.
inline bool has_context(int device) noexcept
{
    // Its CUresult and CUdevice are ints.
    using state_query = int (*)(int device, unsigned int* flags, int* active);
    static const auto ask = reinterpret_cast<state_query>(driver_function("cuDevicePrimaryCtxGetState", 7000));
    unsigned int flags = 0;
    int active = 1;
    return ask == nullptr || ask(device, &flags, &active) != 0 || active != 0;
}

/// While one of these lives, its thread may make calls that could disturb a capture. Without it an allocation, or a
/// thread that polls an event, would invalidate a capture that another thread has begun in global mode.
///
/// Like most calls of CUDA it creates a context on the current device. On a thread that may not have set a device,
/// enter the right device first.
class relaxed_capture_mode {
public:
    relaxed_capture_mode() noexcept
    {
        exchanged_ = cudaThreadExchangeStreamCaptureMode(&mode_) == cudaSuccess;
    }
    relaxed_capture_mode(const relaxed_capture_mode&) = delete;
    relaxed_capture_mode& operator=(const relaxed_capture_mode&) = delete;
    ~relaxed_capture_mode()
    {
        if (exchanged_) (void)cudaThreadExchangeStreamCaptureMode(&mode_);
    }

private:
    cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
    bool exchanged_ = false;
};

inline std::string describe(cudaError_t code)
{
    return std::string(cudaGetErrorName(code)) + " (" + cudaGetErrorString(code) + ")";
}

/// "device 1, stream 0x55d0c8"
inline std::string describe(int device, cudaStream_t stream)
{
    char handle[2 * sizeof(void*) + 16];
    if (stream == nullptr || stream == cudaStreamLegacy) {
        std::snprintf(handle, sizeof(handle), "default stream");
    } else if (stream == cudaStreamPerThread) {
        std::snprintf(handle, sizeof(handle), "per-thread stream");
    } else {
        std::snprintf(handle, sizeof(handle), "stream %p", static_cast<void*>(stream));
    }
    return "device " + (device < 0 ? std::string("unknown") : std::to_string(device)) + ", " + handle;
}

[[noreturn]] inline void fail(cudaError_t code, const char* what, const std::string& place, call_site where)
{
    forget(code);
    throw error(status::device_failure, describe(code) + " on " + place, {.call = what, .where = where});
}

} // namespace detail

/// Throws if a CUDA call without a stream failed. `what` is the name of the call, such as "cudaMalloc"; `device` is
/// its device, or -1 for the current one. Clears CUDA's last error, unless CUDA keeps it.
/// \throws error `device_failure` whose text has the call, CUDA's name and text of the error and the device.
inline void check(cudaError_t code, const char* what, int device = -1, call_site where = call_site::current())
{
    if (code == cudaSuccess) return;
    const int ordinal = device < 0 ? detail::current_device() : device;
    detail::fail(
        code, what, "device " + (ordinal < 0 ? std::string("unknown") : std::to_string(ordinal)), where);
}

/// The same for a call on a stream. The text names the stream too; `device` -1 is the stream's device.
inline void check(cudaError_t code, const char* what, int device, cudaStream_t stream,
    call_site where = call_site::current())
{
    if (code == cudaSuccess) return;
    int ordinal = device;
    if (ordinal < 0 && detail::device_of(stream, ordinal) != cudaSuccess) ordinal = -1;
    detail::fail(code, what, detail::describe(ordinal, stream), where);
}

/// Makes a device the calling thread's current one, and makes the previous device current again at the end. Switches
/// nothing if the device is current already, or for -1.
///
/// The previous device is not made current again if the process has no context on it, because CUDA would create one
/// there. This also holds for a thread that never set a device: CUDA takes it for one that uses device 0.
/// \throws error `device_failure` if there is no such device.
class device_guard {
public:
    explicit device_guard(int ordinal, call_site where = call_site::current())
    {
        const char* call = nullptr;
        const cudaError_t code = enter(ordinal, call);
        check(code, call, ordinal, where);
    }
    /// The same for code that must not throw: after a failure the previous device stays current.
    device_guard(int ordinal, std::nothrow_t) noexcept
    {
        const char* call = nullptr;
        if (const cudaError_t code = enter(ordinal, call); code != cudaSuccess) detail::forget(code);
    }
    /// Switches nothing: keeps the current device for calls that may change it.
    explicit device_guard(std::nothrow_t) noexcept : previous_(detail::current_device()) {}
    device_guard(device_guard&& other) noexcept : previous_(std::exchange(other.previous_, -1)) {}
    device_guard& operator=(device_guard&&) = delete;
    ~device_guard()
    {
        if (previous_ < 0 || !detail::has_context(previous_)) return;
        if (const cudaError_t code = cudaSetDevice(previous_); code != cudaSuccess) detail::forget(code);
    }

private:
    cudaError_t enter(int ordinal, const char*& call) noexcept
    {
        if (ordinal < 0) return cudaSuccess;
        int current = -1;
        call = "cudaGetDevice";
        cudaError_t code = cudaGetDevice(&current);
        if (code != cudaSuccess || current == ordinal) return code;
        call = "cudaSetDevice";
        code = cudaSetDevice(ordinal);
        if (code == cudaSuccess) previous_ = current;
        return code;
    }

    int previous_ = -1; // -1: nothing to restore
};

} // namespace collprobe::cuda
