// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// `cvt`, as nvcc makes it of the project's kernels. The top of decoder.cpp says which operand is in which field.

#include <bit>
#include <cmath>
#include <immintrin.h>
#include <limits>

#include "tests/support/ptx/forms.hpp"

namespace ptx {

namespace {

struct f16 {
    u16 bits;
};
struct bf16 {
    u16 bits;
};

/// Cut off; what is above the range gives the largest value, what is below it the least.
template <class To>
To to_integer(f64 x)
{
    if (x != x) return static_cast<To>(u64{1} << (bits_of<To> - 1));
    const f64 integral = std::trunc(x);
    constexpr f64 above = static_cast<f64>(u64{1} << (std::numeric_limits<To>::digits - 1)) * 2;
    if (integral >= above) return std::numeric_limits<To>::max();
    if (integral <= (std::is_signed_v<To> ? -above : 0)) return std::numeric_limits<To>::min();
    return static_cast<To>(integral);
}
template <class To, class From>
To converted(From x)
{
    if constexpr (std::is_same_v<From, f16>) return canonical(_cvtsh_ss(x.bits));
    else if constexpr (std::is_same_v<From, bf16>) return std::bit_cast<f32>(u32{x.bits} << 16);
    else if constexpr (std::is_same_v<To, bf16>) {
        const u32 bits = std::bit_cast<u32>(x);
        return {static_cast<u16>(x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
    } else if constexpr (std::is_integral_v<To> && std::is_floating_point_v<From>) return to_integer<To>(x);
    else return static_cast<To>(x);
}
template <class To, class From>
void convert(warp& w, const instruction& i, u32 mask)
{
    if (i.widths[0] == sizeof(To) && i.widths[1] == sizeof(From)) {
        To* const d = values<To>(w, i.d[0]);
        const From* const a = values<From>(w, i.a);
        each_lane(mask, [=](int lane) { d[lane] = converted<To, From>(a[lane]); });
        return;
    }
    each_lane(mask, [&](int lane) {
        const From a = read_as<From>(w, i.a, i.widths[1], lane);
        write_as<To>(w, i.d[0], i.widths[0], lane, converted<To, From>(a));
    });
}
void saturate(warp& w, const instruction& i, u32 mask)
{
    each_lane(mask, [&](int lane) {
        const f32 a = values<f32>(w, i.a)[lane];
        values<f32>(w, i.d[0])[lane] = a > 1 ? 1 : a > 0 ? a : 0;
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

} // namespace

void add_conversion_forms(table& to)
{
    for_types<u16, s16, u32, s32, u64, s64>([&](auto into) {
        using To = typename decltype(into)::is;
        for_types<u8, s8, u16, s16, u32, s32, u64, s64>([&](auto of) {
            using From = typename decltype(of)::is;
            to["cvt." + name_of<To>() + "." + name_of<From>()] = &convert<To, From>;
        });
        to["cvt.rn.f32." + name_of<To>()] = &convert<f32, To>;
        to["cvt.rn.f64." + name_of<To>()] = &convert<f64, To>;
        if constexpr (sizeof(To) >= 4) to["cvt.rzi." + name_of<To>() + ".f64"] = &convert<To, f64>;
    });
    to["cvt.f32.f16"] = &convert<f32, f16>;
    to["cvt.f32.bf16"] = &convert<f32, bf16>;
    to["cvt.rn.bf16.f32"] = &convert<bf16, f32>;
    to["cvt.f64.f32"] = &convert<f64, f32>;
    to["cvt.sat.f32.f32"] = &saturate;
    to["cvt.rn.f32.f64"] = &convert<f32, f64>;
    to["cvt.rn.satfinite.e4m3x2.f32"] = &convert_two_to_e4m3;
}

} // namespace ptx
