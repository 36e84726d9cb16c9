// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the benchmarks on a GPU share: time on the device, with the host ahead of it.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "cpu_timing.hpp"

#include <benchmark/benchmark.h>

#include <collprobe/device/cuda/device.hpp>
#include <collprobe/device/cuda/kernels.cuh>

namespace collprobe::bench {

/// The environment variable COLLPROBE_BENCH_BYTES asks for a run of all cases at small sizes, which shows that they work and
/// times nothing: where a GPU is emulated, say. It is the most that a buffer of a case may have; 0: no limit.
inline std::uint64_t most_bytes()
{
    static const std::uint64_t given = [] {
        const char* const text = std::getenv("COLLPROBE_BENCH_BYTES");
        return text == nullptr ? std::uint64_t{0} : std::strtoull(text, nullptr, 10);
    }();
    return given;
}

/// The size of a buffer that would have `bytes`.
inline std::uint64_t capped(std::uint64_t bytes) { return most_bytes() == 0 ? bytes : std::min(bytes, most_bytes()); }

/// Of `sizes`, in units of `unit` bytes, those within the limit; if none is, the limit itself.
inline std::vector<std::int64_t> capped(std::vector<std::int64_t> sizes, std::uint64_t unit)
{
    if (most_bytes() == 0) return sizes;
    const auto most = static_cast<std::int64_t>(std::max<std::uint64_t>(most_bytes() / unit, 1));
    std::erase_if(sizes, [&](std::int64_t size) { return size > most; });
    if (sizes.empty()) sizes.push_back(most);
    return sizes;
}

/// How often to measure what is measured `usual` times.
inline int rounds(int usual) { return most_bytes() == 0 ? usual : std::min(usual, 2); }

/// Makes a case where there is a device; says in its place that there is none, or what has failed.
template <class Case>
void on_gpu(benchmark::State& state, Case make)
{
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        (void)cudaGetLastError();
        state.SkipWithError("SKIPPED: no CUDA device");
        return;
    }
    try {
        make();
    } catch (const error& failed) {
        state.SkipWithError(failed.what());
    }
}

/// Cases whose times are set by them, measured so many times.
inline benchmark::internal::Benchmark* timed_by_hand(benchmark::internal::Benchmark* cases, int times)
{
    return cases->UseManualTime()->Iterations(rounds(times))->Unit(benchmark::kMicrosecond);
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

/// Real and processor time of the calling thread, in seconds.
struct host_time {
    double real = 0;
    double processor = 0;

    static host_time now() { return {real_seconds(), processor_seconds()}; }
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

/// About so long.
inline void keep_busy(cuda::stream_ref on, int microseconds)
{
    static const long long cycles_per_us = attribute(cudaDevAttrClockRate) / 1000 + 1;
    cuda::device::for_each(on, 1, spin{microseconds * cycles_per_us});
}

/// Times work on a stream by CUDA events. A kernel that only spins goes first, so that the host can enqueue all of the work
/// before the device starts with it: launches cost nothing then but what the device needs between two of them.
class device_timer {
public:
    device_timer()
    {
        cuda::check(cudaEventCreate(&begin_), "cudaEventCreate");
        cuda::check(cudaEventCreate(&end_), "cudaEventCreate");
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

    /// `lead_us`: how long the host may take for enqueuing what `work` enqueues on `on`. Blocks the caller until it is done.
    template <class Work>
    sample measure(cuda::stream_ref on, int lead_us, Work&& work)
    {
        keep_busy(on, lead_us);
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
    double last() const { return device_.back(); }
    double device() const { return median(device_); }
    double host_real() const { return median(real_); }
    double host_processor() const { return median(processor_); }
    /// Of the samples, how many had the host ahead of the device: else the device has waited for it.
    double share_ahead() const { return static_cast<double>(ahead_) / static_cast<double>(device_.size()); }

private:
    std::vector<double> device_, real_, processor_;
    int ahead_ = 0;
};

} // namespace collprobe::bench
