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

/// Rows of terms whose columns are hard sums of all kinds, and an element more.
template <floating_element T>
std::vector<std::vector<T>> hard_rows(testing::random_bits& random, int n, std::size_t count)
{
    std::vector<std::vector<T>> rows(static_cast<std::size_t>(n), std::vector<T>(count + 1, T(42.0f)));
    std::vector<T> column(rows.size());
    for (std::size_t i = 0; i < count; ++i) {
        const auto kind = random.below(static_cast<std::uint64_t>(testing::difficulty::count));
        testing::sum_cases<T>::fill(random, static_cast<testing::difficulty>(kind), column.data(), n);
        for (std::size_t k = 0; k < rows.size(); ++k) rows[k][i] = column[k];
    }
    return rows;
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

TEST_CASE_TEMPLATE("sums of many elements in an order have the bits of additions one by one, also in the place of a row", T,
    COLLPROBE_TEST_FLOATING_TYPES)
{
    testing::random_bits random{21};
    int which = 0;
    for (const int n : numbers_of_terms) {
        const std::size_t count = counts[++which % 7];
        const auto rows = hard_rows<T>(random, n, count);
        for (const summation_order& order : orders_of(random, n)) {
            testing::for_each_accumulation<T>([&](auto in) {
                std::vector<T> wanted;
                for (std::size_t i = 0; i < count; ++i) {
                    std::vector<T> column;
                    for (const auto& row : rows) column.push_back(row[i]);
                    wanted.push_back(testing::ordered_oracle<in()>(column, order));
                }
                wanted.push_back(T(42.0f)); // nothing is written behind
                auto own = rows;
                own.push_back(std::vector<T>(count + 1, T(42.0f)));
                std::vector<const T*> terms;
                for (const auto& row : own) terms.push_back(row.data());
                for (const std::size_t place : {rows.size(), static_cast<std::size_t>(which) % rows.size()}) {
                    sum_in_order<in()>(terms.data(), order, own[place].data(), count);
                    for (std::size_t i = 0; i <= count; ++i) {
                        CAPTURE(i);
                        const bool same = testing::same_sum<in()>(own[place][i], wanted[i]);
                        REQUIRE(same);
                    }
                }
            });
        }
    }
}

} // namespace collprobe::testing::sum_in_order_test
