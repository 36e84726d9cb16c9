// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// The codecs of quantised collectives on one thread, against a plain read of the same elements that runs in turn with
// them inside each iteration:
//
//   GBps               bytes of elements
//   ratio_to_read      median time of the read / median time of the codec
//
// encode reads elements and writes codes; combine adds the codes of 4 ranks to codes; decode reads codes and writes
// elements. "probed" sums up the errors of the codes, in turn with the same without: probe_cost is the time that this
// adds, as a part of the time without.
#include <cstdint>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include <collprobe/detail/reduce_blocks.hpp>
#include <collprobe/quant/detail/codec_kernels.hpp>

#include "bare_read.hpp"
#include "cpu_timing.hpp"

namespace {

using namespace collprobe;
using namespace collprobe::bench;
namespace quant = collprobe::detail;

enum class work { encode, combine, decode };
constexpr std::uint32_t ranks = 4;

template <class Reducer>
void reduce(const Reducer& reducer, std::uint64_t blocks)
{
    benchmark::DoNotOptimize(reducer.finish(quant::reduce_blocks(reducer, blocks)));
}

template <class T>
struct codecs {
    std::vector<T> elements;
    quant::codec how;
    std::uint64_t count = elements.size();
    quant::message_slices cut{1, 1, how.block, count, 0, count, count, nullptr};
    std::uint64_t message_bytes = quant::wire_layout::of(how, cut.blocks()).bytes();
    std::vector<unsigned char> messages = std::vector<unsigned char>(ranks * message_bytes);
    std::vector<unsigned char> sum = std::vector<unsigned char>(message_bytes);

    void encode(std::uint32_t rank, bool probed)
    {
        reduce(quant::encode_reducer<T>{{how, {}, nullptr, probed}, cut, elements.data(),
                   messages.data() + rank * message_bytes, message_bytes},
            cut.blocks());
    }
    void run(work what, bool probed)
    {
        if (what == work::encode) {
            encode(0, probed);
        } else if (what == work::combine) {
            reduce(quant::combine_reducer<T>{how, cut, messages.data(), message_bytes, ranks, ranks, probed,
                       nullptr, {how, {}, nullptr, probed}, sum.data(), message_bytes},
                cut.blocks());
        } else {
            reduce(quant::decode_reducer<T>{how, cut, messages.data(), message_bytes, elements.data()}, cut.blocks());
        }
    }
};

template <class T>
void measure(benchmark::State& state, work what, const quantisation& how, bool probed)
{
    const auto bytes = static_cast<std::size_t>(state.range(0)) * 1024;
    codecs<T> of{gradient_like<T>(bytes / sizeof(T)), quant::codec::of<T>(how)};
    for (std::uint32_t rank = 0; rank < ranks; ++rank) of.encode(rank, false);
    std::vector<double> read, bare, own;
    for (auto _ : state) {
        read.push_back(seconds([&] {
            benchmark::DoNotOptimize(bare_read(reinterpret_cast<const unsigned char*>(of.elements.data()), bytes));
        }));
        if (probed) bare.push_back(seconds([&] { of.run(what, false); }));
        own.push_back(seconds([&] { of.run(what, probed); }));
        state.SetIterationTime(own.back());
    }
    state.counters["GBps"] = static_cast<double>(bytes) / median(own) * 1e-9;
    state.counters["ratio_to_read"] = median(read) / median(own);
    if (probed) state.counters["probe_cost"] = median(own) / median(bare) - 1;
}

template <class T>
void add(const char* step, work what, const quantisation& how, bool probed)
{
    const std::string name = std::string(step) + "/" + element_traits<T>::name + "/" + collprobe::name(how.format)
        + (how.rounding == code_rounding::stochastic ? "/stochastic" : "") + (probed ? "/probed" : "");
    benchmark::RegisterBenchmark(
        name.c_str(), [=](benchmark::State& state) { measure<T>(state, what, how, probed); })
        ->ArgName("KiB")
        ->Arg(1 << 10)
        ->Arg(64 << 10)
        ->UseManualTime()
        ->MinTime(0.2)
        ->Unit(benchmark::kMicrosecond);
}

template <class T>
bool add()
{
    const quantisation hows[] = {{.format = code_format::int8}, {.format = code_format::int4},
        {.format = code_format::e4m3}, {.format = code_format::int4, .rounding = code_rounding::stochastic}};
    for (const quantisation& how : hows) {
        for (const bool probed : {false, true}) add<T>("encode", work::encode, how, probed);
        if (how.rounding == code_rounding::stochastic) continue;
        for (const bool probed : {false, true}) add<T>("combine", work::combine, how, probed);
        add<T>("decode", work::decode, how, false);
    }
    return true;
}

[[maybe_unused]] const bool added = add<float>() && add<bfloat16>();

} // namespace
