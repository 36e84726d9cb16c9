// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include <collprobe/device/host/device.hpp>
#include <collprobe/sum/sum_rows.hpp>

#include "ordered_oracle.hpp"
#include "sum_cases.hpp"
#include "support/element_types.hpp"
#include "support/infinite.hpp"

namespace collprobe::testing::sum_rows_test {
namespace {

/// Rows of terms: `outer` times `inner` of them, with a gap after each row and another before the next outer one.
template <floating_element T>
struct matrix {
    int outer;
    int inner;
    int count;
    int skip; // elements before the first row
    std::vector<T> room;

    matrix(testing::random_bits& random, int outer_rows, int inner_rows, int columns, int before)
        : outer(outer_rows), inner(inner_rows), count(columns), skip(before),
          room(static_cast<std::size_t>(before + outer_rows * (inner_rows * (columns + 3) + 5)))
    {
        std::vector<T> column(static_cast<std::size_t>(terms()));
        auto kind = difficulty::alike;
        for (int i = 0; i < count; ++i) {
            // Runs of one kind, so that whole blocks are easy, and others are not.
            if (i % 16 == 0 || random.one_in(12)) {
                kind = static_cast<difficulty>(random.below(static_cast<std::uint64_t>(difficulty::count)));
            }
            testing::sum_cases<T>::fill(random, kind, column.data(), terms());
            for (int k = 0; k < terms(); ++k) at(k, i) = column[static_cast<std::size_t>(k)];
        }
    }
    int terms() const { return outer * inner; }
    std::vector<T> column(int i)
    {
        std::vector<T> all;
        for (int k = 0; k < terms(); ++k) all.push_back(at(k, i));
        return all;
    }
    T& at(int k, int i)
    {
        return room[static_cast<std::size_t>(skip + k / inner * (inner * (count + 3) + 5) + k % inner * (count + 3) + i)];
    }
    collprobe::detail::term_rows<T> rows()
    {
        return {&at(0, 0), static_cast<std::uint64_t>(inner), static_cast<std::uint64_t>(inner * (count + 3) + 5),
            static_cast<std::uint64_t>(count + 3)};
    }
};

template <accumulation in, int width, floating_element T>
void add_up(matrix<T>& from, std::uint32_t divisor, T* result)
{
    const sum_rows<in, T, width> body{from.rows(), static_cast<std::uint64_t>(from.terms()), result,
        static_cast<std::uint64_t>(from.count), divisor};
    const host::stream here = host::stream::at_once(); // where subnormal numbers count
    host::device::for_each(here, body.blocks(), body);
}

/// At each width, and in the place of a row.
template <accumulation in, int... widths, floating_element T>
void check_sums(testing::random_bits& random, matrix<T> from, std::uint32_t divisor)
{
    const summation_order order = linear_order(from.terms());
    std::vector<T> wanted;
    for (int i = 0; i < from.count; ++i) wanted.push_back(testing::ordered_oracle<in>(from.column(i), order, divisor));
    std::vector<T> result(wanted.size());
    const auto check = [&](const T* found) {
        for (std::size_t i = 0; i < wanted.size(); ++i) {
            const bool same = testing::same_sum<in>(found[i], wanted[i]);
            REQUIRE(same);
        }
    };
    ((add_up<in, widths>(from, divisor, result.data()), check(result.data())), ...);
    T* const in_place = &from.at(random.between(0, from.terms() - 1), 0);
    add_up<in, 8>(from, divisor, in_place);
    check(in_place);
}

/// A pointer to the terms that counts how often a row is asked for.
template <floating_element T>
struct counted_terms {
    const T* first;
    std::uint64_t stride;
    std::uint64_t* reads;
    const T* operator()(std::uint64_t k) const
    {
        ++*reads;
        return first + k * stride;
    }
};

template <floating_element T>
std::uint64_t reads_of_exact_sum(const std::vector<T>& rows, std::uint32_t divisor, T (&result)[4])
{
    std::uint64_t reads = 0;
    const std::uint64_t terms = rows.size() / 4;
    detail::sum_columns<accumulation::exact, 4>(
        detail::columns<T, counted_terms<T>>{{rows.data(), 4, &reads}, terms, divisor, 4}, result);
    return reads;
}

} // namespace

TEST_CASE_TEMPLATE("columns are added up row after row in each accumulator, at any width, place and spacing", T,
    COLLPROBE_TEST_FLOATING_TYPES)
{
    testing::random_bits random{7};
    for (int i = 0; i < COLLPROBE_TEST_UNLESS_BRIEF(300, 100); ++i) {
        const int outer = random.one_in(8) ? testing::random_terms(random) : random.between(1, 9);
        const matrix<T> from(random, outer, random.between(1, 3), random.between(1, 120), random.between(0, 7));
        const std::uint32_t divisor = testing::random_divisor(random, from.terms());
        check_sums<accumulation::exact, 1, 4, 8, 64>(random, from, divisor);
        check_sums<accumulation::native, 1, 8>(random, from, divisor);
        check_sums<accumulation::float64, 64>(random, from, divisor);
        if constexpr (sizeof(T) <= 4) check_sums<accumulation::float32, 16>(random, from, divisor);
    }
}

TEST_CASE_TEMPLATE("only columns that are hard to sum are read again", T, COLLPROBE_TEST_WIDER_FLOATING_TYPES)
{
    using cases = testing::sum_cases<T>;
    const auto constant = [](int n, T value) { return std::vector<T>(static_cast<std::size_t>(4 * n), value); };
    constexpr int again = sizeof(T) == 8 ? 1 : 2; // its exponents are looked at once more, then it is added
    T result[4];
    // Exact in one double.
    std::vector<T> rows = constant(6, cases::power(false, 0));
    CHECK(reads_of_exact_sum(rows, 1, result) == 6);
    CHECK(static_cast<float>(result[3]) == 6.0f);
    CHECK(reads_of_exact_sum(rows, 3, result) == 6);
    CHECK(static_cast<float>(result[3]) == 2.0f);
    // Not finite: by the long sum, one column of it.
    rows[5] = cases::of(false, cases::top_field + 1, 0);
    CHECK(reads_of_exact_sum(rows, 1, result) == 6 + again * 6);
    CHECK(testing::is_infinite(result[1]));
    CHECK(static_cast<float>(result[0]) == 6.0f);
    if constexpr (element_traits<T>::digits != 11) {
        // 60 bits apart: a pair of doubles, or an integer of 128 bits.
        rows = constant(2, cases::power(false, 0));
        rows[6] = cases::power(false, -60);
        CHECK(reads_of_exact_sum(rows, 1, result) == (sizeof(T) == 8 ? 2 : 2 + again * 2));
        CHECK(static_cast<float>(result[2]) == 1.0f);
        // 200 bits apart, by three terms: only the long sum.
        rows = constant(3, cases::power(false, 100));
        rows[5] = cases::power(false, 20);
        rows[9] = cases::power(false, -100);
        CHECK(reads_of_exact_sum(rows, 1, result) == 3 + again * 3);
        CHECK(static_cast<float>(result[1]) == 0x1p100f);
    }
    if constexpr (element_traits<T>::digits == 11) {
        // More halves than the proof covers: detected, not assumed.
        CHECK(reads_of_exact_sum(constant(8193, cases::power(false, 3)), 1, result) == 8193);
    }
}

TEST_CASE("halves of any size up to 8192 terms need no second read")
{
    testing::random_bits random{12};
    std::vector<float16> rows(4 * 8192);
    for (float16& value : rows) value = testing::sum_cases<float16>::of(random.one_in(2), random.between(0, 30), random());
    float16 result[4];
    CHECK(reads_of_exact_sum(rows, 1, result) == 8192);
    for (std::size_t i = 0; i < 4; ++i) {
        testing::exact_oracle<float16> oracle;
        for (std::size_t k = 0; k < 8192; ++k) oracle.add(rows[4 * k + i]);
        CHECK(result[i].bits == oracle.round().bits);
    }
}

} // namespace collprobe::testing::sum_rows_test
