// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Calls with faults beside what they must give, computed from the plan by plain loops and a clean communicator.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/fault/faulty.hpp>
#include <collprobe/reduce/reproducible.hpp>
#include <collprobe/step/probed.hpp>

#include "support/element_types.hpp"
#include "support/errors.hpp"
#include "support/run_ranks.hpp"

namespace collprobe::testing::faulty_test {

using std::uint64_t;

static_assert(communicator<faulty<faulty<local::communicator>>> && communicator<faulty<probed<local::communicator>>>);

namespace {

/// The effect of each fault of a list on rank `rank` in its call number `call`, in the order of the list. A pure
/// function, so every rank can compute it for every other. (For `stale` it assumes that the call `lag` calls earlier
/// had as many elements.)
/// Precondition: `faulty` accepts the list.
std::vector<injection> planned(
    const std::vector<fault>& faults, std::uint64_t call, int rank, const detail::fault_target& target)
{
    std::vector<injection> all;
    for (std::size_t which = 0; which < faults.size(); ++which) {
        injection one;
        if (detail::plan_fault(faults[which], static_cast<std::uint32_t>(which), call, rank, target, one)) {
            all.push_back(one);
        }
    }
    return all;
}

/// The calls of a test: the same shape again and again.
struct fault_calls {
    collective where = collective::all_reduce;
    int ranks = 3;
    std::uint64_t count = 100; ///< of a part: what a rank sends of an all-gather, receives of a reduce-scatter
    bool in_place = false;
    std::uint64_t calls = 1;

    std::uint64_t size() const { return static_cast<std::uint64_t>(ranks); }
    bool gathers() const { return where == collective::all_gather; }
    std::uint64_t send_count() const { return parts_of(!gathers() && is_split()); }
    std::uint64_t receive_count() const { return parts_of(where != collective::reduce_scatter && is_split()); }
    detail::fault_target target(int rank, element_type type) const
    {
        const bool sends = where != collective::broadcast || rank == 0;
        return {where, type, sends ? send_count() : 0, receive_count(), ranks};
    }

private:
    bool is_split() const { return where != collective::all_reduce && where != collective::broadcast; }
    std::uint64_t parts_of(bool all) const { return all ? size() * count : count; }
};

/// Some number of an element: floating-point ones not too large, integers of all bits.
template <element T>
T some_element(std::uint64_t number)
{
    const std::uint64_t bits = detail::mix64(number * 0x9e3779b97f4a7c15u + 99);
    if constexpr (floating_element<T>) return T(static_cast<float>(static_cast<double>(bits >> 12) * 0x1p-51 - 1.0));
    else return static_cast<T>(bits);
}

/// What a rank has after a call.
template <element T>
struct rank_buffers {
    std::vector<T> send;
    std::vector<T> receive;
};
/// The buffers before a call. What `receive` holds then matters for a tail that stays.
template <element T>
rank_buffers<T> fresh_buffers(const fault_calls& all, std::uint64_t call, int rank)
{
    const std::uint64_t base = (call * 64 + static_cast<std::uint64_t>(rank)) << 32;
    rank_buffers<T> own;
    for (std::uint64_t i = 0; i < all.send_count(); ++i) own.send.push_back(some_element<T>(base + i));
    for (std::uint64_t i = 0; i < all.receive_count(); ++i) own.receive.push_back(some_element<T>(base + (1u << 31) + i));
    return own;
}

template <class Comm, element T>
void make_call(Comm& comm, const fault_calls& all, view<const T> send, view<T> receive, host::stream_ref on)
{
    switch (all.where) {
    case collective::all_reduce: return comm.all_reduce(send, receive, reduction::sum, on);
    case collective::reduce_scatter: return comm.reduce_scatter(send, receive, reduction::sum, on);
    case collective::all_gather: return comm.all_gather(send, receive, on);
    case collective::all_to_all: return comm.all_to_all(send, receive, on);
    default: return comm.broadcast(send, receive, 0, on);
    }
}

/// What a call is given; in place the smaller of the buffers is a part of the larger.
template <element T>
std::pair<view<T>, view<T>> placed(const fault_calls& all, int rank, rank_buffers<T>& own)
{
    const view<T> send(own.send), receive(own.receive);
    const std::uint64_t first = static_cast<std::uint64_t>(rank) * all.count;
    if (!all.in_place || (all.where == collective::broadcast && rank != 0)) return {send, receive};
    if (all.where == collective::reduce_scatter) return {send, send.part(first, all.count)};
    if (!all.gathers()) return {send, send};
    std::copy(send.begin(), send.end(), receive.data() + first);
    return {receive.part(first, all.count), receive};
}

/// What faults do to elements, by plain loops.
template <element T>
void apply(const injection& one, double magnitude, std::vector<T>& data, const std::vector<T>& by)
{
    using traits = element_traits<T>;
    using bits = typename traits::bits_type;
    for (std::uint64_t k = 0; k < one.elements; ++k) {
        const std::uint64_t at = one.first + k * one.stride;
        if (at >= data.size()) throw std::logic_error("a plan that leaves the buffer");
        T& hit = data[at];
        switch (one.kind) {
        case fault_kind::bit_flips: hit = std::bit_cast<T>(static_cast<bits>(std::bit_cast<bits>(hit) ^ one.mask)); break;
        case fault_kind::gaussian:
            if constexpr (floating_element<T>) {
                hit = T(double(hit) + std::sqrt(magnitude) * detail::standard_normal(detail::fault_draw(one.key, k)));
            }
            break;
        case fault_kind::scale:
            if constexpr (floating_element<T>) {
                hit = T(double(hit) * magnitude);
            } else {
                const double value = std::trunc(double(hit) * magnitude);
                const double low = double(std::numeric_limits<T>::min()), high = double(std::numeric_limits<T>::max());
                hit = value <= low ? std::numeric_limits<T>::min()
                    : value >= high ? std::numeric_limits<T>::max()
                                    : static_cast<T>(value);
            }
            break;
        case fault_kind::zero_slice: std::memset(static_cast<void*>(&hit), 0, sizeof(T)); break;
        case fault_kind::untouched_tail:
        case fault_kind::stale: hit = by.at(at); break;
        case fault_kind::duplicate_shard:
            hit = one.phase == fault_phase::after ? by.at(static_cast<std::uint64_t>(one.source) * one.elements + k) : by.at(at);
            break;
        case fault_kind::swap:
            if (k % 2 == 0) std::swap(hit, data.at(at + one.stride));
            break;
        case fault_kind::nan:
        case fault_kind::infinity:
            if constexpr (floating_element<T>) {
                const int fraction = traits::digits - 1;
                const std::uint64_t sign = std::uint64_t{1} << (8 * sizeof(T) - 1);
                const bool negative = one.kind == fault_kind::infinity && (detail::fault_draw(one.key, k) & 1) != 0;
                const std::uint64_t quiet = one.kind == fault_kind::nan ? std::uint64_t{1} << (fraction - 1) : 0;
                const std::uint64_t exponent = sign - (std::uint64_t{1} << fraction);
                hit = std::bit_cast<T>(static_cast<bits>(exponent | quiet | (negative ? sign : 0)));
            }
            break;
        }
    }
}

template <element T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b)
{
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

/// NaN payloads of sums are the reduction's affair.
template <element T>
bool same_values(const std::vector<T>& a, const std::vector<T>& b)
{
    bool same = a.size() == b.size();
    for (std::size_t i = 0; same && i < a.size(); ++i) same = to_bits(a[i]) == to_bits(b[i]) || (is_nan(a[i]) && is_nan(b[i]));
    return same;
}

/// Makes the calls with the faults; empty if everything is as it must be, else what is not. `hits` counts injections.
template <element T>
std::string difference(const fault_calls& all, const std::vector<fault>& faults, std::uint64_t& hits)
{
    std::vector<std::string> wrong(all.size());
    std::atomic<std::uint64_t> count{0};
    local::run(all.ranks, [&](local::communicator& world) {
        const auto own = static_cast<std::size_t>(world.rank());
        const auto copy_of = [](view<const T> data) { return std::vector<T>(data.begin(), data.end()); };
        faulty comm{world, faults, {.max_bytes = 1 << 14}};
        std::vector<std::vector<std::vector<T>>> sent; // by call and rank, without faults
        std::vector<std::vector<T>> received; // by call, without faults of what was received
        std::vector<injection> log;
        for (std::uint64_t call = 0; call < all.calls; ++call) {
            std::vector<std::vector<injection>> plan;
            std::vector<std::vector<T>> travels;
            for (int rank = 0; rank < all.ranks; ++rank) {
                plan.push_back(planned(faults, call, rank, all.target(rank, element_traits<T>::type)));
                travels.push_back(fresh_buffers<T>(all, call, rank).send);
            }
            sent.push_back(travels);
            std::vector<T> held; // by the own send buffer
            for (const fault_phase phase : {fault_phase::before, fault_phase::during}) {
                for (std::uint32_t which = 0; which < faults.size(); ++which) {
                    for (std::size_t r = 0; r < all.size(); ++r) {
                        for (const injection& one : plan[r]) {
                            if (one.fault != which || one.phase != phase) continue;
                            const std::vector<T> by = one.kind == fault_kind::stale ? sent.at(call - faults[which].lag)[r]
                                : one.kind == fault_kind::duplicate_shard ? travels[static_cast<std::size_t>(one.source)]
                                                                          : travels[r];
                            apply(one, faults[which].magnitude, travels[r], by);
                        }
                    }
                }
                if (phase == fault_phase::before) held = travels[own];
            }
            host::stream stream;
            // The collective itself: that of a communicator without faults.
            std::vector<T> result(all.receive_count());
            make_call<local::communicator, T>(world, all, view<const T>(travels[own]), view<T>(result), stream);
            stream.synchronize(soon_ms);
            received.push_back(result);
            rank_buffers<T> buffers = fresh_buffers<T>(all, call, world.rank());
            rank_buffers<T> behind_damage{held, buffers.receive};
            const std::vector<T> was = copy_of(placed(all, world.rank(), behind_damage).second); // what `receive` held
            for (const injection& one : plan[own]) {
                if (one.phase != fault_phase::after) continue;
                const std::vector<T> by = one.kind == fault_kind::stale ? received.at(call - faults[one.fault].lag)
                    : one.kind == fault_kind::untouched_tail            ? was
                                                                        : result;
                apply(one, faults[one.fault].magnitude, result, by);
            }

            const auto [send, receive] = placed(all, world.rank(), buffers);
            make_call<decltype(comm), T>(comm, all, view<const T>(send), receive, stream);
            stream.synchronize(soon_ms);
            const std::string at = " of call " + std::to_string(call) + " of rank " + std::to_string(own);
            if (!same_values(copy_of(receive), result)) wrong[own] += "receive" + at + "; ";
            // In place the send buffer is (part of) the result.
            if (!all.in_place && !same_bits(copy_of(send), held)) wrong[own] += "send" + at + "; ";
            std::stable_sort(plan[own].begin(), plan[own].end(), // as the log has them
                [](const injection& a, const injection& b) { return a.phase < b.phase; });
            log.insert(log.end(), plan[own].begin(), plan[own].end());
        }
        if (!std::equal(log.begin(), log.end(), comm.injected().begin(), comm.injected().end()))
            wrong[own] += "log of rank " + std::to_string(own) + "; ";
        count += log.size();
    });
    std::string all_wrong;
    for (const std::string& each : wrong) all_wrong += each;
    hits = count;
    return all_wrong;
}

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
