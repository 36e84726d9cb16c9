// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "tests/ptx/form_case.hpp"

namespace form_test {

namespace {

using exact::rounding;

struct named_rounding {
    std::string name;
    rounding how;
};
const named_rounding roundings[]
    = {{"rn", rounding::nearest}, {"rz", rounding::zero}, {"rm", rounding::down}, {"rp", rounding::up}};

using agreement = std::function<bool(bits, bits)>;
/// Of results for which any NaN is as good.
agreement same_or_nan(const operand& result)
{
    return [result](bits x, bits y) {
        const exact::format format = result.format();
        return x == y || (format.is_nan(x) && format.is_nan(y));
    };
}
/// Single precision has one NaN; double precision may have any.
agreement agreement_of(const operand& result) { return result.width() == 64 ? same_or_nan(result) : agreement(); }

std::function<std::optional<bits>(const bits*)> masked(const operand& type, std::function<bits(const bits*)> f)
{
    return [width = type.width(), f](const bits* x) -> std::optional<bits> {
        const bits values[3] = {low_bits(x[0], width), low_bits(x[1], width), low_bits(x[2], width)};
        return f(values);
    };
}

void add_rounded_arithmetic(std::vector<form_case>& to, const operand& type)
{
    const exact::format format = type.format();
    const auto add = [&](const std::string& form, std::size_t operands, std::function<bits(const bits*)> f) {
        const std::vector<operand> all(operands, type);
        to.push_back({form + "." + type.type, type, all, masked(type, std::move(f)), {}, agreement_of(type)});
    };
    for (const auto& [name, how] : roundings) {
        const auto mode = how;
        const auto sum = [=](const bits* x) { return exact::add(format, mode, x[0], x[1]); };
        const auto difference = [=](const bits* x) { return exact::add(format, mode, x[0], x[1] ^ format.sign()); };
        const auto product = [=](const bits* x) { return exact::multiply(format, mode, x[0], x[1]); };
        add("add." + name, 2, sum);
        add("sub." + name, 2, difference);
        add("mul." + name, 2, product);
        if (mode == rounding::nearest) {
            add("add", 2, sum);
            add("sub", 2, difference);
            add("mul", 2, product);
        }
        add("fma." + name, 3, [=](const bits* x) { return exact::multiply_add(format, mode, x[0], x[1], x[2]); });
        add("div." + name, 2, [=](const bits* x) { return exact::divide(format, mode, x[0], x[1]); });
        add("sqrt." + name, 1, [=](const bits* x) { return exact::square_root(format, mode, x[0]); });
        add("rcp." + name, 1, [=](const bits* x) { return exact::divide(format, mode, format.one(), x[0]); });
    }
}

void add_moves_and_extremes(std::vector<form_case>& to, const operand& type)
{
    const exact::format format = type.format();
    const auto extreme = [&](const std::string& form, int wanted) {
        to.push_back({form + "." + type.type, type, {type, type}, masked(type, [=](const bits* x) {
            if (format.is_nan(x[0])) return format.is_nan(x[1]) ? format.nan() : x[1];
            if (format.is_nan(x[1])) return x[0];
            const int order = *exact::order(format, x[0], x[1]);
            if (order == 0) return format.is_negative(x[0]) == (wanted < 0) ? x[0] : x[1];
            return order == wanted ? x[0] : x[1];
        }), {}, agreement_of(type)});
    };
    extreme("min", -1);
    extreme("max", 1);
    const auto add = [&](const std::string& form, std::vector<operand> operands, std::function<bits(const bits*)> f) {
        to.push_back({form + "." + type.type, type, std::move(operands), f});
    };
    add("abs", {type}, [=](const bits* x) { return format.magnitude(x[0]); });
    add("neg", {type}, [=](const bits* x) { return x[0] ^ format.sign(); });
    add("mov", {type}, [=](const bits* x) { return x[0]; });
    add("selp", {type, type, "pred"}, [=](const bits* x) { return (x[2] & 1) != 0 ? x[0] : x[1]; });
    add("copysign", {type, type}, [=](const bits* x) { return format.magnitude(x[1]) | (x[0] & format.sign()); });
}

/// Within one unit of the last place.
bool nearly(bits x, bits y)
{
    const exact::format format = exact::single;
    if (format.is_nan(x) || format.is_nan(y)) return x == y;
    if (format.is_negative(x) != format.is_negative(y)) return false;
    return x == y || x + 1 == y || y + 1 == x;
}
void add_approximations(std::vector<form_case>& to)
{
    using function = long double (*)(long double);
    const std::pair<std::string, function> all[] = {
        {"rcp", [](long double x) { return 1 / x; }},
        {"sqrt", [](long double x) { return std::sqrt(x); }},
        {"rsqrt", [](long double x) { return 1 / std::sqrt(x); }},
        {"ex2", [](long double x) { return std::exp2(x); }},
        {"lg2", [](long double x) { return std::log2(x); }},
        {"sin", [](long double x) { return std::sin(x); }},
        {"cos", [](long double x) { return std::cos(x); }},
    };
    for (const auto& [name, f] : all)
        for (const bool flushes : {false, true}) {
            const auto flushed = [=](float x) {
                return flushes && std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x;
            };
            const auto expected = [=, f = f](const bits* x) -> bits {
                const float a = flushed(std::bit_cast<float>(static_cast<std::uint32_t>(x[0])));
                const float result = flushed(static_cast<float>(f(a)));
                return std::isnan(result) ? exact::single.nan() : std::bit_cast<std::uint32_t>(result);
            };
            to.push_back({name + (flushes ? ".approx.ftz.f32" : ".approx.f32"), "f32", {"f32"}, expected, {}, nearly});
        }
}
/// What the manual says of a divisor above 2^126: no quotient but 0, or NaN of an infinity.
void add_approximate_quotients(std::vector<form_case>& to)
{
    for (const bool full : {false, true})
        for (const bool flushes : {false, true}) {
            const auto flushed = [=](bits x) {
                const auto word = static_cast<std::uint32_t>(x);
                return flushes && (word & 0x7f800000) == 0 ? word & 0x80000000 : word;
            };
            const auto expected = [=](const bits* x) -> std::uint32_t {
                const std::uint32_t a = flushed(x[0]), b = flushed(x[1]), sign = (a ^ b) & 0x80000000;
                const bool is_large = (b & 0x7fffffff) > 0x7e800000 && (b & 0x7fffffff) < 0x7f800000;
                if (full || !is_large) return flushed(exact::divide(exact::single, rounding::nearest, a, b));
                return (a & 0x7fffffff) >= 0x7f800000 ? 0x7fffffff : sign;
            };
            const std::string name = full ? "div.full" : "div.approx";
            to.push_back({name + (flushes ? ".ftz.f32" : ".f32"), "f32", {"f32", "f32"}, expected, {}, nearly});
        }
}
/// Of double precision: the upper halves alone are read and written.
void add_upper_half_approximations(std::vector<form_case>& to)
{
    constexpr exact::format format = exact::twofold;
    const auto flushed = [=](bits x) { return format.magnitude(x) >> 52 == 0 ? format.zero(x >> 63 != 0) : x; };
    for (const std::string name : {"rcp", "rsqrt"})
        to.push_back({name + ".approx.ftz.f64", "f64", {"f64"}, [=](const bits* x) -> bits {
            const bits a = format.is_nan(x[0]) ? x[0] : flushed(x[0] >> 32 << 32);
            const bits root = name == "rcp" ? a : exact::square_root(format, rounding::nearest, a);
            return flushed(exact::divide(format, rounding::nearest, format.one(), root));
        }, {}, [=](bits x, bits y) {
            if (format.is_nan(y)) return format.is_nan(x);
            return (x & 0xffffffff) == 0 && ((x >> 32) == (y >> 32) || (x >> 32) + 1 == (y >> 32));
        }});
}

} // namespace

std::vector<form_case> float_cases()
{
    std::vector<form_case> all;
    for (const operand type : {"f32", "f64"}) {
        add_rounded_arithmetic(all, type);
        add_moves_and_extremes(all, type);
    }
    add_approximations(all);
    add_approximate_quotients(all);
    add_upper_half_approximations(all);
    return all;
}

namespace {

/// What a comparison answers for less, equal, greater and, after these, for a NaN.
struct comparison {
    std::string name;
    bool less, equal, greater, unordered;
};
const comparison ordered[] = {{"eq", false, true, false, false}, {"ne", true, false, true, false},
    {"lt", true, false, false, false}, {"le", true, true, false, false}, {"gt", false, false, true, false},
    {"ge", false, true, true, false}};
const comparison of_unsigned[] = {{"lo", true, false, false, false}, {"ls", true, true, false, false},
    {"hi", false, false, true, false}, {"hs", false, true, true, false}};
const comparison unordered[] = {{"equ", false, true, false, true}, {"neu", true, false, true, true},
    {"ltu", true, false, false, true}, {"leu", true, true, false, true}, {"gtu", false, false, true, true},
    {"geu", false, true, true, true}, {"num", true, true, true, false}, {"nan", false, false, false, true}};

bool holds(const comparison& of, const operand& type, const bits* x)
{
    std::optional<int> order;
    if (type.is_floating()) {
        order = exact::order(type.format(), low_bits(x[0], type.width()), low_bits(x[1], type.width()));
    } else {
        const __int128 difference = type.number(x[0]) - type.number(x[1]);
        order = difference < 0 ? -1 : difference > 0 ? 1 : 0;
    }
    if (!order) return of.unordered;
    return *order < 0 ? of.less : *order == 0 ? of.equal : of.greater;
}
void add_comparison(std::vector<form_case>& to, const comparison& of, const operand& type)
{
    to.push_back({"setp." + of.name + "." + type.type, "pred", {type, type},
        [=](const bits* x) { return holds(of, type, x) ? 1 : 0; }});
}
/// Both results, and a third predicate, plain and negated.
void add_combined_comparisons(std::vector<form_case>& to, const operand& type)
{
    const std::pair<std::string, bool (*)(bool, bool)> all[] = {{"and", [](bool a, bool b) { return a && b; }},
        {"or", [](bool a, bool b) { return a || b; }}, {"xor", [](bool a, bool b) { return a != b; }}};
    const std::string both = "selp.u32 %x0, 1, 0, %p0; selp.u32 %x1, 2, 0, %p1; or.b32 %d, %x0, %x1;";
    for (const comparison& of : ordered) {
        for (const auto& [name, f] : all)
            for (const bool negated : {false, true}) {
                const std::string form = "setp." + of.name + "." + name + "." + type.type;
                to.push_back({form, "u32", {type, type, "pred"}, [=, f = f](const bits* x) -> bits {
                    const bool first = holds(of, type, x), third = (x[2] & 1) != (negated ? 1 : 0);
                    return (f(first, third) ? 1u : 0u) + (f(!first, third) ? 2u : 0u);
                }, form + " %p0|%p1, %a0, %a1, " + (negated ? "!" : "") + "%a2; " + both});
            }
        const std::string form = "setp." + of.name + "." + type.type;
        to.push_back({form, "u32", {type, type}, [=](const bits* x) { return holds(of, type, x) ? 1 : 2; },
            form + " %p0|%p1, %a0, %a1; " + both});
    }
}

} // namespace

std::vector<form_case> comparison_cases()
{
    std::vector<form_case> all;
    for (const operand type : {"s16", "u16", "s32", "u32", "s64", "u64", "f32", "f64"})
        for (const comparison& of : ordered) add_comparison(all, of, type);
    for (const operand type : {"b16", "b32", "b64"})
        for (const comparison& of : {ordered[0], ordered[1]}) add_comparison(all, of, type);
    for (const operand type : {"u16", "u32", "u64"})
        for (const comparison& of : of_unsigned) add_comparison(all, of, type);
    for (const operand type : {"f32", "f64"})
        for (const comparison& of : unordered) add_comparison(all, of, type);
    for (const operand type : {"s32", "u64", "f64"}) add_combined_comparisons(all, type);
    return all;
}

namespace {

const std::string integer_types[] = {"u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"};

__int128 least_of(const operand& type)
{
    return type.is_signed() ? -(static_cast<__int128>(1) << (type.width() - 1)) : 0;
}
__int128 most_of(const operand& type)
{
    return (static_cast<__int128>(1) << (type.width() - (type.is_signed() ? 1 : 0))) - 1;
}
__int128 clamped(const operand& type, __int128 x)
{
    return x < least_of(type) ? least_of(type) : x > most_of(type) ? most_of(type) : x;
}

void add_between_integers(std::vector<form_case>& to, const operand& into, const operand& from)
{
    const auto cut = [=](const bits* x) {
        return static_cast<bits>(into.number(static_cast<bits>(from.number(x[0]))));
    };
    to.push_back({"cvt." + into.type + "." + from.type, into, {from}, cut});
    to.push_back({"cvt.sat." + into.type + "." + from.type, into, {from},
        [=](const bits* x) { return static_cast<bits>(clamped(into, from.number(x[0]))); }});
}
void add_from_integer(std::vector<form_case>& to, const operand& into, const operand& from)
{
    for (const auto& [name, how] : roundings) {
        if (into.width() == 16 && (how == rounding::down || how == rounding::up)) continue;
        to.push_back({"cvt." + name + "." + into.type + "." + from.type, into, {from},
            [=, how = how](const bits* x) { return exact::from_integer(into.format(), how, from.number(x[0])); }});
    }
}
void add_to_integer(std::vector<form_case>& to, const operand& into, const operand& from)
{
    const exact::format format = from.format();
    for (const auto& [name, how] : roundings) {
        const std::string form = "cvt." + name + "i." + into.type + "." + from.type;
        to.push_back({form, into, {from}, [=, how = how](const bits* raw) {
            const bits x = low_bits(raw[0], from.width());
            const bool is_wide = into.width() == 64 || from.width() == 64;
            if (format.is_nan(x)) {
                const bits top = bits{1} << (into.width() - 1);
                return is_wide ? static_cast<bits>(into.number(top)) : 0;
            }
            const exact::real value = exact::value_of(format, x), far = exact::power_of_two(100);
            if (format.is_infinite(x) || value >= far || value <= -far)
                return static_cast<bits>(format.is_negative(x) ? least_of(into) : most_of(into));
            return static_cast<bits>(clamped(into, exact::to_integer(how, value)));
        }});
    }
}
void add_between_floats(std::vector<form_case>& to, const operand& into, const operand& from)
{
    const bool widens = into.width() > from.width();
    for (const auto& [name, how] : roundings) {
        if (into.width() == 16 && (how == rounding::down || how == rounding::up)) continue;
        if (widens && how != rounding::nearest) continue;
        const std::string form = "cvt." + (widens ? "" : name + ".") + into.type + "." + from.type;
        to.push_back({form, into, {from}, [=, how = how](const bits* x) {
            return exact::convert(into.format(), how, from.format(), low_bits(x[0], from.width()));
        }, {}, into.width() == 16 ? agreement() : same_or_nan(into)});
    }
}
void add_to_integral(std::vector<form_case>& to, const operand& type)
{
    const exact::format format = type.format();
    for (const auto& [name, how] : roundings) {
        const std::string form = "cvt." + name + "i." + type.type + "." + type.type;
        to.push_back({form, type, {type}, [=, how = how](const bits* raw) {
            const bits x = low_bits(raw[0], type.width());
            if (format.is_nan(x)) return format.nan();
            const bits integral = format.one() + (static_cast<bits>(format.fraction_bits) << format.fraction_bits);
            if (format.magnitude(x) >= integral) return x; // all its digits are before the point
            const bits rounded = exact::from_integer(format, how, exact::to_integer(how, exact::value_of(format, x)));
            return format.is_zero(rounded) ? format.zero(format.is_negative(x)) : rounded;
        }, {}, same_or_nan(type)});
    }
    to.push_back({"cvt.sat." + type.type + "." + type.type, type, {type}, [=](const bits* raw) {
        const bits x = low_bits(raw[0], type.width());
        if (format.is_nan(x) || format.is_negative(x)) return bits{0};
        return x > format.one() ? format.one() : x;
    }});
}
void add_pairs(std::vector<form_case>& to, const std::string& half)
{
    for (const auto& [name, how] : {roundings[0], roundings[1]}) {
        to.push_back({"cvt." + name + "." + half + "x2.f32", "b32", {"f32", "f32"}, [=, how = how](const bits* x) {
            const exact::format format = operand(half).format();
            const bits upper = exact::convert(format, how, exact::single, low_bits(x[0], 32));
            return upper << 16 | exact::convert(format, how, exact::single, low_bits(x[1], 32));
        }});
    }
}
/// The bits of the nearest number of e4m3, by its units of the last place; the largest for what is above it.
bits nearest_e4m3(float x)
{
    if (x != x) return 0x7f;
    const double magnitude = std::min(std::fabs(static_cast<double>(x)), 448.0);
    const int exponent = magnitude < 0x1p-6 ? -6 : std::ilogb(magnitude);
    const auto units = static_cast<bits>(std::nearbyint(std::ldexp(magnitude, 3 - exponent))); // at most 16
    return (std::signbit(x) ? 0x80u : 0u) | (static_cast<bits>(exponent + 6) * 8 + units);
}
void add_e4m3(std::vector<form_case>& to)
{
    to.push_back({"cvt.rn.satfinite.e4m3x2.f32", "b16", {"f32", "f32"}, [](const bits* x) {
        const auto number = [](bits raw) { return std::bit_cast<float>(static_cast<std::uint32_t>(raw)); };
        return nearest_e4m3(number(x[0])) << 8 | nearest_e4m3(number(x[1]));
    }});
}

} // namespace

std::vector<form_case> conversion_cases()
{
    std::vector<form_case> all;
    for (const std::string& into : integer_types)
        for (const std::string& from : integer_types) {
            add_between_integers(all, into, from);
            add_between_integers(all, into + "/b64", from);
            add_between_integers(all, into, from + "/b64");
        }
    const std::string float_types[] = {"f16", "bf16", "f32", "f64"};
    for (const std::string& type : float_types) {
        for (const std::string& integer : integer_types) {
            add_from_integer(all, type, integer);
            add_to_integer(all, integer, type);
        }
        for (const std::string& other : float_types)
            if (other != type && (operand(other).width() != 16 || operand(type).width() != 16))
                add_between_floats(all, type, other);
        add_to_integral(all, type);
    }
    add_e4m3(all);
    add_pairs(all, "f16");
    add_pairs(all, "bf16");
    return all;
}

} // namespace form_test
