// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Compiled once, behind the kernels of the device: reads.cu, or the stand-in's in the tests.

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/scan/statistics.hpp>
#include <collprobe/scan/sketched_read.hpp>
#include <collprobe/scan/sketch.hpp>

#include "reads.hpp"

namespace collprobe_preload {

using collprobe::element_type;
using collprobe::view;
namespace library = collprobe::detail;

namespace {

constexpr std::uint64_t scratch_numbers = library::sketch_scratch_numbers<collprobe::cuda::device>(kept_bins);

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

library::sketch_target sketch_of(const read_request& what, const read_memory& memory) noexcept
{
    if (what.sketch == nullptr) return {};
    return {what.first, kept_bins, sketch_seed, what.sketch, memory.scratch.data()};
}

} // namespace

read_memory::read_memory(bool with_sketches)
    : scratch(with_sketches ? scratch_numbers : 0)
{
}

std::uint64_t read_memory::bytes() const noexcept
{
    return scratch.size() * sizeof(double)
        + collprobe::cuda::workspace::slots * collprobe::cuda::workspace::max_partial_bytes + 256;
}

bool has_statistics(element_type type) noexcept
{
    return with_statistics(type, [](auto) {});
}

std::uint64_t bytes_read(const read_request& what) noexcept
{
    const std::uint64_t bytes = what.count * static_cast<std::uint64_t>(collprobe::bytes_of(what.type));
    const std::uint64_t reads = what.input != nullptr ? 2 : 1;
    return bytes * reads;
}

void read_input(
    collprobe::cuda::stream_ref stream, const read_request& what, collprobe::statistics* to, read_memory& memory)
{
    with_statistics(what.type, [&](auto zero) {
        using T = decltype(zero);
        library::read_input<collprobe::cuda::device, T>(stream,
            view<const T>(static_cast<const T*>(what.data), what.count), to, sketch_of(what, memory), memory.workspace,
            what.times);
    });
}

void read_result(collprobe::cuda::stream_ref stream, const read_request& what, library::result_record* to,
    read_memory& memory)
{
    const bool known = with_statistics(what.type, [&](auto zero) {
        using T = decltype(zero);
        library::read_result<collprobe::cuda::device, T>(stream,
            view<const T>(static_cast<const T*>(what.data), what.count), static_cast<const T*>(what.input), to,
            sketch_of(what, memory), memory.workspace, what.times);
    });
    if (known) return;
    // Only bytes count.
    const std::uint64_t bytes = what.count * static_cast<std::uint64_t>(collprobe::bytes_of(what.type));
    const view<const std::uint8_t> data(static_cast<const std::uint8_t*>(what.data), bytes);
    collprobe::cuda::device::reduce(
        stream, library::digest_reducer<std::uint8_t>(data), bytes, &to->digest, memory.workspace, what.times);
}

void write_words(collprobe::cuda::stream_ref stream, const word_block& from, std::uint64_t count, void* to)
{
    collprobe::cuda::device::for_each(stream, count, write_block{from, static_cast<std::uint64_t*>(to)});
}

} // namespace collprobe_preload
