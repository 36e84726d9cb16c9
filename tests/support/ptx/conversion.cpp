// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// `cvt`, between all types. The top of decoder.cpp says which operand is in which field.

#include <bit>
#include <cmath>
#include <immintrin.h>
#include <limits>
#include <utility>

#include "tests/support/ptx/forms.hpp"
#include "tests/support/ptx/operations.hpp"
#include "tests/support/ptx/types.hpp"

namespace ptx {

namespace {

f32 widened(bf16 x) { return std::bit_cast<f32>(u32{x.bits} << 16); }
f32 widened(f16 x) { return canonical(_cvtsh_ss(x.bits)); }
template <class T>
T widened(T x) { return x; }

/// What is above the range gives the largest value, what is below it the least.
template <class To, class From>
To to_integer(From x, rounding how)
{
    if (x != x) {
        constexpr bool is_wide = sizeof(To) == 8 || sizeof(From) == 8;
        return is_wide ? static_cast<To>(u64{1} << (bits_of<To> - 1)) : To{0};
    }
    const From integral = how == rounding::nearest ? std::nearbyint(x)
        : how == rounding::zero                    ? std::trunc(x)
        : how == rounding::down                    ? std::floor(x)
                                                   : std::ceil(x);
    constexpr int value_bits = std::numeric_limits<To>::digits;
    constexpr From above = static_cast<From>(u64{1} << (value_bits - 1)) * 2;
    if (integral >= above) return std::numeric_limits<To>::max();
    if (integral <= (std::is_signed_v<To> ? -above : 0)) return std::numeric_limits<To>::min();
    return static_cast<To>(integral);
}
template <class T>
T to_integral(T x, rounding how)
{
    switch (how) {
    case rounding::nearest: return canonical(std::nearbyint(x));
    case rounding::zero: return canonical(std::trunc(x));
    case rounding::down: return canonical(std::floor(x));
    default: return canonical(std::ceil(x));
    }
}
template <class To, class From>
To rounded_to(From x, rounding how)
{
    if (how == rounding::nearest) return static_cast<To>(x);
    if constexpr (std::is_integral_v<From>)
        if (x == 0) return 0; // clang converts by a subtraction, which rounds downwards to -0
    const rounds during(how);
    return opaque(static_cast<To>(opaque(x)));
}
/// Rounded to zero, and the last bit is set if anything was lost: may be rounded again.
template <class From>
f32 rounded_to_odd(From x)
{
    if (x != x) return std::numeric_limits<f32>::quiet_NaN();
    const f32 cut = rounded_to<f32>(x, rounding::zero);
    using exact = std::conditional_t<std::is_floating_point_v<From>, f64, __int128>;
    const bool lost = static_cast<exact>(cut) != static_cast<exact>(x);
    return std::bit_cast<f32>(std::bit_cast<u32>(cut) | (lost ? 1 : 0));
}
template <class From>
bf16 to_bf16(From x, rounding how)
{
    if (x != x) return {0x7fff};
    const u32 bits = std::bit_cast<u32>(rounded_to_odd(x));
    if (how == rounding::zero) return {static_cast<u16>(bits >> 16)};
    const bool is_infinite = (bits & 0x7fffffff) == 0x7f800000;
    return {static_cast<u16>((is_infinite ? bits : bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
template <class From>
f16 to_f16(From x, rounding how)
{
    if (x != x) return {0x7fff};
    const f32 odd = rounded_to_odd(x);
    if (how == rounding::zero) return {static_cast<u16>(_cvtss_sh(odd, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC))};
    return {static_cast<u16>(_cvtss_sh(odd, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC))};
}
template <class T>
T between_0_and_1(T x) { return x > 1 ? T{1} : x > 0 ? x : T{0}; }

/// The mode of `cvt`: a rounding, plus `to_integers`.
constexpr u8 to_integers = 4;

template <class To, class From>
To converted(From value, u8 mode, bool saturates)
{
    const auto how = static_cast<rounding>(mode & 3);
    if constexpr (is_floating<To>) {
        auto x = widened(value);
        if (saturates) x = between_0_and_1(x);
        if constexpr (is_floating<From>)
            if ((mode & to_integers) != 0) x = to_integral(x, how);
        const auto last = (mode & to_integers) != 0 ? rounding::nearest : how;
        if constexpr (std::is_same_v<To, From> && !std::is_floating_point_v<To>)
            if ((mode & to_integers) == 0 && !saturates) return value;
        if constexpr (std::is_same_v<To, bf16>) return to_bf16(x, last);
        else if constexpr (std::is_same_v<To, f16>) return to_f16(x, last);
        else return rounded_to<To>(x, last);
    } else if constexpr (is_floating<From>) {
        return to_integer<To>(widened(value), how);
    } else {
        if (saturates && std::cmp_less(value, std::numeric_limits<To>::min())) return std::numeric_limits<To>::min();
        if (saturates && std::cmp_greater(value, std::numeric_limits<To>::max())) return std::numeric_limits<To>::max();
        return static_cast<To>(value);
    }
}
template <class To, class From>
void convert(warp& w, const instruction& i, u32 mask)
{
    if (i.widths[0] == sizeof(To) && i.widths[1] == sizeof(From) && i.widths[2] == 0 && i.mode == 0) {
        To* const d = values<To>(w, i.d[0]);
        const From* const a = values<From>(w, i.a);
        each_lane(mask, [=](int lane) { d[lane] = converted<To, From>(a[lane], 0, false); });
        return;
    }
    each_lane(mask, [&](int lane) {
        const From a = read_as<From>(w, i.a, i.widths[1], lane);
        write_as<To>(w, i.d[0], i.widths[0], lane, converted<To, From>(a, i.mode, i.widths[2] != 0));
    });
}
/// a in the upper half
template <class Half>
void convert_two(warp& w, const instruction& i, u32 mask)
{
    each_lane(mask, [&](int lane) {
        const auto half = [&](slot from) -> u32 {
            return converted<Half, f32>(values<f32>(w, from)[lane], i.mode, i.widths[2] != 0).bits;
        };
        values<u32>(w, i.d[0])[lane] = half(i.a) << 16 | half(i.b);
    });
}

/// The nearest number of sign, four bits of exponent and three of fraction, of equally near ones the even one; the
/// largest for what is above it.
u8 to_e4m3(f32 x)
{
    const u8 sign = std::signbit(x) ? 0x80 : 0;
    if (x != x) return 0x7f;
    const f64 magnitude = std::fmin(std::fabs(f64{x}), 448);
    const auto number = [](int code) {
        return code < 8 ? std::ldexp(code, -9) : std::ldexp(8 + code % 8, code / 8 - 10);
    };
    int best = 0;
    for (int code = 1; code <= 0x7e; ++code) {
        const f64 nearer = std::fabs(number(best) - magnitude) - std::fabs(number(code) - magnitude);
        if (nearer > 0 || (nearer == 0 && code % 2 == 0)) best = code;
    }
    return static_cast<u8>(sign | best);
}
/// a in the upper byte
void convert_two_to_e4m3(warp& w, const instruction& i, u32 mask)
{
    each_lane(mask, [&](int lane) {
        const u32 both = u32{to_e4m3(values<f32>(w, i.a)[lane])} << 8 | to_e4m3(values<f32>(w, i.b)[lane]);
        write_as<u16>(w, i.d[0], i.widths[0], lane, static_cast<u16>(both));
    });
}

template <class From>
void add_conversions(table& to)
{
    for_types<u8, s8, u16, s16, u32, s32, u64, s64, f16, bf16, f32, f64>([&](auto into) {
        using To = typename decltype(into)::is;
        to["cvt." + name_of<To>() + "." + name_of<From>()] = &convert<To, From>;
    });
}

} // namespace

void add_conversion_forms(table& to)
{
    for_types<u8, s8, u16, s16, u32, s32, u64, s64, f16, bf16, f32, f64>(
        [&](auto of) { add_conversions<typename decltype(of)::is>(to); });
    to["cvt.f16x2.f32"] = &convert_two<f16>;
    to["cvt.bf16x2.f32"] = &convert_two<bf16>;
    to["cvt.e4m3x2.f32"] = &convert_two_to_e4m3;
}

} // namespace ptx
