// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// A sum is no longer than its terms, and moves keep squares: exact, so silent on every healthy step.
#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <collprobe/audit.hpp>
#include <collprobe/collprobe.hpp>
#include <collprobe/fault.hpp>
#include <collprobe/quant.hpp>
#include <collprobe/reduce.hpp>
#include <collprobe/report.hpp>

#include "support/element_types.hpp"
#include "support/length_calls.hpp"

using namespace collprobe;
using namespace collprobe::testing;

namespace {

int found_without_rank(const step_record& record, finding_kind what)
{
    int found = 0;
    for (const finding& each : record.findings)
        found += each.what == what && each.rank() < 0 && each.exact ? 1 : 0;
    return found;
}

template <floating_element T, class Wrap>
void run_healthy(report_mode mode, int ranks, local::reduction_order order, std::uint64_t steps, const Wrap& wrap, seen_lengths& all)
{
    local::run(ranks, {.order = order}, [&](local::communicator& world) {
        host::stream stream;
        probed probe{wrap(world), {.mode = mode, .times = false}};
        step_record record;
        seen_lengths own;
        for (std::uint64_t step = 0; step < steps; ++step) {
            const auto how = static_cast<data>(step % static_cast<std::uint64_t>(data::kinds));
            std::vector<T> send(static_cast<std::size_t>(ranks) * (step % 3 == 0 ? 1 : 16 + step % 40));
            fill(send, how, world.rank(), step);
            make_calls(probe, send, ranks, step, stream);
            probe.end_step(step, stream);
            REQUIRE(probe.wait(record));
            own.add(record);
            if (world.rank() == 0) {
                for (const finding& each : record.findings)
                    CHECK_MESSAGE(!(each.what == finding_kind::sum_differs || each.what == finding_kind::shard_differs),
                        name(mode), " ", ranks, " ranks, step ", step, ", call ", each.call, ": ", each.statistic,
                        " against ", each.threshold);
            }
        }
        if (world.rank() == 0) all = own;
    });
}

} // namespace

TEST_CASE_TEMPLATE("healthy steps of all kinds of data have no excess, in either mode and any order", T,
    COLLPROBE_TEST_FLOATING_TYPES)
{
    constexpr std::uint64_t steps = COLLPROBE_TEST_UNLESS_BRIEF(200, 33);
    const auto bare = [](local::communicator& world) { return world; };
    const auto exact = [](local::communicator& world) { return reproducible(world); };
    for (const report_mode mode : {report_mode::gather, report_mode::summary}) {
        for (const int ranks : {1, 2, 3, 8}) {
            if (COLLPROBE_TEST_UNLESS_SANITIZED(false, ranks < 3)) continue;
            for (const local::reduction_order order : {local::reduction_order::linear, local::reduction_order::ring, local::reduction_order::tree}) {
                CAPTURE(name(mode));
                CAPTURE(ranks);
                CAPTURE(static_cast<int>(order));
                seen_lengths of;
                if (order == local::reduction_order::tree) run_healthy<T>(mode, ranks, order, steps, exact, of);
                else run_healthy<T>(mode, ranks, order, steps, bare, of);
                CHECK(of.beyond == 0);
                CHECK(of.known > static_cast<int>(3 * steps));
                CHECK(of.largest > (sizeof(T) == 1 ? 0.3 : 0.6)); // equal terms; bytes round much
                CHECK(of.largest <= 1);
            }
        }
    }
}

TEST_CASE("an amplified term, and a library whose average is the sum, are proven wrong, in either mode and in place")
{
    for (const report_mode mode : {report_mode::gather, report_mode::summary}) {
        for (const bool in_place : {false, true}) {
            CAPTURE(name(mode));
            CAPTURE(in_place);
            local::run(8, [&](local::communicator& world) {
                host::stream stream;
                const fault amplified{.kind = fault_kind::scale, .phase = fault_phase::during, .rank = 2, .call = 1,
                    .magnitude = 100};
                probed probe{faulty{world, {amplified}}, {.mode = mode}};
                std::vector<float> send(4096), receive(4096);
                step_record record;
                for (std::uint64_t step = 0; step < 3; ++step) {
                    fill(send, data::own, world.rank(), step);
                    std::vector<float>& to = in_place ? send : receive;
                    probe.all_reduce(send, view<float>(to), reduction::average, stream, call_site::named("wte"));
                    probe.end_step(step, stream);
                    REQUIRE(probe.wait(record));
                    CHECK(found_without_rank(record, finding_kind::sum_differs) == (step == 1 ? 1 : 0));
                    CHECK((record.calls[0].excess > 1) == (step == 1));
                    if (step != 1) continue;
                    const std::string table = report::step_table(record);
                    CHECK(table.find("'wte': some rank received a result that is not the sum of the inputs (sum_differs): a length of")
                        != std::string::npos);
                }
                // Made by the caller: a note, because the result may be scaled on purpose.
                fill(send, data::own, world.rank(), 3);
                const auto token = probe.observe(view<const float>(send), stream, collective::all_reduce,
                    reduction::average, call_site::named("own"));
                world.all_reduce(send, view(receive), reduction::sum, stream);
                token.result(view<const float>(receive), stream);
                probe.end_step(3, stream);
                REQUIRE(probe.wait(record));
                CHECK(record.calls[0].excess > 2);
                for (const finding& each : record.findings) FAIL_CHECK(report::describe(each));
                CHECK(report::step_table(record).find("note: bucket 0 'own': its result is too long") != std::string::npos);
            });
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
    for (const report_mode mode : {report_mode::gather, report_mode::summary}) {
        for (const fault& each : faults) {
            for (const collective what : {collective::all_gather, collective::all_to_all, collective::broadcast}) {
                CAPTURE(name(mode));
                CAPTURE(name(each.kind));
                CAPTURE(name(what));
                local::run(8, [&](local::communicator& world) {
                    host::stream stream;
                    probed probe{faulty{world, {each}}, {.mode = mode}};
                    std::vector<float> send(800), same(800), whole(6400);
                    step_record record;
                    fill(send, data::own, world.rank(), 1);
                    if (what == collective::all_gather) probe.all_gather(send, view(whole), stream);
                    else if (what == collective::all_to_all) probe.all_to_all(send, view(same), stream);
                    else probe.broadcast(send, view(same), 1, stream);
                    probe.end_step(0, stream);
                    REQUIRE(probe.wait(record));
                    CHECK(found_without_rank(record, finding_kind::shard_differs) == 1);
                });
            }
        }
    }
}

TEST_CASE("codes, inputs that are not finite and other reductions have no excess")
{
    for (const report_mode mode : {report_mode::gather, report_mode::summary}) {
        local::run(4, [&](local::communicator& world) {
            host::stream stream;
            std::vector<float> send(4096), receive(4096), whole(4 * 4096);
            fill(send, data::equal, world.rank(), 1);
            step_record record;
            {
                probed probe{quantised{world, {.format = code_format::int4}, {.least_bytes = 64}}, {.mode = mode}};
                probe.all_reduce(send, view(receive), reduction::average, stream);
                probe.all_gather(send, view(whole), stream);
                probe.end_step(0, stream);
                REQUIRE(probe.wait(record));
                for (const call_record& call : record.calls) CHECK(is_nan(call.excess));
            }
            probed probe{world, {.mode = mode}};
            probe.all_reduce(send, view(receive), reduction::max, stream);
            stream.synchronize();
            send[7] = std::numeric_limits<float>::quiet_NaN();
            probe.all_reduce(send, view(receive), reduction::sum, stream);
            probe.all_gather(send, view(whole), stream);
            probe.end_step(0, stream);
            REQUIRE(probe.wait(record));
            for (const call_record& call : record.calls) CHECK(is_nan(call.excess));
        });
    }
}

TEST_CASE("what the audit says of a wrong sum is said once")
{
    for (const report_mode mode : {report_mode::gather, report_mode::summary}) {
        local::run(4, [&](local::communicator& world) {
            host::stream stream;
            const fault amplified{
                .kind = fault_kind::scale, .phase = fault_phase::during, .rank = 2, .call = 0, .magnitude = 1e3};
            probed probe{faulty{world, {amplified}}, {.mode = mode}, audit()};
            std::vector<float> send(4096), receive(4096);
            fill(send, data::own, world.rank(), 1);
            probe.all_reduce(send, view(receive), reduction::average, stream);
            probe.end_step(0, stream);
            step_record record;
            REQUIRE(probe.wait(record));
            int sums = 0;
            for (const finding& each : record.findings) sums += each.what == finding_kind::sum_differs ? 1 : 0;
            CHECK(sums == 1);
            CHECK(record.calls[0].audit.where != damage::none);
        });
    }
}

TEST_CASE("a sum that lengths prove wrong is certain, whatever the audit's checksum says of it")
{
    for (const report_mode mode : {report_mode::gather, report_mode::summary}) {
        local::run(8, [&](local::communicator& world) {
            host::stream stream;
            const fault amplified{.kind = fault_kind::scale, .phase = fault_phase::during, .rank = 2, .magnitude = 5};
            probed probe{faulty{world, {amplified}}, {.mode = mode}, audit()};
            std::vector<bfloat16> send(256), receive(256);
            fill(send, data::equal, world.rank(), 1);
            probe.all_reduce(send, view(receive), reduction::sum, stream);
            probe.end_step(0, stream);
            step_record record;
            REQUIRE(probe.wait(record));
            CHECK(record.calls[0].excess > 1);
            int sums = 0;
            for (const finding& each : record.findings) {
                if (each.what != finding_kind::sum_differs) continue;
                ++sums;
                CHECK(each.exact);
                CHECK(each.false_alarms_per_step == 0);
            }
            CHECK(sums == 1);
        });
    }
}

TEST_CASE("findings by length are told as such, and those of the audit's checksum are not")
{
    local::run(4, [](local::communicator& world) {
        host::stream stream;
        const fault amplified{.kind = fault_kind::scale, .phase = fault_phase::during, .rank = 2, .magnitude = 100};
        probed audited{faulty{world, {amplified}}, {.mode = report_mode::summary, .statistics = false}, audit()};
        const std::vector<float> whole(64, 7.0f + static_cast<float>(world.rank()));
        std::vector<float> sum(64);
        audited.all_reduce(whole, view(sum), reduction::sum, stream);
        audited.end_step(0, stream);
        step_record record;
        REQUIRE(audited.wait(record));
        REQUIRE(record.findings.size() == 1);
        CHECK(report::describe(record.findings[0]).find("residual") != std::string::npos);
        CHECK_FALSE(record.findings[0].by_length);

        probed bare{faulty{world, {amplified}}};
        std::vector<float> send(64), receive(256);
        fill(send, data::own, world.rank(), 1);
        bare.all_gather(send, view(receive), stream);
        bare.end_step(0, stream);
        REQUIRE(bare.wait(record));
        REQUIRE(record.findings.size() == 1);
        CHECK(record.findings[0].by_length);
        CHECK(report::describe(record.findings[0]).find("the squares of the results off by") != std::string::npos);
        const std::string line = report::json_line("run", record);
        CHECK(line.find("\"by_length\":true") != std::string::npos);
        CHECK(line.find("\"excess\":[{\"bucket\":0") != std::string::npos);
    });
}
