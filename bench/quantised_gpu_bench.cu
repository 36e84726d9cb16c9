// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// The kernels of quantised collectives on a GPU, against a bare read of the same buffer. They are measured in
// turn, in each iteration, by CUDA events; medians over the iterations:
//
//   GBps               logical bytes: what a kernel must read and write, each once
//   read_GBps          a kernel that reads the elements, and does nothing else
//   of_read            GBps over read_GBps
//
// encode reads elements and writes codes; combine reads the codes of 8 ranks and writes one rank's; decode
// reads codes and writes elements. The name says the format, and whether the errors of the codes are summed
// up. Each run takes another buffer: together they are more than twice as large as the L2 cache.
#include "gpu_read.cuh"

#include <cstdint>
#include <string>

#include <benchmark/benchmark.h>

#include <collprobe/device/cuda/device.hpp>
#include <collprobe/quant/cuda/codec_kernels.cuh>

using namespace collprobe;
namespace cu = collprobe::cuda; // CUB has a namespace cuda, too
namespace quant = collprobe::detail;

namespace {

enum class work { encode, combine, decode };
constexpr std::uint32_t ranks = 8;

/// Each run takes the next of `copies` equal inputs, which together are more than twice as large as the L2 cache.
template <class T>
struct kernels {
    std::uint64_t count;
    quant::codec how;
    bool probed;
    std::uint64_t copies = bench::most_bytes() != 0
        ? 1
        : 1 + 2 * static_cast<std::uint64_t>(bench::attribute(cudaDevAttrL2CacheSize)) / (count * sizeof(T));
    std::uint64_t turn = 0;
    quant::message_slices cut{1, 1, how.block, count, 0, count, count, nullptr};
    std::uint64_t message_bytes = quant::wire_layout::of(how, cut.blocks()).bytes();
    cu::stream stream{};
    cu::workspace scratch{};
    cu::buffer<T> elements{copies * count};
    cu::buffer<unsigned char> messages{copies * ranks * message_bytes};
    cu::buffer<unsigned char> sum{message_bytes};
    cu::buffer<combined_errors> errors{1};
    cu::buffer<std::uint64_t> nonfinite{1};

    T* source() const { return elements.data() + turn * count; }
    unsigned char* codes() const { return messages.data() + turn * ranks * message_bytes; }
    void next() { turn = (turn + 1) % copies; }

    quant::block_encoder encoder() const { return {how, {}, nullptr, probed}; }
    void encode(std::uint32_t rank)
    {
        cu::device::reduce(stream,
            quant::encode_reducer<T>{
                encoder(), cut, source(), codes() + rank * message_bytes, message_bytes},
            cut.blocks(), &errors.data()->errors, scratch);
    }
    void combine()
    {
        cu::device::reduce(stream,
            quant::combine_reducer<T>{how, cut, codes(), message_bytes, ranks, ranks, probed,
                nullptr, encoder(), sum.data(), message_bytes},
            cut.blocks(), errors.data(), scratch);
    }
    void decode()
    {
        cu::device::reduce(stream,
            quant::decode_reducer<T>{how, cut, codes(), message_bytes, source()}, cut.blocks(),
            nonfinite.data(), scratch);
    }
    double bytes(work what) const
    {
        const auto codes = static_cast<double>(message_bytes);
        return what == work::combine ? codes * (ranks + 1) : codes + static_cast<double>(count * sizeof(T));
    }
};

template <class T, work what>
void measure(benchmark::State& state, code_format format, bool probed)
{
    const auto bytes = static_cast<std::uint64_t>(state.range(0)) * 1024;
    bench::on_gpu(state, [&] {
        kernels<T> device{bytes / sizeof(T), quant::codec::of<T>({.format = format}), probed};
        cu::device::for_each(
            device.stream, device.copies * device.count, bench::fill_like_gradient<T>{device.elements.data()});
        for (std::uint64_t copy = 0; copy < device.copies; ++copy, device.next()) {
            for (std::uint32_t rank = 0; rank < ranks; ++rank) device.encode(rank);
        }
        bench::device_timer timer;
        const auto reader = bench::reader::of<512, 4>(true);
        const auto seconds = [&](auto&& run) {
            run(); // behind another of its kind
            return timer.measure(device.stream, 30, run).device;
        };
        const auto run = [&] {
            device.next();
            if constexpr (what == work::encode) device.encode(0);
            else if constexpr (what == work::combine) device.combine();
            else device.decode();
        };
        std::vector<double> read, own;
        for (auto _ : state) {
            read.push_back(seconds([&] {
                device.next();
                reader.run(device.stream, device.source(), bytes);
            }));
            own.push_back(seconds(run));
            state.SetIterationTime(own.back());
        }
        const double rate = device.bytes(what) / bench::median(own);
        const double read_rate = static_cast<double>(bytes) / bench::median(read);
        state.counters["GBps"] = rate * 1e-9;
        state.counters["read_GBps"] = read_rate * 1e-9;
        state.counters["of_read"] = rate / read_rate;
    });
}

template <class T, work what>
void add(const std::string& kernel)
{
    for (const code_format format : {code_format::int8, code_format::int4, code_format::e4m3}) {
        for (const bool probed : {false, true}) {
            if (what == work::decode && probed) continue;
            const std::string full
                = kernel + "/" + element_traits<T>::name + "/" + name(format) + (probed ? "/probed" : "");
            auto* const cases = benchmark::RegisterBenchmark(full.c_str(),
                [format, probed](benchmark::State& state) { measure<T, what>(state, format, probed); });
            cases->ArgName("KiB");
            cases->ArgsProduct({bench::capped({1 << 10, 25 << 10, 256 << 10, 1 << 20}, 1 << 10)});
            bench::timed_by_hand(cases, 15);
        }
    }
}

template <class... T>
bool add_types()
{
    (add<T, work::encode>("encode"), ...);
    (add<T, work::combine>("combine"), ...);
    (add<T, work::decode>("decode"), ...);
    return true;
}

[[maybe_unused]] const bool added = add_types<float, bfloat16>();

} // namespace
