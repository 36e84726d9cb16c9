// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <set>
#include <sstream>

#include "tests/ptx/form_case.hpp"
#include "tests/ptx/kernel_forms.hpp"
#include "tests/support/ptx/engine.hpp"

using namespace form_test;

namespace {

/// The results of the form, eight bytes for each four operands.
std::vector<bits> run_form(const form_case& of, const std::vector<bits>& operands)
{
    const auto module = ptx::load(kernel_text(of));
    const ptx::kernel* const kernel = ptx::find_kernel(*module, "tested");
    REQUIRE(kernel != nullptr);
    std::vector<bits> results(operands.size() / 4);
    const bits arguments[2] = {reinterpret_cast<bits>(operands.data()), reinterpret_cast<bits>(results.data())};
    unsigned char bytes[sizeof arguments];
    std::memcpy(bytes, arguments, sizeof bytes);
    ptx::run(*kernel, {static_cast<unsigned>(results.size() / 32)}, {32}, 0, bytes, {});
    return results;
}

/// The first operands for which the engine is wrong; empty: there are none.
std::string first_difference(const form_case& of)
{
    const std::vector<bits> operands = operands_of(of), results = run_form(of, operands);
    const unsigned width = of.result.in == "pred" ? 16 : operand(of.result.in).width();
    for (std::size_t k = 0; k < results.size(); ++k) {
        const std::optional<bits> expected = of.expected(&operands[4 * k]);
        if (!expected) continue;
        const bits wanted = low_bits(*expected, width);
        if (of.agrees ? of.agrees(results[k], wanted) : results[k] == wanted) continue;
        std::ostringstream text;
        text << of.forms << (of.text.empty() ? "" : " (" + of.text + ")") << std::hex << " of";
        for (std::size_t j = 0; j < of.operands.size(); ++j) text << " 0x" << operands[4 * k + j];
        text << " gives 0x" << results[k] << ", not 0x" << wanted;
        return text.str();
    }
    return {};
}
void check(const std::vector<form_case>& cases)
{
    for (const form_case& each : cases) CHECK(first_difference(each) == "");
}

std::set<std::string> words_of(const std::string& text)
{
    std::istringstream from(text);
    return {std::istream_iterator<std::string>(from), {}};
}
std::set<std::string> tested_forms()
{
    std::set<std::string> all;
    for (const auto& cases : {integer_cases(), bit_cases(), float_cases(), comparison_cases(), conversion_cases()})
        for (const form_case& each : cases) all.merge(words_of(each.forms));
    return all;
}

} // namespace

TEST_CASE("integer instructions equal long multiplication and division")
{
    check(integer_cases());
}

TEST_CASE("instructions on bits equal their definition bit by bit")
{
    check(bit_cases());
}

TEST_CASE("floating-point instructions give the number that IEEE 754 asks for")
{
    check(float_cases());
}

TEST_CASE("comparisons answer for less and equal and greater and NaN")
{
    check(comparison_cases());
}

TEST_CASE("conversions give the nearest value of the other type or the last one in the direction of rounding")
{
    check(conversion_cases());
}

TEST_CASE("a wrong expectation is noticed")
{
    form_case wrong = integer_cases().front();
    REQUIRE(wrong.forms == "add.s16");
    REQUIRE(first_difference(wrong) == "");
    const auto right = wrong.expected;
    wrong.expected = [&](const bits* x) { return *right(x) ^ (low_bits(x[0], 16) == 7 ? 1 : 0); };
    CHECK(first_difference(wrong).find("add.s16 of 0x") == 0);
}

TEST_CASE("every form in the kernels of the library that needs no other thread is tested here")
{
    // What moves data and control, or looks at other threads, has tests of its own.
    const std::set<std::string> elsewhere
        = words_of("activemask atom bar bra call clock cvta exit fence isspacep ld match membar red redux ret shfl st "
                   "trap vote");
    const std::set<std::string> tested = tested_forms();
    std::string missing;
    for (const std::string& form : words_of(kernel_forms))
        if (!tested.contains(form) && !elsewhere.contains(form.substr(0, form.find('.')))) missing += form + " ";
    CHECK(missing == "");
}
