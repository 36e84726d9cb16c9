// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <type_traits>
#include <vector>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/scan/digest.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// One number for each dimension of a tensor: its shape, an index, or strides. The last dimension varies fastest
/// (row-major order). Without a dimension it is the shape of a single number.
struct tensor_shape {
    static constexpr int most_dimensions = 8;
    int dimensions = 0;
    std::uint64_t size[most_dimensions] = {};

    constexpr tensor_shape() = default;
    /// More than `most_dimensions` numbers are refused where a part is made of them.
    constexpr tensor_shape(std::initializer_list<std::uint64_t> sizes) noexcept
    {
        for (const std::uint64_t each : sizes) {
            if (dimensions < most_dimensions) size[dimensions] = each;
            ++dimensions;
        }
    }
    /// The product of the sizes. Precondition: it fits in 64 bits, as it does in every part.
    constexpr std::uint64_t elements() const noexcept
    {
        std::uint64_t product = 1;
        for (int d = 0; d < dimensions; ++d) product *= size[d];
        return product;
    }
    bool operator==(const tensor_shape&) const = default;
};

/// The elements of a tensor from index `first` on, `extent` of them in each dimension.
struct tensor_box {
    tensor_shape first;
    tensor_shape extent;

    bool operator==(const tensor_box&) const = default;
};

/// A part of a logical tensor, where it lies in memory: a block of rows, of columns, of several dimensions, or all.
/// It borrows the memory, and copies nothing. Memory may have strides: rows with padding between them, or a
/// transposed layout.
/// \throws error `invalid_argument`, from each function here: more than 8 dimensions, a box outside of the shape,
/// memory that is null or too small, a tensor of 2^63 bytes or more.
struct tensor_part {
    const void* data = nullptr; ///< the element at `box.first`
    element_type type = element_type::float32;
    tensor_shape shape; ///< of the whole tensor
    tensor_box box;
    tensor_shape stride; ///< elements of memory from one index to the next, by dimension

    tensor_part() = default;
    /// The element at index i, counted in the box, is memory[sum of i_d strides_d]. Without `part` it is the whole
    /// tensor, `tensor_part{view(weights), {4096, 1024}}`; without `strides` the box is dense in memory. Memory beyond
    /// the box is padding.
    template <class T>
    tensor_part(view<T> memory, const tensor_shape& whole, const tensor_box& part = {},
        const tensor_shape& strides = {}, call_site where = call_site::current());

    /// What `inner` and this part have in common; it may be empty.
    tensor_part within(const tensor_box& inner) const;
    /// This part as it would be if another had mistaken rows for columns: with the strides of the last two dimensions
    /// exchanged. Precondition: there are two, and their extents are equal.
    tensor_part transposed(call_site where = call_site::current()) const;
};

/// A shard of a flattened tensor (as FSDP and ZeRO cut it) as parts: at most 2 d - 1 boxes for d dimensions.
/// `shard` holds the elements from `first` on, in row-major order. Those beyond the tensor's end are padding.
template <class T>
std::vector<tensor_part> flat_parts(
    view<T> shard, const tensor_shape& whole, std::uint64_t first, call_site where = call_site::current());

/// How a number that a narrower type does not have is rounded. NaN stays NaN, with its upper bits and the quiet bit, as
/// processors have it; PyTorch's bfloat16 has one NaN alone.
enum class cast_rounding : std::uint8_t {
    nearest_even, ///< ties to even, overflow to infinity: as processors, PyTorch and NumPy round
    toward_zero, ///< the lower bits are dropped; overflow gives the largest finite number
};

/// A conversion of float to `float16` or `bfloat16`.
struct element_cast {
    element_type type = element_type::bfloat16;
    cast_rounding rounding = cast_rounding::nearest_even;

    bool operator==(const element_cast&) const = default;
};

/// What one read of a part tells. The states of parts that tile a tensor merge to the state of the whole, in any order:
/// `finish` then gives `digest` of the whole tensor in row-major order, however it is cut.
struct part_digests {
    detail::digest_state state; ///< of the part at its place in the tensor
    detail::digest_state content; ///< of the part as a tensor of its own: does not depend on its place
    /// For each cast: `state` of the part as it would be after the cast, of which no copy is made. Of float weights:
    /// what an engine that holds them in 16 bits finds.
    std::vector<detail::digest_state> casts;
};

/// Shapes: a part in host memory, of any alignment.
/// \throws error `unsupported` if there is a cast, unless the part is of float and the cast goes to `float16` or
///   `bfloat16`.
/// Cost: one read. A row costs some 25 ns more than its bytes, or 60 ns where it begins and ends within 64 bytes; a
/// cast costs 0.3 ns a byte. Strided memory is packed in the cache first.
/// Source: scan/digest.md.
part_digests digest_part(
    const tensor_part& part, view<const element_cast> casts = {}, call_site where = call_site::current());

namespace detail {

/// Checks the arguments of a part. `count`: elements of memory.
tensor_part make_part(const void* memory, std::uint64_t count, element_type type, const tensor_shape& whole,
    const tensor_box& part, const tensor_shape& strides, const call_site& where);
std::vector<tensor_part> cut_flat(const void* memory, std::uint64_t count, element_type type, const tensor_shape& whole,
    std::uint64_t first, const call_site& where);
/// Whether a tensor of this shape has less than 2^63 bytes, also if its sizes of 0 were 1.
bool is_possible(const tensor_shape& whole, int element_bytes) noexcept;
/// The common elements of two boxes of as many dimensions; if there are none, an extent is 0.
tensor_box intersection(const tensor_box& a, const tensor_box& b) noexcept;
/// Refuses casts that `digest_part` does not know.
void require_cast(element_type from, const element_cast& cast, const call_site& where);

} // namespace detail

template <class T>
tensor_part::tensor_part(view<T> memory, const tensor_shape& whole, const tensor_box& part, const tensor_shape& strides,
    call_site where)
    : tensor_part(detail::make_part(memory.data(), memory.count(), element_traits<std::remove_const_t<T>>::type, whole,
        part, strides, where))
{
}
template <class T>
std::vector<tensor_part> flat_parts(view<T> shard, const tensor_shape& whole, std::uint64_t first, call_site where)
{
    return detail::cut_flat(
        shard.data(), shard.count(), element_traits<std::remove_const_t<T>>::type, whole, first, where);
}

} // namespace collprobe

#if COLLPROBE_DEFINITIONS
#include <collprobe/scan/detail/tensor_part.ipp>
#endif
