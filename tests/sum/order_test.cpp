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

/// The in-order tree built top-down from its definition: a subtree of height h spans 2^h - 1 nodes, its root in the
/// middle; nodes that do not exist are replaced by their left subtree. Returns the root, or -1; tells of each node's
/// children in `children`.
int build_tree(std::vector<std::vector<int>>& children, int first, int span)
{
    const auto nodes = static_cast<int>(children.size());
    if (span == 0 || first >= nodes) return -1;
    const int middle = first + span / 2;
    const int left = build_tree(children, first, span / 2);
    if (middle >= nodes) return left;
    const int right = build_tree(children, middle + 1, span / 2);
    for (const int child : {left, right}) {
        if (child >= 0) children[static_cast<std::size_t>(middle)].push_back(child);
    }
    return middle;
}

/// Each node adds the sums of its children, one after the other.
void climb(summation_order& order, const std::vector<std::vector<int>>& children, const std::vector<int>& rank_of, int node)
{
    for (const int child : children[static_cast<std::size_t>(node)]) {
        climb(order, children, rank_of, child);
        order.push_back({static_cast<std::uint32_t>(rank_of[static_cast<std::size_t>(node)]),
            static_cast<std::uint32_t>(rank_of[static_cast<std::size_t>(child)])});
    }
}

} // namespace

TEST_CASE("trees are those of the definition, and the second is mirrored, or shifted if the number of ranks is odd")
{
    for (int n = 1; n <= 130; ++n) {
        std::vector<std::vector<int>> children(static_cast<std::size_t>(n));
        int span = 1;
        while (span < n - 1) span = 2 * span + 1;
        const int top = build_tree(children, 1, span);
        if (top >= 0) children[0].push_back(top);
        for (const int tree : {0, 1}) {
            std::vector<int> rank_of;
            for (int node = 0; node < n; ++node)
                rank_of.push_back(tree == 0 ? node : n % 2 == 0 ? n - 1 - node : (node + 1) % n);
            summation_order expected;
            climb(expected, children, rank_of, 0);
            CHECK(tree_order(n, tree) == expected);
        }
    }
    // The picture of the publication, for 14 ranks: 0 above 8 above 4 and 12, and so on.
    const int parents[] = {-1, 2, 4, 2, 8, 6, 4, 6, 0, 10, 12, 10, 8, 12};
    for (int rank = 0; rank < 14; ++rank) CHECK(collprobe::detail::double_tree(0, rank, 14).parent == parents[rank]);
}

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
        std::vector<int> permutation(static_cast<std::size_t>(n));
        std::iota(permutation.begin(), permutation.end(), 0);
        std::reverse(permutation.begin(), permutation.end());
        CHECK(depth(permuted_order(permutation), n) == n - 1);
    }
    // The negative control: a term used twice.
    CHECK(depth({{0, 1}, {0, 1}}, 3) == -1);
}

TEST_CASE("chunks of a ring are of 16 bytes or more")
{
    CHECK(collprobe::detail::ring_chunk(33, 8, 4) == 8);
    CHECK(collprobe::detail::ring_chunk(1000, 3, 2) == 336);
}

} // namespace collprobe::testing::order_test
