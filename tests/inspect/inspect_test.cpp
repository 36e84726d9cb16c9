// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/inspect/inspect.hpp>
#include <collprobe/quant/quantised.hpp>
#include <collprobe/reduce/reproducible.hpp>
#include <collprobe/sum/sum_in_order.hpp>

#include "support/element_types.hpp"
#include "support/run_ranks.hpp"

namespace collprobe::testing::inspect_test {
namespace {

/// Small messages that are large enough for every chunk of a ring of up to 16 ranks.
constexpr std::uint64_t count = 504;
constexpr inspect_options brief{.repeats = 3, .permutations = 3, .timed = 3};

/// What every rank finds over a communicator that `wrap` makes of the local one; all ranks must find the same.
template <class T, class Wrap>
inspection inspect_over(int ranks, local::options settings, Wrap wrap, std::uint64_t elements = count)
{
    std::vector<inspection> found(static_cast<std::size_t>(ranks));
    local::run(ranks, settings, [&](local::communicator& world) {
        auto&& comm = wrap(world);
        host::stream stream;
        found[static_cast<std::size_t>(world.rank())] = inspect<T>(comm, stream, elements, brief);
    });
    for (const inspection& each : found) {
        CHECK(each.order == found[0].order);
        CHECK(to_bits(each.max_ulp) == to_bits(found[0].max_ulp));
        CHECK(to_bits(each.time_us) == to_bits(found[0].time_us));
        CHECK(each.run_stable == found[0].run_stable);
        CHECK(each.ranks_agree == found[0].ranks_agree);
    }
    return found[0];
}

/// The local communicator; what `instead` makes of a sum of T, it does in its place.
template <class T>
struct summing : adaptor<summing<T>, local::communicator> {
    /// Of the communicator, the number of its sums before, and the call; false for the local communicator's sum.
    using function = std::function<bool(summing&, int, view<const T>, view<T>, reduction, host::stream_ref, call_site)>;
    /// Of the rows of all ranks, the result and the number of elements.
    using addition_of_rows = std::function<void(const std::vector<const T*>&, T*, std::uint64_t)>;

    function instead;
    addition_of_rows add;
    std::vector<T> memory = {};
    int calls = 0;

    explicit summing(local::communicator comm, function how = {}) : summing::adaptor(comm), instead(std::move(how)) {}

    template <element U>
    void make(const collective_call& call, host::stream_ref stream)
    {
        if constexpr (std::is_same_v<T, U>) {
            const auto sums = [&] {
                return instead(*this, calls++, call.sent<T>(), call.received<T>(), call.operation, stream, call.where);
            };
            if (instead && call.what == collective::all_reduce && sums()) return;
        }
        this->comm_.template make<U>(call, stream);
    }
};

/// Sums by `add`.
template <class T>
summing<T> added_by(local::communicator& world, typename summing<T>::addition_of_rows add)
{
    summing<T> made(world, [](summing<T>& comm, int, auto send, auto receive, reduction, auto stream, call_site where) {
        const auto n = static_cast<std::uint64_t>(comm.size());
        comm.memory.resize(n * send.count());
        comm.all_gather(send, view<T>(comm.memory), stream, where);
        stream.enqueue([&comm, receive, n] {
            std::vector<const T*> rows;
            for (std::uint64_t rank = 0; rank < n; ++rank) rows.push_back(comm.memory.data() + rank * receive.count());
            comm.add(rows, receive.data(), receive.count());
        });
        return true;
    });
    made.add = std::move(add);
    return made;
}

template <class T>
inspection inspect_local(int ranks, local::reduction_order order, std::uint64_t elements = count)
{
    return inspect_over<T>(
        ranks, {.order = order}, [](local::communicator& world) { return summing<T>(world); }, elements);
}

/// All sums in one given order and accumulator.
template <class T, accumulation in>
summing<T> ordered(local::communicator& world, const summation_order& order)
{
    return added_by<T>(world, [order](const std::vector<const T*>& rows, T* result, std::uint64_t length) {
        sum_in_order<in>(rows.data(), order, result, length);
    });
}

template <class T, accumulation in>
inspection inspect_order(const summation_order& order, std::uint64_t elements = count)
{
    return inspect_over<T>(static_cast<int>(order.size()) + 1, {},
        [&](local::communicator& world) { return ordered<T, in>(world, order); }, elements);
}

/// Sums of floats by a tree. An addition of several terms cuts them where the largest one ends, as tensor cores do.
float sum_by_tree(std::vector<float> values, const detail::sum_tree& tree)
{
    for (const auto& sums : tree) {
        double largest = 0;
        for (const auto sum : sums) largest = std::max(largest, std::abs(static_cast<double>(values[sum])));
        const double unit = sums.size() == 2 || largest == 0 ? 0 : std::ldexp(1.0, std::ilogb(largest) - 23);
        double all = 0;
        for (const auto sum : sums) {
            const double term = static_cast<double>(values[sum]);
            all += unit == 0 ? term : std::trunc(term / unit) * unit;
        }
        values[sums[0]] = static_cast<float>(all);
    }
    return values[0];
}

} // namespace

TEST_CASE_TEMPLATE("each local order is named, with the accumulator and the number of roundings",
    T, COLLPROBE_TEST_WIDER_FLOATING_TYPES)
{
    const testing::watchdog limit("inspections of local", 240);
    for (const int n : {2, 3, 4, 5, 6, 7, 8, 9, 16}) {
        if (COLLPROBE_TEST_UNLESS_BRIEF(false, n == 4 || n == 6 || n == 7 || n > 8)) continue;
        for (const auto order : {local::reduction_order::linear, local::reduction_order::ring, local::reduction_order::tree}) {
            CAPTURE(n);
            CAPTURE(name(order));
            const inspection found = inspect_local<T>(n, order);
            CHECK(std::string(name(found.order)) == (n == 2 ? "single" : name(order)));
            CHECK(found.partial_sum_bits == (n == 2 ? 0 : element_traits<T>::digits));
            CHECK_FALSE(found.partial_sum_bits_or_more);
            CHECK(found.roundings_per_element == n - 1);
            CHECK(found.reproduced == 1.0);
            CHECK(found.run_stable);
            CHECK(found.ranks_agree);
            CHECK(found.size_stable == (n == 2 || order == local::reduction_order::linear));
            CHECK(found.permutation_stable == (n == 2));
            CHECK(found.max_ulp <= 0.5 * (n - 1) * n);
            CHECK(found.max_ulp >= 0.4);
            CHECK((found.rms_ulp > 0 && found.rms_ulp < found.max_ulp));
            CHECK(found.orders.size()
                == (n == 2 || order == local::reduction_order::linear     ? 1u
                        : order == local::reduction_order::ring ? static_cast<unsigned>(n)
                                                                : 2u));
        }
    }
}

TEST_CASE("the order of each position is shown in brackets")
{
    const testing::watchdog limit("inspections of local", 60);
    const inspection ring = inspect_local<float>(4, local::reduction_order::ring, 100);
    REQUIRE(ring.orders.size() == 4);
    CHECK(ring.orders[0].brackets == "((1+2)+3)+0");
    CHECK(ring.orders[1].brackets == "((2+3)+0)+1");
    CHECK(ring.orders[2].brackets == "((0+3)+1)+2");
    CHECK(ring.orders[3].brackets == "((0+1)+2)+3");
    CHECK(ring.orders[1].first == 28); // a quarter, rounded up to 16 bytes
    CHECK(ring.orders[3].elements == 16);
    CHECK(ring.algbw_gbs == doctest::Approx(4.0 * 100 / (ring.time_us * 1000)));
    CHECK(ring.busbw_gbs == doctest::Approx(ring.algbw_gbs * 1.5)); // as nccl-tests have it
    const inspection tree = inspect_local<float>(8, local::reduction_order::tree, 101);
    REQUIRE(tree.orders.size() == 2);
    CHECK(tree.orders[0].brackets == "((((1+2)+3)+4)+((5+6)+7))+0");
    CHECK(tree.orders[1].first == 51);
}

TEST_CASE("one rank adds nothing")
{
    const inspection found = inspect_local<float>(1, local::reduction_order::ring);
    CHECK(found.order == order_class::single);
    CHECK(found.roundings_per_element == 0);
    CHECK(found.max_ulp == 0.0);
    CHECK(found.busbw_gbs == 0.0);
    CHECK(found.algbw_gbs > 0.0);
}

TEST_CASE("an order without a name is shown, and a chain of any")
{
    const testing::watchdog limit("inspections of given orders", 120);
    CHECK(inspect_order<float, accumulation::native>(permuted_order({3, 0, 4, 1, 2})).order == order_class::chain);
    const summation_order unnamed{{0, 3}, {1, 4}, {2, 5}, {0, 2}, {1, 0}};
    const inspection found = inspect_order<float, accumulation::native>(unnamed);
    CHECK(found.order == order_class::other);
    CHECK(found.orders.at(0).brackets == "((0+3)+(2+5))+(1+4)");
    CHECK(found.reproduced == 1.0);
}

TEST_CASE("a ring that visits the ranks in another order is a ring, and two chains of different rings are not")
{
    using detail::shown_order;
    const auto chain = [](const std::vector<int>& ranks) {
        return shown_order{order_class::chain, detail::tree_of(permuted_order(ranks))};
    };
    CHECK(detail::classify({chain({2, 0, 3, 1, 4}), chain({0, 3, 1, 4, 2}), chain({4, 2, 0, 3, 1})}, 5) == order_class::ring);
    CHECK(detail::classify({chain({2, 0, 3, 1, 4}), chain({0, 1, 3, 4, 2})}, 5) == order_class::chain);
    const shown_order pairs{order_class::pairwise, detail::tree_of(pairwise_order(5))};
    CHECK(detail::classify({chain({2, 0, 3, 1, 4}), pairs}, 5) == order_class::other);
}

namespace {

/// A tree drawn at random: two or, with `most_parts` above 2, more of the partial sums that are left are added next.
std::vector<detail::joint_addition> random_additions(int n, std::size_t most_parts, std::uint64_t seed)
{
    const auto draw = [&](std::size_t below) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        return static_cast<std::size_t>(seed >> 33) % below;
    };
    std::vector<std::uint32_t> left;
    for (int i = 0; i < n; ++i) left.push_back(static_cast<std::uint32_t>(i));
    std::vector<detail::joint_addition> additions;
    while (left.size() > 1) {
        const std::size_t parts = std::min(left.size(), 2 + draw(most_parts - 1));
        for (std::size_t i = 0; i < parts; ++i) std::swap(left[left.size() - 1 - i], left[draw(left.size() - i)]);
        additions.emplace_back(left.end() - static_cast<std::ptrdiff_t>(parts), left.end());
        left.resize(left.size() - parts);
        left.push_back(additions.back()[0]);
    }
    return additions;
}

/// Answers probes without ranks: sets of ranks, apart from the library's trees.
struct oracle {
    std::vector<std::vector<std::uint32_t>> met; ///< by two ranks: the terms of the smallest sum that has both

    explicit oracle(const std::vector<detail::joint_addition>& additions)
    {
        std::size_t n = 1;
        for (const auto& sums : additions) n += sums.size() - 1;
        met.assign(n, std::vector<std::uint32_t>(n));
        std::vector<std::vector<std::uint32_t>> members(n);
        for (std::uint32_t i = 0; i < n; ++i) members[i] = {i};
        for (const auto& sums : additions) {
            std::uint32_t terms = 0;
            for (const std::uint32_t sum : sums) terms += static_cast<std::uint32_t>(members[sum].size());
            std::vector<std::uint32_t>& into = members[sums[0]];
            for (std::size_t part = 1; part < sums.size(); ++part) {
                for (const std::uint32_t a : members[sums[part]]) {
                    for (const std::uint32_t b : into) met[a][b] = met[b][a] = terms;
                }
                into.insert(into.end(), members[sums[part]].begin(), members[sums[part]].end());
            }
        }
    }
};

/// Searches orders that the positions of a message have, in turn.
struct searched {
    detail::position_groups positions;
    bool complete;

    searched(int n, const std::vector<oracle>& orders, std::uint64_t seed = 1, std::uint64_t most_probes = 1 << 20)
        : positions(n, orders.size()),
          complete(detail::search_orders(positions, n, seed, most_probes,
              [&](const detail::rank_pair& pair) {
                  return [&orders, pair](std::uint64_t i) { return orders[i].met[pair.pivot][pair.other]; };
              },
              [](std::vector<std::uint8_t>&) {}))
    {
    }
    std::size_t probes() const { return positions.probes.size(); }
    detail::sum_tree tree(std::size_t position = 0) const
    {
        return positions.tree_of_group(positions.group_of[position]);
    }
};

std::vector<detail::joint_addition> additions_of(const summation_order& order)
{
    std::vector<detail::joint_addition> additions;
    for (const addition& step : order) additions.push_back({step.into, step.from});
    return additions;
}

} // namespace

TEST_CASE("any tree is found, of two-term and of larger additions, in no more probes than there are pairs")
{
    for (int n = 2; n <= 256; n += n < 34 ? 1 : 37) {
        for (const std::size_t most_parts : {2u, 3u, 5u, 300u}) {
            for (std::uint64_t seed = 1; seed <= (n < 34 ? 4u : 1u); ++seed) {
                CAPTURE(n);
                CAPTURE(most_parts);
                CAPTURE(seed);
                const auto made = random_additions(n, most_parts, seed * 100 + static_cast<std::uint64_t>(n));
                const searched found(n, {oracle(made)}, seed);
                REQUIRE(found.complete);
                REQUIRE(found.tree() == detail::tree_of(made));
                CHECK(found.probes() <= static_cast<std::size_t>(n * (n - 1) / 2));
                CHECK(detail::is_binary(found.tree()) == (made.size() + 1 == static_cast<std::size_t>(n)));
            }
        }
    }
}

TEST_CASE("a tree of two-term additions takes n log2 n probes on average, and so do all chains of a ring")
{
    for (const int n : {16, 64, 256}) {
        CAPTURE(n);
        double log2n = 0;
        for (int p = 1; p < n; p *= 2) ++log2n;
        const auto mean = [&](auto additions) {
            const std::uint64_t runs = 4;
            double probes = 0;
            for (std::uint64_t seed = 1; seed <= runs; ++seed) {
                probes += static_cast<double>(searched(n, {oracle(additions(seed))}, seed).probes()) / runs;
            }
            return probes;
        };
        const auto always = [](const summation_order& order) {
            return [additions = additions_of(order)](std::uint64_t) { return additions; };
        };
        std::vector<int> downwards;
        for (int rank = n - 1; rank >= 0; --rank) downwards.push_back(rank);
        CHECK(mean(always(linear_order(n))) < n * log2n);
        CHECK(mean(always(permuted_order(downwards))) < n * log2n);
        CHECK(mean(always(pairwise_order(n))) < 0.75 * n * log2n);
        CHECK(mean([&](std::uint64_t seed) { return random_additions(n, 2, seed); }) < n * log2n);
    }
    const int n = 64;
    std::vector<oracle> ring;
    for (int start = 0; start < n; ++start) ring.emplace_back(additions_of(rotated_order(n, start)));
    const searched found(n, ring);
    CHECK(found.probes() < 2 * n * 6);
    CHECK(found.positions.groups.size() == 64);
    for (int start = 0; start < n; ++start) {
        REQUIRE(found.tree(static_cast<std::size_t>(start)) == detail::tree_of(rotated_order(n, start)));
    }
}

TEST_CASE("sizes that no tree has give none")
{
    const auto tree = [](std::vector<std::vector<std::uint32_t>> met) {
        oracle says({{0, 1}, {0, 2}, {0, 3}});
        for (std::size_t a = 0; a < 4; ++a) {
            for (std::size_t b = a + 1; b < 4; ++b) says.met[a][b] = says.met[b][a] = met[a][b - a - 1];
        }
        return searched(4, {says}).tree();
    };
    CHECK_FALSE(tree({{2, 3, 4}, {3, 4}, {4}}).empty()); // linear
    CHECK_FALSE(tree({{4, 4, 4}, {4, 4}, {4}}).empty()); // all at once
    CHECK(tree({{2, 2, 2}, {2, 2}, {2}}).empty());
    CHECK(tree({{0, 0, 0}, {0, 0}, {0}}).empty());
    CHECK(tree({{3, 3, 3}, {3, 3}, {3}}).empty());
    CHECK(tree({{2, 2, 4}, {4, 3}, {3}}).empty());
}

TEST_CASE("wider accumulators than the element type are told apart")
{
    const testing::watchdog limit("inspections of accumulators", 120);
    const auto check = [](const inspection& found, int bits, int roundings) {
        CHECK(found.order == order_class::pairwise);
        CHECK(found.partial_sum_bits == bits);
        CHECK_FALSE(found.partial_sum_bits_or_more);
        CHECK(found.roundings_per_element == roundings);
        CHECK(found.reproduced == 1.0);
    };
    const summation_order order = pairwise_order(6);
    check(inspect_order<bfloat16, accumulation::native>(order), 8, 5);
    check(inspect_order<bfloat16, accumulation::float32>(order), 24, 1);
    check(inspect_order<bfloat16, accumulation::float64>(order), 53, 1);
    check(inspect_order<float16, accumulation::native>(order), 11, 5);
    check(inspect_order<float16, accumulation::float32>(order), 24, 1);
    check(inspect_order<float, accumulation::float64>(order), 53, 1);
}

TEST_CASE_TEMPLATE("exact sums have no order, and are within half an ulp",
    T, COLLPROBE_TEST_WIDER_FLOATING_TYPES)
{
    const testing::watchdog limit("inspections of exact sums", 60);
    const auto check = [](const inspection& found) {
        CHECK(found.order == order_class::exact);
        CHECK(found.partial_sum_bits == (sizeof(T) == 2 && element_traits<T>::digits == 11 ? 25 : 121));
        CHECK(found.partial_sum_bits_or_more);
        CHECK(found.roundings_per_element == 1);
        CHECK(found.reproduced == 1.0);
        CHECK(found.max_ulp <= 0.5);
        CHECK(found.permutation_stable);
        CHECK(found.size_stable);
    };
    check(inspect_order<T, accumulation::exact>(linear_order(5)));
    if constexpr (std::is_same_v<T, float>) {
        check(inspect_over<T>(5, {.order = local::reduction_order::ring}, [](local::communicator& world) {
            return reproducible(world, contract<reproducibility::correctly_rounded>{});
        }));
    }
    // A double cannot lose bits of few halves.
    if constexpr (element_traits<T>::digits == 11) check(inspect_order<T, accumulation::float64>(linear_order(5)));
}

TEST_CASE("a fixed-point sum adds all terms at once")
{
    const testing::watchdog limit("inspection of a fixed-point sum", 60);
    const inspection found = inspect_over<float>(5, {}, [](local::communicator& world) {
        return reproducible(world, contract<reproducibility::order_invariant>{},
            {.algorithm = reduction_algorithm::fixed_point});
    });
    CHECK(found.order == order_class::fused);
    CHECK(found.partial_sum_bits > 50);
    CHECK(found.partial_sum_bits < 64);
    CHECK(found.roundings_per_element == 1);
    CHECK(found.permutation_stable);
}

TEST_CASE("additions of more than two terms are shown, and round once each")
{
    const testing::watchdog limit("inspections of additions of several terms", 60);
    const auto inspect_tree = [](int n, const detail::sum_tree& tree) {
        return inspect_over<float>(n, {}, [&](local::communicator& world) {
            return added_by<float>(world, [tree](const std::vector<const float*>& rows, float* result, std::uint64_t length) {
                for (std::uint64_t i = 0; i < length; ++i) {
                    std::vector<float> values;
                    for (const float* row : rows) values.push_back(row[i]);
                    result[i] = sum_by_tree(values, tree);
                }
            });
        }, 64);
    };
    const inspection nodes = inspect_tree(6, {{0, 1, 2}, {3, 4, 5}, {0, 3}});
    CHECK(nodes.order == order_class::multi_way);
    CHECK(nodes.orders.at(0).brackets == "(0+1+2)+(3+4+5)");
    CHECK(nodes.roundings_per_element == 3);
    CHECK(nodes.partial_sum_bits == 24);
    const inspection cores = inspect_tree(7, {{0, 1, 2}, {0, 3, 4}, {0, 5, 6}});
    CHECK(cores.order == order_class::multi_way);
    CHECK(cores.orders.at(0).brackets == "((0+1+2)+3+4)+5+6");
    CHECK(cores.roundings_per_element == 3);
    const inspection all = inspect_tree(5, {{0, 1, 2, 3, 4}});
    CHECK(all.order == order_class::fused);
    CHECK(all.orders.at(0).brackets == "0+1+2+3+4");
    CHECK(all.roundings_per_element == 1);
    CHECK(all.partial_sum_bits == 24);
}

TEST_CASE("orders of few ranks and many have names")
{
    using namespace detail;
    const auto named = [](const summation_order& order) {
        return std::string(name(recognise(tree_of(order), static_cast<int>(order.size()) + 1).kind));
    };
    for (const int n : {4, 5, 7, 8, 17, 33, 40, 100}) {
        CAPTURE(n);
        std::vector<int> downwards;
        for (int rank = n - 1; rank >= 0; --rank) downwards.push_back(rank);
        CHECK(named(linear_order(n)) == "linear");
        CHECK(named(permuted_order(downwards)) == "reversed");
        CHECK(named(rotated_order(n, 1)) == "rotated");
        CHECK(named(rotated_order(n, n - 1)) == "rotated");
        CHECK(named(pairwise_order(n)) == "pairwise");
        CHECK(named(recursive_halving_order(n)) == "recursive_halving");
        if (n > 8) CHECK(std::string(name(recognise(tree_of(random_additions(n, 2, 3)), n).kind)) == "other");
    }
    CHECK(named(permuted_order({3, 0, 4, 1, 2})) == "chain");
    CHECK(named({{0, 1}, {0, 2}, {3, 4}, {0, 3}}) == "recursive_doubling"); // as of MPI
    CHECK(named({{0, 1}, {2, 3}, {0, 2}, {4, 5}, {0, 4}, {6, 7}, {8, 9}, {6, 8}, {0, 6}}) == "recursive_doubling");
}

TEST_CASE("ranks that add in different orders each have their own")
{
    const testing::watchdog limit("inspections of orders by rank", 60);
    const auto inspect_orders = [](const std::vector<summation_order>& orders) {
        return inspect_over<float>(static_cast<int>(orders.size()), {}, [&](local::communicator& world) {
            return ordered<float, accumulation::native>(world, orders[static_cast<std::size_t>(world.rank())]);
        });
    };
    const summation_order pairs = pairwise_order(4);
    const inspection found = inspect_orders({linear_order(4), pairs, linear_order(4), recursive_halving_order(4)});
    CHECK_FALSE(found.ranks_agree);
    CHECK(found.order == order_class::other);
    REQUIRE(found.orders.size() == 3);
    CHECK(found.orders[0].brackets == "((0+1)+2)+3");
    CHECK(found.orders[0].ranks == std::vector{0, 2});
    CHECK(found.orders[1].brackets == "(0+1)+(2+3)");
    CHECK(found.orders[1].ranks == std::vector{1});
    CHECK(found.orders[2].brackets == "(0+2)+(1+3)");
    CHECK(found.partial_sum_bits == 24);
    CHECK(found.roundings_per_element == 3);
    CHECK(found.reproduced == 1.0);
    // Each rank starts with its own value.
    const inspection own = inspect_orders({rotated_order(5, 0), rotated_order(5, 1), rotated_order(5, 2),
        rotated_order(5, 3), rotated_order(5, 4)});
    CHECK_FALSE(own.ranks_agree);
    CHECK(own.orders.size() == 5);
    CHECK(own.reproduced == 1.0);
}

TEST_CASE("the bound on the calls of the search is kept and reported")
{
    const auto with_bound = [](std::uint64_t most) {
        inspection found;
        local::run(6, {}, [&](local::communicator& world) {
            host::stream stream;
            inspect_options how = brief;
            how.most_order_calls = most;
            const inspection own = inspect<float>(world, stream, 12, how);
            if (world.rank() == 0) found = own;
        });
        return found;
    };
    const inspection all = with_bound(15);
    CHECK(all.order == order_class::linear);
    CHECK(all.order_calls <= 15);
    const inspection none = with_bound(all.order_calls - 1);
    CHECK(none.order == order_class::call_limit);
    CHECK(none.order_calls < all.order_calls);
    CHECK(none.orders.at(0).brackets.empty());
    CHECK(none.roundings_per_element == -1);
    CHECK(none.partial_sum_bits == 0);
    CHECK(with_bound(0).order_calls == 0);
}

namespace {

/// The next number, of the last element.
constexpr auto nudge = [](auto& comm, auto send, auto receive, reduction operation, host::stream_ref stream, call_site where) {
    comm.base().all_reduce(send, receive, operation, stream, where);
    stream.enqueue([receive] {
        using T = typename decltype(receive)::value_type;
        T& last = receive[receive.count() - 1];
        const auto next = static_cast<typename element_traits<T>::bits_type>(to_bits(last) ^ 1u);
        last = detail::bit_cast<T>(next);
    });
};

} // namespace

TEST_CASE("an order that changes between calls is reported, whatever the probes seem to show")
{
    for (const int n : {3, 4, 6}) {
        CAPTURE(n);
        const local::group others(n, {.order = local::reduction_order::tree});
        const auto alternating = [&](auto& comm, int call, auto send, auto receive, auto... rest) {
            if (call % 2 == 0) return false;
            others.communicator(comm.rank()).all_reduce(send, receive, rest...);
            return true;
        };
        const inspection found = inspect_over<float>(n, {.order = local::reduction_order::ring},
            [&](local::communicator& world) { return summing<float>(world, alternating); });
        CHECK_FALSE(found.run_stable);
        CHECK(found.ranks_agree);
        CHECK(found.order == order_class::other);
        CHECK(found.orders.at(0).brackets.empty());
        CHECK(found.roundings_per_element == -1);
        CHECK(found.partial_sum_bits == 0);
    }
}

TEST_CASE("an order that the probes do not see shows in sums that it does not reproduce")
{
    const local::group others(5, {.order = local::reduction_order::tree});
    const auto probes = static_cast<int>(searched(5, {oracle(additions_of(linear_order(5)))}).probes());
    const auto later = [&](auto& comm, int call, auto send, auto receive, auto... rest) {
        if (call < probes + 7 * 3) return false; // the calls that find order and bits
        others.communicator(comm.rank()).all_reduce(send, receive, rest...);
        return true;
    };
    const inspection found = inspect_over<float>(
        5, {}, [&](local::communicator& world) { return summing<float>(world, later); });
    CHECK(found.order == order_class::linear);
    CHECK(found.run_stable);
    CHECK(found.reproduced < 0.99);
    CHECK(found.reproduced > 0.1);
}

TEST_CASE("a reduction that sends codes is off by more than roundings, and no order reproduces it")
{
    const inspection found = inspect_over<float>(3, {}, [](local::communicator& world) {
        return quantised(world, {.block = 32}, quantised_options{.least_bytes = 1});
    });
    CHECK((is_nan(found.reproduced) || found.reproduced <= 0.1));
    CHECK(found.max_ulp > 1e4);
    CHECK_FALSE(found.size_stable);
}

TEST_CASE("ranks that get different bits are reported")
{
    const auto on_one = [](auto& comm, int, auto send, auto receive, auto... rest) {
        if (comm.rank() != 1) return false;
        nudge(comm, send, receive, rest...);
        return true;
    };
    const inspection found = inspect_over<bfloat16>(
        3, {}, [&](local::communicator& world) { return summing<bfloat16>(world, on_one); });
    CHECK_FALSE(found.ranks_agree);
    CHECK(found.order == order_class::other);
    CHECK(found.roundings_per_element == -1);
    CHECK(found.partial_sum_bits == 0);
}

TEST_CASE("the smallest messages are inspected, and none is refused")
{
    const testing::watchdog limit("inspections of small messages", 60);
    const inspection found = inspect_local<bfloat16>(3, local::reduction_order::ring, 1);
    CHECK(found.order == order_class::rotated); // there is but one chunk
    CHECK(found.reproduced == 1.0);
    CHECK_FALSE(found.permutation_stable);
    CHECK(found.bytes() == 2);
    local::run(1, [](local::communicator& world) {
        host::stream stream;
        const auto refused = [&](std::uint64_t elements, const inspect_options& options) {
            try {
                inspect<float>(world, stream, elements, options);
            } catch (const error& caught) {
                return std::string(caught.call()) == "inspect" && caught.code() == status::invalid_argument;
            }
            return false;
        };
        CHECK(refused(0, {}));
        CHECK(refused(1, {.repeats = 1}));
        CHECK(refused(1, {.samples = 0}));
        CHECK(refused(1, {.timed = 0}));
        CHECK_FALSE(refused(1, {}));
    });
}

} // namespace collprobe::testing::inspect_test
