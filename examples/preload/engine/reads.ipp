// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Compiled once, behind the kernels of the device: reads.cu, or the stand-in's in the tests.

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/scan/digest_reducer.hpp>
#include <collprobe/scan/one_read.hpp>
#include <collprobe/scan/sketch.hpp>

#include "reads.hpp"

namespace collprobe_preload {

using collprobe::element_type;
using collprobe::view;
namespace library = collprobe::detail;

namespace {

/// Numbers of the scratch memory, 4 MiB: a sketch of longer buffers is read apart.
constexpr std::uint64_t scratch_numbers = 1 << 19;
constexpr std::uint64_t most_wide_bins = 4096;
/// Below this a second read costs less than the longer sketch.
constexpr std::uint64_t least_wide_bytes = 1 << 20;

/// Makes a sketch of `kept_bins` bins from one with more. The sign of an element does not depend on the bins, so this
/// is the sketch of the same buffer.
struct fold_sketch {
    const double* from;
    std::uint64_t bins;
    double* to;

    COLLPROBE_HD void operator()(std::uint64_t index) const noexcept
    {
        const double* next = from + index / kept_bins * bins + index % kept_bins;
        double sum = 0;
        for (std::uint64_t i = 0; i < bins / kept_bins; ++i) sum = library::rounded_sum(sum, next[i * kept_bins]);
        to[index] = sum;
    }
};

struct write_block {
    word_block from;
    std::uint64_t* to;
    COLLPROBE_HD void operator()(std::uint64_t index) const noexcept { to[index] = from.words[index]; }
};

/// Calls `use` with a value of the element's type, if that has statistics.
template <class Use>
bool with_statistics(element_type type, const Use& use)
{
    switch (type) {
    case element_type::float16: use(collprobe::float16{}); return true;
    case element_type::bfloat16: use(collprobe::bfloat16{}); return true;
    case element_type::float32: use(float{}); return true;
    case element_type::float64: use(double{}); return true;
    default: return false;
    }
}

/// The sketch that is read with the statistics; empty if there is none.
template <class T>
library::sketch_source<T> wide_source(const read_request& what) noexcept
{
    // The shortest rows that a block of threads takes.
    constexpr std::uint64_t bins = 8192 / sizeof(T);
    static_assert(bins <= most_wide_bins && library::row_strip<T>::fits(bins));
    const library::sketch_source<T> from{
        view<const T>(static_cast<const T*>(what.data), what.count), what.first, bins, sketch_seed};
    const bool pays = what.sketch != nullptr && what.count * sizeof(T) >= least_wide_bytes
        && from.parts() * library::sketch_numbers<T>(bins) <= scratch_numbers && library::row_strip<T>::aligned(from);
    return pays ? from : library::sketch_source<T>{};
}

/// Calls `read` with where the sketch goes, and folds it behind that.
template <class T, class Read>
void read_with_sketch(
    collprobe::cuda::stream_ref stream, const read_request& what, read_memory& memory, const Read& read)
{
    const library::sketch_source<T> wide = wide_source<T>(what);
    if (wide.bins != 0) {
        read(library::sketch_target<T>{what.first, wide.bins, sketch_seed, memory.wide.data(), memory.scratch.data()});
        collprobe::cuda::device::for_each(
            stream, 2 * kept_bins, fold_sketch{memory.wide.data(), wide.bins, what.sketch});
    } else if (what.sketch != nullptr) {
        read(library::sketch_target<T>{what.first, kept_bins, sketch_seed, what.sketch, memory.scratch.data()});
    } else {
        read(library::sketch_target<T>{});
    }
}

} // namespace

read_memory::read_memory(bool with_sketches)
    : scratch(with_sketches ? scratch_numbers : 0), wide(with_sketches ? 2 * most_wide_bins : 0)
{
}

std::uint64_t read_memory::bytes() const noexcept
{
    return (scratch.size() + wide.size()) * sizeof(double)
        + collprobe::cuda::workspace::slots * collprobe::cuda::workspace::max_partial_bytes + 256;
}

bool has_statistics(element_type type) noexcept
{
    return with_statistics(type, [](auto) {});
}

std::uint64_t bytes_read(const read_request& what) noexcept
{
    const std::uint64_t bytes = what.count * static_cast<std::uint64_t>(collprobe::bytes_of(what.type));
    std::uint64_t reads = what.input != nullptr ? 2 : 1;
    with_statistics(what.type, [&](auto zero) {
        if (what.sketch != nullptr && wide_source<decltype(zero)>(what).bins == 0) ++reads;
    });
    return bytes * reads;
}

void read_input(
    collprobe::cuda::stream_ref stream, const read_request& what, collprobe::statistics* to, read_memory& memory)
{
    with_statistics(what.type, [&](auto zero) {
        using T = decltype(zero);
        read_with_sketch<T>(stream, what, memory, [&](const library::sketch_target<T>& sketch) {
            library::read_input<collprobe::cuda::device, T>(stream,
                view<const T>(static_cast<const T*>(what.data), what.count), to, sketch, memory.workspace, what.times);
        });
    });
}

void read_result(collprobe::cuda::stream_ref stream, const read_request& what, library::result_record* to,
    read_memory& memory)
{
    const bool known = with_statistics(what.type, [&](auto zero) {
        using T = decltype(zero);
        read_with_sketch<T>(stream, what, memory, [&](const library::sketch_target<T>& sketch) {
            library::read_result<collprobe::cuda::device, T>(stream,
                view<const T>(static_cast<const T*>(what.data), what.count), static_cast<const T*>(what.input), to,
                sketch, memory.workspace, what.times);
        });
    });
    if (known) return;
    // Only bytes count.
    const std::uint64_t bytes = what.count * static_cast<std::uint64_t>(collprobe::bytes_of(what.type));
    const view<const std::uint8_t> data(static_cast<const std::uint8_t*>(what.data), bytes);
    collprobe::cuda::device::reduce(
        stream, library::digest_reducer<std::uint8_t>{data}, bytes, &to->digest, memory.workspace, what.times);
}

void write_words(collprobe::cuda::stream_ref stream, const word_block& from, std::uint64_t count, void* to)
{
    collprobe::cuda::device::for_each(stream, count, write_block{from, static_cast<std::uint64_t*>(to)});
}

} // namespace collprobe_preload
