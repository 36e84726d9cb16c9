// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tests/ptx/exact.hpp"

/// One form of instruction: how it is written, and what it has to give.
namespace form_test {

using bits = std::uint64_t;

/// What an operand holds, `s8`, `b32`, `pred`, `f64`, and the register that holds it, `b16`, if it is another.
struct operand {
    std::string type, in;
    operand(const char* text) : operand(std::string(text)) {}
    operand(const std::string& text); ///< `s8` or `s8/b16`
    unsigned width() const; ///< bits of the type
    bool is_signed() const { return type[0] == 's'; }
    bool is_floating() const { return type[0] == 'f' || type.substr(0, 2) == "bf"; }
    exact::format format() const;
    /// The number that the low bits mean.
    __int128 number(bits) const;
};
bits low_bits(bits, unsigned count);

struct form_case {
    std::string forms; ///< that it tests, with blanks between
    operand result;
    std::vector<operand> operands;
    /// From the operands' bits. None: PTX leaves open what comes out.
    std::function<std::optional<bits>(const bits*)> expected;
    /// Empty: the form with its operands. Else statements with %d, %a0 to %a3, and free registers %p<4> (pred), %h<4>
    /// (16 bits), %x<4> (32 bits), %y<4> (64 bits).
    std::string text = {};
    /// Instead of equality.
    std::function<bool(bits result, bits expected)> agrees = {};
};

/// Every form of the library's kernels that needs no other thread, and more of their kind.
std::vector<form_case> integer_cases();
std::vector<form_case> bit_cases();
std::vector<form_case> float_cases();
std::vector<form_case> comparison_cases();
std::vector<form_case> conversion_cases();

/// Values that are likely to go wrong, then random ones; four operands side by side.
std::vector<bits> operands_of(const form_case&);
std::string kernel_text(const form_case&);

} // namespace form_test
