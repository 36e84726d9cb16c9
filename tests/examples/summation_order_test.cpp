// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstddef>
#include <cstring>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/inspect/detail/sum_tree.hpp>

#include "../../examples/studies/summation_order/orders.hpp"
#include "../../examples/studies/summation_order/random_terms.hpp"
#include "support/element_types.hpp"

namespace collprobe::testing::summation_order_test {

using summation::order_kind;

namespace {

/// Whether an all-reduce of `local` has the bits of the order, in every element.
template <element T>
bool has_bits_of(int ranks, local::reduction_order order, std::size_t count, order_kind kind)
{
    const summation::random_terms draw(summation::input_kind::wide, 3, ranks);
    std::vector<std::vector<T>> terms(static_cast<std::size_t>(ranks), std::vector<T>(count));
    std::vector<const T*> rows;
    for (int rank = 0; rank < ranks; ++rank) {
        for (std::size_t i = 0; i < count; ++i) terms[static_cast<std::size_t>(rank)][i] = T(draw(rank, i));
        rows.push_back(terms[static_cast<std::size_t>(rank)].data());
    }
    std::vector<T> found(count), wanted(count);
    local::run(ranks, {.order = order}, [&](local::communicator& world) {
        std::vector<T> own(count);
        host::stream stream;
        world.all_reduce(view<const T>(terms[static_cast<std::size_t>(world.rank())]), view<T>(own), reduction::sum, stream);
        stream.synchronize();
        if (world.rank() == 0) found = own;
    });
    const auto orders = summation::orders_over_ranks({kind}, ranks, {count, sizeof(T)});
    summation::add_rows(accumulation::native, rows.data(), orders, wanted.data(), 0, count);
    return std::memcmp(static_cast<const void*>(found.data()), wanted.data(), count * sizeof(T)) == 0;
}

} // namespace

TEST_CASE_TEMPLATE("the rows linear, ring and tree are the all-reduces of local", T, COLLPROBE_TEST_WIDER_FLOATING_TYPES)
{
    for (const int ranks : {2, 3, 5, 8}) {
        for (const std::size_t count : {1u, 37u, 1000u}) {
            CAPTURE(ranks);
            CAPTURE(count);
            CHECK(has_bits_of<T>(ranks, local::reduction_order::linear, count, order_kind::linear));
            CHECK(has_bits_of<T>(ranks, local::reduction_order::ring, count, order_kind::ring));
            CHECK(has_bits_of<T>(ranks, local::reduction_order::tree, count, order_kind::tree));
        }
    }
    CHECK_FALSE(has_bits_of<T>(8, local::reduction_order::ring, 1000, order_kind::linear));
    CHECK_FALSE(has_bits_of<T>(8, local::reduction_order::tree, 1000, order_kind::single_tree));
}

TEST_CASE("the trees of MPI libraries, as inspected in Open MPI and MPICH with 9 ranks")
{
    using namespace summation;
    const auto brackets = [](const summation_order& order) { return detail::brackets_of(detail::tree_of(order)); };
    CHECK(brackets(level_binary_order(9)) == "((((3+7)+1)+5)+0)+(((4+8)+2)+6)");
    CHECK(brackets(in_order_binary_order(9)) == "(((4+5)+(6+7))+8)+((0+1)+(2+3))");
    CHECK(brackets(chains_order(9, 4)) == "((((1+2)+0)+(3+4))+(5+6))+(7+8)");
    CHECK(brackets(chains_order(9, 2)) == "((((3+4)+2)+1)+0)+(((7+8)+6)+5)");
    CHECK(brackets(k_ary_order(9, 2)) == "(((((3+7)+8)+1)+4)+0)+((2+5)+6)");
    CHECK(brackets(k_ary_order(9, 3)) == "(((((1+4)+5)+6)+0)+((2+7)+8))+3");
    CHECK(brackets(k_nomial_order(9, 2)) == "(((((6+7)+4)+5)+(0+8))+(2+3))+1");
    CHECK(brackets(k_nomial_order(9, 3)) == "(((((6+8)+7)+0)+((3+5)+4))+2)+1");
    CHECK(brackets(k_nomial_preorder_order(9, 2)) == "((((((3+4)+2)+5)+1)+(6+7))+8)+0");
    CHECK(brackets(k_nomial_preorder_order(9, 3)) == "(((((1+2)+3)+0)+((4+5)+6))+7)+8");
}

TEST_CASE("orders in two levels")
{
    using summation::two_level_order;
    const auto brackets = [](const summation_order& order) { return detail::brackets_of(detail::tree_of(order)); };
    CHECK(brackets(two_level_order({2, 3, 1}, linear_order(3))) == "(((2+3)+4)+(0+1))+5");
    CHECK(brackets(two_level_order({2, 2, 2}, rotated_order(3, 1))) == "((2+3)+(4+5))+(0+1)");
}

} // namespace collprobe::testing::summation_order_test
