// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the benchmarks on a GPU share: time on the device, with the host ahead of it.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <string>
#include <vector>

#include "small_run.hpp"

#include <benchmark/benchmark.h>

#include <collprobe/device/cuda/device.hpp>
#include <collprobe/device/cuda/kernels.cuh>

namespace collprobe::bench {

/// Says in the benchmark's place that it was not run, and returns true, where there is no device.
inline bool skipped_without_gpu(benchmark::State& state)
{
    int devices = 0;
    const cudaError_t code = cudaGetDeviceCount(&devices);
    if (code == cudaSuccess && devices > 0) return false;
    (void)cudaGetLastError();
    state.SkipWithError("SKIPPED: no CUDA device");
    return true;
}

/// Of the current device.
inline int attribute(cudaDeviceAttr which)
{
    int device = 0;
    int value = 0;
    cuda::check(cudaGetDevice(&device), "cudaGetDevice");
    cuda::check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
    return value;
}

inline double median(std::vector<double> values)
{
    if (values.empty()) return 0;
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

/// Real and processor time of the calling thread.
struct host_time {
    double real = 0; ///< seconds
    double processor = 0; ///< seconds

    static host_time now()
    {
        timespec used{};
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
        return {std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(),
            static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec)};
    }
    host_time since(const host_time& start) const { return {real - start.real, processor - start.processor}; }
};

/// Keeps one thread of the device busy.
struct spin {
    long long cycles;
    COLLPROBE_HD void operator()(std::uint64_t) const
    {
#if defined(__CUDA_ARCH__)
        const long long start = clock64();
        while (clock64() - start < cycles) {}
#endif
    }
};

/// Times work on a stream by CUDA events. A kernel that only spins goes first, so that the host can
/// enqueue all of the work before the device starts with it: launches cost nothing then but what the
/// device needs between two of them.
class device_timer {
public:
    device_timer()
    {
        cuda::check(cudaEventCreate(&begin_), "cudaEventCreate");
        cuda::check(cudaEventCreate(&end_), "cudaEventCreate");
        int kilohertz = 0;
        int device = 0;
        cuda::check(cudaGetDevice(&device), "cudaGetDevice");
        cuda::check(
            cudaDeviceGetAttribute(&kilohertz, cudaDevAttrClockRate, device), "cudaDeviceGetAttribute");
        cycles_per_us_ = kilohertz / 1000 + 1;
    }
    device_timer(const device_timer&) = delete;
    ~device_timer()
    {
        (void)cudaEventDestroy(begin_);
        (void)cudaEventDestroy(end_);
    }

    struct sample {
        double device = 0; ///< seconds
        host_time host; ///< of enqueuing
        bool host_ahead = false; ///< everything was enqueued before the device began
    };

    /// `lead_us`: how long the host may take for enqueuing what `work` enqueues on `on`. Blocks the
    /// caller until it is done.
    template <class Work>
    sample measure(cuda::stream_ref on, int lead_us, Work&& work)
    {
        cuda::device::for_each(on, 1, spin{static_cast<long long>(lead_us) * cycles_per_us_});
        cuda::check(cudaEventRecord(begin_, on.get()), "cudaEventRecord");
        const host_time start = host_time::now();
        work();
        sample result;
        result.host = host_time::now().since(start);
        result.host_ahead = cudaEventQuery(begin_) == cudaErrorNotReady;
        (void)cudaGetLastError();
        cuda::check(cudaEventRecord(end_, on.get()), "cudaEventRecord");
        cuda::check(cudaEventSynchronize(end_), "cudaEventSynchronize");
        float milliseconds = 0;
        cuda::check(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
        result.device = 1e-3 * static_cast<double>(milliseconds);
        return result;
    }

private:
    cudaEvent_t begin_ = nullptr;
    cudaEvent_t end_ = nullptr;
    long long cycles_per_us_ = 0;
};

/// Device and host times of one thing that is measured several times.
class samples {
public:
    void add(const device_timer::sample& one)
    {
        device_.push_back(one.device);
        real_.push_back(one.host.real);
        processor_.push_back(one.host.processor);
        ahead_ += one.host_ahead ? 1 : 0;
    }
    double device() const { return median(device_); }
    double host_real() const { return median(real_); }
    double host_processor() const { return median(processor_); }
    /// Of the samples, how many had the host ahead of the device: else the device has waited for it.
    double share_ahead() const
    {
        return device_.empty() ? 0 : static_cast<double>(ahead_) / static_cast<double>(device_.size());
    }

private:
    std::vector<double> device_, real_, processor_;
    int ahead_ = 0;
};

/// Goes with every benchmark program: names the machine in the output's context.
inline const bool context_is_given = [] {
    int devices = 0;
    int version = 0;
    if (cudaRuntimeGetVersion(&version) == cudaSuccess)
        benchmark::AddCustomContext(
            "cuda_runtime", std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10));
    cudaDeviceProp properties{};
    if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0
        && cudaGetDeviceProperties(&properties, 0) == cudaSuccess) {
        benchmark::AddCustomContext("gpu", properties.name);
        benchmark::AddCustomContext("multiprocessors", std::to_string(properties.multiProcessorCount));
        benchmark::AddCustomContext("l2_cache_MiB", std::to_string(properties.l2CacheSize >> 20));
    } else {
        benchmark::AddCustomContext("gpu", "none");
    }
    (void)cudaGetLastError();
    return true;
}();

} // namespace collprobe::bench
