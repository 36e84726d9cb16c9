// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// A sum is no longer than its terms, and moves keep squares: exact, so silent on every healthy step.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include <collprobe/audit/audit.hpp>
#include <collprobe/fault/faulty.hpp>
#include <collprobe/quant.hpp>
#include <collprobe/reduce/reproducible.hpp>
#include <collprobe/report/table.hpp>

#include "support/element_types.hpp"
#include "support/steps.hpp"

namespace collprobe::testing::lengths_test {
namespace {

/// What the data of a step are like.
enum class data { own, alike, equal, opposite, one_large, tiny, small, large, zero, sparse, kinds };

template <floating_element T>
void fill(std::vector<T>& send, data how, int rank, std::uint64_t step)
{
    std::mt19937_64 common(step), own(1000 * step + static_cast<std::uint64_t>(rank) + 1);
    std::normal_distribution<double> of_all, of_rank; // each keeps every second number
    double largest = 0;
    with_floating_type(element_traits<T>::type,
        [&]<class U>(U) { largest = std::ldexp(1.0, element_traits<U>::max_exponent - 6); });
    for (T& x : send) {
        const double shared = of_all(common);
        const double mine = of_rank(own);
        double value = mine;
        switch (how) {
        case data::own: break;
        case data::alike: value = shared + 0.01 * mine; break;
        case data::equal: value = shared; break;
        case data::opposite: value = rank % 2 == 0 ? shared : -shared; break;
        case data::one_large: value = rank == 0 ? 1e4 * mine : mine; break;
        case data::tiny: value = mine * std::ldexp(1.0, element_traits<T>::min_subnormal_exponent + 2); break;
        case data::small: value = mine * (sizeof(T) == 8 ? 1e-160 : 1); break; // whose squares are subnormal
        case data::large: value = shared * largest / 8; break;
        case data::zero: value = 0; break;
        case data::sparse: value = own() % 50 == 0 ? mine : 0; break;
        case data::kinds: break;
        }
        if constexpr (std::is_same_v<T, double>) x = value;
        else x = T(static_cast<float>(value));
    }
}

struct seen_lengths {
    double largest = 0;
    int beyond = 0;
    int known = 0;

    void add(const step_record& record)
    {
        for (const call_record& call : record.calls) {
            if (is_nan(call.excess)) continue;
            ++known;
            largest = call.excess > largest ? call.excess : largest;
            beyond += call.excess > 1 ? 1 : 0;
        }
    }
};

/// All calls whose lengths are known.
template <floating_element T, class Probe>
void make_calls(Probe& probe, std::vector<T>& send, int ranks, std::uint64_t step, host::stream_ref stream)
{
    const auto n = static_cast<std::size_t>(ranks);
    std::vector<T> same(send.size()), part(send.size() / n), whole(send.size() * n);
    const reduction how = step % 2 == 0 ? reduction::sum : reduction::average;
    probe.all_reduce(send, view<T>(same), how, stream);
    probe.reduce_scatter(send, view<T>(part), how, stream);
    probe.all_gather(send, view<T>(whole), stream);
    probe.all_to_all(send, view<T>(same), stream);
    probe.broadcast(send, view<T>(same), static_cast<int>(step % n), stream);
    std::vector<T> in_place = send;
    probe.all_reduce(in_place, view<T>(in_place), how, stream);
    stream.synchronize();
}

int found_without_rank(const step_record& record, finding_kind what)
{
    int found = 0;
    for (const finding& each : record.findings)
        found += each.what == what && each.rank() < 0 && each.exact ? 1 : 0;
    return found;
}

template <floating_element T, class Wrap>
seen_lengths healthy(report_mode mode, int ranks, local::reduction_order order, int steps, const Wrap& wrap)
{
    seen_lengths all;
    for (const step_record& record : records_over({ranks, steps, {.mode = mode, .times = false}, order}, wrap,
             [&](auto& comm, host::stream& stream, int number, auto&) {
                 const auto step = static_cast<std::uint64_t>(number);
                 std::vector<T> send(static_cast<std::size_t>(ranks) * (step % 3 == 0 ? 1 : 16 + step % 40));
                 fill(send, static_cast<data>(step % static_cast<std::uint64_t>(data::kinds)), comm.rank(), step);
                 make_calls(comm, send, ranks, step, stream);
                 stream.synchronize();
             })) {
        all.add(record);
        CHECK(findings_of(record, finding_kind::sum_differs).empty());
        CHECK(findings_of(record, finding_kind::shard_differs).empty());
    }
    return all;
}

/// The record of one step of faulty ranks.
template <class Step, class... Parts>
step_record record_of(int ranks, const probe_options& options, const std::vector<fault>& faults, const Step& step, const Parts&... parts)
{
    return records_over({ranks, 1, options}, [&](local::communicator& world) { return faulty(world, faults); }, step, parts...)[0];
}
fault amplified(double by, std::uint64_t call = 0)
{
    return {.kind = fault_kind::scale, .phase = fault_phase::during, .rank = 2, .call = call, .magnitude = by};
}

} // namespace

TEST_CASE_TEMPLATE("healthy steps of all kinds of data have no excess, in either mode and any order", T,
    COLLPROBE_TEST_FLOATING_TYPES)
{
    constexpr int steps = COLLPROBE_TEST_UNLESS_BRIEF(200, 33);
    const auto bare = [](local::communicator& world) { return world; };
    for (const report_mode mode : both_modes) {
        for (const int ranks : {1, 2, 3, 8}) {
            if (COLLPROBE_TEST_UNLESS_SANITIZED(false, ranks < 3)) continue;
            for (const local::reduction_order order : {local::reduction_order::linear, local::reduction_order::ring, local::reduction_order::tree}) {
                const bool is_tree = order == local::reduction_order::tree;
                if (COLLPROBE_TEST_UNLESS_BRIEF(false, ranks == 8 && !is_tree && mode == report_mode::summary)) continue;
                CAPTURE(name(mode));
                CAPTURE(ranks);
                CAPTURE(static_cast<int>(order));
                seen_lengths of = healthy<T>(mode, ranks, order, steps, bare);
                if constexpr (sizeof(T) == 2) // exact sums, rounded once
                    if (is_tree)
                        of = healthy<T>(mode, ranks, order, steps, [](local::communicator& world) { return reproducible(world); });
                CHECK(of.beyond == 0);
                CHECK(of.known > 3 * steps);
                CHECK(of.largest > (sizeof(T) == 1 ? 0.3 : 0.6)); // equal terms; bytes round much
                CHECK(of.largest <= 1);
            }
        }
    }
}

TEST_CASE("an amplified term, and a library whose average is the sum, are proven wrong, in either mode and in place")
{
    for (const report_mode mode : both_modes) {
        for (const bool in_place : {false, true}) {
            CAPTURE(name(mode));
            CAPTURE(in_place);
            const auto records = records_over({8, 4, {.mode = mode}},
                [](local::communicator& world) { return faulty(world, {amplified(100, 1)}); },
                [&](auto& probe, host::stream& stream, int step, auto&) {
                    std::vector<float> send(4096), receive(4096);
                    fill(send, data::own, probe.rank(), static_cast<std::uint64_t>(step));
                    if (step < 3) {
                        probe.all_reduce(send, view<float>(in_place ? send : receive), reduction::average, stream,
                            call_site::named("wte"));
                    } else { // made by the caller: a note, because the result may be scaled on purpose
                        const auto token = probe.observe(view<const float>(send), stream, collective::all_reduce,
                            reduction::average, call_site::named("own"));
                        probe.base().all_reduce(send, view(receive), reduction::sum, stream);
                        token.result(view<const float>(receive), stream);
                    }
                    stream.synchronize();
                });
            for (const step_record& record : records) {
                CHECK(found_without_rank(record, finding_kind::sum_differs) == (record.step == 1 ? 1 : 0));
                CHECK((record.calls[0].excess > 1) == (record.step % 2 == 1));
            }
            CHECK(contains(report::step_table(records[1]),
                "'wte': some rank received a result that is not the sum of the inputs (sum_differs): a length of"));
            CHECK(records[3].calls[0].excess > 2);
            CHECK(records[3].findings.empty());
            CHECK(contains(report::step_table(records[3]), "note: bucket 0 'own': its result is too long"));
        }
    }
}

TEST_CASE("lost, repeated and amplified slices of what is moved are found, by either mode")
{
    const fault faults[] = {
        {.kind = fault_kind::zero_slice, .phase = fault_phase::during, .rank = 1, .elements = 8},
        {.kind = fault_kind::scale, .phase = fault_phase::during, .rank = 1, .magnitude = 1.001},
        {.kind = fault_kind::bit_flips, .phase = fault_phase::during, .rank = 1, .elements = 1, .mask = 1u << 23},
    };
    for (const report_mode mode : both_modes) {
        for (const fault& each : faults) {
            for (const collective what : {collective::all_gather, collective::all_to_all, collective::broadcast}) {
                CAPTURE(name(mode));
                CAPTURE(name(each.kind));
                CAPTURE(name(what));
                const step_record record = record_of(8, {.mode = mode}, {each}, [&](auto& probe, auto& stream, int, auto&) {
                    std::vector<float> send(800), same(800), whole(6400);
                    fill(send, data::own, probe.rank(), 1);
                    if (what == collective::all_gather) probe.all_gather(send, view(whole), stream);
                    else if (what == collective::all_to_all) probe.all_to_all(send, view(same), stream);
                    else probe.broadcast(send, view(same), 1, stream);
                    stream.synchronize();
                });
                CHECK(found_without_rank(record, finding_kind::shard_differs) == 1);
            }
        }
    }
}

TEST_CASE("codes, inputs that are not finite and other reductions have no excess")
{
    for (const report_mode mode : both_modes) {
        const auto check = [&](const auto& wrap, const auto& make) {
            const auto records = records_over({4, 1, {.mode = mode}}, wrap, [&](auto& probe, auto& stream, int, auto&) {
                std::vector<float> send(4096), receive(4096), whole(4 * 4096);
                fill(send, data::equal, probe.rank(), 1);
                make(probe, stream, send, receive, whole);
                stream.synchronize();
            });
            for (const call_record& call : records[0].calls) CHECK(is_nan(call.excess));
        };
        check([](local::communicator& world) { return quantised{world, {.format = code_format::int4}, {.least_bytes = 64}}; },
            [](auto& probe, auto& stream, auto& send, auto& receive, auto& whole) {
                probe.all_reduce(send, view(receive), reduction::average, stream);
                probe.all_gather(send, view(whole), stream);
            });
        check([](local::communicator& world) { return world; },
            [](auto& probe, auto& stream, auto& send, auto& receive, auto& whole) {
                probe.all_reduce(send, view(receive), reduction::max, stream);
                stream.synchronize();
                send[7] = std::numeric_limits<float>::quiet_NaN();
                probe.all_reduce(send, view(receive), reduction::sum, stream);
                probe.all_gather(send, view(whole), stream);
            });
    }
}

TEST_CASE("a sum that lengths prove wrong is told once, and certain, whatever the audit's checksum says of it")
{
    for (const report_mode mode : both_modes) {
        const step_record record = record_of(8, {.mode = mode}, {amplified(5)}, [](auto& probe, auto& stream, int, auto&) {
            std::vector<bfloat16> send(256), receive(256);
            fill(send, data::equal, probe.rank(), 1);
            probe.all_reduce(send, view(receive), reduction::sum, stream);
            stream.synchronize();
        }, audit());
        CHECK(record.calls[0].excess > 1);
        CHECK(record.calls[0].audit.where != damage::none);
        const auto found = findings_of(record, finding_kind::sum_differs);
        REQUIRE(found.size() == 1);
        CHECK(found[0].exact);
        CHECK(found[0].false_alarms_per_step == 0);
    }
}

TEST_CASE("findings by length are told as such")
{
    const step_record bare = record_of(4, {}, {amplified(100)}, [](auto& probe, auto& stream, int, auto&) {
        std::vector<float> send(64), receive(256);
        fill(send, data::own, probe.rank(), 1);
        probe.all_gather(send, view(receive), stream);
        stream.synchronize();
    });
    REQUIRE(bare.findings.size() == 1);
    CHECK(bare.findings[0].by_length);
    CHECK(contains(report::describe(bare.findings[0]), "the squares of the results off by"));
    const std::string line = report::json_line("run", bare);
    CHECK(contains(line, "\"by_length\":true"));
    CHECK(contains(line, "\"excess\":[{\"bucket\":0"));
}

} // namespace collprobe::testing::lengths_test
