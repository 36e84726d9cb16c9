// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <numeric>
#include <optional>
#include <vector>

/// Floating-point arithmetic without a floating-point unit: what IEEE 754 asks for, found by search.
///
/// A result is the largest number of the format that is not above the true value, or the next one. Whether a number is
/// above the true value is decided exactly, with products and sums in 113 bits, which software computes.
namespace exact {

using real = __float128;
using bits = std::uint64_t;
enum class rounding { nearest, zero, down, up };

struct format {
    int exponent_bits, fraction_bits;
    constexpr int bias() const { return (1 << (exponent_bits - 1)) - 1; }
    constexpr bits sign() const { return bits{1} << (exponent_bits + fraction_bits); }
    constexpr bits infinity() const { return ((bits{1} << exponent_bits) - 1) << fraction_bits; }
    constexpr bits nan() const { return sign() - 1; } ///< the one that operations of a GPU give
    constexpr bits one() const { return static_cast<bits>(bias()) << fraction_bits; }
    constexpr bits magnitude(bits x) const { return x & (sign() - 1); }
    constexpr bool is_negative(bits x) const { return (x & sign()) != 0; }
    constexpr bool is_nan(bits x) const { return magnitude(x) > infinity(); }
    constexpr bool is_infinite(bits x) const { return magnitude(x) == infinity(); }
    constexpr bool is_zero(bits x) const { return magnitude(x) == 0; }
    constexpr bits zero(bool negative) const { return negative ? sign() : 0; }
    constexpr bits infinity(bool negative) const { return infinity() | zero(negative); }
};
inline constexpr format half{5, 10}, brain{8, 7}, single{8, 23}, twofold{11, 52};

inline real power_of_two(int exponent)
{
    static const std::vector<real> all = [] {
        std::vector<real> made(4096);
        made[2048] = 1;
        for (unsigned k = 2049; k < 4096; ++k) made[k] = made[k - 1] * 2;
        for (unsigned k = 2048; k-- > 0;) made[k] = made[k + 1] / 2;
        return made;
    }();
    return all[static_cast<unsigned>(exponent + 2048)];
}
inline real value_of(format of, bits x)
{
    const bits fraction = x & ((bits{1} << of.fraction_bits) - 1);
    const int exponent = static_cast<int>(of.magnitude(x) >> of.fraction_bits);
    const bits whole = exponent == 0 ? fraction : fraction | bits{1} << of.fraction_bits;
    const int scale = (exponent == 0 ? 1 : exponent) - of.bias() - of.fraction_bits;
    const real value = static_cast<real>(whole) * power_of_two(scale);
    return of.is_negative(x) ? -value : value;
}
inline int sign_of(real x) { return x > 0 ? 1 : x < 0 ? -1 : 0; }

/// `above(x)`: the sign of the true value, which is not 0, minus x.
template <class Above>
bits round(format to, rounding how, Above above)
{
    // Numbers in their order: 0 is zero, 1 the least above it, -1 the one below.
    using place = std::int64_t;
    const auto number = [&](place at) { return at < 0 ? to.sign() | static_cast<bits>(-at) : static_cast<bits>(at); };
    const place most = static_cast<place>(to.infinity());
    place low = -most, high = most;
    while (low + 1 < high) {
        const place middle = std::midpoint(low, high);
        (above(value_of(to, number(middle))) >= 0 ? low : high) = middle;
    }
    if (low > -most && above(value_of(to, number(low))) == 0) return number(low);
    const bool negative = above(0) < 0;
    bool takes_high = how == rounding::up || (how == rounding::zero && negative);
    if (how == rounding::nearest) { // an infinity counts as the power of two behind the largest number
        const int side = above((value_of(to, number(low)) + value_of(to, number(high))) / 2);
        takes_high = side > 0 || (side == 0 && high % 2 == 0);
    }
    const place chosen = takes_high ? high : low;
    return chosen == 0 ? to.zero(negative) : number(chosen);
}

inline bits multiply_add(format of, rounding how, bits a, bits b, bits c)
{
    if (of.is_nan(a) || of.is_nan(b) || of.is_nan(c)) return of.nan();
    const bool negative = of.is_negative(a) != of.is_negative(b);
    if (of.is_infinite(a) || of.is_infinite(b)) {
        if (of.is_zero(a) || of.is_zero(b)) return of.nan();
        if (of.is_infinite(c) && of.is_negative(c) != negative) return of.nan();
        return of.infinity(negative);
    }
    if (of.is_infinite(c)) return c;
    const bool no_product = of.is_zero(a) || of.is_zero(b);
    if (no_product && of.is_zero(c) && of.is_negative(c) == negative) return c;
    const real product = value_of(of, a) * value_of(of, b), addend = value_of(of, c);
    // The sum and its rounding error (Knuth): together they are exact.
    const real sum = product + addend, behind = sum - product;
    const real error = (product - (sum - behind)) + (addend - behind);
    if (sum == 0) return of.zero(how == rounding::down);
    return round(of, how, [&](real x) { return sum != x ? sign_of(sum - x) : sign_of(error); });
}
inline bits add(format of, rounding how, bits a, bits b) { return multiply_add(of, how, a, of.one(), b); }
inline bits multiply(format of, rounding how, bits a, bits b)
{
    const bool negative = of.is_negative(a) != of.is_negative(b);
    if (of.is_nan(a) || of.is_nan(b)) return of.nan();
    if (of.is_infinite(a) || of.is_infinite(b))
        return of.is_zero(a) || of.is_zero(b) ? of.nan() : of.infinity(negative);
    if (of.is_zero(a) || of.is_zero(b)) return of.zero(negative);
    const real product = value_of(of, a) * value_of(of, b);
    return round(of, how, [&](real x) { return sign_of(product - x); });
}
inline bits divide(format of, rounding how, bits a, bits b)
{
    const bool negative = of.is_negative(a) != of.is_negative(b);
    if (of.is_nan(a) || of.is_nan(b)) return of.nan();
    if (of.is_infinite(a)) return of.is_infinite(b) ? of.nan() : of.infinity(negative);
    if (of.is_zero(b)) return of.is_zero(a) ? of.nan() : of.infinity(negative);
    if (of.is_infinite(b) || of.is_zero(a)) return of.zero(negative);
    const real dividend = value_of(of, a), divisor = value_of(of, b);
    return round(of, how, [&](real x) { return sign_of(dividend - x * divisor) * sign_of(divisor); });
}
inline bits square_root(format of, rounding how, bits a)
{
    if (of.is_zero(a)) return a;
    if (of.is_nan(a) || of.is_negative(a)) return of.nan();
    if (of.is_infinite(a)) return a;
    const real value = value_of(of, a);
    return round(of, how, [&](real x) { return x <= 0 ? 1 : sign_of(value - x * x); });
}
inline bits convert(format to, rounding how, format from, bits a)
{
    if (from.is_nan(a)) return to.nan();
    if (from.is_infinite(a)) return to.infinity(from.is_negative(a));
    if (from.is_zero(a)) return to.zero(from.is_negative(a));
    const real value = value_of(from, a);
    return round(to, how, [&](real x) { return sign_of(value - x); });
}
inline bits from_integer(format to, rounding how, __int128 a)
{
    if (a == 0) return 0;
    return round(to, how, [&](real x) { return sign_of(static_cast<real>(a) - x); });
}
/// Of a number within 2^100.
inline __int128 to_integer(rounding how, real a)
{
    const auto cut = static_cast<__int128>(a);
    const real rest = a - static_cast<real>(cut); // of the sign of a
    const int side = sign_of(rest);
    if (how == rounding::zero || side == 0) return cut;
    if (how == rounding::down) return side < 0 ? cut - 1 : cut;
    if (how == rounding::up) return side > 0 ? cut + 1 : cut;
    const real twice = rest * 2 * side;
    return twice > 1 || (twice == 1 && cut % 2 != 0) ? cut + side : cut;
}
/// The order of two numbers: less than 0, 0, more than 0; none if one is a NaN.
inline std::optional<int> order(format of, bits a, bits b)
{
    if (of.is_nan(a) || of.is_nan(b)) return {};
    const auto place = [&](bits x) {
        const auto magnitude = static_cast<std::int64_t>(of.magnitude(x));
        return of.is_negative(x) ? -magnitude : magnitude;
    };
    return place(a) < place(b) ? -1 : place(a) > place(b) ? 1 : 0;
}

} // namespace exact
