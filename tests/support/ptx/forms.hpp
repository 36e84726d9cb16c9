// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <type_traits>

#include "tests/support/ptx/warp.hpp"

/// The table of instructions, to which each file adds the forms that it executes; and what they are made of: the types
/// and their names, operations on two values.
namespace ptx {

using table = std::map<std::string, handler>;

void add_arithmetic_forms(table&);
void add_conversion_forms(table&);
void add_memory_forms(table&);
void add_warp_forms(table&);

/// The low part of a register of `width` bytes.
template <class T>
T read_as(const warp& w, slot at, unsigned width, int lane)
{
    T value;
    std::memcpy(&value, w.registers + at + static_cast<unsigned>(lane) * width, sizeof value);
    return value;
}
/// A register wider than the type takes the value's sign, or zeros.
template <class T>
void write_as(warp& w, slot at, unsigned width, int lane, T value)
{
    u64 wide = 0;
    if constexpr (std::is_integral_v<T>) wide = static_cast<u64>(static_cast<s64>(value));
    else std::memcpy(&wide, &value, sizeof value);
    std::memcpy(w.registers + at + static_cast<unsigned>(lane) * width, &wide, width);
}

// --- Types ---

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

// --- Operations on two values, for arithmetic and atomics ---

/// Arithmetic on signed integers wraps: it is done in this type.
template <class T>
using wrapping = std::conditional_t<(sizeof(T) < 4), u32, std::make_unsigned_t<T>>;

/// A GPU's single-precision instructions give this NaN, whatever NaN they read. Double precision hands on the bits of
/// its operand, as x86 does.
inline f32 canonical(f32 value) { return value == value ? value : std::bit_cast<f32>(0x7fffffffu); }
inline f64 canonical(f64 value) { return value; }

struct addition {
    template <class T>
    static T of(T a, T b)
    {
        if constexpr (std::is_floating_point_v<T>) return canonical(a + b);
        else return static_cast<T>(static_cast<wrapping<T>>(a) + static_cast<wrapping<T>>(b));
    }
};
struct subtraction {
    template <class T>
    static T of(T a, T b)
    {
        if constexpr (std::is_floating_point_v<T>) return canonical(a - b);
        else return static_cast<T>(static_cast<wrapping<T>>(a) - static_cast<wrapping<T>>(b));
    }
};
struct multiplication {
    template <class T>
    static T of(T a, T b)
    {
        if constexpr (std::is_floating_point_v<T>) return canonical(a * b);
        else return static_cast<T>(static_cast<wrapping<T>>(a) * static_cast<wrapping<T>>(b));
    }
};
/// A NaN loses against a number; -0 is less than +0.
struct minimum {
    template <class T>
    static T of(T a, T b)
    {
        if constexpr (std::is_floating_point_v<T>) {
            if (a != a) return canonical(b);
            if (b != b) return a;
            if (a == b) return std::signbit(a) ? a : b;
        }
        return b < a ? b : a;
    }
};
struct maximum {
    template <class T>
    static T of(T a, T b)
    {
        if constexpr (std::is_floating_point_v<T>) {
            if (a != a) return canonical(b);
            if (b != b) return a;
            if (a == b) return std::signbit(a) ? b : a;
        }
        return a < b ? b : a;
    }
};
/// Of the upper halves, and of the lower ones.
struct maximum_of_halves {
    template <class T>
    static T of(T a, T b)
    {
        return maximum::of(a >> 16, b >> 16) << 16 | maximum::of(a & 0xffff, b & 0xffff);
    }
};
struct bitwise_and {
    template <class T>
    static T of(T a, T b) { return static_cast<T>(a & b); }
};
struct bitwise_or {
    template <class T>
    static T of(T a, T b) { return static_cast<T>(a | b); }
};
struct bitwise_xor {
    template <class T>
    static T of(T a, T b) { return static_cast<T>(a ^ b); }
};

} // namespace ptx
