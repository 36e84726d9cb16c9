// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <string>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/inspect/detail/sum_tree.hpp>

#include "../../examples/studies/summation_order/measures.hpp"
#include "../../examples/studies/summation_order/orders.hpp"
#include "../../examples/studies/summation_order/random_terms.hpp"
#include "sum/ordered_oracle.hpp"
#include "sum/sum_cases.hpp"
#include "support/element_types.hpp"

using namespace collprobe;
using summation::block;
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

std::vector<float> floats(std::initializer_list<float> values) { return values; }

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

TEST_CASE("orders have names, some with a number")
{
    using summation::parse_order;
    CHECK(parse_order("--orders", "ring").text() == "ring");
    CHECK(parse_order("--orders", "k_nomial:4").text() == "k_nomial:4");
    CHECK(parse_order("--orders", "two_level").number_for(32) == 8);
    CHECK(parse_order("--orders", "two_level").number_for(8) == 4);
    CHECK(parse_order("--orders", "two_level:3").number_for(32) == 3);
    CHECK_THROWS_AS(parse_order("--orders", "ring:2"), trainer::usage_error);
    CHECK_THROWS_AS(parse_order("--orders", "k_nomial:1"), trainer::usage_error);
    CHECK_THROWS_AS(parse_order("--orders", ""), trainer::usage_error);
    for (std::size_t k = 0; k < std::size(summation::order_names); ++k) {
        CHECK(static_cast<std::size_t>(summation::order_names[k].kind) == k);
    }
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

TEST_CASE("orders by place begin where the all-reduce's chunks and halves do")
{
    using namespace summation;
    const auto firsts = [](const std::vector<placed_order>& orders) {
        std::vector<std::uint64_t> all;
        for (const placed_order& each : orders) all.push_back(each.first);
        return all;
    };
    CHECK(firsts(ring_orders(4, 1000, 4)) == std::vector<std::uint64_t>{0, 252, 504, 756});
    CHECK(firsts(ring_orders(8, 33, 4)) == std::vector<std::uint64_t>{0, 8, 16, 24, 32});
    CHECK(firsts(ring_orders(3, 0, 4)) == std::vector<std::uint64_t>{0});
    CHECK(firsts(ring_orders(4, 1000, 4, 252, 505)) == std::vector<std::uint64_t>{252, 504});
    CHECK(firsts(ring_orders(4, 1000, 4, 999, 1000)) == std::vector<std::uint64_t>{756});
    CHECK(firsts(tree_orders(4, 7)) == std::vector<std::uint64_t>{0, 4});
    CHECK(firsts(tree_orders(4, 1)) == std::vector<std::uint64_t>{0});
    CHECK(ring_orders(4, 1000, 4)[1].order == rotated_order(4, 2));
    CHECK(tree_orders(4, 7)[1].order == tree_order(4, 1));
}

TEST_CASE("orders by place: any cut of a ring's or a tree's message gives the bits of the whole")
{
    testing::random_bits random{23};
    for (const int n : {2, 3, 8, 9, 33}) {
        for (const std::size_t count : {1u, 5u, 40u, 333u}) {
            std::vector<std::vector<float>> rows(static_cast<std::size_t>(n), std::vector<float>(count));
            for (auto& row : rows) {
                for (float& value : row) {
                    value = testing::sum_cases<float>::of(random.one_in(2), random.between(110, 140), random());
                }
            }
            std::vector<const float*> pointers;
            for (const auto& row : rows) pointers.push_back(row.data());
            for (const auto& orders : {summation::ring_orders(n, count, 4), summation::tree_orders(n, count)}) {
                const auto order_at = [&](std::size_t i) {
                    std::size_t k = orders.size() - 1;
                    while (orders[k].first > i) --k;
                    return orders[k].order;
                };
                std::vector<float> whole(count), cut(count);
                summation::sum_in_order<accumulation::native>(pointers.data(), orders, whole.data(), 0, count);
                for (std::size_t first = 0; first < count;) {
                    const std::size_t length = std::min<std::size_t>(count - first, 1 + random.below(50));
                    std::vector<const float*> from;
                    for (const auto& row : rows) from.push_back(row.data() + first);
                    summation::sum_in_order<accumulation::native>(from.data(), orders, cut.data() + first, first, length);
                    first += length;
                }
                for (std::size_t i = 0; i < count; ++i) {
                    std::vector<float> column;
                    for (const auto& row : rows) column.push_back(row[i]);
                    const float wanted = testing::ordered_oracle<accumulation::native>(column, order_at(i));
                    REQUIRE(to_bits(whole[i]) == to_bits(wanted));
                    REQUIRE(to_bits(cut[i]) == to_bits(wanted));
                }
            }
        }
    }
}

TEST_CASE("the orders of a part of a message are those that the whole has there")
{
    for (const order_kind kind : {order_kind::ring, order_kind::mpi_ring, order_kind::tree}) {
        for (const std::uint64_t count : {1u, 9u, 40u, 100u}) {
            const auto order_at = [](const std::vector<summation::placed_order>& orders, std::uint64_t place) {
                std::size_t k = orders.size() - 1;
                while (orders[k].first > place) --k;
                return orders[k].order;
            };
            const auto whole = summation::orders_over_ranks({kind}, 7, {count, 4});
            for (std::uint64_t first = 0; first < count; ++first) {
                for (std::uint64_t end = first + 1; end <= count; end += 5) {
                    const auto part = summation::orders_over_ranks({kind}, 7, {count, 4, first, end});
                    REQUIRE(part[0].first <= first);
                    for (std::uint64_t i = first; i < end; ++i) REQUIRE(order_at(part, i) == order_at(whole, i));
                }
            }
        }
    }
    CHECK(summation::orders_over_ranks({order_kind::ring}, 7, {7000, 4, 2000, 2001}).size() == 1);
}

TEST_CASE("leaves are dealt to the ranks, which add their own first")
{
    // 5 leaves on 2 ranks: (0 + 1 + 2) + (3 + 4).
    const auto orders = summation::orders_over_leaves({order_kind::linear}, 5, 2, {1});
    REQUIRE(orders.size() == 1);
    CHECK(orders[0].order == summation_order{{0, 1}, {0, 2}, {3, 4}, {0, 3}});
    const auto permuted = summation::orders_over_leaves({order_kind::linear}, 3, 3, {1}, {2, 0, 1});
    CHECK(permuted[0].order == summation_order{{2, 0}, {2, 1}});
}

TEST_CASE("distances: quantiles are exact below 256 and within a sixteenth above")
{
    summation::distance_histogram all;
    CHECK(all.quantile(0.5) == 0);
    for (std::uint64_t distance = 0; distance < 1000; ++distance) all.add(distance);
    CHECK(all.total() == 1000);
    CHECK(all.quantile(0.1) == 99);
    CHECK(all.quantile(0.999) >= 998 * 15 / 16);
    CHECK(all.quantile(0.999) <= 998);
    CHECK(all.count(0, 1) == 1);
    CHECK(all.count(16, 256) == 240);
    all.add(~std::uint64_t{0});
    CHECK(all.quantile(1) == std::uint64_t{31} << 59);
}

TEST_CASE("measures of a block: counts, the largest error and the first element that has it, overflow, what is left out")
{
    const float up = 0x1.000002p0f, two_up = 0x1.000004p0f, infinite = 1e38f * 10;
    const auto result = floats({1, up, two_up, 1, two_up, infinite, 0.0f, 5});
    const auto right = floats({1, 1, 1, 1, 1, 1, -0.0f, 1});
    const unsigned char left_out[] = {0, 0, 0, 0, 0, 0, 0, 1};
    summation::method_measures whole, parts, second;
    whole.add(block{0, 8, left_out}, result.data(), right.data());
    CHECK(whole.differ == 5);
    CHECK(whole.overflows == 1);
    CHECK(whole.largest.ulp == 2);
    CHECK(whole.largest.index == 2);
    CHECK(whole.distances.total() == 6);
    CHECK(whole.relative_error() == doctest::Approx(0x1p-23 * 3 / std::sqrt(6)));
    second.add(block{4, 4, left_out + 4}, result.data() + 4, right.data() + 4);
    parts.add(block{0, 4, left_out}, result.data(), right.data());
    second.merge(parts); // in any sequence
    CHECK(second.differ == whole.differ);
    CHECK(second.largest.index == 2);
    CHECK(second.digest() == whole.digest());
    CHECK(second.digest() == digest(view<const float>(result)));
    CHECK(to_bits(second.bias()) == to_bits(whole.bias()));
}

TEST_CASE("the length of a vector whose squares are no numbers of double")
{
    const auto length_of = [](std::initializer_list<double> values) {
        summation::square_sums<double> block;
        for (const double value : values) block.add(value);
        summation::square_sums<exact_sum<double>> all;
        all.merge(block);
        return all.length();
    };
    CHECK(length_of({}).fraction == 0);
    CHECK(length_of({0, -0.0}).value() == 0);
    CHECK(length_of({3, -4}).value() == 5);
    for (const int exponent : {-1074, -1000, -600, -400, -399, 0, 399, 400, 600, 1020}) {
        CAPTURE(exponent);
        const auto length = length_of({std::ldexp(3, exponent), std::ldexp(4, exponent)});
        CHECK(length.value() == std::ldexp(5, exponent));
        CHECK(length.over(length) == 1);
        CHECK(length_of({std::ldexp(3, exponent)}) < length);
    }
    CHECK(length_of({0x1p-500, 0x1p-380}).value() == 0x1p-380); // other parts do not matter, but none is lost nearby
    CHECK(length_of({0x1.8p-401, 0x1p-400}).over(length_of({0x1p-400})) == doctest::Approx(1.25));
    CHECK(length_of({1e308, 1e308, 1e308, 1e308}).over(length_of({1e308})) == 2);
    CHECK(length_of({1e-320}).over(length_of({1e308})) == 0);
    CHECK(is_nan(length_of({1}).over(length_of({}))));
    CHECK(length_of({}).over(length_of({})) == 0);
}

TEST_CASE("the noise of equal rows is 0, and that of others does not depend on where they lie")
{
    const auto noise_of = []<class T>(std::vector<T> terms) {
        std::vector<const T*> rows;
        for (const T& term : terms) rows.push_back(&term);
        summation::square_sums<double> block;
        summation::add_noise(rows, 0, block);
        summation::square_sums<exact_sum<double>> all;
        all.merge(block);
        return all.length().value();
    };
    CHECK(noise_of(std::vector<float>(7, 0.1f)) == 0);
    CHECK(noise_of(std::vector<double>(7, 1e308)) == 0);
    CHECK(noise_of(std::vector<double>{1e8 + 0x1p-20, 1e8, 1e8 - 0x1p-20}) == doctest::Approx(std::sqrt(3) * 0x1p-20));
    CHECK(noise_of(std::vector<double>{1e8, 1, 1}) == doctest::Approx(1e8));
    for (const double size : {0x1p-1074, 0x1p-900, 1.0, 0x1p900, 0x1p1021}) {
        CAPTURE(size);
        const double found = noise_of(std::vector<double>{3 * size, -3 * size, 0, 0});
        CHECK(found / size == doctest::Approx(std::sqrt(24)).epsilon(size < 0x1p-1000 ? 0.1 : 1e-12));
    }
}

TEST_CASE("the bias of errors that are all alike is undefined, of none 0")
{
    const auto bias_of = [](const std::vector<double>& result, const std::vector<double>& right) {
        summation::method_measures all;
        all.add(block{0, result.size(), nullptr}, result.data(), right.data());
        return all.bias();
    };
    CHECK(bias_of({1, 2}, {1, 2}) == 0);
    CHECK(is_nan(bias_of({1.5}, {1})));
    CHECK(is_nan(bias_of({1.5, 2.5, 3.5}, {1, 2, 3})));
    CHECK(bias_of({1.5, 2.5, 3}, {1, 2, 3}) == doctest::Approx(2)); // 1/3 over sqrt(1/18 / 2)
    CHECK(bias_of({1.5e-200, 2.5e-200, 3e-200}, {1e-200, 2e-200, 3e-200}) == doctest::Approx(2));
    CHECK(bias_of({1.5e200, 2.5e200, 3e200}, {1e200, 2e200, 3e200}) == doctest::Approx(2));
}

TEST_CASE("permutations: the fingerprint tells results apart, and not the sequence of the blocks")
{
    const std::vector<std::vector<float>> results{{1, 2, 3}, {1, 2, 4}}, swapped{{1, 2, 4}, {1, 2, 3}};
    const unsigned char left_out[] = {0, 0, 1};
    const auto fingerprint = [](const auto& of, const block& where) {
        summation::permutation_measures all;
        all.add(where, of);
        return all.fingerprint;
    };
    CHECK(fingerprint(results, {0, 3, nullptr}) != fingerprint(swapped, {0, 3, nullptr}));
    CHECK(fingerprint(results, {0, 3, nullptr}) != fingerprint(results, {1, 3, nullptr}));
    CHECK(fingerprint(results, {0, 3, left_out}) == fingerprint(swapped, {0, 3, left_out}));
    summation::permutation_measures a, b;
    a.add(block{0, 3, nullptr}, results);
    b.add(block{3, 3, nullptr}, swapped);
    CHECK(a.fingerprint + b.fingerprint == [&] { auto all = b; all.merge(a); return all.fingerprint; }());
}

TEST_CASE("permutations: distinct results, and their spread")
{
    const std::vector<std::vector<float>> results{{1, 2, 3}, {1, 2, 0x1.800002p1f}, {1, 2, 3}};
    summation::permutation_measures all;
    all.add(block{10, 3, nullptr}, results);
    CHECK(all.elements == 3);
    CHECK(all.distinct == 4);
    CHECK(all.most_distinct == 2);
    CHECK(all.changed == 1);
    CHECK(all.spread.ulp == 1);
    CHECK(all.spread.index == 12);
}
