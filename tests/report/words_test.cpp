// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <limits>
#include <string>

#include <doctest/doctest.h>

#include <collprobe/detail/math.hpp>
#include <collprobe/report/table.hpp>
#include <collprobe/report/words.hpp>

namespace collprobe::testing::words_test {
namespace {

/// A code point in `length` bytes, whether that is its right length or not.
std::string encoded(std::uint32_t point, int length)
{
    if (length == 1) return std::string(1, static_cast<char>(point));
    std::string text;
    for (int i = 0; i < length - 1; ++i) {
        text.insert(text.begin(), static_cast<char>(0x80 | (point & 0x3f)));
        point >>= 6;
    }
    const unsigned mark = length == 2 ? 0xc0 : length == 3 ? 0xe0 : 0xf0;
    text.insert(text.begin(), static_cast<char>(mark | point));
    return text;
}
int right_length(std::uint32_t point) { return point < 0x80 ? 1 : point < 0x800 ? 2 : point < 0x10000 ? 3 : 4; }
bool is_surrogate(std::uint32_t point) { return point >= 0xd800 && point < 0xe000; }

std::string replaced(std::size_t characters)
{
    std::string text;
    while (characters-- > 0) text += "\xef\xbf\xbd";
    return text;
}

} // namespace

TEST_CASE("every character stays as it is, and bytes that are none are replaced")
{
    int wrong = 0;
    for (std::uint32_t point = 0; point < 0x140000; ++point) {
        for (int length = right_length(point); length <= 4; ++length) {
            const std::string text = encoded(point, length);
            const bool is_right = length == right_length(point) && !is_surrogate(point) && point < 0x110000;
            // No byte of a longer form, of half a pair or of what is too large begins another character.
            wrong += report::detail::utf8_text(text) != (is_right ? text : replaced(text.size()));
        }
    }
    CHECK(wrong == 0);
    CHECK(report::detail::utf8_text("a\xe2\x82") == "a" + replaced(1)); // cut off
    CHECK(report::detail::utf8_text("\xe2\x28\xa1z") == replaced(1) + "(" + replaced(1) + "z");
    CHECK(report::detail::utf8_text("\xe2\xe2\x82\xac") == replaced(1) + "\xe2\x82\xac");
    CHECK(report::detail::utf8_text("\xff\xfe\x80gr\xc3\xbc\xc3\x9f") == replaced(3) + "gr\xc3\xbc\xc3\x9f");
}

TEST_CASE("a record's counts are told as integers, whatever they are")
{
    const double infinity = std::numeric_limits<double>::infinity();
    const double values[] = {detail::not_a_number(), -infinity, -1e300, -1, -0.0, 0, 0.5, 2, 0x1p63, 0x1p64, infinity};
    const std::uint64_t counts[] = {0, 0, 0, 0, 0, 0, 0, 2, std::uint64_t{1} << 63, ~std::uint64_t{0}, ~std::uint64_t{0}};
    for (std::size_t i = 0; i < 11; ++i) CHECK(report::detail::count_of(values[i]) == counts[i]);
    for (int what = 0; what <= static_cast<int>(finding_kind::of_part); ++what) {
        for (const double value : values) {
            finding named{.ranks = {1}, .call = 0, .what = static_cast<finding_kind>(what), .statistic = value};
            named.number = {.value = value, .expected = value};
            CHECK(!report::describe(named).empty());
            named.number.is_new_level = true;
            CHECK(!report::describe(named).empty());
        }
    }
}

TEST_CASE("a call is named by its name, or by its line without folders")
{
    CHECK(report::describe_call(3, {"", "", 0, ""}) == "bucket 3");
    CHECK(report::describe_call(3, {"a/b/train.cpp", "", 88, ""}) == "bucket 3 (train.cpp:88)");
    CHECK(report::describe_call(3, {"a/b/train.cpp", "", 88, "wte"}) == "bucket 3 'wte'");
}

TEST_CASE("a name in a report moves no cursor, turns no text and is not long")
{
    CHECK(report::describe_call(2, call_site::named("\x1b[2Jw\x7f\n\xc2\x9b\xe2\x80\xae.\xff"))
        == "bucket 2 '?[2Jw????.\xef\xbf\xbd'");
    CHECK(report::describe_call(0, call_site::named("gr\xc3\xbc\xc3\x9f")) == "bucket 0 'gr\xc3\xbc\xc3\x9f'");
    const std::string longest(200, 'a');
    CHECK(report::describe_call(0, call_site::named(longest.c_str())) == "bucket 0 '" + longest + "'");
    const std::string longer = std::string(199, 'a') + "\xc3\xbc" + std::string(10'000'000, 'b'); // no half character
    CHECK(report::describe_call(0, call_site::named(longer.c_str())) == "bucket 0 '" + std::string(199, 'a') + "...'");
    CHECK(detail::printable("a\n\tb\r\n", true) == "a\n?b?\n");
}

} // namespace collprobe::testing::words_test
