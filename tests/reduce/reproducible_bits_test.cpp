// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What bits the contracts promise, against sums that share nothing with the library.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/simd/gradual_underflow.hpp>

#include "reduce/reduction_cases.hpp"
#include "support/element_types.hpp"

namespace collprobe::testing::reproducible_bits_test {
namespace {

using std::uint64_t;

/// What is drawn for one call. All ranks draw the same.
struct draw {
    uint64_t first, count;
    uint64_t leaves;
    reduction operation;
    bool in_place;
    bool scatter;
    uint64_t shift; ///< elements that the buffers are off their alignment
    reproducible_options options;

    draw(random_bits& random, int ranks, uint64_t terms, uint64_t most)
    {
        const auto n = static_cast<uint64_t>(ranks);
        const uint64_t counts[] = {0, 1, n - 1, n + 1, 16 * n, 32 * n + 1, random.below(most), random.below(most), most};
        count = counts[random.below(9)];
        count = count < most ? count : most;
        first = random.below(most - count + 1);
        leaves = terms / n;
        operation = random.one_in(2) ? reduction::sum : reduction::average;
        in_place = random.one_in(2);
        scatter = random.one_in(4);
        shift = random.one_in(2) ? 0 : random.below(8);
        const reduction_algorithm algorithms[]
            = {reduction_algorithm::automatic, reduction_algorithm::exchange, reduction_algorithm::one_shot};
        const uint64_t least = least_scratch(ranks, leaves);
        const uint64_t scratch[] = {least, least + 64 * n, 2 * least, 8 * least, uint64_t{1} << 20};
        options = {.scratch_bytes = scratch[random.below(5)], .algorithm = algorithms[random.below(3)],
            .one_shot_bytes = random.one_in(2) ? uint64_t{64} << 10 : 512};
    }
    std::string describe() const
    {
        return std::string(name(operation)) + (scatter ? " reduce_scatter" : " all_reduce") + " by "
            + name(options.algorithm) + ", count " + std::to_string(count) + ", leaves " + std::to_string(leaves)
            + (in_place ? ", in place" : "") + ", shift " + std::to_string(shift) + ", scratch "
            + std::to_string(options.scratch_bytes);
    }
};

/// A contract with a type over numbers of ranks and leaves, with calls at random.
template <class Contract, floating_element T>
void check_contract(int calls, std::initializer_list<int> sizes = {1, 2, 3, 4, 7, 8})
{
    if constexpr (Contract::template possible<T>) {
        constexpr accumulation in = Contract::template accumulator<T>;
        constexpr uint64_t most = sizeof(T) < 8 ? 270 : 150;
        for (const int ranks : sizes) {
            for (const uint64_t leaves : {uint64_t{1}, static_cast<uint64_t>(2 + ranks % 2)}) {
                const uint64_t terms = static_cast<uint64_t>(ranks) * leaves;
                const term_table<T> table(terms, most, terms);
                std::vector<T> sums, averages;
                for (uint64_t i = 0; i < most; ++i) {
                    sums.push_back(table.template in_order<in>(i));
                    averages.push_back(table.template in_order<in>(i, static_cast<std::uint32_t>(terms)));
                }
                CAPTURE(ranks);
                CAPTURE(leaves);
                CAPTURE(std::string(element_traits<T>::name));
                CAPTURE(std::string(name(in)));
                CHECK_NOTHROW(local_provider{ranks}.run([&](local::communicator& world) {
                    host::stream stream;
                    random_bits random{terms * 77};
                    for (int call = 0; call < calls; ++call) {
                        const draw what(random, ranks, terms, most);
                        reproducible comm(world, Contract{}, what.options);
                        const reduction_outcome outcome = check_reduction<Contract, T>(
                            comm, stream, what, table, what.operation == reduction::sum ? sums : averages);
                        require(outcome.in == Contract::template accumulator<T>,
                            what.describe() + ": wrong accumulator");
                    }
                }));
            }
        }
    }
}

} // namespace

TEST_CASE_TEMPLATE("sums and averages are those of the contract, for any count, place, leaf, piece and algorithm",
    T, COLLPROBE_TEST_FLOATING_TYPES)
{
    using enum reproducibility;
    check_contract<contract<correctly_rounded>, T>(30);
    check_contract<contract<size_invariant>, T>(30);
    check_contract<contract<size_invariant, accumulation::native>, T>(15);
    check_contract<contract<run_to_run, sizeof(T) < 8 ? accumulation::float32 : accumulation::float64>, T>(15);
}

TEST_CASE("and with many ranks")
{
    using enum reproducibility;
    check_contract<contract<correctly_rounded>, bfloat16>(8, {16, 33});
    check_contract<contract<size_invariant>, float>(8, {16, 33});
}

TEST_CASE_TEMPLATE("fixed point: neither how many ranks have the leaves nor their order changes a bit",
    T, COLLPROBE_TEST_FLOATING_TYPES)
{
    using enum reproducibility;
    using plain = contract<size_invariant, accumulation::native>;
    const term_table<T> table(16, 150, 11);
    const reproducible_options fixed{.algorithm = reduction_algorithm::fixed_point};
    std::vector<int> deal = ranks_in_order(16);
    const auto expected = reduced<contract<order_invariant>>(table, deal, 1, reduction::average, fixed);
    for (const int ranks : {8, 4, 2, 1}) {
        const auto leaves = static_cast<uint64_t>(16 / ranks);
        const auto found
            = reduced<contract<order_invariant>>(table, ranks_in_order(ranks), leaves, reduction::average, fixed);
        CHECK(same_numbers(found, expected));
    }
    const auto in_order = reduced<plain>(table, deal, 1, reduction::average);
    for (int turn = 0; turn < 4; ++turn) {
        for (std::size_t i = 0; i < 16; ++i) std::swap(deal[i], deal[(i * 5 + static_cast<std::size_t>(turn)) % 16]);
        CHECK(same_numbers(reduced<contract<order_invariant>>(table, deal, 1, reduction::average, fixed), expected));
    }
    CHECK_FALSE(same_numbers(reduced<plain>(table, deal, 1, reduction::average), in_order)); // the control
}

namespace {

/// The place of a number among all, from its bits: steps from zero. What overflowed, to infinity or NaN, is beyond.
template <class T>
int64_t place(T value)
{
    const auto size = static_cast<int64_t>(to_bits(value) & ~uint64_t{element_traits<T>::sign_mask});
    return (to_bits(value) & element_traits<T>::sign_mask) != 0 ? -size : size;
}

} // namespace

TEST_CASE_TEMPLATE("fixed point: within its bound of the exact sum, whatever the exponents",
    T, COLLPROBE_TEST_FLOATING_TYPES)
{
    const detail::gradual_underflow as_ieee_has_it; // for the bounds below
    for (const int ranks : {1, 2, 3, 8}) {
        for (const uint64_t leaves : {uint64_t{1}, uint64_t{3}}) {
            const uint64_t terms = static_cast<uint64_t>(ranks) * leaves;
            const term_table<T> table(terms, 400, 31 + terms);
            for (const uint64_t scratch : {least_scratch(ranks, leaves), uint64_t{1} << 20}) {
                const auto found = reduced<contract<reproducibility::order_invariant>>(table, ranks_in_order(ranks),
                    leaves, reduction::sum, {.scratch_bytes = scratch, .algorithm = reduction_algorithm::fixed_point});
                int term_bits = 0;
                while ((uint64_t{1} << term_bits) < terms) ++term_bits;
                for (uint64_t i = 0; i < table.count(); ++i) {
                    CAPTURE(ranks);
                    CAPTURE(i);
                    // Half a unit for each term, around the exact sum, rounded to T.
                    int top = -2000;
                    bool finite = true;
                    for (uint64_t k = 0; k < terms; ++k) {
                        const T x = table.row(i)[k];
                        finite = finite && is_finite(x);
                        const auto field = static_cast<int>(
                            (to_bits(x) & element_traits<T>::exponent_mask) >> (element_traits<T>::digits - 1));
                        const int exponent = element_traits<T>::min_exponent + (field != 0 ? field - 1 : 0);
                        top = exponent > top ? exponent : top;
                    }
                    if (!finite) {
                        REQUIRE(same_number(found[i], table.exact(i)));
                        continue;
                    }
                    const int half_unit = top + 2 + term_bits - 63 - 1;
                    exact_oracle<double> low, high;
                    for (uint64_t k = 0; k < terms; ++k) {
                        const double x = detail::widen(table.row(i)[k]);
                        low.add(x);
                        high.add(x);
                        if (half_unit >= -1074 && !detail::sums_fit_in_one_unit<T>) {
                            low.add(sum_cases<double>::power(true, half_unit));
                            high.add(sum_cases<double>::power(false, half_unit));
                        }
                    }
                    REQUIRE(place(low.template round<T>()) <= place(found[i]));
                    REQUIRE(place(found[i]) <= place(high.template round<T>()));
                }
            }
        }
    }
}

} // namespace collprobe::testing::reproducible_bits_test
