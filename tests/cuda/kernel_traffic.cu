// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

/// What the large kernels of the library read and write, counted exactly by the engine that executes their PTX: bytes
/// of global memory against the least that the result needs, runs of 32 bytes (sectors) that the warps touch against
/// the least for those bytes, accesses of fewer than 16 bytes, conflicts of shared memory's banks. Prints a table in
/// Markdown (bench/results/kernel_traffic.md). Exit status 1 if a kernel breaks a promise of the design, which stands
/// in `row::promises`.
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <cuda_runtime.h>

#include <collprobe/collprobe.cuh>
#include <collprobe/reduce.hpp>
#include <collprobe/scan/sketched_read.hpp>
#include <collprobe/step/detail/gram.hpp>
#include <collprobe/step/detail/message.hpp>
#include <collprobe/sum.hpp>

#include "tests/support/stand_in/launch.hpp"

namespace {

using namespace collprobe;
using gpu = collprobe::cuda::device;

constexpr std::uint64_t rows = 8;
constexpr std::uint64_t row_count = std::uint64_t{1} << 17; ///< elements of a row
constexpr std::uint64_t whole_count = std::uint64_t{1} << 22; ///< elements of a buffer that is looked at once

enum promise : unsigned {
    one_pass = 1, ///< reads and writes at most 6 % more than the least: the slots' partial results
    wide = 2, ///< at most 10 % of the accesses have fewer than 16 bytes: those partial results
    coalesced = 4, ///< the warps touch at most 3 % more sectors than the least
    few_conflicts = 8, ///< no access of shared memory takes more than two passes
    no_local = 16 ///< no local memory
};
constexpr unsigned all_promises = one_pass | wide | coalesced | few_conflicts | no_local;

struct row {
    std::string name;
    std::uint64_t least_read, least_written; ///< bytes
    unsigned promises;
};

bool broken = false;

double part(std::uint64_t of, std::uint64_t whole)
{
    return whole == 0 ? 0 : static_cast<double>(of) / static_cast<double>(whole);
}

void require(const row& of, unsigned what, const char* text, bool holds)
{
    if ((of.promises & what) == 0 || holds) return;
    std::fprintf(stderr, "%s: %s\n", of.name.c_str(), text);
    broken = true;
}

/// Prints what the kernels since the last call did.
void report(const gpu::stream& stream, const row& of)
{
    stream.synchronize();
    const ptx::counts c = collprobe::testing::take_counts();
    const std::uint64_t bytes = c.bytes_loaded + c.bytes_stored;
    const std::uint64_t least = of.least_read + of.least_written;
    const double sectors = part(c.load_sectors + c.store_sectors, c.least_load_sectors + c.least_store_sectors);
    const std::uint64_t accesses = c.narrow_accesses + (bytes - c.narrow_bytes) / 16;
    const double narrow = part(c.narrow_accesses, accesses);
    std::printf("| %s | %.1f | %.2f | %.2f | %.1f %% | %u | %.2f | %.1f | %llu |\n", of.name.c_str(),
        part(c.thread_instructions, least / 16), part(bytes, least), sectors, 100 * narrow, c.worst_bank_conflict,
        part(c.shared_passes, c.least_shared_passes), part(c.thread_instructions, c.warp_instructions),
        static_cast<unsigned long long>(c.local_accesses));
    require(of, one_pass, "reads or writes more than once", part(bytes, least) <= 1.06);
    require(of, wide, "accesses memory in fewer than 16 bytes", narrow <= 0.1);
    require(of, coalesced, "touches more sectors than it must", sectors <= 1.03);
    require(of, few_conflicts, "has bank conflicts", c.worst_bank_conflict <= 2);
    require(of, no_local, "uses local memory", c.local_accesses == 0);
}

template <class T>
struct numbers {
    gpu::buffer<T> memory;
    numbers(const gpu::stream& stream, std::uint64_t count) : memory(count)
    {
        std::vector<T> values(count);
        std::uint32_t state = 1;
        for (T& each : values) {
            state = state * 1664525u + 1013904223u;
            each = static_cast<T>(static_cast<float>(state >> 16) / 65536.0f - 0.5f);
        }
        cudaMemcpyAsync(memory.data(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice, stream.get());
        stream.synchronize();
    }
};

/// The kernels that look at a buffer once.
template <class T>
void scans(const gpu::stream& stream, const std::string& type)
{
    constexpr std::uint64_t count = whole_count;
    const numbers<T> from(stream, 2 * count);
    gpu::buffer<statistics> result(1);
    gpu::buffer<detail::result_record> record(1);
    gpu::buffer<std::uint64_t> digest(1);
    gpu::buffer<double> sketch(sketch_numbers({}));
    gpu::buffer<double> parts(detail::sketch_scratch_numbers<gpu>(sketch_options{}.bins));
    gpu::workspace scratch;
    const std::uint64_t bytes = count * sizeof(T);
    const view<const T> first(from.memory.data(), count);
    (void)collprobe::testing::take_counts();
    gpu::reduce(stream.get(), statistics_reducer<T>(first), count, result.data(), scratch);
    report(stream, {"statistics<" + type + ">", bytes, 0, all_promises});
    gpu::reduce(stream.get(), detail::digest_reducer<T>(first), count, digest.data(), scratch);
    report(stream, {"digest<" + type + ">", bytes, 0, all_promises});
    // Not aligned to 16 bytes: each vector is shifted together from two.
    const view<const T> shifted(first.data() + 1, count - 1);
    gpu::reduce(stream.get(), statistics_reducer<T>(shifted), count - 1, result.data(), scratch);
    report(stream, {"statistics<" + type + ">, not aligned", bytes, 0, few_conflicts | no_local});
    gpu::reduce(stream.get(), detail::result_reducer<T>(first), count, record.data(), scratch);
    report(stream, {"result<" + type + ">", bytes, 0, all_promises});
    gpu::reduce(stream.get(), detail::result_reducer<T>(first, first.data() + count), count, record.data(), scratch);
    report(stream, {"result with input<" + type + ">", 2 * bytes, 0, all_promises});

    // The parts' sums are written, and read by the launch that adds them up.
    const auto target_of = [&](std::uint64_t bins) { return detail::sketch_target{0, bins, 0, sketch.data(), parts.data()}; };
    const auto bytes_of = [](std::uint64_t number_of_sketches, std::uint64_t bins) { return number_of_sketches * 2 * bins * 8; };
    const std::uint64_t long_row = sketch_options{}.bins;
    const std::uint64_t alone = target_of(long_row).source(first).parts();
    detail::enqueue_sketch<gpu>(stream.get(), first, target_of(long_row));
    report(stream, {"sketch<" + type + ">", bytes + bytes_of(alone, long_row), bytes_of(alone + 1, long_row),
                       one_pass | few_conflicts | no_local});
    if constexpr (sizeof(T) >= 2) {
        // What a step with checks reads: the input once, and the result once (with the input that survives).
        const std::uint64_t bins = detail::round_bytes / sizeof(T);
        const detail::sketch_target target = target_of(bins);
        const std::uint64_t beside = detail::sketched<T>::parts_of(target.source(first));
        const auto sketched = [&](const char* what, std::uint64_t read) {
            report(stream, {what + ("<" + type + ">"), read + bytes_of(beside, bins), bytes_of(beside + 1, bins),
                               one_pass | few_conflicts | no_local});
        };
        detail::read_input<gpu, T>(stream.get(), first, result.data(), target, scratch);
        sketched("statistics and sketch", bytes);
        detail::read_result<gpu, T>(stream.get(), first, nullptr, record.data(), target, scratch);
        sketched("result and sketch", bytes);
        detail::read_result<gpu, T>(stream.get(), first, first.data() + count, record.data(), target, scratch);
        sketched("result with input, and sketch", 2 * bytes);
    }
}

/// The kernels that combine the rows of ranks.
template <class T>
void sums(const gpu::stream& stream, const std::string& type)
{
    constexpr std::uint64_t count = row_count;
    const numbers<T> from(stream, rows * count);
    gpu::buffer<T> to(rows * count);
    gpu::buffer<double> gram(rows * rows);
    gpu::buffer<detail::exponent_code<T>> codes(count);
    gpu::buffer<std::int64_t> fixed(count);
    const std::uint64_t bytes = count * sizeof(T);
    constexpr int width = static_cast<int>(gpu::body_bytes / sizeof(T));
    const detail::term_rows<T> terms{from.memory.data(), 1, count, 1};
    const auto sum = [&]<accumulation in>(const char* how, unsigned promises) {
        const sum_rows<in, T, width> body{terms, rows, to.data(), count, 1};
        gpu::for_each(stream.get(), body.blocks(), body);
        report(stream, {std::string("sum_rows<") + how + ", " + type + ">", rows * bytes, bytes, promises});
    };
    (void)collprobe::testing::take_counts();
    sum.template operator()<accumulation::native>("native", all_promises);
    if constexpr (sizeof(T) <= 4) sum.template operator()<accumulation::float32>("float32", all_promises);
    sum.template operator()<accumulation::float64>("float64", all_promises);
    sum.template operator()<accumulation::exact>("exact", one_pass | wide | coalesced);
    gpu::for_each(stream.get(), count, detail::pack_parts<T, 1>{from.memory.data(), count, rows, count, to.data()});
    report(stream, {"pack_parts<" + type + ">", rows * bytes, rows * bytes, one_pass | coalesced | no_local});
    gpu::sum_each(stream.get(), rows * (rows + 1) / 2, detail::pair_dots<T>{from.memory.data(), count, rows, 1, gram.data()});
    report(stream, {"pair_dots<" + type + ">, 36 pairs", rows * (rows + 1) * bytes, 0, coalesced | no_local});
    gpu::for_each(stream.get(), count, detail::code_exponents<T>{from.memory.data(), count, rows, codes.data()});
    report(stream, {"code_exponents<" + type + ">", rows * bytes, count * sizeof(detail::exponent_code<T>),
                       one_pass | coalesced | no_local});
    gpu::for_each(stream.get(), count,
        detail::leaves_to_units<T>{from.memory.data(), count, rows, codes.data(), 40, fixed.data()});
    report(stream, {"leaves_to_units<" + type + ">", rows * bytes + count * sizeof(detail::exponent_code<T>), count * 8,
                       one_pass | coalesced | no_local});
    gpu::for_each(stream.get(), count, detail::units_to_elements<T>{fixed.data(), codes.data(), 40, 1, to.data()});
    report(stream, {"units_to_elements<" + type + ">", count * (8 + sizeof(detail::exponent_code<T>)), bytes,
                       one_pass | coalesced | no_local});
}

/// The kernels of quantised collectives: messages of 8 ranks.
template <class T>
void codes(const gpu::stream& stream, const std::string& type)
{
    constexpr std::uint64_t count = row_count;
    const numbers<T> from(stream, count);
    gpu::buffer<combined_errors> errors(1);
    gpu::buffer<std::uint64_t> nonfinite(1);
    gpu::workspace scratch;
    for (const code_format format : {code_format::int8, code_format::int4, code_format::e4m3}) {
        const auto how = detail::codec::of<T>({.format = format});
        const detail::message_slices cut{1, 1, how.block, count, 0, count, count, nullptr};
        const std::uint64_t bytes = detail::wire_layout::of(how, cut.blocks()).bytes();
        gpu::buffer<unsigned char> messages(rows * bytes), sum(bytes);
        for (const bool probed : {false, true}) {
            const detail::block_encoder encoder{how, {}, nullptr, probed};
            const std::string kind = "<" + type + ", " + name(format) + (probed ? ">, errors" : ">");
            (void)collprobe::testing::take_counts();
            for (std::uint64_t row = 0; row < rows; ++row) {
                gpu::reduce(stream.get(),
                    detail::encode_reducer<T>{
                        encoder, cut, from.memory.data(), messages.data() + row * bytes, bytes},
                    cut.blocks(), &errors.data()->errors, scratch);
                if (row == 0) report(stream, {"encode" + kind, count * sizeof(T), bytes, one_pass | coalesced | no_local});
            }
            stream.synchronize();
            (void)collprobe::testing::take_counts();
            gpu::reduce(stream.get(),
                detail::combine_reducer<T>{how, cut, messages.data(), bytes, rows, rows, probed, nullptr,
                    encoder, sum.data(), bytes},
                cut.blocks(), errors.data(), scratch);
            report(stream, {"combine" + kind, rows * bytes, bytes, coalesced | no_local});
        }
        gpu::reduce(stream.get(), detail::decode_reducer<T>{how, cut, messages.data(), bytes, from.memory.data()},
            cut.blocks(), nonfinite.data(), scratch);
        report(stream, {"decode<" + type + ", " + name(format) + ">", bytes, count * sizeof(T), one_pass | coalesced | no_local});
    }
}

} // namespace

int main()
{
    const gpu::stream stream;
    std::printf("| kernel | thread instructions per 16 bytes | bytes / least | sectors / least | narrow | worst "
                "bank conflict | shared passes / least | active lanes | local |\n|---|---|---|---|---|---|---|---|---|\n");
    scans<float>(stream, "float");
    scans<bfloat16>(stream, "bfloat16");
    scans<double>(stream, "double");
    scans<collprobe::float16>(stream, "half");
    scans<float8_e4m3>(stream, "e4m3");
    sums<float>(stream, "float");
    sums<bfloat16>(stream, "bfloat16");
    codes<float>(stream, "float");
    codes<bfloat16>(stream, "bfloat16");
    return broken ? 1 : 0;
}
