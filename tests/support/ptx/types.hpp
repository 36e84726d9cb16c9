// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <type_traits>

#include "tests/support/ptx/program.hpp"

/// The types of instructions and their names, for arithmetic and conversions.
namespace ptx {

template <class T>
inline constexpr u32 bits_of = 8 * sizeof(T);

/// `s32`, `f64` ...
template <class T>
std::string name_of()
{
    std::string name = std::is_floating_point_v<T> ? "f" : std::is_signed_v<T> ? "s" : "u";
    return name += std::to_string(bits_of<T>);
}
template <class T>
std::string bits_name_of()
{
    std::string name = "b";
    return name += std::to_string(bits_of<T>);
}

template <class T>
struct type {
    using is = T;
};
template <class... T, class Body>
void for_types(Body body)
{
    (body(type<T>{}), ...);
}
template <class Body>
void for_integers(Body body) { for_types<s16, u16, s32, u32, s64, u64>(body); }

} // namespace ptx
