// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include <collprobe/sum/sum_in_order.hpp>

#include "ordered_oracle.hpp"
#include "sum_cases.hpp"
#include "support/element_types.hpp"

namespace collprobe::testing::sum_in_order_test {
namespace {

/// Rows of terms whose columns are hard sums of all kinds.
template <floating_element T>
struct hard_rows {
    std::vector<std::vector<T>> row;
    std::vector<const T*> pointers;

    hard_rows(testing::random_bits& random, int n, std::size_t count) : row(static_cast<std::size_t>(n))
    {
        for (auto& each : row) each.resize(count + 1);
        std::vector<T> column(row.size());
        for (std::size_t i = 0; i < count; ++i) {
            const auto kind = random.below(static_cast<std::uint64_t>(testing::difficulty::count));
            testing::sum_cases<T>::fill(random, static_cast<testing::difficulty>(kind), column.data(), n);
            for (std::size_t k = 0; k < row.size(); ++k) row[k][i] = column[k];
        }
        for (const auto& each : row) pointers.push_back(each.data());
    }
    std::vector<T> column(std::size_t i) const
    {
        std::vector<T> all;
        for (const auto& each : row) all.push_back(each[i]);
        return all;
    }
};

template <floating_element T>
bool equal(T a, T b)
{
    return to_bits(a) == to_bits(b) || (is_nan(a) && is_nan(b));
}

std::vector<summation_order> orders_of(testing::random_bits& random, int n)
{
    std::vector<int> permutation(static_cast<std::size_t>(n));
    std::iota(permutation.begin(), permutation.end(), 0);
    for (int i = n - 1; i > 0; --i) std::swap(permutation[static_cast<std::size_t>(i)], permutation[random.below(static_cast<std::uint64_t>(i) + 1)]);
    return {linear_order(n), rotated_order(n, n / 2), tree_order(n, 0), tree_order(n, 1), pairwise_order(n),
        recursive_doubling_order(n), recursive_halving_order(n), permuted_order(permutation)};
}

constexpr int numbers_of_terms[] = {1, 2, 3, 4, 5, 7, 8, 13, 16, 31, 33};
constexpr std::size_t counts[] = {0, 1, 15, 127, 128, 131, 300};

} // namespace

TEST_CASE_TEMPLATE("sums of many elements in an order: the bits of additions one by one", T, COLLPROBE_TEST_FLOATING_TYPES)
{
    testing::random_bits random{21};
    int which = 0;
    for (const int n : numbers_of_terms) {
        const std::size_t count = counts[++which % 7];
        const hard_rows<T> rows(random, n, count);
        for (const summation_order& order : orders_of(random, n)) {
            testing::for_each_accumulation<T>([&](auto in) {
                const T guard = T(42.0f);
                std::vector<T> result(count + 1, guard);
                sum_in_order<in()>(rows.pointers.data(), order, result.data(), count);
                for (std::size_t i = 0; i < count; ++i) {
                    CAPTURE(i);
                    const bool same = equal(result[i], testing::ordered_oracle<in()>(rows.column(i), order));
                    REQUIRE(same);
                }
                REQUIRE(to_bits(result[count]) == to_bits(guard)); // nothing is written behind
            });
        }
    }
}

TEST_CASE_TEMPLATE("a result may take the place of a row", T, COLLPROBE_TEST_FLOATING_TYPES)
{
    testing::random_bits random{22};
    for (const std::size_t place : {0u, 2u, 4u}) {
        testing::for_each_accumulation<T>([&](auto in) {
            hard_rows<T> rows(random, 5, 141);
            const hard_rows<T> before = rows;
            const summation_order order = pairwise_order(5);
            sum_in_order<in()>(rows.pointers.data(), order, rows.row[place].data(), 141);
            for (std::size_t i = 0; i < 141; ++i) {
                const bool same = equal(rows.row[place][i], testing::ordered_oracle<in()>(before.column(i), order));
                REQUIRE(same);
            }
        });
    }
}

} // namespace collprobe::testing::sum_in_order_test
