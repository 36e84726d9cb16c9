// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <string>
#include <utility>

#include <collprobe/scan/tensor_part.hpp>
#include <collprobe/simd/dispatch.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// Some rows of consecutive elements, as a kernel adds them. Numbers of bytes.
struct digest_rows {
    const unsigned char* data;
    std::uint64_t first; ///< of the buffer that is digested
    std::uint64_t bytes; ///< of a row
    std::uint64_t rows;
    std::uint64_t pitch; ///< from row to row, in the buffer
    std::uint64_t memory_pitch;
};

} // namespace collprobe::detail

#include <collprobe/scan/detail/part_kernel.hpp>

namespace collprobe::inline COLLPROBE_ABI {
namespace detail {

COLLPROBE_COLD_INLINE bool is_possible(const tensor_shape& whole, int element_bytes) noexcept
{
    if (whole.dimensions < 0 || whole.dimensions > tensor_shape::most_dimensions) return false;
    auto bytes = static_cast<std::uint64_t>(element_bytes);
    for (int d = 0; d < whole.dimensions; ++d) {
        if (whole.size[d] > 1 && __builtin_mul_overflow(bytes, whole.size[d], &bytes)) return false;
    }
    return bytes >> 63 == 0;
}

COLLPROBE_COLD_INLINE tensor_box intersection(const tensor_box& a, const tensor_box& b) noexcept
{
    tensor_box common = a;
    for (int d = 0; d < a.first.dimensions; ++d) {
        const std::uint64_t end_a = a.first.size[d] + a.extent.size[d];
        const std::uint64_t end_b = b.first.size[d] + b.extent.size[d];
        const std::uint64_t end = end_a < end_b ? end_a : end_b;
        std::uint64_t& first = common.first.size[d];
        if (b.first.size[d] > first) first = b.first.size[d];
        common.extent.size[d] = end > first ? end - first : 0;
    }
    return common;
}

COLLPROBE_COLD_INLINE tensor_part make_part(const void* memory, std::uint64_t count, element_type type,
    const tensor_shape& whole, const tensor_box& part, const tensor_shape* strides, const call_site& where)
{
    const int dimensions = whole.dimensions;
    require(dimensions <= tensor_shape::most_dimensions, "tensor_part", "a tensor has at most 8 dimensions", where);
    require(is_possible(whole, bytes_of(type)), "tensor_part", "the tensor has 2^63 bytes or more", where);
    tensor_part made;
    made.data = memory;
    made.type = type;
    made.shape = whole;
    made.box = part;
    made.stride.dimensions = dimensions;
    if (part.first.dimensions == 0) made.box.first.dimensions = dimensions; // from the beginning
    require(made.box.first.dimensions == dimensions && part.extent.dimensions == dimensions
            && (strides == nullptr || strides->dimensions == dimensions),
        "tensor_part", "shape, box and strides differ in the number of dimensions", where);
    std::uint64_t dense = 1;
    std::uint64_t last = 0; // in memory
    bool fits = true;
    for (int d = dimensions - 1; d >= 0; --d) {
        const std::uint64_t first = made.box.first.size[d];
        const std::uint64_t extent = part.extent.size[d];
        require(first <= whole.size[d] && extent <= whole.size[d] - first, "tensor_part",
            "the box is not within the shape", where);
        made.stride.size[d] = strides != nullptr ? strides->size[d] : dense;
        dense *= extent;
        std::uint64_t step = 0;
        fits = fits && !__builtin_mul_overflow(extent > 1 ? extent - 1 : 0, made.stride.size[d], &step)
            && !__builtin_add_overflow(last, step, &last);
    }
    if (part.extent.elements() == 0) return made;
    require(memory != nullptr, "tensor_part", "null memory of a part with elements", where);
    if (!fits || last >= count) {
        refuse("tensor_part", "the part needs more than the " + std::to_string(count) + " elements of memory", where);
    }
    return made;
}

/// The largest slice that begins where the last one ended, until the end: larger and larger ones, then smaller ones.
COLLPROBE_COLD_INLINE std::vector<tensor_part> cut_flat(const void* memory, std::uint64_t count, element_type type,
    const tensor_shape& whole, std::uint64_t first, const call_site& where)
{
    require(
        whole.dimensions <= tensor_shape::most_dimensions, "flat_parts", "a tensor has at most 8 dimensions", where);
    require(is_possible(whole, bytes_of(type)), "flat_parts", "the tensor has 2^63 bytes or more", where);
    require(memory != nullptr || count == 0, "flat_parts", "null memory with a count above 0", where);
    std::vector<tensor_part> parts;
    const std::uint64_t elements = whole.elements();
    if (first >= elements) return parts;
    const std::uint64_t end = count < elements - first ? first + count : elements;
    for (std::uint64_t at = first; at < end;) {
        tensor_box box{whole, whole};
        std::uint64_t slice = elements;
        bool found = false;
        std::uint64_t rest = at;
        for (int d = 0; d < whole.dimensions; ++d) {
            slice /= whole.size[d];
            const std::uint64_t index = rest / slice;
            rest %= slice;
            box.first.size[d] = index;
            if (found) continue; // the slice has all of the later dimensions
            box.extent.size[d] = 1;
            if (rest != 0 || slice > end - at) continue;
            const std::uint64_t most = whole.size[d] - index;
            const std::uint64_t fit = (end - at) / slice;
            box.extent.size[d] = fit < most ? fit : most;
            found = true;
        }
        const auto* const from
            = static_cast<const unsigned char*>(memory) + (at - first) * static_cast<std::uint64_t>(bytes_of(type));
        const std::uint64_t taken = box.extent.elements();
        parts.push_back(make_part(from, taken, type, whole, box, nullptr, where));
        at += taken;
    }
    return parts;
}

COLLPROBE_COLD_INLINE void require_cast(element_type from, const element_cast& cast, const call_site& where)
{
    if (from == element_type::float32
        && (cast.type == element_type::float16 || cast.type == element_type::bfloat16)) {
        return;
    }
    throw error(status::unsupported,
        std::string("no cast of ") + name(from) + " to " + name(cast.type) + ": only of float to half or bfloat16",
        {.call = "digest_part", .where = where});
}

COLLPROBE_INLINE part_plan plan_part(const tensor_part& part) noexcept
{
    part_plan plan;
    plan.data = static_cast<const unsigned char*>(part.data);
    plan.element_bytes = bytes_of(part.type);
    // From the last dimension on, each is joined to the one inside it where both are alike in tensor and memory.
    part_dimension joined[tensor_shape::most_dimensions];
    int count = 0;
    std::uint64_t in_tensor = 1;
    std::uint64_t in_part = 1;
    for (int d = part.shape.dimensions - 1; d >= 0; --d) {
        const part_dimension next{part.box.extent.size[d], in_tensor, in_part, part.stride.size[d]};
        plan.first += part.box.first.size[d] * in_tensor;
        in_tensor *= part.shape.size[d];
        in_part *= part.box.extent.size[d];
        if (next.extent == 1) continue;
        if (count != 0) {
            part_dimension& inside = joined[count - 1];
            if (next.in_tensor == inside.extent * inside.in_tensor
                && next.in_memory == inside.extent * inside.in_memory) {
                inside.extent *= next.extent;
                continue;
            }
        }
        joined[count++] = next;
    }
    plan.columns = {1, 1, 1, 1};
    int at = 0;
    if (count != 0 && joined[0].in_tensor == 1) plan.columns = joined[at++];
    for (; at < count; ++at) plan.other[plan.dimensions++] = joined[at];
    for (int d = 0; d + 1 < plan.dimensions; ++d) {
        part_dimension& rows = plan.other[plan.dimensions - 1];
        if (plan.other[d].extent > rows.extent) std::swap(plan.other[d], rows);
    }
    return plan;
}

/// The portable path.
inline void add_digest_rows(const digest_rows& all, digest_state& to) noexcept
{
    for (std::uint64_t row = 0; row < all.rows; ++row) {
        const digest_state of_row = digest_bytes(
            isa::portable, all.data + row * all.memory_pitch, all.bytes, all.first + row * all.pitch);
        to.first += of_row.first;
        to.second += of_row.second;
    }
}
inline void cast_floats(
    const unsigned char* from, std::uint64_t count, const element_cast& cast, std::uint16_t* to) noexcept
{
    for (std::uint64_t i = 0; i < count; ++i) to[i] = cast_float(load_word(from + 4 * i), cast);
}

inline void add_rows([[maybe_unused]] isa path, digest_rows all, digest_state& to) noexcept
{
    if (all.pitch == all.bytes && all.memory_pitch == all.bytes) { // one row
        all.bytes *= all.rows;
        all.rows = 1;
    }
    COLLPROBE_ON_ISA(path, add_digest_rows(all, to), add_digest_rows(all, to));
    to.bytes += all.bytes * all.rows;
}

/// Elements of a part in the first-level cache: packed if they are strided, and read again for each target.
class part_tile {
public:
    static constexpr std::uint64_t most = 4096; ///< elements

    /// `at`: of the first element. `dense`: whether rows must have no gaps.
    void take(const part_plan& plan, const part_dimension& at, const part_dimension& rows, std::uint64_t height,
        std::uint64_t width, bool dense) noexcept
    {
        const auto size = static_cast<std::uint64_t>(plan.element_bytes);
        const unsigned char* const from = plan.data + at.in_memory * size;
        const bool one_by_one = plan.columns.in_memory != 1 && width > 1;
        if (!one_by_one && (!dense || height == 1 || rows.in_memory == width)) {
            data = from;
            pitch = rows.in_memory * size;
            return;
        }
        data = packed_;
        pitch = width * size;
        const std::uint64_t step = plan.columns.in_memory * size;
        if (!one_by_one && width > 1) {
            for (std::uint64_t r = 0; r < height; ++r)
                std::memcpy(packed_ + r * pitch, from + r * rows.in_memory * size, static_cast<std::size_t>(pitch));
        } else if (size == 8) {
            pack<8>(from, height, rows.in_memory * size, width, step);
        } else if (size == 4) {
            pack<4>(from, height, rows.in_memory * size, width, step);
        } else if (size == 2) {
            pack<2>(from, height, rows.in_memory * size, width, step);
        } else {
            pack<1>(from, height, rows.in_memory * size, width, step);
        }
    }

    const unsigned char* data = nullptr;
    std::uint64_t pitch = 0; ///< bytes from row to row
    std::uint16_t narrow[most];

private:
    template <std::size_t size>
    void pack(const unsigned char* from, std::uint64_t height, std::uint64_t row_step, std::uint64_t width,
        std::uint64_t step) noexcept
    {
        if (row_step < step) { // along a column memory is nearer
            for (std::uint64_t c = 0; c < width; ++c)
                for (std::uint64_t r = 0; r < height; ++r)
                    std::memcpy(packed_ + (r * width + c) * size, from + r * row_step + c * step, size);
        } else {
            for (std::uint64_t r = 0; r < height; ++r)
                for (std::uint64_t c = 0; c < width; ++c)
                    std::memcpy(packed_ + (r * width + c) * size, from + r * row_step + c * step, size);
        }
    }

    alignas(64) unsigned char packed_[8 * most];
};

COLLPROBE_INLINE void digest_range(
    isa path, const part_plan& plan, std::uint64_t first, std::uint64_t count, view<part_target> targets) noexcept
{
    const part_dimension single{1, 0, 0, 0};
    const part_dimension& rows = plan.dimensions == 0 ? single : plan.other[plan.dimensions - 1];
    const auto size = static_cast<std::uint64_t>(plan.element_bytes);
    bool converts = false;
    for (const part_target& each : targets) converts = converts || each.converts;
    const bool strided = plan.columns.extent > 1 && plan.columns.in_memory != 1;
    const bool in_tiles = strided || converts || targets.count() > 1;
    const bool transposed = strided && rows.in_memory < plan.columns.in_memory;
    const std::uint64_t widest = transposed ? 64 : part_tile::most;
    part_tile tile;
    const auto digest_tile = [&](std::uint64_t from, std::uint64_t height, std::uint64_t width) {
        const part_dimension at = plan.locate(from);
        tile.take(plan, at, rows, height, width, converts);
        for (part_target& each : targets) {
            const std::uint64_t bytes = each.converts ? 2 : size;
            const std::uint64_t place = each.alone ? at.in_part : at.in_tensor;
            const std::uint64_t pitch = each.alone ? rows.in_part : rows.in_tensor;
            digest_rows rows_of_tile{tile.data, place * bytes, width * bytes, height, pitch * bytes, tile.pitch};
            if (each.converts) {
                const std::uint64_t elements = height * width;
                COLLPROBE_ON_ISA(path, cast_floats(tile.data, elements, each.cast, tile.narrow),
                    cast_floats(tile.data, elements, each.cast, tile.narrow));
                rows_of_tile.data = reinterpret_cast<const unsigned char*>(tile.narrow);
                rows_of_tile.memory_pitch = width * bytes;
            }
            add_rows(path, rows_of_tile, each.state);
        }
    };
    while (count != 0) {
        // As many whole rows as there are side by side, or a part of one.
        const std::uint64_t column = first % plan.columns.extent;
        const std::uint64_t row = first / plan.columns.extent % rows.extent;
        std::uint64_t height = 1;
        std::uint64_t width = plan.columns.extent - column;
        if (count < width) width = count;
        if (width == plan.columns.extent) {
            height = rows.extent - row;
            if (count / width < height) height = count / width;
        }
        const std::uint64_t tile_width = in_tiles && width > widest ? widest : width;
        const std::uint64_t tile_height = in_tiles ? part_tile::most / tile_width : height;
        for (std::uint64_t r = 0; r < height; r += tile_height) {
            for (std::uint64_t c = 0; c < width; c += tile_width) {
                digest_tile(first + r * plan.columns.extent + c, height - r < tile_height ? height - r : tile_height,
                    width - c < tile_width ? width - c : tile_width);
            }
        }
        first += height * width;
        count -= height * width;
    }
}

} // namespace detail

COLLPROBE_INLINE tensor_part tensor_part::within(const tensor_box& inner) const
{
    tensor_part common = *this;
    common.box = detail::intersection(box, inner);
    if (common.box.extent.elements() == 0) return common;
    std::uint64_t moved = 0;
    for (int d = 0; d < shape.dimensions; ++d)
        moved += (common.box.first.size[d] - box.first.size[d]) * stride.size[d];
    common.data = static_cast<const unsigned char*>(data) + moved * static_cast<std::uint64_t>(bytes_of(type));
    return common;
}

COLLPROBE_COLD_INLINE tensor_part tensor_part::alone() const noexcept
{
    tensor_part own = *this;
    own.shape = box.extent;
    for (std::uint64_t& each : own.box.first.size) each = 0;
    return own;
}

COLLPROBE_COLD_INLINE tensor_part tensor_part::transposed(call_site where) const
{
    const int last = shape.dimensions - 1;
    detail::require(last >= 1 && box.extent.size[last] == box.extent.size[last - 1], "transposed",
        "the part's last two dimensions are not equal", where);
    tensor_part other = *this;
    std::swap(other.stride.size[last], other.stride.size[last - 1]);
    return other;
}

COLLPROBE_INLINE part_digests digest_part(
    const tensor_part& part, view<const element_cast> casts, call_site where)
{
    // A part without other elements between its own, from the beginning on, has the places of a tensor of its own.
    const detail::part_plan plan = detail::plan_part(part);
    const bool same_places = plan.dimensions == 0 && plan.first == 0;
    std::vector<detail::part_target> targets{{}};
    if (!same_places) targets.push_back({false, true, {}, {}});
    for (const element_cast& cast : casts) {
        detail::require_cast(part.type, cast, where);
        targets.push_back({true, false, cast, {}});
    }
    detail::digest_range(detail::best_isa(), plan, 0, plan.elements(), {targets.data(), targets.size()});
    part_digests found{targets[0].state, targets[same_places ? 0 : 1].state, {}};
    for (std::size_t i = same_places ? 1 : 2; i < targets.size(); ++i) found.casts.push_back(targets[i].state);
    return found;
}

} // namespace collprobe
