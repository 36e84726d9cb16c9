// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <collprobe/comm/adaptor.hpp>
#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/inspect/inspect.hpp>
#include <collprobe/reduce/reproducible.hpp>
#include <collprobe/sum/order.hpp>

#include "support/element_types.hpp"
#include "support/run_ranks.hpp"

using namespace collprobe;

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

template <class T>
inspection inspect_local(int ranks, local::reduction_order order, std::uint64_t elements = count)
{
    return inspect_over<T>(
        ranks, {.order = order}, [](local::communicator& world) -> local::communicator& { return world; }, elements);
}

/// All sums in one given order and accumulator.
template <accumulation in>
struct ordered : adaptor<local::communicator> {
    summation_order order;
    std::vector<unsigned char> memory = {};

    ordered(local::communicator comm, summation_order the_order) : adaptor(comm), order(std::move(the_order)) {}

    template <element T>
    void all_reduce(std::type_identity_t<view<const T>> send, view<T> receive, reduction, stream_ref stream,
        call_site where = call_site::current())
    {
        const auto n = static_cast<std::uint64_t>(size());
        memory.resize(n * send.size_bytes());
        T* const all = reinterpret_cast<T*>(memory.data());
        all_gather(send, view<T>(all, n * send.count()), stream, where);
        stream.enqueue([this, all, receive, n] {
            if constexpr (floating_element<T> && holds<T>(in)) {
                std::vector<T> values(n);
                for (std::uint64_t i = 0; i < receive.count(); ++i) {
                    for (std::uint64_t rank = 0; rank < n; ++rank) values[rank] = all[rank * receive.count() + i];
                    receive[i] = sum_in_order<in>(values.data(), order);
                }
            }
        });
    }
};

template <class T, accumulation in>
inspection inspect_order(const summation_order& order, std::uint64_t elements = count)
{
    return inspect_over<T>(static_cast<int>(order.size()) + 1, {},
        [&](local::communicator& world) { return ordered<in>(world, order); }, elements);
}

/// An order drawn at random: any two of the partial sums that are left are added next.
summation_order random_order(int n, std::uint64_t seed)
{
    std::vector<std::uint32_t> left;
    for (int i = 0; i < n; ++i) left.push_back(static_cast<std::uint32_t>(i));
    summation_order order;
    while (left.size() > 1) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        const std::size_t from = (seed >> 33) % left.size();
        std::swap(left[from], left.back());
        const std::uint32_t last = left.back();
        left.pop_back();
        order.push_back({left[(seed >> 50) % left.size()], last});
    }
    return order;
}

} // namespace

TEST_CASE_TEMPLATE("each local order is named, with the accumulator and the number of roundings",
    T, COLLPROBE_TEST_WIDER_FLOATING_TYPES)
{
    const testing::watchdog limit("inspections of local", 240);
    for (const int n : {2, 3, 4, 5, 6, 7, 8, 9, 16}) {
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

TEST_CASE("other orders have their names, too")
{
    const testing::watchdog limit("inspections of given orders", 120);
    for (const int n : {4, 5, 7, 8}) {
        CAPTURE(n);
        CHECK(inspect_order<float, accumulation::native>(pairwise_order(n)).order == order_class::pairwise);
        CHECK(inspect_order<float, accumulation::native>(recursive_halving_order(n)).order
            == order_class::recursive_halving);
        CHECK(inspect_order<float, accumulation::native>(rotated_order(n, 2)).order == order_class::rotated);
    }
    CHECK(inspect_order<float, accumulation::native>(permuted_order({3, 0, 4, 1, 2})).order == order_class::chain);
    const summation_order of_mpi{{0, 1}, {0, 2}, {3, 4}, {0, 3}};
    CHECK(inspect_order<float, accumulation::native>(of_mpi).order == order_class::recursive_doubling);
    const summation_order of_more{{0, 1}, {2, 3}, {0, 2}, {4, 5}, {0, 4}, {6, 7}, {8, 9}, {6, 8}, {0, 6}};
    CHECK(inspect_order<float, accumulation::native>(of_more).order == order_class::recursive_doubling);
    const summation_order unnamed{{0, 3}, {1, 4}, {2, 5}, {0, 2}, {1, 0}};
    const inspection found = inspect_order<float, accumulation::native>(unnamed);
    CHECK(found.order == order_class::other);
    CHECK(found.orders.at(0).brackets == "((0+3)+(2+5))+(1+4)");
    CHECK(found.reproduced == 1.0);
}

TEST_CASE("a ring that visits the ranks in another order is a ring, and two chains of different rings are not")
{
    using detail::shown_order;
    const auto chain = [](const std::vector<int>& ranks) { return shown_order{order_class::chain, permuted_order(ranks)}; };
    CHECK(detail::classify({chain({2, 0, 3, 1, 4}), chain({0, 3, 1, 4, 2}), chain({4, 2, 0, 3, 1})}, 5) == order_class::ring);
    CHECK(detail::classify({chain({2, 0, 3, 1, 4}), chain({0, 1, 3, 4, 2})}, 5) == order_class::chain);
    const shown_order pairs{order_class::pairwise, pairwise_order(5)};
    CHECK(detail::classify({chain({2, 0, 3, 1, 4}), pairs}, 5) == order_class::other);
}

TEST_CASE("any order is recovered from the sizes of the partial sums in which pairs of ranks meet")
{
    for (int n = 2; n <= 32; ++n) {
        const auto pairs = detail::pairs_to_probe(n);
        for (std::uint64_t seed = 0; seed < 50; ++seed) {
            const summation_order order = random_order(n, seed * 100 + static_cast<std::uint64_t>(n));
            // The sizes by sets of ranks, apart from the library's walk.
            std::vector<std::set<std::uint32_t>> sums(static_cast<std::size_t>(n));
            for (std::uint32_t i = 0; i < sums.size(); ++i) sums[i] = {i};
            std::vector<std::vector<std::uint32_t>> met(sums.size(), std::vector<std::uint32_t>(sums.size()));
            for (const addition& step : order) {
                const auto size = static_cast<std::uint32_t>(sums[step.into].size() + sums[step.from].size());
                for (const auto a : sums[step.into]) {
                    for (const auto b : sums[step.from]) met[a][b] = met[b][a] = size;
                }
                sums[step.into].insert(sums[step.from].begin(), sums[step.from].end());
            }
            detail::pair_sizes sizes;
            for (const auto& pair : pairs) sizes.push_back(met[pair.low][pair.high]);
            REQUIRE(detail::sizes_of(order, pairs) == sizes);
            REQUIRE(detail::sizes_of(detail::order_from(sizes, pairs, n), pairs) == sizes);
        }
    }
}

TEST_CASE("sizes that no order has give none")
{
    const auto pairs = detail::pairs_to_probe(4);
    CHECK(detail::order_from({2, 2, 2, 2, 2, 2}, pairs, 4).empty());
    CHECK(detail::order_from({4, 4, 4, 4, 4, 4}, pairs, 4).empty());
    CHECK(detail::order_from({0, 3, 3, 4, 4, 4}, pairs, 4).empty());
    CHECK_FALSE(detail::order_from({2, 3, 3, 4, 4, 4}, pairs, 4).empty()); // linear
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

TEST_CASE_TEMPLATE("exact and compensated sums have no order, and are within half an ulp",
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
    check(inspect_order<T, accumulation::compensated>(linear_order(5)));
    check(inspect_over<T>(5, {.order = local::reduction_order::ring}, [](local::communicator& world) {
        return reproducible(world, contract<reproducibility::correctly_rounded>{});
    }));
    // A double cannot lose bits of few halves.
    if constexpr (element_traits<T>::digits == 11) check(inspect_order<T, accumulation::float64>(linear_order(5)));
}

TEST_CASE("a contract that fixes the order is inspected as such")
{
    const testing::watchdog limit("inspections of contracts", 60);
    const auto check = [](const inspection& found, int bits) {
        CHECK(found.order == order_class::linear);
        CHECK(found.partial_sum_bits == bits);
        CHECK(found.roundings_per_element == 1);
        CHECK(found.reproduced == 1.0);
        CHECK(found.run_stable);
        CHECK(found.size_stable);
    };
    const auto wide = [](local::communicator& world) {
        return reproducible(world, contract<reproducibility::size_invariant>{});
    };
    const auto single = [](local::communicator& world) {
        return reproducible(world, contract<reproducibility::size_invariant, accumulation::float32>{});
    };
    // The same over a ring: the contract's order is not the communicator's.
    const local::options ring{.order = local::reduction_order::ring};
    check(inspect_over<bfloat16>(5, ring, wide), 53);
    check(inspect_over<float>(5, ring, wide), 53);
    check(inspect_over<bfloat16>(5, ring, single), 24);
    check(inspect_over<float16>(4, ring, single), 24);
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

TEST_CASE("more ranks than are probed in pairs")
{
    const testing::watchdog limit("inspections of 40 ranks", 200);
    for (const auto order : {local::reduction_order::linear, local::reduction_order::ring, local::reduction_order::tree}) {
        const inspection found = inspect_local<bfloat16>(40, order, 400);
        CHECK(std::string(name(found.order)) == name(order));
        CHECK(found.partial_sum_bits == 8);
        CHECK(found.roundings_per_element == 39);
        CHECK(found.reproduced == 1.0);
    }
    CHECK(inspect_order<bfloat16, accumulation::float32>(random_order(40, 7), 20).order == order_class::other);
}

namespace {

/// A communicator that does wrong in calls that a test chooses.
template <class Wrong>
struct spoilt : adaptor<local::communicator> {
    Wrong wrong;
    int calls = 0;

    spoilt(local::communicator comm, Wrong how) : adaptor(comm), wrong(how) {}

    template <element T>
    void all_reduce(std::type_identity_t<view<const T>> send, view<T> receive, reduction operation, stream_ref stream,
        call_site where = call_site::current())
    {
        if (!wrong(*this, calls++, send, receive, operation, stream, where)) {
            comm_.all_reduce(send, receive, operation, stream, where);
        }
    }
};

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

TEST_CASE("a sum that is not the same in every run is reported")
{
    const auto every_other = [](auto& comm, int call, auto send, auto receive, auto... rest) {
        if (call % 2 == 0) return false;
        nudge(comm, send, receive, rest...);
        return true;
    };
    const inspection found = inspect_over<float>(
        3, {}, [&](local::communicator& world) { return spoilt(world, every_other); });
    CHECK_FALSE(found.run_stable);
    CHECK(found.order == order_class::other); // one position has none
    CHECK(found.ranks_agree);
    CHECK(inspect_local<float>(3, local::reduction_order::linear).run_stable);
}

TEST_CASE("an order that changes between calls is reported")
{
    const local::group others(4, {.order = local::reduction_order::tree});
    const auto alternating = [&](auto& comm, int call, auto send, auto receive, auto... rest) {
        if (call % 2 == 0) return false;
        others.communicator(comm.rank()).all_reduce(send, receive, rest...);
        return true;
    };
    const inspection found = inspect_over<float>(4, {.order = local::reduction_order::ring},
        [&](local::communicator& world) { return spoilt(world, alternating); });
    CHECK_FALSE(found.run_stable);
    CHECK(found.ranks_agree);
    CHECK(found.order == order_class::other);
}

TEST_CASE("an order that the probes do not see shows in sums that it does not reproduce")
{
    const local::group others(5, {.order = local::reduction_order::tree});
    const auto later = [&](auto& comm, int call, auto send, auto receive, auto... rest) {
        if (call < 3 + 10 + 7 * 3) return false; // as many calls as the probes make
        others.communicator(comm.rank()).all_reduce(send, receive, rest...);
        return true;
    };
    const inspection found = inspect_over<float>(
        5, {}, [&](local::communicator& world) { return spoilt(world, later); });
    CHECK(found.order == order_class::linear);
    CHECK(found.run_stable);
    CHECK(found.reproduced < 0.99);
    CHECK(found.reproduced > 0.1);
}

TEST_CASE("ranks that get different bits are reported")
{
    const auto on_one = [](auto& comm, int, auto send, auto receive, auto... rest) {
        if (comm.rank() != 1) return false;
        nudge(comm, send, receive, rest...);
        return true;
    };
    const inspection found = inspect_over<bfloat16>(
        3, {}, [&](local::communicator& world) { return spoilt(world, on_one); });
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

TEST_CASE("bandwidths are nccl-tests' own")
{
    const inspection found = inspect_local<float>(4, local::reduction_order::linear);
    CHECK(found.algbw_gbs == doctest::Approx(4.0 * count / (found.time_us * 1000)));
    CHECK(found.busbw_gbs == doctest::Approx(found.algbw_gbs * 1.5));
}
