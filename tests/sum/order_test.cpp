// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include <collprobe/sum/order.hpp>

#include "sum_cases.hpp"

namespace collprobe::testing::order_test {
namespace {

/// The sum as a text, terms of one digit.
std::string written(const summation_order& order)
{
    std::vector<std::string> partial;
    for (std::size_t i = 0; i <= order.size(); ++i) partial.push_back(std::to_string(i));
    for (const addition& step : order) {
        // Pieced together by steps: g++ 12 warns of nothing in longer expressions.
        std::string sum = "(";
        sum += partial[step.into];
        sum += '+';
        sum += partial[step.from];
        sum += ')';
        partial[step.into] = sum;
        partial[step.from] = "used";
    }
    return partial[order.empty() ? 0 : order.back().into];
}

/// Additions one after the other on the longest way; -1 if a term is not used exactly once.
int depth(const summation_order& order, int n)
{
    if (order.size() + 1 != static_cast<std::size_t>(n)) return -1;
    std::vector<int> steps(static_cast<std::size_t>(n), 0);
    for (const addition& step : order) {
        if (step.into == step.from || step.into >= steps.size() || step.from >= steps.size()) return -1;
        if (steps[step.into] < 0 || steps[step.from] < 0) return -1;
        steps[step.into] = std::max(steps[step.into], steps[step.from]) + 1;
        steps[step.from] = -1;
    }
    // n - 1 additions of n terms of which none is used again leave one.
    return steps[order.empty() ? 0 : order.back().into];
}

int ceiling_of_log2(int n)
{
    int steps = 0;
    while ((1 << steps) < n) ++steps;
    return steps;
}

} // namespace

TEST_CASE("orders as formulas")
{
    CHECK(written(linear_order(1)) == "0");
    CHECK(written(linear_order(4)) == "(((0+1)+2)+3)");
    CHECK(written(rotated_order(4, 3)) == "(((3+0)+1)+2)");
    CHECK(written(rotated_order(4, ring_start(0, 4))) == "(((1+2)+3)+0)");
    CHECK(written(rotated_order(4, ring_start(3, 4))) == "(((0+1)+2)+3)");
    CHECK(written(permuted_order({2, 0, 3, 1})) == "(((2+0)+3)+1)");
    CHECK(written(pairwise_order(4)) == "((0+1)+(2+3))");
    CHECK(written(pairwise_order(5)) == "(((0+1)+(2+3))+4)");
    CHECK(written(pairwise_order(7)) == "(((0+1)+(2+3))+((4+5)+6))");
    CHECK(written(recursive_doubling_order(8)) == written(pairwise_order(8)));
    CHECK(written(recursive_doubling_order(6)) == "(((0+1)+(2+3))+(4+5))");
    CHECK(written(recursive_doubling_order(5)) == "(((0+1)+2)+(3+4))");
    CHECK(written(recursive_halving_order(4)) == "((0+2)+(1+3))");
    CHECK(written(recursive_halving_order(6)) == "(((0+4)+2)+((1+5)+3))");
    CHECK(written(recursive_halving_order(8)) == "(((0+4)+(2+6))+((1+5)+(3+7)))");
    // Tree 0 of 8 ranks: 0 over 4, 4 over 2 and 6, each of those over two leaves. Tree 1 is its mirror image.
    CHECK(written(tree_order(8, 0)) == "(0+((4+((2+1)+3))+((6+5)+7)))");
    CHECK(written(tree_order(8, 1)) == "(7+((3+((5+6)+4))+((1+2)+0)))");
    // Of 5 ranks: shifted by one.
    CHECK(written(tree_order(5, 0)) == "(0+(4+((2+1)+3)))");
    CHECK(written(tree_order(5, 1)) == "(1+(0+((3+2)+4)))");
}

TEST_CASE("every order uses every term once, and is as deep as it says")
{
    testing::random_bits random{15};
    for (int n = 1; n <= 300; ++n) {
        CHECK(depth(linear_order(n), n) == n - 1);
        CHECK(depth(rotated_order(n, random.between(0, n - 1)), n) == n - 1);
        CHECK(depth(pairwise_order(n), n) == ceiling_of_log2(n));
        CHECK(depth(recursive_halving_order(n), n) == ceiling_of_log2(n));
        CHECK(depth(recursive_doubling_order(n), n) == ceiling_of_log2(n));
        for (const int tree : {0, 1}) {
            const int deep = depth(tree_order(n, tree), n);
            CHECK(deep >= 0);
            CHECK(deep <= 2 * ceiling_of_log2(n));
        }
        std::vector<int> permutation(static_cast<std::size_t>(n));
        std::iota(permutation.begin(), permutation.end(), 0);
        std::reverse(permutation.begin(), permutation.end());
        CHECK(depth(permuted_order(permutation), n) == n - 1);
    }
    // The negative control: a term used twice.
    CHECK(depth({{0, 1}, {0, 1}}, 3) == -1);
}

TEST_CASE("chunks of a ring start one after the rank they end at")
{
    for (int n = 1; n <= 9; ++n) {
        for (int chunk = 0; chunk < n; ++chunk) {
            const summation_order order = rotated_order(n, ring_start(chunk, n));
            if (n > 1) CHECK(order.back().from == static_cast<std::uint32_t>(chunk));
        }
    }
    CHECK(collprobe::detail::ring_chunk(33, 8, 4) == 8);
    CHECK(collprobe::detail::ring_chunk(1000, 3, 2) == 336);
    CHECK(collprobe::detail::tree_0_count(7) == 4);
}

} // namespace collprobe::testing::order_test
