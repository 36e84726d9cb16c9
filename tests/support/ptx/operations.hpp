// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cmath>
#include <type_traits>

#include "tests/support/ptx/program.hpp"

/// Operations on two values, for arithmetic, atomics and reductions of a warp.
namespace ptx {

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
