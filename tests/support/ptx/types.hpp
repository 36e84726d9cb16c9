// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <immintrin.h>
#include <string>
#include <type_traits>

#include "tests/support/ptx/program.hpp"

/// The types of instructions and their names, and directions of rounding: for arithmetic and conversions.
namespace ptx {

struct f16 {
    u16 bits;
};
struct bf16 {
    u16 bits;
};

template <class T>
inline constexpr bool is_floating = std::is_floating_point_v<T> || std::is_same_v<T, f16> || std::is_same_v<T, bf16>;
template <class T>
inline constexpr u32 bits_of = 8 * sizeof(T);

/// `s32`, `f64` ...
template <class T>
std::string name_of()
{
    if constexpr (std::is_same_v<T, bf16>) return "bf16";
    std::string name = is_floating<T> ? "f" : std::is_signed_v<T> ? "s" : "u";
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

enum class rounding : u8 { nearest, zero, down, up };

/// Sets the rounding of this thread's floating-point operations between two `opaque` values.
class rounds {
public:
    explicit rounds(rounding how)
    {
        constexpr u32 of_rounding[] = {_MM_ROUND_NEAREST, _MM_ROUND_TOWARD_ZERO, _MM_ROUND_DOWN, _MM_ROUND_UP};
        load((before_ & ~u32{_MM_ROUND_MASK}) | of_rounding[static_cast<u8>(how)]);
    }
    ~rounds() { load(before_); }
    rounds(const rounds&) = delete;
    rounds& operator=(const rounds&) = delete;

private:
    static void load(u32 control) { asm volatile("ldmxcsr %0" : : "m"(control)); }
    u32 before_ = _mm_getcsr();
};
/// The compiler computes with it neither before nor after this place.
template <class T>
T opaque(T value)
{
    if constexpr (std::is_floating_point_v<T>) asm volatile("" : "+x"(value));
    else asm volatile("" : "+r"(value));
    return value;
}

} // namespace ptx
