// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Observed collectives in which some ranks send or get nothing: experts, stages, a reduction to one rank.
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <collprobe/audit.hpp>
#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/comm/local/run.hpp>
#include <collprobe/scan/digest.hpp>
#include <collprobe/step/probed.hpp>

using namespace collprobe;

namespace {

constexpr std::uint64_t count = 3000;

std::vector<float> gradient_of(int rank)
{
    std::vector<float> gradient(count);
    for (std::uint64_t i = 0; i < count; ++i)
        gradient[i] = static_cast<float>(static_cast<int>((i * 31 + static_cast<unsigned>(rank) * 17) % 97) - 48);
    return gradient;
}

struct part_in_it {
    std::vector<bool> sends;
    std::vector<bool> gets;
    int harmed = -1;
    bool harms_all = false;
    collective what = collective::all_reduce;
};

/// The record of a step of 4 ranks in which those that send sum their gradients by other means.
template <class... Parts>
step_record record_of(const part_in_it& of)
{
    step_record records[4];
    local::run(4, {.timeout_ms = 20'000}, [&](local::communicator& world) {
        const auto r = static_cast<std::size_t>(world.rank());
        probed<local::communicator, Parts...> comm(world, {}, Parts()...);
        const host::stream stream;
        std::vector<float> sum(count, 0.0f);
        for (int rank = 0; rank < 4; ++rank) {
            const std::vector<float> term = gradient_of(rank);
            for (std::uint64_t i = 0; i < count && of.sends[static_cast<std::size_t>(rank)]; ++i) sum[i] += term[i];
        }
        if (of.what == collective::reduce_scatter)
            sum = {sum.begin() + world.rank() * 750, sum.begin() + (world.rank() + 1) * 750};
        if (world.rank() == of.harmed || of.harms_all) sum[17] += 1000;
        const std::vector<float> own = gradient_of(world.rank());
        const auto site = call_site::named("expert");
        const auto token = of.sends[r]
            ? comm.observe(view<const float>(own), stream, of.what, reduction::sum, site)
            : comm.template observe_no_input<float>(count, stream, of.what, reduction::sum, site);
        if (of.gets[r]) token.result(view<const float>(sum), stream);
        else token.no_result(stream);
        // A usual call beside it.
        std::vector<float> all(count);
        comm.all_reduce(own, view(all), reduction::sum, stream);
        comm.end_step(7, stream);
        REQUIRE(comm.wait(records[r]));
    });
    for (const step_record& each : records) {
        CHECK(each.findings.size() == records[0].findings.size());
        CHECK(each.calls[0].result_digest == records[0].calls[0].result_digest);
        CHECK(each.calls[0].count == count);
    }
    CHECK(records[0].calls[1].without_input + records[0].calls[1].without_result == 0);
    CHECK(records[0].calls[1].results_agree);
    return records[0];
}

const std::vector<bool> all{true, true, true, true};

double norm_of(const std::vector<float>& values)
{
    double squares = 0;
    for (const float each : values) squares += double(each) * double(each);
    return std::sqrt(squares);
}

} // namespace

TEST_CASE("an expert's gradient that two ranks have is compared among these, and no rank is suspect")
{
    const part_in_it of{.sends = {false, true, true, false}, .gets = {false, true, true, false}};
    std::vector<float> sum = gradient_of(1);
    for (std::uint64_t i = 0; i < count; ++i) sum[i] += gradient_of(2)[i];
    for (const bool audits : {false, true}) {
        const step_record record = audits ? record_of<audit>(of) : record_of(of);
        const call_record& call = record.calls[0];
        CHECK(record.findings.empty());
        CHECK(call.results_agree);
        CHECK(call.without_input == 2);
        CHECK(call.without_result == 2);
        CHECK(call.has_result_digest);
        CHECK(call.result_digest == digest(view<const float>(sum)));
        CHECK(call.result_norm == doctest::Approx(norm_of(sum)));
        CHECK(call.gradient_norm.finite == 2);
        CHECK(call.gradient_norm.minimum == doctest::Approx(std::min(norm_of(gradient_of(1)), norm_of(gradient_of(2)))));
        CHECK(call.lateness.present == 0);
        CHECK(record.calls[1].gradient_norm.finite == 4);
    }
}

TEST_CASE("of three ranks with a result the one that has another is named, though the fourth has none")
{
    const part_in_it of{.sends = all, .gets = {true, true, true, false}, .harmed = 1};
    for (const bool audits : {false, true}) {
        const step_record record = audits ? record_of<audit>(of) : record_of(of);
        REQUIRE(record.findings.size() == 1);
        CHECK(record.findings[0].what == finding_kind::result_differs);
        CHECK(record.findings[0].rank() == 1);
        CHECK(record.findings[0].call == 0);
        CHECK(!record.calls[0].results_agree);
        CHECK(record.calls[0].without_input == 0);
        CHECK(record.calls[0].without_result == 1);
    }
}

TEST_CASE("of two results that differ none is named, unless the sum shows which one is right")
{
    const part_in_it of{.sends = all, .gets = {true, false, false, true}, .harmed = 3};
    const step_record plain = record_of(of);
    REQUIRE(plain.findings.size() == 1);
    CHECK(plain.findings[0].what == finding_kind::result_differs);
    CHECK(plain.findings[0].rank() == -1);
    const step_record audited = record_of<audit>(of);
    REQUIRE(audited.findings.size() == 1);
    CHECK(audited.findings[0].rank() == 3);
}

TEST_CASE("a reduction to one rank: the audit checks the only result")
{
    part_in_it of{.sends = all, .gets = {false, false, true, false}};
    const step_record good = record_of<audit>(of);
    CHECK(good.findings.empty());
    CHECK(good.calls[0].audit.sum_checked);
    CHECK(good.calls[0].audit.conserved);
    of.harmed = 2;
    const step_record bad = record_of<audit>(of);
    // It may be scaled on purpose: without weights that explain it, it is no plain sum, and no damage for certain.
    CHECK(bad.findings.empty());
    CHECK(!bad.calls[0].audit.sum_checked);
    CHECK(bad.calls[0].audit.is_other_sum());
}

TEST_CASE("scattered and gathered results on some ranks are no finding, nor is a call that no rank takes part in")
{
    for (const part_in_it& of : {
             part_in_it{.sends = all, .gets = {true, true, false, true}, .what = collective::reduce_scatter},
             part_in_it{.sends = {true, false, true, true}, .gets = all, .what = collective::reduce_scatter},
             part_in_it{.sends = std::vector<bool>(4), .gets = std::vector<bool>(4)},
         }) {
        const step_record record = record_of<audit>(of);
        CHECK(record.findings.empty());
        const step_record plain = record_of(of);
        CHECK(plain.findings.empty());
        CHECK(!std::isfinite(plain.calls[0].result_norm)
            == !(of.gets[2] && of.gets[0])); // of parts that are not all there no norm is known
    }
}

TEST_CASE("a gather whose result some ranks do not get is compared by digest")
{
    for (const int harmed : {-1, 0}) {
        local::run(3, {.timeout_ms = 20'000}, [&](local::communicator& world) {
            probed comm(world, {}, audit());
            const host::stream stream;
            const std::vector<float> own = gradient_of(world.rank());
            std::vector<float> whole;
            for (int rank = 0; rank < 3; ++rank) {
                const std::vector<float> shard = gradient_of(rank);
                whole.insert(whole.end(), shard.begin(), shard.end());
            }
            if (world.rank() == harmed) whole[5] = 1e6f;
            const auto token = comm.observe(view<const float>(own), stream, collective::all_gather);
            if (world.rank() == 1) token.no_result(stream);
            else token.result(view<const float>(whole), stream);
            comm.end_step(0, stream);
            step_record record;
            REQUIRE(comm.wait(record));
            CHECK(record.findings.size() == (harmed < 0 ? 0 : 1));
            CHECK(record.calls[0].results_agree == (harmed < 0));
        });
    }
}

TEST_CASE("what cannot be told of ranks that have nothing is refused, on the rank that asks")
{
    local::run(2, {.timeout_ms = 20'000}, [](local::communicator& world) {
        const host::stream stream;
        probed summed(world, {.mode = report_mode::summary});
        std::string message;
        try {
            summed.observe_no_input<float>(8, stream);
        } catch (const error& refused) {
            CHECK(refused.code() == status::unsupported);
            CHECK(std::string(refused.call()) == "observe_no_input");
            message = refused.what();
        }
        CHECK(message.find("needs the mode gather") != std::string::npos);
        probed comm(world);
        CHECK_THROWS_AS(comm.observe_no_input<float>(8, stream, collective::broadcast), error);
        const auto token = comm.observe_no_input<float>(8, stream);
        CHECK_THROWS_AS(comm.end_step(0, stream), error); // no result yet
        token.no_result(stream);
        CHECK_THROWS_AS(token.no_result(stream), error); // it has one
        comm.end_step(0, stream);
        stream.synchronize();
    });
}
