// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "tests/ptx/form_case.hpp"

namespace form_test {

namespace {

using number = __int128;
using wide_bits = unsigned __int128;
using maybe_number = std::optional<number>;
using numbers = std::function<maybe_number(const number*)>;

const std::string sizes[] = {"16", "32", "64"};

/// The numbers that the operands mean decide.
form_case of_numbers(std::string form, operand result, std::vector<operand> operands, numbers f, std::string text = {})
{
    const auto expected = [operands, f](const bits* raw) -> std::optional<bits> {
        number values[4] = {};
        for (std::size_t k = 0; k < operands.size(); ++k) values[k] = operands[k].number(raw[k]);
        const maybe_number found = f(values);
        if (!found) return {};
        return static_cast<bits>(*found);
    };
    return {std::move(form), std::move(result), std::move(operands), expected, std::move(text)};
}

/// By adding and shifting, modulo 2^128.
number product(number a, number b)
{
    wide_bits sum = 0;
    for (int k = 0; k < 128; ++k)
        if ((static_cast<wide_bits>(b) >> k & 1) != 0) sum += static_cast<wide_bits>(a) << k;
    return static_cast<number>(sum);
}
number wrapped_sum(number a, number b)
{
    return static_cast<number>(static_cast<wide_bits>(a) + static_cast<wide_bits>(b));
}
/// Quotient and remainder, by subtracting, as at school; the remainder has the dividend's sign.
std::optional<std::pair<number, number>> divide(number a, number b)
{
    if (b == 0) return {};
    const number dividend = a < 0 ? -a : a, divisor = b < 0 ? -b : b;
    number quotient = 0, rest = 0;
    for (int k = 64; k >= 0; --k) {
        rest = rest * 2 + (dividend >> k & 1);
        quotient *= 2;
        if (rest >= divisor) rest -= divisor, ++quotient;
    }
    return std::pair((a < 0) != (b < 0) ? -quotient : quotient, a < 0 ? -rest : rest);
}
number high_part(number a, number b, unsigned width) { return product(a, b) >> width; }

void add_of_type(std::vector<form_case>& to, const std::string& type, unsigned width)
{
    const auto two = [&](const std::string& name, numbers f) {
        to.push_back(of_numbers(name + "." + type, type, {type, type}, std::move(f)));
    };
    two("add", [](const number* x) { return x[0] + x[1]; });
    two("sub", [](const number* x) { return x[0] - x[1]; });
    two("mul.lo", [](const number* x) { return product(x[0], x[1]); });
    two("mul.hi", [=](const number* x) { return high_part(x[0], x[1], width); });
    two("div", [](const number* x) -> maybe_number {
        const auto both = divide(x[0], x[1]);
        return both ? maybe_number(both->first) : std::nullopt;
    });
    two("rem", [](const number* x) -> maybe_number {
        const auto both = divide(x[0], x[1]);
        return both ? maybe_number(both->second) : std::nullopt;
    });
    two("min", [](const number* x) { return x[0] < x[1] ? x[0] : x[1]; });
    two("max", [](const number* x) { return x[0] > x[1] ? x[0] : x[1]; });
    to.push_back(of_numbers("mad.lo." + type, type, {type, type, type},
        [](const number* x) { return wrapped_sum(product(x[0], x[1]), x[2]); }));
    to.push_back(of_numbers("mad.hi." + type, type, {type, type, type},
        [=](const number* x) { return wrapped_sum(high_part(x[0], x[1], width), x[2]); }));
    to.push_back(of_numbers("mov." + type, type, {type}, [](const number* x) { return x[0]; }));
    to.push_back(of_numbers("selp." + type, type, {type, type, "pred"},
        [](const number* x) { return x[2] != 0 ? x[0] : x[1]; }));
    to.push_back(of_numbers("shr." + type, type, {type, "u32"}, [](const number* x) {
        number shifted = x[0];
        for (number k = 0; k < x[1] && k < 64; ++k) shifted = (shifted - (shifted % 2 != 0 ? 1 : 0)) / 2;
        return shifted;
    }));
    if (type[0] == 's') {
        to.push_back(of_numbers("abs." + type, type, {type}, [](const number* x) { return x[0] < 0 ? -x[0] : x[0]; }));
        to.push_back(of_numbers("neg." + type, type, {type}, [](const number* x) { return -x[0]; }));
    }
    if (width == 64) return;
    const std::string wide = type.substr(0, 1) + std::to_string(2 * width);
    to.push_back(of_numbers("mul.wide." + type, wide, {type, type},
        [](const number* x) { return product(x[0], x[1]); }));
    to.push_back(of_numbers("mad.wide." + type, wide, {type, type, wide},
        [](const number* x) { return wrapped_sum(product(x[0], x[1]), x[2]); }));
}

/// Two words at once. What an instruction gives, and its carry, each have a case.
void add_carries(std::vector<form_case>& to, const std::string& name, unsigned width)
{
    const std::string type = width == 64 ? "u64" : "u32", second = width == 64 ? "%y1" : "%x1";
    const std::string first = width == 64 ? "%y0" : "%x0";
    const std::vector<operand> four(4, type);
    const auto two_words = [width](number high, number low) {
        return static_cast<wide_bits>(high) << width | static_cast<wide_bits>(low);
    };
    const auto both = [=](const number* x, bool subtracts) {
        const wide_bits a = two_words(x[2], x[0]), b = two_words(x[3], x[1]);
        return std::pair(subtracts ? a - b : a + b, a < b);
    };
    for (const bool subtracts : {false, true}) {
        const std::string op = subtracts ? "sub" : "add";
        const std::string low = op + ".cc." + name, high = op + "c.cc." + name, last = op + "c." + name;
        to.push_back(of_numbers(low, type, {type, type},
            [=](const number* x) { return subtracts ? x[0] - x[1] : x[0] + x[1]; }));
        const auto of_high = [=](const number* x) { return static_cast<number>(both(x, subtracts).first >> width); };
        const std::string begin = low + " " + first + ", %a0, %a1; ";
        to.push_back(of_numbers(low + " " + high, type, four, of_high, begin + high + " %d, %a2, %a3;"));
        to.push_back(of_numbers(low + " " + last, type, four, of_high, begin + last + " %d, %a2, %a3;"));
        const auto carry = [=](const number* x) -> number {
            const auto [result, borrows] = both(x, subtracts);
            if (subtracts) return borrows ? -1 : 0;
            return width == 64 ? result < two_words(x[2], x[0]) : static_cast<number>(result >> (2 * width));
        };
        to.push_back(of_numbers(low + " " + high + " " + last, type, four, carry,
            begin + high + " " + second + ", %a2, %a3; " + last + " %d, 0, 0;"));
    }
}

bool bit(bits x, unsigned k) { return k < 64 && (x >> k & 1) != 0; }
/// The bits `width - 1` to 0 of a result.
template <class Body>
bits each_bit(unsigned width, Body body)
{
    bits made = 0;
    for (unsigned k = width; k-- > 0;) made = made * 2 + (body(k) ? 1 : 0);
    return made;
}

void add_of_bits(std::vector<form_case>& to, const std::string& size)
{
    const std::string type = "b" + size;
    const auto width = static_cast<unsigned>(std::stoul(size));
    const auto logical = [&](const std::string& name, bool (*f)(bool, bool)) {
        to.push_back({name + "." + type, type, {type, type}, [=](const bits* x) {
            return each_bit(width, [&](unsigned k) { return f(bit(x[0], k), bit(x[1], k)); });
        }});
    };
    logical("and", [](bool a, bool b) { return a && b; });
    logical("or", [](bool a, bool b) { return a || b; });
    logical("xor", [](bool a, bool b) { return a != b; });
    to.push_back({"not." + type, type, {type},
        [=](const bits* x) { return each_bit(width, [&](unsigned k) { return !bit(x[0], k); }); }});
    to.push_back({"shl." + type, type, {type, "u32"}, [=](const bits* x) {
        const bits by = low_bits(x[1], 32);
        return each_bit(width, [&](unsigned k) { return k >= by && bit(x[0], k - static_cast<unsigned>(by)); });
    }});
    to.push_back({"shr." + type, type, {type, "u32"}, [=](const bits* x) {
        const bits by = low_bits(x[1], 32);
        return each_bit(width, [&](unsigned k) { return k + by < width && bit(x[0], k + static_cast<unsigned>(by)); });
    }});
    to.push_back({"mov." + type, type, {type}, [=](const bits* x) { return x[0]; }});
    to.push_back({"selp." + type, type, {type, type, "pred"},
        [=](const bits* x) { return (x[2] & 1) != 0 ? x[0] : x[1]; }});
    if (width == 16) return;
    to.push_back({"brev." + type, type, {type},
        [=](const bits* x) { return each_bit(width, [&](unsigned k) { return bit(x[0], width - 1 - k); }); }});
    to.push_back({"clz." + type, "b32", {type}, [=](const bits* x) {
        bits count = 0;
        while (count < width && !bit(x[0], width - 1 - static_cast<unsigned>(count))) ++count;
        return count;
    }});
    to.push_back({"popc." + type, "b32", {type}, [=](const bits* x) {
        bits count = 0;
        for (unsigned k = 0; k < width; ++k) count += bit(x[0], k);
        return count;
    }});
    to.push_back({"bfi." + type, type, {type, type, "u32", "u32"}, [=](const bits* x) {
        const unsigned from = x[2] & 0xff, length = x[3] & 0xff;
        return each_bit(width, [&](unsigned k) {
            return k >= from && k < from + length ? bit(x[0], k - from) : bit(x[1], k);
        });
    }});
    for (const bool is_signed : {false, true}) {
        const std::string name = (is_signed ? "s" : "u") + size;
        to.push_back({"bfe." + name, name, {name, "u32", "u32"}, [=](const bits* x) {
            const unsigned from = x[1] & 0xff, length = x[2] & 0xff;
            const bool fill = is_signed && length != 0 && bit(x[0], std::min(from + length - 1, width - 1));
            return each_bit(width, [&](unsigned k) {
                return k < length && from + k < width ? bit(x[0], from + k) : fill;
            });
        }});
    }
}

void add_funnel_shifts(std::vector<form_case>& to)
{
    for (const bool wraps : {false, true})
        for (const bool left : {false, true}) {
            const std::string form = std::string("shf.") + (left ? "l." : "r.") + (wraps ? "wrap" : "clamp") + ".b32";
            to.push_back({form, "b32", {"b32", "b32", "u32"}, [=](const bits* x) {
                const bits count = low_bits(x[2], 32), by = wraps ? count % 32 : count < 32 ? count : 32;
                const bits both = low_bits(x[1], 32) * (bits{1} << 32) + low_bits(x[0], 32);
                const auto first = static_cast<unsigned>(left ? 32 - by : by);
                return each_bit(32, [&](unsigned k) { return bit(both, first + k); });
            }});
        }
}
void add_byte_forms(std::vector<form_case>& to)
{
    to.push_back({"max.u16x2", "b32", {"b32", "b32"}, [](const bits* x) {
        const auto larger = [&](unsigned shift) { return std::max(x[0] >> shift & 0xffff, x[1] >> shift & 0xffff) << shift; };
        return larger(16) | larger(0);
    }});
    to.push_back({"prmt.b32", "b32", {"b32", "b32", "b32"}, [](const bits* x) {
        return each_bit(32, [&](unsigned k) {
            const unsigned which = x[2] >> (k / 8 * 4) & 15, at = (which & 7) * 8 + ((which & 8) != 0 ? 7 : k % 8);
            return bit(at < 32 ? x[0] : x[1], at % 32);
        });
    }});
    for (const char a : {'s', 'u'})
        for (const char b : {'s', 'u'}) {
            const std::string first = std::string(1, a) + "32", second = std::string(1, b) + "32";
            const operand byte_of_first = std::string(1, a) + "8", byte_of_second = std::string(1, b) + "8";
            to.push_back({"dp4a." + first + "." + second, "b32", {"b32", "b32", "b32"}, [=](const bits* x) {
                number sum = operand("u32").number(x[2]);
                for (unsigned k = 0; k < 32; k += 8)
                    sum += byte_of_first.number(x[0] >> k) * byte_of_second.number(x[1] >> k);
                return static_cast<bits>(sum);
            }});
        }
    for (const unsigned row : {0x00u, 0x80u, 0x96u, 0xe8u, 0xcau, 0xffu, 0x01u, 0x1fu})
        to.push_back({"lop3.b32", "b32", {"b32", "b32", "b32"}, [=](const bits* x) {
            return each_bit(32, [&](unsigned k) {
                return bit(row, 4u * bit(x[0], k) + 2u * bit(x[1], k) + bit(x[2], k));
            });
        }, "lop3.b32 %d, %a0, %a1, %a2, " + std::to_string(row) + ";"});
}
void add_moves_of_parts(std::vector<form_case>& to)
{
    const auto joined = [](unsigned part) {
        return [=](const bits* x) { return each_bit(64, [&](unsigned k) { return bit(x[k / part % 4], k % part); }); };
    };
    to.push_back({"mov.b64.pack2", "b64", {"b32", "b32"}, joined(32), "mov.b64 %d, {%a0, %a1};"});
    to.push_back({"mov.b64.pack4", "b64", std::vector<operand>(4, "b16"), joined(16),
        "mov.b64 %d, {%a0, %a1, %a2, %a3};"});
    to.push_back({"mov.b32.pack2", "b32", {"b16", "b16"}, joined(16), "mov.b32 %d, {%a0, %a1};"});
    const auto part = [](unsigned width, unsigned k) {
        return [=](const bits* x) { return each_bit(width, [&](unsigned j) { return bit(x[0], width * k + j); }); };
    };
    to.push_back({"mov.b64.split2", "b32", {"b64"}, part(32, 0), "mov.b64 {%d, %x0}, %a0;"});
    to.push_back({"mov.b64.split2", "b32", {"b64"}, part(32, 1), "mov.b64 {_, %d}, %a0;"});
    to.push_back({"mov.b64.split4", "b16", {"b64"}, part(16, 2), "mov.b64 {%h0, %h1, %d, %h2}, %a0;"});
    to.push_back({"mov.b32.split2", "b16", {"b32"}, part(16, 0), "mov.b32 {%d, %h0}, %a0;"});
    to.push_back({"mov.b32.split2", "b16", {"b32"}, part(16, 1), "mov.b32 {%h0, %d}, %a0;"});
}

} // namespace

std::vector<form_case> integer_cases()
{
    std::vector<form_case> all;
    for (const std::string& size : sizes)
        for (const std::string letter : {"s", "u"})
            add_of_type(all, letter + size, static_cast<unsigned>(std::stoul(size)));
    for (const std::string letter : {"s", "u"})
        for (const unsigned width : {32u, 64u}) add_carries(all, letter + std::to_string(width), width);
    return all;
}

std::vector<form_case> bit_cases()
{
    std::vector<form_case> all;
    for (const std::string& size : sizes) add_of_bits(all, size);
    add_funnel_shifts(all);
    add_byte_forms(all);
    add_moves_of_parts(all);
    const auto logical = [&](const std::string& name, bool (*f)(bool, bool)) {
        all.push_back({name, "pred", {"pred", "pred"}, [=](const bits* x) { return f(x[0] & 1, x[1] & 1) ? 1 : 0; }});
    };
    logical("and.pred", [](bool a, bool b) { return a && b; });
    logical("or.pred", [](bool a, bool b) { return a || b; });
    logical("xor.pred", [](bool a, bool b) { return a != b; });
    all.push_back({"not.pred", "pred", {"pred"}, [](const bits* x) { return (x[0] & 1) == 0 ? 1 : 0; }});
    all.push_back({"mov.pred", "pred", {"pred"}, [](const bits* x) { return x[0] & 1; }});
    all.push_back({"mov.pred", "pred", {"pred"}, [](const bits*) { return 1; }, "mov.pred %d, -1;"});
    return all;
}

} // namespace form_test
