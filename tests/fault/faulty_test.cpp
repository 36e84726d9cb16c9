// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <collprobe/reduce/reproducible.hpp>
#include <collprobe/step/probed.hpp>

#include "fault/fault_cases.hpp"
#include "support/element_types.hpp"

namespace collprobe::testing::faulty_test {

using std::uint64_t;

static_assert(communicator<faulty<faulty<local::communicator>>> && communicator<faulty<probed<local::communicator>>>);

namespace {

constexpr collective data_collectives[] = {collective::all_reduce, collective::reduce_scatter, collective::all_gather,
    collective::all_to_all, collective::broadcast};
constexpr fault_phase phases[] = {fault_phase::before, fault_phase::during, fault_phase::after};

std::vector<fault_kind> all_kinds()
{
    std::vector<fault_kind> kinds;
    for (int k = 0; k <= static_cast<int>(fault_kind::infinity); ++k) kinds.push_back(static_cast<fault_kind>(k));
    return kinds;
}

fault of_kind(fault_kind kind, fault_phase phase)
{
    fault one{.kind = kind, .phase = phase, .rank = 1, .call = 1, .seed = 5};
    if (kind == fault_kind::scale) one.magnitude = 1.5;
    if (kind == fault_kind::gaussian) one.magnitude = 0.25;
    return one;
}

} // namespace

TEST_CASE_TEMPLATE("every kind in every phase of every collective changes what it should and nothing else", T,
    std::int8_t, std::int64_t, bfloat16, float, double)
{
    if (COLLPROBE_TEST_UNLESS_SANITIZED(false, sizeof(T) > 2) || COLLPROBE_TEST_UNLESS_BRIEF(false, sizeof(T) == 4)) return;
    for (const collective where : data_collectives) {
        for (const bool in_place : {false, true}) {
            if (in_place && where == collective::all_to_all) continue;
            for (const fault_kind kind : all_kinds()) {
                for (const fault_phase phase : phases) {
                    if (kind == fault_kind::untouched_tail && phase != fault_phase::after) continue;
                    CAPTURE(std::string(name(where)));
                    CAPTURE(std::string(name(kind)));
                    CAPTURE(std::string(name(phase)));
                    CAPTURE(in_place);
                    fault one = of_kind(kind, phase);
                    if (where == collective::broadcast && phase != fault_phase::after) one.rank = 0;
                    uint64_t hits = 0;
                    CHECK(difference<T>({where, 3, 101, in_place, 2}, {one}, hits) == "");
                    const bool is_of_integers = !floating_element<T>
                        && (kind == fault_kind::gaussian || kind == fault_kind::nan || kind == fault_kind::infinity);
                    const bool has_parts = where == collective::all_gather || where == collective::all_to_all;
                    const bool doubles = kind != fault_kind::duplicate_shard
                        || (phase == fault_phase::after ? has_parts : where != collective::broadcast);
                    CHECK(hits == (is_of_integers || !doubles ? 0 : 1));
                }
            }
        }
    }
}

TEST_CASE_TEMPLATE("several faults of a call, on every rank, in any counts", T, std::int8_t, bfloat16, double)
{
    for (const uint64_t count : {0u, 1u, 2u, 7u, 64u, 333u}) {
        for (const int ranks : {1, 2, 5}) {
            std::vector<fault> faults;
            for (const fault_kind kind : all_kinds()) {
                for (const fault_phase phase : phases) {
                    if (kind == fault_kind::untouched_tail && phase != fault_phase::after) continue;
                    fault one = of_kind(kind, phase);
                    one.rank = fault::every_rank;
                    one.call = fault::every_call;
                    one.probability = 0.5;
                    one.lag = 2;
                    one.seed = 100 * count + static_cast<uint64_t>(ranks);
                    if (kind == fault_kind::bit_flips) one.elements = 32, one.stride = 2, one.alignment = 32, one.bits = 3;
                    if (kind == fault_kind::scale) one.elements = 5, one.stride = 3;
                    faults.push_back(one);
                }
            }
            for (const collective where : {collective::all_gather, collective::all_to_all, collective::broadcast}) {
                CAPTURE(count);
                CAPTURE(ranks);
                CAPTURE(std::string(name(where)));
                uint64_t hits = 0;
                CHECK(difference<T>({where, ranks, count, false, 5}, faults, hits) == "");
                if (count != 0) CHECK(hits > 20);
                else CHECK(hits == 0);
            }
        }
    }
}

TEST_CASE("which calls and which ranks")
{
    const auto calls_hit = [](fault one, int rank) {
        std::string hit;
        for (uint64_t call = 0; call < 12; ++call) {
            hit += planned({one}, call, rank, {.send = 10, .receive = 10, .size = 4}).empty() ? '.' : 'x';
        }
        return hit;
    };
    CHECK(calls_hit({}, 0) == "xxxxxxxxxxxx");
    CHECK(calls_hit({.rank = 2}, 0) == "............");
    CHECK(calls_hit({.rank = 2}, 2) == "xxxxxxxxxxxx");
    CHECK(calls_hit({.call = 3}, 0) == "...x........");
    CHECK(calls_hit({.call = 3, .period = 4}, 0) == "...x...x...x");
    CHECK(calls_hit({.period = 5}, 0) == "x....x....x.");
    CHECK(calls_hit({.probability = 0}, 0) == "............");
}

TEST_CASE("a fault with a probability strikes at that rate, on each rank by itself or on one")
{
    for (const int whom : {fault::every_rank, fault::random_rank}) {
        const fault rare{.rank = whom, .probability = 0.02, .seed = 3};
        const int calls = 50'000;
        int hits[4] = {}, together = 0; // by rank; in calls that several ranks have
        for (int call = 0; call < calls; ++call) {
            int here = 0;
            for (int rank = 0; rank < 4; ++rank) {
                const bool is_hit = !planned({rare}, static_cast<uint64_t>(call), rank, {.send = 10, .receive = 10, .size = 4}).empty();
                hits[rank] += is_hit ? 1 : 0;
                here += is_hit ? 1 : 0;
            }
            together += here > 1 ? 1 : 0;
        }
        const bool is_each = whom == fault::every_rank;
        const double mean = 0.02 * calls / (is_each ? 1 : 4), of_pairs = is_each ? 6 * 0.02 * 0.02 * calls : 0;
        for (const int each : hits) CHECK(std::abs(each - mean) < 5 * std::sqrt(mean));
        CHECK(std::abs(together - of_pairs) <= 5 * std::sqrt(of_pairs));
    }
}

TEST_CASE("random places are everywhere and fit, warp-aligned sets begin at multiples of 32")
{
    std::vector<int> seen(50);
    for (uint64_t call = 0; call < 20'000; ++call) {
        const auto plan = planned({{}}, call, 0, {.send = 50, .receive = 50, .size = 1});
        REQUIRE(plan.size() == 1);
        REQUIRE(plan[0].first < 50);
        CHECK(plan[0].elements == 1);
        CHECK(std::popcount(plan[0].mask) == 1);
        ++seen[plan[0].first];
    }
    for (const int each : seen) CHECK(std::abs(each - 400) < 5 * 20);
    const fault warp{.elements = 32, .stride = 4, .alignment = 32, .bits = 3};
    for (uint64_t call = 0; call < 2000; ++call) {
        const uint64_t count = 130 + call;
        const injection one = planned({warp}, call, 0, {.send = count, .receive = count, .size = 1}).at(0);
        REQUIRE(one.first % 32 == 0);
        REQUIRE(one.elements == 32);
        REQUIRE(one.first + 31 * 4 < count);
        REQUIRE(std::popcount(one.mask) == 3);
        REQUIRE((one.mask >> 32) == 0); // the bits of a float
    }
}

TEST_CASE("PAFT's noise has its mean and variance and a draw of its own for each rank, call and element")
{
    const uint64_t count = 20'000;
    const double sigma2 = 0.01;
    const std::vector<fault> faults = paft_noise(sigma2, 7, 1.0, 3);
    std::vector<std::vector<double>> noise; // by call and rank
    for (uint64_t call = 0; call < 3; ++call) noise.insert(noise.end(), {{}, {}});
    local::run(2, [&](local::communicator& world) {
        faulty comm{world, faults};
        for (uint64_t call = 0; call < 3; ++call) {
            std::vector<double> send(count, 0.5), receive(count);
            {
                host::stream stream;
                comm.all_reduce(view<const double>(send), view<double>(receive), reduction::sum, stream);
                stream.synchronize(soon_ms);
            }
            for (double& each : receive) each -= 1;
            noise[2 * call + static_cast<uint64_t>(world.rank())] = receive;
        }
    });
    const auto n = static_cast<double>(count);
    for (std::size_t a = 0; a < noise.size(); ++a) {
        CAPTURE(a);
        const double variance = a < 4 ? sigma2 : sigma2 + 1.0; // the third call has the burst
        double sum = 0, squares = 0, fourth = 0, neighbours = 0;
        for (std::size_t i = 0; i < count; ++i) {
            const double x = noise[a][i];
            sum += x;
            squares += x * x;
            fourth += x * x * x * x;
            neighbours += x * noise[a][(i + 1) % count];
        }
        CHECK(std::abs(sum / n) < 5 * std::sqrt(variance / n));
        CHECK(std::abs(squares / n - variance) < 5 * variance * std::sqrt(2 / n));
        CHECK(std::abs(fourth / n - 3 * variance * variance) < 5 * variance * variance * std::sqrt(96 / n));
        CHECK(std::abs(neighbours / n) < 5 * variance / std::sqrt(n));
        for (std::size_t b = a + 1; b < noise.size(); ++b) {
            double product = 0, other = 0;
            for (std::size_t i = 0; i < count; ++i) product += noise[a][i] * noise[b][i], other += noise[b][i] * noise[b][i];
            CHECK(std::abs(product) < 5 * std::sqrt(squares * other / n));
        }
    }
}

TEST_CASE("quantiles of the normal distribution are right to the last digits")
{
    // Against erfc of the C library, from the tail that a 52-bit number can reach to the middle.
    for (double z = -8; z <= 0.01; z += 0.01) {
        const double p = std::erfc(-z / std::sqrt(2.0)) / 2;
        CHECK(detail::normal_quantile(p) == doctest::Approx(z).epsilon(1e-12).scale(1));
        if (z > -6) CHECK(detail::normal_quantile(1 - p) == doctest::Approx(-z).epsilon(1e-6).scale(1));
    }
    CHECK(std::abs(detail::standard_normal(0)) < 9);
    CHECK(std::abs(detail::standard_normal(~uint64_t{0})) < 9);
    CHECK(detail::standard_normal(~uint64_t{0}) == -detail::standard_normal(0));
}

TEST_CASE("equal seeds give equal logs and bits, other seeds others; the log is bounded")
{
    const auto run = [](uint64_t seed, std::vector<float>& result, uint64_t bound = 100) {
        std::vector<injection> log;
        local::run(2, [&](local::communicator& world) {
            faulty comm{world, {{.rank = 1, .probability = 0.7, .seed = seed}}, {.max_injections = bound}};
            std::vector<float> data(100, 1.0f);
            {
                host::stream stream;
                for (int call = 0; call < 30; ++call) {
                    comm.all_reduce(view<const float>(data), view<float>(data), reduction::max, stream);
                }
                stream.synchronize(soon_ms);
            }
            if (world.rank() == 0) CHECK(comm.injected().empty());
            if (world.rank() != 1) return;
            CHECK(comm.calls() == 30);
            CHECK(comm.injected_total() > 10);
            log.assign(comm.injected().begin(), comm.injected().end());
            result = data;
        });
        return log;
    };
    std::vector<float> a, b, c;
    CHECK(run(1, a) == run(1, b));
    CHECK(same_bits(a, b));
    CHECK(run(1, a) != run(2, c));
    CHECK(!same_bits(a, c));
    CHECK(run(1, a, 3).size() == 3);
}

TEST_CASE("only the collectives that count are hit")
{
    local::run(2, [&](local::communicator& world) {
        faulty comm{world, {{.kind = fault_kind::zero_slice, .first = 0, .elements = 1}},
            {.calls = {collective::all_gather}}};
        std::vector<float> one(1, 1.0f), two(2);
        float sum = 0;
        {
            host::stream stream;
            comm.all_reduce(view<const float>(one), view<float>(&sum, 1), reduction::sum, stream);
            comm.all_gather(view<const float>(one), view<float>(two), stream);
            stream.synchronize(soon_ms);
        }
        CHECK(sum == 2);
        CHECK(two == std::vector<float>{0, 1});
        CHECK(comm.calls() == 1);
    });
}

TEST_CASE("under a probe a fault is not in its inputs and results that differ are seen, over it the reverse")
{
    for (const fault_phase phase : phases) {
        CAPTURE(std::string(name(phase)));
        const bool after = phase == fault_phase::after;
        step_record under, over;
        local::run(2, [&](local::communicator& world) {
            const fault once{.kind = fault_kind::scale, .phase = phase, .rank = 1, .call = 0, .magnitude = 100};
            const auto record_of = [&](auto& comm, auto& probe, step_record& record) {
                host::stream stream;
                const std::vector<float> send(4000, world.rank() == 0 ? 3.0f : 4.0f);
                std::vector<float> receive(4000);
                comm.all_reduce(view<const float>(send), view<float>(receive), reduction::sum, stream);
                probe.end_step(0, {.loss = 1}, stream);
                stream.synchronize(soon_ms);
                step_record own;
                CHECK(probe.poll(own));
                if (world.rank() == 0) record = own;
                CHECK(receive == std::vector<float>(4000, !after ? 403.0f : world.rank() == 0 ? 7.0f : 700.0f));
            };
            probed outer{faulty{world, {once}}};
            record_of(outer, outer, under);
            CHECK(outer.base().injected().count() == (world.rank() == 1 ? 1 : 0));
            faulty inner{probed{world}, {once}};
            record_of(inner, inner.base(), over);
        });
        REQUIRE(under.calls.size() == 1);
        CHECK(under.calls[0].inputs[1].absolute_maximum == 4);
        CHECK(under.calls[0].results_agree == !after);
        REQUIRE(over.calls.size() == 1);
        CHECK(over.calls[0].inputs[0].absolute_maximum == 3);
        CHECK(over.calls[0].inputs[1].absolute_maximum == (after ? 4 : 400));
        CHECK(over.calls[0].results_agree);
    }
}

TEST_CASE("over a contract a fault is in the data, under it in the messages that the reduction is made of")
{
    std::vector<float> over, under;
    local::run(2, [&](local::communicator& world) {
        const auto sum_of = [&](auto& comm) {
            const std::vector<float> send(4000, world.rank() == 0 ? 1.0f : 1.5f);
            std::vector<float> sum(4000);
            host::stream stream;
            comm.all_reduce(view<const float>(send), view<float>(sum), reduction::sum, stream);
            stream.synchronize(soon_ms);
            return sum;
        };
        const contract<reproducibility::correctly_rounded> exact;
        faulty outer{reproducible{world, exact},
            {{.kind = fault_kind::scale, .phase = fault_phase::during, .rank = 1, .call = 0, .magnitude = 100}}};
        const std::vector<float> scaled = sum_of(outer);
        reproducible inner{
            faulty{world, {{.rank = 0, .call = 0, .first = 5, .mask = 1u << 22}}}, exact, {.one_shot_bytes = 0}};
        const std::vector<float> flipped = sum_of(inner);
        CHECK(inner.base().calls() == 2); // terms to where they are added, and sums back
        CHECK(inner.base().injected().count() == (world.rank() == 0 ? 1 : 0));
        if (world.rank() == 0) over = scaled, under = flipped;
    });
    CHECK(over == std::vector<float>(4000, 151.0f));
    CHECK(std::count(under.begin(), under.end(), 2.5f) == 3999);
}

TEST_CASE("a buffer above max_bytes that needs a copy is refused")
{
    const auto run = [] {
        local::run(2, {.timeout_ms = 20'000}, [](local::communicator& world) {
            faulty comm{world, {{.phase = fault_phase::during, .rank = 0}}, {.max_bytes = 64}};
            std::vector<float> data(17, 1.0f);
            host::stream stream;
            comm.all_reduce(view<const float>(data), view<float>(data), reduction::sum, stream);
            stream.synchronize(soon_ms);
        });
    };
    CHECK_THROWS_WITH_AS(run(), doctest::Contains("max_bytes"), error);
}

namespace {

/// Of a rank of two, or nothing.
std::string refusal(const std::vector<fault>& faults, const faulty_options& options)
{
    const auto group = local::group(2);
    const local::communicator world = group.communicator(0);
    try {
        faulty comm{world, faults, options};
    } catch (const error& why) {
        CHECK(why.code() == status::invalid_argument);
        CHECK(why.rank() == 0);
        return why.what();
    }
    return "";
}

} // namespace

TEST_CASE("what cannot be is refused by its index")
{
    const fault wrong[] = {
        {.rank = 2},
        {.rank = -3},
        {.probability = 1.5},
        {.probability = detail::not_a_number()},
        {.stride = 0},
        {.alignment = 0},
        {.bits = 0},
        {.bits = 65},
        {.kind = fault_kind::gaussian, .magnitude = -1},
        {.kind = fault_kind::scale, .magnitude = detail::infinity()},
        {.kind = fault_kind::untouched_tail, .phase = fault_phase::before},
        {.kind = fault_kind::swap, .elements = 3},
        {.kind = fault_kind::stale, .lag = 0},
        {.kind = fault_kind::duplicate_shard, .source = 2},
        {.kind = fault_kind::duplicate_shard, .phase = fault_phase::before, .rank = 1, .source = 1},
        {.kind = static_cast<fault_kind>(99)},
        {.phase = static_cast<fault_phase>(9)},
    };
    for (const fault& each : wrong) {
        CAPTURE(&each - wrong);
        CHECK(refusal({{}, each}, {}).find("fault 1: ") != std::string::npos);
    }
    CHECK(refusal({{}, {}}, {}).empty());
    CHECK(refusal({{.rank = 99}}, {}).find("fault 0: rank is 99: expected 0 <= rank < 2, or every_rank or random_rank")
        != std::string::npos);
}

TEST_CASE("options that no memory is large enough for are refused by name")
{
    const std::uint64_t huge = std::uint64_t{1} << 62;
    // Four slots of 2^62 bytes: 2^64, which is 0.
    CHECK(refusal({{.kind = fault_kind::stale, .lag = 3}}, {.max_bytes = huge}).find("max_bytes is")
        != std::string::npos);
    CHECK(refusal({{.phase = fault_phase::during}}, {.max_bytes = ~std::uint64_t{0}}).find("max_bytes is")
        != std::string::npos);
    CHECK(refusal({{}}, {.max_bytes = huge}).empty()); // nothing is copied
    CHECK(refusal({{.kind = fault_kind::stale, .lag = 3}}, {.max_bytes = 1 << 10}).empty());
    CHECK(refusal({{}}, {.max_injections = ~std::uint64_t{0}}).find("max_injections is above") != std::string::npos);
    CHECK(refusal({{}}, {.max_injections = 0}).empty());
}

} // namespace collprobe::testing::faulty_test
