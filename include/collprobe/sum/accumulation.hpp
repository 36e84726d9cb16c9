// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/detail/names.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// The type in which the terms of a sum are added. All but `native` round once to the element type, at the end.
///
/// Bounds of the error before that rounding, for n terms x added one after the other without overflow. u is 2^-8
/// (bfloat16), 2^-11 (half), 2^-24 (float) or 2^-53 (double) of the accumulator's type:
///     native, float32, float64    (n - 1) u sum |x|; ceil(log2 n) instead of n - 1 for a balanced tree
///     exact                       none
/// Source: N. Higham, "The accuracy of floating point summation" (1993).
enum class accumulation : std::uint8_t {
    native, ///< the element type itself: one rounding a term
    float32,
    float64,
    exact, ///< no rounding except the last: the correctly rounded sum, in any order
};

template <>
inline constexpr auto names_of<accumulation> = name_list<accumulation::exact>{"native", "float32", "float64", "exact"};

/// The guarantee about the bits of a reduction's result. Each level implies those above it.
enum class reproducibility : std::uint8_t {
    unspecified, ///< no guarantee: as the communicator does it
    run_to_run, ///< the same call with the same data on the same ranks gives the same bits
    size_invariant, ///< also, an element's bits do not depend on the message's size or its place in it
    order_invariant, ///< also, they do not depend on which rank has which value, on topology or channels
    correctly_rounded, ///< the exact sum (or average), rounded once
};

template <>
inline constexpr auto names_of<reproducibility> = name_list<reproducibility::correctly_rounded>{"unspecified",
    "run_to_run", "size_invariant", "order_invariant", "correctly_rounded"};

/// Whether a sum of T can be kept in `in` at all: a type narrower than T would lose digits of T.
template <floating_element T>
COLLPROBE_HD constexpr bool holds(accumulation in) noexcept
{
    return in != accumulation::float32 || element_traits<T>::bytes <= 4;
}

namespace detail {

/// Binary digits of a fixed-point number that holds every finite number of T, without a sign.
template <floating_element T>
inline constexpr int fixed_point_bits = element_traits<T>::max_exponent + 1 - element_traits<T>::min_subnormal_exponent;

/// The number of terms up to which a plain sum in fp64 is exact for any terms. A half is an integer times 2^-24 below
/// 2^40, and 53 bits hold 2^13 of those. 0 for types of a wider range.
template <floating_element T>
inline constexpr std::uint64_t exact_terms_in_float64
    = fixed_point_bits<T> > 53 ? 0 : std::uint64_t{1} << (53 - fixed_point_bits<T>);

/// The strongest level that a sum of `terms` values in a fixed order keeps with an accumulator.
template <floating_element T>
constexpr reproducibility strongest(accumulation in, std::uint64_t terms) noexcept
{
    const bool exact
        = in == accumulation::exact || (in == accumulation::float64 && terms <= exact_terms_in_float64<T>);
    return exact ? reproducibility::correctly_rounded : reproducibility::size_invariant;
}

/// The accumulator for a level if the caller names none.
template <floating_element T>
constexpr accumulation default_accumulation(reproducibility level) noexcept
{
    if (level >= reproducibility::order_invariant) return accumulation::exact;
    return accumulation::float64;
}

} // namespace detail

} // namespace collprobe
