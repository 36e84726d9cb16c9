// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <iterator>

#include <collprobe/c/collprobe.h>
#include <collprobe/core/collective.hpp>
#include <collprobe/core/element.hpp>

/// The library's types by the numbers of the C entry.
namespace collprobe::inline COLLPROBE_ABI::c {

inline constexpr std::size_t most_ranks = 16384;

inline constexpr element_type element_types[] = {element_type::int8, element_type::uint8, element_type::int32,
    element_type::uint32, element_type::int64, element_type::uint64, element_type::float16, element_type::float32,
    element_type::float64, element_type::bfloat16, element_type::float8_e4m3, element_type::float8_e5m2};
inline constexpr const char* type_names[] = {"int8", "uint8", "int32", "uint32", "int64", "uint64", "float16",
    "float32", "float64", "bfloat16", "float8_e4m3", "float8_e5m2"};
static_assert(std::size(element_types) == std::size(type_names));
constexpr element_type element_type_of(int type) noexcept { return element_types[type]; }
constexpr const char* name_of_type(int type) noexcept { return type_names[type]; }

constexpr collective collective_of(int call) noexcept
{
    constexpr collective all[]
        = {collective::all_reduce, collective::reduce_scatter, collective::all_gather, collective::all_to_all};
    return all[call];
}
constexpr reduction reduction_of(int operation) noexcept
{
    constexpr reduction all[]
        = {reduction::sum, reduction::product, reduction::max, reduction::min, reduction::average};
    return all[operation];
}

constexpr bool is_call(int call) noexcept { return call >= 0 && call <= collprobeAllToAllCall; }
constexpr bool is_type(int type) noexcept { return type >= 0 && type < static_cast<int>(std::size(element_types)); }
constexpr bool is_operation(int operation) noexcept { return operation >= 0 && operation <= collprobeAvg; }

} // namespace collprobe::c
