// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// The instructions that need no other thread, but conversions. The top of decoder.cpp says which operand is in which
// field.
// Of the forms that PTX has, those are here that nvcc makes of the project's kernels.
//
// The `.approx` forms give the true value, rounded: a GPU may differ in the last digits.

#include <algorithm>
#include <bit>
#include <cmath>
#include <immintrin.h>
#include <limits>

#include "tests/support/ptx/forms.hpp"

namespace ptx {

namespace {

// --- Operations on one, two and three values ---

/// By zero: all ones, which PTX leaves open.
struct division {
    template <class T>
    static T of(T a, T b)
    {
        if constexpr (std::is_floating_point_v<T>) {
            return canonical(a / b);
        } else {
            if (b == 0) return static_cast<T>(~T{0});
            if constexpr (std::is_signed_v<T>)
                if (b == -1) return subtraction::of(T{0}, a);
            return static_cast<T>(a / b);
        }
    }
};
/// By zero: the dividend, which PTX leaves open.
struct remainder {
    template <class T>
    static T of(T a, T b)
    {
        if (b == 0) return a;
        if constexpr (std::is_signed_v<T>)
            if (b == -1) return 0;
        return static_cast<T>(a % b);
    }
};
struct bitwise_not {
    template <class T>
    static T of(T a) { return static_cast<T>(~a); }
};
struct logical_not {
    template <class T>
    static T of(T a) { return a == 0; }
};
struct negation {
    template <class T>
    static T of(T a)
    {
        if constexpr (std::is_floating_point_v<T>) return -a;
        else return subtraction::of(T{0}, a);
    }
};
struct absolute {
    template <class T>
    static T of(T a)
    {
        if constexpr (std::is_floating_point_v<T>) return std::fabs(a);
        else return a < 0 ? negation::of(a) : a;
    }
};
struct same {
    template <class T>
    static T of(T a) { return a; }
};
struct leading_zeros {
    template <class T>
    static u32 of(T a) { return static_cast<u32>(std::countl_zero(a)); }
};
struct ones {
    template <class T>
    static u32 of(T a) { return static_cast<u32>(std::popcount(a)); }
};
struct square_root {
    template <class T>
    static T of(T a) { return canonical(std::sqrt(a)); }
};
struct reciprocal {
    static f64 of(f64 a) { return 1 / a; }
};
struct reciprocal_square_root {
    static f64 of(f64 a) { return 1 / std::sqrt(a); }
};
struct power_of_two {
    static f64 of(f64 a) { return std::exp2(a); }
};
struct fused {
    template <class T>
    static T of(T a, T b, T c) { return canonical(std::fma(a, b, c)); }
};
struct product_and_sum {
    template <class T>
    static T of(T a, T b, T c) { return addition::of<T>(multiplication::of<T>(a, b), c); }
};

// --- Handlers ---

template <class T, class Operation, class Result = T>
void unary(warp& w, const instruction& i, u32 mask)
{
    auto* const d = values<Result>(w, i.d[0]);
    const T* const a = values<T>(w, i.a);
    each_lane(mask, [=](int lane) { d[lane] = Operation::of(a[lane]); });
}
template <class T, class Operation>
void binary(warp& w, const instruction& i, u32 mask)
{
    T* const d = values<T>(w, i.d[0]);
    const T *const a = values<T>(w, i.a), *const b = values<T>(w, i.b);
    each_lane(mask, [=](int lane) { d[lane] = Operation::template of<T>(a[lane], b[lane]); });
}
template <class T, class Operation>
void ternary(warp& w, const instruction& i, u32 mask)
{
    T* const d = values<T>(w, i.d[0]);
    const T *const a = values<T>(w, i.a), *const b = values<T>(w, i.b), *const c = values<T>(w, i.c);
    each_lane(mask, [=](int lane) { d[lane] = Operation::template of<T>(a[lane], b[lane], c[lane]); });
}
template <class Operation, bool flushes>
void approximate(warp& w, const instruction& i, u32 mask)
{
    const auto flushed = [](f32 x) {
        return flushes && std::fabs(x) < std::numeric_limits<f32>::min() ? std::copysign(0.0f, x) : x;
    };
    f32* const d = values<f32>(w, i.d[0]);
    const f32* const a = values<f32>(w, i.a);
    each_lane(mask, [=](int lane) {
        d[lane] = flushed(canonical(static_cast<f32>(Operation::of(f64{flushed(a[lane])}))));
    });
}
/// Rounded downwards. The compiler moves nothing over the empty assembly.
void fused_down(warp& w, const instruction& i, u32 mask)
{
    const auto opaque = [](f32 x) {
        asm volatile("" : "+x"(x));
        return x;
    };
    const u32 before = _mm_getcsr();
    _mm_setcsr((before & ~u32{_MM_ROUND_MASK}) | _MM_ROUND_DOWN);
    each_lane(mask, [&](int lane) {
        values<f32>(w, i.d[0])[lane] = opaque(fused::of(opaque(values<f32>(w, i.a)[lane]),
            opaque(values<f32>(w, i.b)[lane]), opaque(values<f32>(w, i.c)[lane])));
    });
    _mm_setcsr(before);
}
/// Reads and writes the upper halves alone, and no subnormals.
template <class Operation>
void approximate_upper_half(warp& w, const instruction& i, u32 mask)
{
    const auto upper = [](f64 x) {
        const u64 half = std::bit_cast<u64>(x) >> 32 << 32;
        return (half >> 52 & 0x7ff) != 0 ? std::bit_cast<f64>(half) : std::copysign(0.0, x);
    };
    each_lane(mask, [&](int lane) {
        const f64 a = values<f64>(w, i.a)[lane];
        values<f64>(w, i.d[0])[lane] = a != a ? a : upper(Operation::of(upper(a)));
    });
}

template <class T, class Wide>
void multiply_wide(warp& w, const instruction& i, u32 mask)
{
    Wide* const d = values<Wide>(w, i.d[0]);
    const T *const a = values<T>(w, i.a), *const b = values<T>(w, i.b);
    each_lane(mask, [=](int lane) { d[lane] = static_cast<Wide>(static_cast<Wide>(a[lane]) * static_cast<Wide>(b[lane])); });
}
template <class T, bool subtracts, bool takes_carry, bool gives_carry>
void with_carry(warp& w, const instruction& i, u32 mask)
{
    T* const d = values<T>(w, i.d[0]);
    const T *const a = values<T>(w, i.a), *const b = values<T>(w, i.b);
    u8* const carry = values<u8>(w, i.c);
    each_lane(mask, [=](int lane) {
        const unsigned in = takes_carry ? carry[lane] : 0;
        const unsigned __int128 x = a[lane], y = b[lane];
        const unsigned __int128 result = subtracts ? x - y - in : x + y + in;
        d[lane] = static_cast<T>(result);
        if constexpr (gives_carry) carry[lane] = static_cast<u8>(result >> bits_of<T> & 1);
    });
}

template <class T, bool left>
void shift(warp& w, const instruction& i, u32 mask)
{
    T* const d = values<T>(w, i.d[0]);
    const T* const a = values<T>(w, i.a);
    const u32* const b = values<u32>(w, i.b);
    constexpr u32 last = bits_of<T> - 1;
    each_lane(mask, [=](int lane) {
        const u32 by = b[lane] > last ? last : b[lane];
        if constexpr (std::is_signed_v<T>) d[lane] = static_cast<T>(a[lane] >> by);
        else if constexpr (left) d[lane] = b[lane] > last ? T{0} : static_cast<T>(wrapping<T>{a[lane]} << by);
        else d[lane] = b[lane] > last ? T{0} : static_cast<T>(a[lane] >> by);
    });
}
void shift_funnel_right(warp& w, const instruction& i, u32 mask)
{
    u32* const d = values<u32>(w, i.d[0]);
    const u32 *const a = values<u32>(w, i.a), *const b = values<u32>(w, i.b), *const c = values<u32>(w, i.c);
    each_lane(mask, [=](int lane) { d[lane] = static_cast<u32>((u64{b[lane]} << 32 | a[lane]) >> (c[lane] & 31)); });
}
template <class T>
T low_ones(u32 count)
{
    return count >= bits_of<T> ? static_cast<T>(~T{0}) : static_cast<T>((T{1} << count) - 1);
}
template <class T>
void insert_bits(warp& w, const instruction& i, u32 mask)
{
    each_lane(mask, [&](int lane) {
        const T a = values<T>(w, i.a)[lane], b = values<T>(w, i.b)[lane];
        const u32 from = values<u32>(w, i.c)[lane] & 0xff, length = values<u32>(w, i.e)[lane] & 0xff;
        const T field = from >= bits_of<T> ? T{0} : static_cast<T>(low_ones<T>(length) << from);
        const T moved = from >= bits_of<T> ? T{0} : static_cast<T>(a << from);
        values<T>(w, i.d[0])[lane] = static_cast<T>((b & ~field) | (moved & field));
    });
}
void permute(warp& w, const instruction& i, u32 mask)
{
    u32* const d = values<u32>(w, i.d[0]);
    const u32 *const a = values<u32>(w, i.a), *const b = values<u32>(w, i.b), *const c = values<u32>(w, i.c);
    each_lane(mask, [=](int lane) {
        const u64 both = u64{b[lane]} << 32 | a[lane];
        u32 result = 0;
        for (unsigned k = 0; k < 4; ++k) {
            const u32 which = c[lane] >> (4 * k) & 15;
            u32 byte = static_cast<u32>(both >> (8 * (which & 7))) & 0xff;
            if ((which & 8) != 0) byte = (byte & 0x80) != 0 ? 0xff : 0; // its sign
            result |= byte << (8 * k);
        }
        d[lane] = result;
    });
}
template <class T>
void select(warp& w, const instruction& i, u32 mask)
{
    T* const d = values<T>(w, i.d[0]);
    const T *const a = values<T>(w, i.a), *const b = values<T>(w, i.b);
    const u8* const c = values<u8>(w, i.c);
    each_lane(mask, [=](int lane) { d[lane] = c[lane] != 0 ? a[lane] : b[lane]; });
}
/// Parts of a register, the lowest first.
template <class Whole, class Part, bool splits>
void move_parts(warp& w, const instruction& i, u32 mask)
{
    constexpr unsigned count = sizeof(Whole) / sizeof(Part);
    const slot from[4] = {i.a, i.b, i.c, i.e};
    each_lane(mask, [&](int lane) {
        const Whole whole = splits ? values<Whole>(w, i.a)[lane] : 0;
        Whole joined = 0;
        for (unsigned k = 0; k < count; ++k) {
            const unsigned at = bits_of<Part> * k;
            if constexpr (!splits) joined |= static_cast<Whole>(Whole{values<Part>(w, from[k])[lane]} << at);
            else if (i.d[k] != none) values<Part>(w, i.d[k])[lane] = static_cast<Part>(whole >> at);
        }
        if constexpr (!splits) values<Whole>(w, i.d[0])[lane] = joined;
    });
}

// --- Comparisons ---

enum comparison { eq, ne, lt, le, gt, ge, equ, neu, ltu, leu, gtu, geu };
constexpr const char* comparison_names[] = {"eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu"};

/// Those that end in u hold for a NaN as well.
template <class T, comparison how>
bool compare(T a, T b)
{
    const bool is_nan = a != a || b != b;
    switch (how) {
    case eq: return a == b;
    case ne: return !is_nan && a != b;
    case lt: return a < b;
    case le: return a <= b;
    case gt: return a > b;
    case ge: return a >= b;
    case equ: return is_nan || a == b;
    case neu: return a != b;
    case ltu: return !(a >= b);
    case leu: return !(a > b);
    case gtu: return !(a <= b);
    default: return !(a < b);
    }
}
template <class T, comparison how>
void set_predicate(warp& w, const instruction& i, u32 mask)
{
    const T *const a = values<T>(w, i.a), *const b = values<T>(w, i.b);
    u8* const d = values<u8>(w, i.d[0]);
    each_lane(mask, [=](int lane) { d[lane] = compare<T, how>(a[lane], b[lane]); });
}

// --- The table ---

template <class T>
void add_forms_of_integers(table& to)
{
    const std::string name = name_of<T>();
    to["add." + name] = &binary<T, addition>;
    to["sub." + name] = &binary<T, subtraction>;
    to["mul.lo." + name] = &binary<T, multiplication>;
    to["mad.lo." + name] = &ternary<T, product_and_sum>;
    to["div." + name] = &binary<T, division>;
    to["rem." + name] = &binary<T, remainder>;
    to["min." + name] = &binary<T, minimum>;
    to["max." + name] = &binary<T, maximum>;
    to["shr." + name] = &shift<T, false>;
    to["mov." + name] = &unary<T, same>;
    to["selp." + name] = &select<T>;
    if constexpr (std::is_signed_v<T>) {
        to["abs." + name] = &unary<T, absolute>;
        to["neg." + name] = &unary<T, negation>;
    }
    if constexpr (sizeof(T) <= 4) {
        using wide_signed = std::conditional_t<sizeof(T) == 2, s32, s64>;
        using wide = std::conditional_t<std::is_signed_v<T>, wide_signed, std::make_unsigned_t<wide_signed>>;
        to["mul.wide." + name] = &multiply_wide<T, wide>;
    }
    if constexpr (sizeof(T) >= 4) {
        using bits = std::make_unsigned_t<T>;
        to["add.cc." + name] = &with_carry<bits, false, false, true>;
        to["addc.cc." + name] = &with_carry<bits, false, true, true>;
        to["addc." + name] = &with_carry<bits, false, true, false>;
        to["sub.cc." + name] = &with_carry<bits, true, false, true>;
        to["subc.cc." + name] = &with_carry<bits, true, true, true>;
        to["subc." + name] = &with_carry<bits, true, true, false>;
    }
}

template <class T>
void add_forms_of_bits(table& to)
{
    const std::string name = bits_name_of<T>();
    to["and." + name] = &binary<T, bitwise_and>;
    to["or." + name] = &binary<T, bitwise_or>;
    to["xor." + name] = &binary<T, bitwise_xor>;
    to["not." + name] = &unary<T, bitwise_not>;
    to["shl." + name] = &shift<T, true>;
    to["shr." + name] = &shift<T, false>;
    to["mov." + name] = &unary<T, same>;
    to["selp." + name] = &select<T>;
    if constexpr (sizeof(T) >= 4) {
        to["clz." + name] = &unary<T, leading_zeros, u32>;
        to["popc." + name] = &unary<T, ones, u32>;
        to["bfi." + name] = &insert_bits<T>;
    }
}

template <class T>
void add_forms_of_floats(table& to)
{
    const std::string name = name_of<T>();
    for (const std::string modifier : {".", ".rn."}) {
        to["add" + modifier + name] = &binary<T, addition>;
        to["sub" + modifier + name] = &binary<T, subtraction>;
        to["mul" + modifier + name] = &binary<T, multiplication>;
    }
    to["div.rn." + name] = &binary<T, division>;
    to["fma.rn." + name] = &ternary<T, fused>;
    to["sqrt.rn." + name] = &unary<T, square_root>;
    to["min." + name] = &binary<T, minimum>;
    to["max." + name] = &binary<T, maximum>;
    to["abs." + name] = &unary<T, absolute>;
    to["neg." + name] = &unary<T, negation>;
    to["mov." + name] = &unary<T, same>;
    to["selp." + name] = &select<T>;
}
template <class T, int... how>
void add_comparisons(table& to, const std::string& name, std::integer_sequence<int, how...>)
{
    const auto form = [&](int k) { return std::string("setp.") + comparison_names[k] + "." + name; };
    ((to[form(how)] = &set_predicate<T, static_cast<comparison>(how)>), ...);
}
void add_comparisons(table& to)
{
    for_integers([&](auto of) {
        using T = typename decltype(of)::is;
        add_comparisons<T>(to, name_of<T>(), std::make_integer_sequence<int, ge + 1>());
    });
    for_types<u16, u32, u64>([&](auto of) {
        using T = typename decltype(of)::is;
        add_comparisons<T>(to, bits_name_of<T>(), std::make_integer_sequence<int, ne + 1>());
    });
    add_comparisons<f32>(to, "f32", std::make_integer_sequence<int, geu + 1>());
    add_comparisons<f64>(to, "f64", std::make_integer_sequence<int, geu + 1>());
}
void add_other_forms(table& to)
{
    to["and.pred"] = &binary<u8, bitwise_and>;
    to["or.pred"] = &binary<u8, bitwise_or>;
    to["xor.pred"] = &binary<u8, bitwise_xor>;
    to["not.pred"] = &unary<u8, logical_not>;
    to["mov.pred"] = &unary<u8, same>;
    to["rcp.approx.ftz.f64"] = &approximate_upper_half<reciprocal>;
    to["rsqrt.approx.f32"] = &approximate<reciprocal_square_root, false>;
    to["ex2.approx.ftz.f32"] = &approximate<power_of_two, true>;
    to["fma.rm.f32"] = &fused_down;
    to["max.u16x2"] = &binary<u32, maximum_of_halves>;
    to["prmt.b32"] = &permute;
    to["shf.r.wrap.b32"] = &shift_funnel_right;
    to["mov.b64.split2"] = &move_parts<u64, u32, true>;
    to["mov.b64.pack2"] = &move_parts<u64, u32, false>;
    to["mov.b32.split2"] = &move_parts<u32, u16, true>;
    to["mov.b32.pack2"] = &move_parts<u32, u16, false>;
}

} // namespace

void add_arithmetic_forms(table& to)
{
    for_integers([&](auto of) { add_forms_of_integers<typename decltype(of)::is>(to); });
    for_types<u16, u32, u64>([&](auto of) { add_forms_of_bits<typename decltype(of)::is>(to); });
    for_types<f32, f64>([&](auto of) { add_forms_of_floats<typename decltype(of)::is>(to); });
    add_comparisons(to);
    add_other_forms(to);
}

handler find_handler(const std::string& form)
{
    static const table all = [] {
        table made;
        add_arithmetic_forms(made);
        add_conversion_forms(made);
        add_memory_forms(made);
        add_warp_forms(made);
        return made;
    }();
    const auto found = all.find(form);
    return found == all.end() ? nullptr : found->second;
}

} // namespace ptx
