// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Sums in two levels: their bits against sums that share nothing with them.
#include <doctest/doctest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include <collprobe/comm/node_groups.hpp>
#include <collprobe/simd/gradual_underflow.hpp>

#include "reduce/reduction_cases.hpp"
#include "support/element_types.hpp"

using namespace collprobe;
using namespace collprobe::testing;

using std::uint64_t;

namespace {

/// The node of each rank.
using placement = std::vector<int>;

placement neighbours(int nodes, int ranks_per_node)
{
    placement node_of;
    for (int rank = 0; rank < nodes * ranks_per_node; ++rank) node_of.push_back(rank / ranks_per_node);
    return node_of;
}
placement dealt_in_turn(int nodes, int ranks_per_node)
{
    placement node_of;
    for (int rank = 0; rank < nodes * ranks_per_node; ++rank) node_of.push_back(rank % nodes);
    return node_of;
}
int nodes_of(const placement& at)
{
    int most = 0;
    for (const int node : at) most = node > most ? node : most;
    return most + 1;
}

/// One rounding for each operation, whatever the flags of the build. In double, as far as it holds the type's sums:
/// then the second rounding does no harm.
template <class Wide>
[[gnu::noinline]] Wide plus(Wide a, Wide b)
{
    volatile Wide x = a, y = b;
    volatile Wide sum = x + y;
    return sum;
}
template <class Wide>
[[gnu::noinline]] Wide minus(Wide a, Wide b)
{
    volatile Wide x = a, y = b;
    volatile Wide difference = x - y;
    return difference;
}
template <class Wide>
[[gnu::noinline]] Wide over(Wide a, std::uint32_t divisor)
{
    volatile Wide x = a, y = static_cast<Wide>(divisor);
    volatile Wide quotient = x / y;
    return divisor == 1 ? a : quotient;
}

/// A sum as it grows.
template <accumulation in, floating_element T>
struct slow_sum {
    using narrow = std::conditional_t<std::is_same_v<T, double>, double, float>;
    using wide = std::conditional_t<in == accumulation::float64, double, narrow>;
    wide sum{};
    wide lost{};

    explicit slow_sum(T value) : sum(static_cast<wide>(value)) {}
    void add(const slow_sum& other)
    {
        const wide before = sum;
        sum = plus(before, other.sum);
        if constexpr (in == accumulation::native) sum = static_cast<wide>(T(sum));
        if constexpr (in == accumulation::compensated) {
            const wide from_other = minus(sum, before);
            const wide error = plus(minus(before, minus(sum, from_other)), minus(other.sum, from_other));
            lost = plus(plus(lost, other.lost), error);
        }
    }
    T result(std::uint32_t divisor) const
    {
        if constexpr (in == accumulation::native && sizeof(T) <= 2) {
            return divisor == 1 ? T(sum) : T(over(static_cast<double>(sum), divisor));
        } else {
            const bool whole = lost == 0 || !is_finite(lost);
            return T(over(whole ? sum : plus(sum, lost), divisor));
        }
    }
};

/// Element i: the terms of each node in the order of its ranks, then node after node.
template <accumulation in, floating_element T>
T node_by_node(const term_table<T>& table, const placement& at, uint64_t leaves, uint64_t i, std::uint32_t divisor)
{
    if constexpr (in == accumulation::exact) {
        return table.exact(i, divisor);
    } else {
        const detail::gradual_underflow as_ieee_has_it;
        std::optional<slow_sum<in, T>> all;
        for (int node = 0; node < nodes_of(at); ++node) {
            std::optional<slow_sum<in, T>> own;
            for (uint64_t rank = 0; rank < at.size(); ++rank) {
                if (at[rank] != node) continue;
                for (uint64_t leaf = 0; leaf < leaves; ++leaf) {
                    const slow_sum<in, T> term(table.row(i)[rank * leaves + leaf]);
                    if (own) own->add(term);
                    else own = term;
                }
            }
            if (all) all->add(*own);
            else all = own;
        }
        return all->result(divisor);
    }
}

/// Enough scratch memory for pieces of the smallest size.
uint64_t least_scratch(const placement& at, uint64_t leaves)
{
    const auto nodes = static_cast<uint64_t>(nodes_of(at));
    using groups = node_groups<local::communicator>;
    const uint64_t two = detail::two_level<accumulation::exact, double, local::communicator, groups>::least_memory(
        nodes, at.size() / nodes, leaves);
    const uint64_t flat = testing::least_scratch(static_cast<int>(at.size()), leaves);
    return two > flat ? two : flat;
}

/// What is drawn for one call. All ranks draw the same.
struct draw {
    uint64_t first, count, leaves;
    reduction operation;
    bool in_place, scatter;
    uint64_t shift; ///< elements that the buffers are off their alignment
    reproducible_options options;

    draw(random_bits& random, const placement& at, uint64_t drawn_leaves, uint64_t most) : leaves(drawn_leaves)
    {
        const uint64_t n = at.size();
        const uint64_t counts[] = {0, 1, n - 1, n + 1, 37, 16 * n, 32 * n + 1, random.below(most), random.below(most),
            most};
        count = counts[random.below(10)];
        count = count < most ? count : most;
        first = random.below(most - count + 1);
        operation = random.one_in(2) ? reduction::sum : reduction::average;
        in_place = random.one_in(2);
        scatter = random.one_in(3);
        shift = random.one_in(2) ? 0 : random.below(8);
        const uint64_t least = least_scratch(at, leaves);
        const uint64_t scratch[] = {least, least + 64 * n, 2 * least, 8 * least, uint64_t{1} << 20};
        options = {.scratch_bytes = scratch[random.below(5)], .algorithm = reduction_algorithm::two_level,
            .overlap_levels = random.one_in(2)};
    }
    std::string describe() const
    {
        return std::string(name(operation)) + (scatter ? " reduce_scatter" : " all_reduce") + ", count "
            + std::to_string(count) + ", leaves " + std::to_string(leaves) + (in_place ? ", in place" : "")
            + ", shift " + std::to_string(shift) + ", scratch " + std::to_string(options.scratch_bytes)
            + (options.overlap_levels ? ", overlapped" : "");
    }
};

template <class Contract, floating_element T>
void check_contract(int calls, const std::vector<placement>& placements)
{
    if constexpr (Contract::template possible<T>) {
        constexpr accumulation in = Contract::template accumulator<T>;
        constexpr uint64_t most = sizeof(T) < 8 ? 200 : 110;
        for (const placement& at : placements) {
            for (const uint64_t leaves : {1u, 3u}) {
                const uint64_t terms = at.size() * leaves;
                const term_table<T> table(terms, most, terms);
                std::vector<T> sums, averages;
                for (uint64_t i = 0; i < most; ++i) {
                    sums.push_back(node_by_node<in>(table, at, leaves, i, 1));
                    averages.push_back(node_by_node<in>(table, at, leaves, i, static_cast<std::uint32_t>(terms)));
                }
                CAPTURE(at.size());
                CAPTURE(nodes_of(at));
                CAPTURE(leaves);
                CAPTURE(std::string(element_traits<T>::name));
                CAPTURE(std::string(name(in)));
                CHECK_NOTHROW(local_provider{static_cast<int>(at.size())}.run([&](local::communicator& world) {
                    host::stream stream;
                    node_groups nodes(world, at);
                    random_bits random{terms * 77};
                    for (int call = 0; call < calls; ++call) {
                        const draw what(random, at, leaves, most);
                        reproducible comm(world, Contract{}, nodes, what.options);
                        const reduction_outcome outcome = check_reduction<Contract, T>(
                            comm, stream, what, table, what.operation == reduction::sum ? sums : averages);
                        require(outcome.algorithm == reduction_algorithm::two_level,
                            what.describe() + ": another algorithm");
                    }
                }));
            }
        }
    }
}

} // namespace

TEST_CASE_TEMPLATE("sums in two levels are those of the contract, for any count, place, leaf and piece",
    T, COLLPROBE_TEST_FLOATING_TYPES)
{
    using enum reproducibility;
    const std::vector<placement> all{neighbours(2, 2), neighbours(2, 4), neighbours(4, 2), dealt_in_turn(2, 3),
        {0, 1, 1, 2, 0, 2}};
    const std::vector<placement> some{neighbours(2, 3), dealt_in_turn(4, 2)};
    check_contract<contract<correctly_rounded>, T>(12, all);
    check_contract<contract<size_invariant>, T>(10, all);
    check_contract<contract<size_invariant, accumulation::native>, T>(8, some);
    check_contract<contract<run_to_run, sizeof(T) < 8 ? accumulation::float32 : accumulation::float64>, T>(8, some);
    check_contract<contract<size_invariant, accumulation::compensated>, T>(8, some);
}

TEST_CASE("and with one node, with nodes of one rank, with many ranks")
{
    using enum reproducibility;
    check_contract<contract<correctly_rounded>, bfloat16>(6, {neighbours(1, 4), neighbours(4, 1), neighbours(1, 1)});
    check_contract<contract<size_invariant>, float>(6, {neighbours(1, 4), neighbours(4, 1)});
    // 12 ranks a node: an exact partial sum of float is shorter than its terms.
    check_contract<contract<correctly_rounded>, float>(4, {neighbours(2, 12), dealt_in_turn(2, 12)});
}

TEST_CASE_TEMPLATE("a correctly rounded sum has the bits of an exchange, whatever form the partial sums take",
    T, COLLPROBE_TEST_FLOATING_TYPES)
{
    // The forms, by leaves of two nodes of four: terms, then a long integer (of narrow types: a double).
    using partial = detail::partial_sums<accumulation::exact, T>;
    bool seen[4] = {};
    for (const uint64_t leaves : {1u, 16u}) {
        seen[static_cast<int>(partial::form(4 * leaves, 8 * leaves))] = true;
        const term_table<T> table(8 * leaves, 300, 3);
        CHECK_NOTHROW(local_provider{8}.run([&](local::communicator& world) {
            host::stream stream;
            node_groups nodes(world, 4);
            const contract<reproducibility::correctly_rounded> exact;
            reproducible flat(world, exact, {.algorithm = reduction_algorithm::exchange});
            reproducible two(world, exact, nodes, {.scratch_bytes = 1 << 15});
            const std::vector<T> sent = table.sent(world.rank(), leaves, 0, 300);
            std::vector<T> one(300), other(300);
            for (const reduction operation : {reduction::sum, reduction::average}) {
                flat.all_reduce(view<const T>(sent), view<T>(one), operation, stream, {.leaves = leaves});
                two.all_reduce(view<const T>(sent), view<T>(other), operation, stream, {.leaves = leaves});
                stream.synchronize(soon_ms);
                for (uint64_t i = 0; i < 300; ++i) {
                    require(to_bits(one[i]) == to_bits(other[i]), "another sum in two levels");
                }
            }
        }));
    }
    using enum detail::partial_form;
    CHECK(seen[static_cast<int>(terms)] == !std::is_same_v<T, float16>); // 4 halves are as long as a double
    CHECK(seen[static_cast<int>(partial::number_is_exact(128) ? number : words)]);
    // More terms of half than a double holds for sure.
    CHECK((partial::form(5000, 10000) == (partial::number_is_exact(10000) ? number : words)));
    CHECK(partial::number_is_exact(10000) == (sizeof(T) == 1));
}

TEST_CASE("halves beyond 8192 terms are added exactly, too")
{
    constexpr uint64_t leaves = 2100;
    const term_table<float16> table(4 * leaves, 3, 5);
    CHECK_NOTHROW(local_provider{4}.run([&](local::communicator& world) {
        host::stream stream;
        node_groups nodes(world, 2);
        reproducible comm(world, contract<reproducibility::correctly_rounded>{}, nodes);
        const std::vector<float16> sent = table.sent(world.rank(), leaves, 0, 3);
        std::vector<float16> sums(3);
        comm.all_reduce(view<const float16>(sent), view<float16>(sums), reduction::sum, stream, {.leaves = leaves});
        stream.synchronize(soon_ms);
        for (uint64_t i = 0; i < 3; ++i) require(same_number(sums[i], table.exact(i)), "not the exact sum");
    }));
}

TEST_CASE("the control: in two levels an accumulator that rounds gives other bits than rank after rank")
{
    const term_table<float> table(8, 400, 5, true);
    const placement at = neighbours(2, 4);
    int differences = 0;
    for (uint64_t i = 0; i < 400; ++i) {
        const float flat = table.in_order<accumulation::float32>(i);
        differences += !same_number(flat, node_by_node<accumulation::float32>(table, at, 1, i, 1)) ? 1 : 0;
    }
    CHECK(differences > 40);
}
