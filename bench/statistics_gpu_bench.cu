// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// One pass of statistics on a GPU against a bare read and cudaMemcpyAsync of the same buffer. They are measured in turn, in
// each iteration, by CUDA events; medians over the iterations:
//
//   GBps               bytes read
//   read_GBps          16-byte loads that are summed: the faster of two kernels, in each iteration
//   memcpy_GBps        device to device, bytes read and written
//   of_read, of_memcpy, of_ceiling    GBps over read_GBps, over memcpy_GBps, over the greater of both
//   time_over_memcpy   time over that of the memcpy
//
// Short kernels run several times in a row between two events. Each has the next of so many buffers that together they
// are twice as large as the second-level cache: as in a trainer, nothing of a gradient is in it.
#include "gpu_read.cuh"

#include <cstdint>
#include <string>

#include <benchmark/benchmark.h>

#include <collprobe/device/cuda/device.hpp>
#include <collprobe/scan/cuda/one_read.cuh>
#include <collprobe/scan/statistics.hpp>

using namespace collprobe;
namespace cu = collprobe::cuda; // CUB has a namespace cuda, too

namespace {

/// The device's memory for all cases, and what measures on it.
class bench_device {
public:
    cu::stream stream;
    cu::workspace scratch;
    cu::buffer<statistics> result{1};

    /// Makes room for sources and destinations of `one` bytes each; false if there is not enough.
    bool reserve(std::uint64_t one)
    {
        size_ = one;
        at_ = 0;
        const std::uint64_t bytes = bench::most_bytes() != 0 ? 2 * one : (2 * cache_ + one - 1) / one * one;
        used_ = std::max(bytes, one);
        if (source_.size() >= used_) return true;
        std::size_t available = 0;
        std::size_t total = 0;
        cu::check(cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
        if (2 * used_ + (std::uint64_t{256} << 20) > available + 2 * source_.size()) return false;
        for (cu::buffer<unsigned char>* const of : {&source_, &destination_}) *of = {};
        for (cu::buffer<unsigned char>* const of : {&source_, &destination_}) *of = cu::buffer<unsigned char>(used_);
        filled_bytes_ = 0;
        return true;
    }
    /// The turn of the next source and destination.
    void next() { at_ = at_ + size_ < used_ ? at_ + size_ : 0; }
    /// The source whose turn it is.
    template <class T>
    view<const T> source() const
    {
        return {reinterpret_cast<const T*>(source_.data() + at_), size_ / sizeof(T)};
    }
    /// Fills all sources; anew only where they are of another type than last time.
    template <class T>
    void fill()
    {
        T* const data = reinterpret_cast<T*>(source_.data());
        if (filled_ != element_traits<T>::type || filled_bytes_ < used_) {
            cu::device::for_each(stream, used_ / sizeof(T), bench::fill_like_gradient<T>{data});
            stream.synchronize();
            filled_ = element_traits<T>::type;
            filled_bytes_ = used_;
        }
    }
    /// Seconds for one of `repeats` runs.
    template <class Work>
    double seconds(int repeats, Work&& work)
    {
        const auto all = [&] {
            for (int i = 0; i < repeats; ++i) {
                next();
                work();
            }
        };
        return timer_.measure(stream, 20 + 10 * repeats, all).device / repeats;
    }
    /// Seconds of the faster reader.
    double read_seconds(int repeats, std::uint64_t bytes)
    {
        double fastest = 1e9;
        for (const bench::reader& one : readers_) {
            const auto read = [&] { one.run(stream, source_.data() + at_, bytes); };
            read();
            fastest = std::min(fastest, seconds(repeats, read));
        }
        return fastest;
    }
    void copy(std::uint64_t bytes)
    {
        cu::check(cudaMemcpyAsync(destination_.data() + at_, source_.data() + at_, bytes, cudaMemcpyDeviceToDevice,
                      stream.get()),
            "cudaMemcpyAsync");
    }
    /// A kernel of a few microseconds is too short to be timed alone.
    static int repeats_of(std::uint64_t bytes)
    {
        return bench::rounds(static_cast<int>(std::clamp<std::uint64_t>((std::uint64_t{64} << 20) / bytes, 1, 32)));
    }

private:
    bench::device_timer timer_;
    std::uint64_t cache_ = bench::most_bytes() != 0 ? 0 : static_cast<std::uint64_t>(bench::attribute(cudaDevAttrL2CacheSize));
    std::uint64_t size_ = 0; ///< of a source
    std::uint64_t used_ = 0; ///< of all of them
    std::uint64_t at_ = 0; ///< where the one begins whose turn it is
    cu::buffer<unsigned char> source_, destination_;
    element_type filled_ = element_type::uint8;
    std::uint64_t filled_bytes_ = 0;
    const bench::reader readers_[2] = {bench::reader::of<512, 4>(true), bench::reader::of<512, 4>(false)};
};

/// Made by the first case that finds a device; never destroyed, for CUDA may be gone by then.
bench_device& the_device()
{
    static bench_device* const device = new bench_device;
    return *device;
}

template <class T>
void measure(benchmark::State& state)
{
    const auto bytes = static_cast<std::uint64_t>(state.range(0)) * 1024;
    bench::on_gpu(state, [&] {
        bench_device& device = the_device();
        if (!device.reserve(bytes)) {
            state.SkipWithError("SKIPPED: source and destination do not fit into the device's memory");
            return;
        }
        device.fill<T>();
        const auto run = [&] {
            const view<const T> source = device.source<T>();
            cu::device::reduce(
                device.stream, statistics_reducer<T>{source}, source.count(), device.result.data(), device.scratch);
        };
        const int repeats = bench_device::repeats_of(bytes);
        device.seconds(repeats, run); // loads the kernel
        std::vector<double> read, copy, own;
        for (auto _ : state) {
            // In turn, and each behind another of its kind, so that nobody pays for what was there before.
            device.copy(bytes);
            copy.push_back(device.seconds(repeats, [&] { device.copy(bytes); }));
            read.push_back(device.read_seconds(repeats, bytes));
            run();
            own.push_back(device.seconds(repeats, run));
            state.SetIterationTime(own.back());
        }
        const double own_rate = static_cast<double>(bytes) / bench::median(own);
        const double read_rate = static_cast<double>(bytes) / bench::median(read);
        const double copy_rate = 2 * static_cast<double>(bytes) / bench::median(copy);
        state.counters["GBps"] = own_rate * 1e-9;
        state.counters["read_GBps"] = read_rate * 1e-9;
        state.counters["memcpy_GBps"] = copy_rate * 1e-9;
        state.counters["of_read"] = own_rate / read_rate;
        state.counters["of_memcpy"] = own_rate / copy_rate;
        state.counters["of_ceiling"] = own_rate / std::max(read_rate, copy_rate);
        state.counters["time_over_memcpy"] = bench::median(own) / bench::median(copy);
    });
}

template <class T>
void add()
{
    auto* const cases = benchmark::RegisterBenchmark(
        (std::string("statistics/") + element_traits<T>::name).c_str(), measure<T>);
    cases->ArgName("KiB");
    cases->ArgsProduct({bench::capped({64, 1 << 10, 25 << 10, 256 << 10, 1 << 20, 4 << 20}, 1 << 10)});
    bench::timed_by_hand(cases, 15);
}

[[maybe_unused]] const bool added
    = (add<float>(), add<double>(), add<collprobe::float16>(), add<bfloat16>(), add<float8_e4m3>(), add<float8_e5m2>(), true);

} // namespace
