// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include <collprobe/core/collective.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/detail/target.hpp>
#include <collprobe/simd/rounding.hpp>
#include <collprobe/simd/vector.hpp>
#include <collprobe/sum/detail/add.hpp>

#include <collprobe/sum/detail/hop_kernel.hpp>

/// The arithmetic of one hop of a reduction: two values of the element type give one value, rounded to that type.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// The correctly rounded product. Integers wrap. 8-bit and 16-bit floating point is multiplied in double, where
/// the product is exact (in float a tiny bfloat16 product would be rounded twice).
template <element T>
COLLPROBE_HD T multiply(T a, T b) noexcept
{
    if constexpr (std::is_floating_point_v<T>) {
        return rounded_product(a, b);
    } else if constexpr (floating_element<T>) {
        return T(rounded_product(exact_double(static_cast<float>(a)), exact_double(static_cast<float>(b))));
    } else {
        return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
    }
}

/// Whether a < b; -0 < +0, and NaN is not ordered. Compares bits, so it is right under `-ffast-math`.
template <element T>
COLLPROBE_HD constexpr bool less(T a, T b) noexcept
{
    if constexpr (floating_element<T>) {
        using bits_type = typename element_traits<T>::bits_type;
        constexpr bits_type sign = element_traits<T>::sign_mask;
        const auto rank_of = [](bits_type bits) {
            return static_cast<bits_type>((bits & sign) != 0 ? ~bits : (bits | sign));
        };
        return rank_of(to_bits(a)) < rank_of(to_bits(b));
    } else {
        return a < b;
    }
}

/// The smaller value, by minimumNumber of IEEE 754-2019: a number is preferred to a NaN; of -0 and +0 it is -0.
template <element T>
COLLPROBE_HD constexpr T minimum_number(T a, T b) noexcept
{
    if (is_nan(a)) return b;
    if (is_nan(b)) return a;
    return less(b, a) ? b : a;
}

/// The larger value, by maximumNumber of IEEE 754-2019: a number is preferred to a NaN; of -0 and +0 it is +0.
template <element T>
COLLPROBE_HD constexpr T maximum_number(T a, T b) noexcept
{
    if (is_nan(a)) return b;
    if (is_nan(b)) return a;
    return less(a, b) ? b : a;
}

/// The integer average of a (wrapped) sum: a division that truncates towards zero.
template <element T>
COLLPROBE_HD constexpr T truncated_quotient(T sum, int ranks) noexcept
{
    // In 32 bits if that is enough, because device code calls a function for a 64-bit division.
    using wide = std::conditional_t<sizeof(T) == 8, T,
        std::conditional_t<element_traits<T>::is_signed_type, std::int32_t, std::uint32_t>>;
    return static_cast<T>(static_cast<wide>(sum) / static_cast<wide>(ranks));
}

/// a (operation) b, rounded to the type: one hop of one element. An average adds here: see `prepare`
/// and `complete`.
template <element T>
COLLPROBE_HD T combine(reduction operation, T a, T b) noexcept
{
    switch (operation) {
    case reduction::sum:
    case reduction::average: return add(a, b);
    case reduction::min: return minimum_number(a, b);
    case reduction::max: return maximum_number(a, b);
    case reduction::product: return multiply(a, b);
    }
    return a;
}

/// Floating point of 8 or 16 bits: conversions make a hop slow, so vector code does most of the elements.
template <class T>
concept narrow_floating_element = floating_element<T> && sizeof(T) <= 2;

/// result[i] = a[i] * b[i * step]; with a `step` of 0 there are sixteen equal elements at `b`.
template <narrow_floating_element T>
void multiply_by_vectors(T* result, const T* a, const T* b, int step, int count) noexcept
{
    int i = COLLPROBE_ON_ISA(best_isa(), 0, multiply_hop(result, a, b, step, count));
    for (; i < count; ++i) result[i] = multiply(a[i], b[i * step]);
    compiler_barrier(result);
}

/// result[i] = result[i] (operation) value[i].
template <element T>
void combine(reduction operation, T* result, const T* value, int count) noexcept
{
    int first = 0;
    if constexpr (narrow_floating_element<T>) {
        if (operation == reduction::product) return multiply_by_vectors(result, result, value, 1, count);
        if (operation == reduction::sum || operation == reduction::average)
            first = COLLPROBE_ON_ISA(best_isa(), 0, add_hop(result, result, value, count));
    }
    const auto apply = [&](auto combined) {
        for (int i = first; i < count; ++i) result[i] = combined(result[i], value[i]);
    };
    switch (operation) {
    case reduction::sum:
    case reduction::average: apply([](T a, T b) { return add(a, b); }); break;
    case reduction::min: apply([](T a, T b) { return minimum_number(a, b); }); break;
    case reduction::max: apply([](T a, T b) { return maximum_number(a, b); }); break;
    case reduction::product: apply([](T a, T b) { return multiply(a, b); }); break;
    }
    compiler_barrier(result);
}

/// 1/n, rounded to the element type.
template <floating_element T>
constexpr T average_scale(int ranks) noexcept
{
    return T(1.0 / ranks);
}

/// The value that a rank brings to the first hop: its own value. For a floating-point average it is that times 1/n,
/// both rounded to the element type (NCCL's PreMulSum).
template <element T>
void prepare(reduction operation, T* prepared, const T* value, int count, int ranks) noexcept
{
    if constexpr (floating_element<T>) {
        if (operation == reduction::average) {
            const T scale = average_scale<T>(ranks);
            if constexpr (narrow_floating_element<T>) {
                T scales[16];
                for (T& each : scales) each = scale;
                multiply_by_vectors(prepared, value, scales, 0, count);
            } else {
                for (int i = 0; i < count; ++i) prepared[i] = multiply(value[i], scale);
                compiler_barrier(prepared);
            }
            return;
        }
    }
    for (int i = 0; i < count; ++i) prepared[i] = value[i];
    compiler_barrier(prepared);
}

/// The step after the last hop: an integer average divides the (wrapped) sum, truncating towards zero.
template <element T>
void complete(reduction operation, T* result, int count, int ranks) noexcept
{
    if constexpr (!floating_element<T>) {
        if (operation == reduction::average) {
            for (int i = 0; i < count; ++i) result[i] = truncated_quotient(result[i], ranks);
        }
    }
}

} // namespace collprobe::detail
