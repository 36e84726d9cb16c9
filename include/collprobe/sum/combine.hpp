// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include <collprobe/core/collective.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/detail/target.hpp>
#include <collprobe/simd/convert.hpp>
#include <collprobe/simd/rounding.hpp>
#include <collprobe/sum/detail/add.hpp>

/// The arithmetic of one hop of a reduction: two values of the element type give one value, rounded to that type.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// The correctly rounded product. Integers wrap. 8-bit and 16-bit floating point is multiplied in float, where a
/// product is exact, except for one of bfloat16 below 2^-134, which is zero whether it is rounded once or twice.
template <element T>
COLLPROBE_HD T multiply(T a, T b) noexcept
{
    if constexpr (std::is_floating_point_v<T>) {
        return rounded_product(a, b);
    } else if constexpr (floating_element<T>) {
        return T(rounded_product(static_cast<float>(a), static_cast<float>(b)));
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
        std::conditional_t<std::is_signed_v<T>, std::int32_t, std::uint32_t>>;
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

/// result[i] = hop(a[i], b[i]); `result` may be `a`. In blocks of a constant length, which compilers vectorise.
template <element T, class Hop>
void apply_hops(T* result, const T* a, const T* b, int count, Hop hop) noexcept
{
    constexpr int width = 64;
    const auto run = [=] {
        int first = 0;
        for (; first + width <= count; first += width) {
            T block[width]; // no other name has it
            for (int i = 0; i < width; ++i) block[i] = hop(a[first + i], b[first + i]);
            std::memcpy(static_cast<void*>(result + first), block, sizeof block);
        }
        for (; first < count; ++first) result[first] = hop(a[first], b[first]);
    };
    if constexpr (narrow_floating_element<T>) vectorised(run);
    else run();
    compiler_barrier(result);
}

/// Sums and products. Most of the work of a hop of 16 bits is conversions.
template <bool multiplies, element T>
void apply_arithmetic(T* result, const T* a, const T* b, int count) noexcept
{
    int done = 0;
    if constexpr (narrow_floating_element<T> && sizeof(T) == 2)
        done = COLLPROBE_ON_ISA(best_isa(), 0, hop_run<multiplies>(a, b, count, result));
    apply_hops(result + done, a + done, b + done, count - done, [](T x, T y) {
        if constexpr (multiplies) return multiply(x, y);
        else return add(x, y);
    });
}

/// result[i] = result[i] (operation) value[i].
template <element T>
void combine(reduction operation, T* result, const T* value, int count) noexcept
{
    const auto apply = [&](auto hop) { apply_hops(result, result, value, count, hop); };
    switch (operation) {
    case reduction::sum:
    case reduction::average: return apply_arithmetic<false>(result, result, value, count);
    case reduction::product: return apply_arithmetic<true>(result, result, value, count);
    case reduction::min: return apply([](T a, T b) { return minimum_number(a, b); });
    case reduction::max: return apply([](T a, T b) { return maximum_number(a, b); });
    }
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
            constexpr int width = 64;
            T scales[width];
            for (T& each : scales) each = average_scale<T>(ranks);
            for (int first = 0; first < count; first += width) {
                apply_arithmetic<true>(
                    prepared + first, value + first, scales, count - first < width ? count - first : width);
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
