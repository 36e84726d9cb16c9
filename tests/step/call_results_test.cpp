// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include <collprobe/fault/faulty.hpp>
#include <collprobe/scan/digest.hpp>

#include "support/steps.hpp"

namespace collprobe::testing::call_results_test {
namespace {

/// The records of two steps, each with a sum, a gather, a scatter and a call of integers, and what the ranks received.
struct seen {
    std::vector<step_record> steps;
    std::vector<std::vector<float>> sums{2}, gathers{2};
    std::vector<std::vector<float>> parts{2}; ///< of the scatter, of all ranks one after the other
};

seen run(const probe_options& options, const std::vector<fault>& faults = {})
{
    seen result;
    const auto wrap = [&](local::communicator& world) { return faulty(world, faults); };
    result.steps = testing::records_over({4, 2, options}, wrap, [&](auto& comm, host::stream& stream, int step, auto&) {
        std::vector<float> gradient(96), sum(96), all(96 * 4), part(96 / 4), parts(96);
        std::vector<std::int32_t> ints(5, comm.rank()), ints_sum(5);
        for (std::size_t i = 0; i < gradient.size(); ++i)
            gradient[i] = std::sin(static_cast<float>(i + 7 * static_cast<std::size_t>(step) + 1) * static_cast<float>(comm.rank() + 2));
        comm.all_reduce(gradient, view(sum), reduction::sum, stream);
        comm.all_gather(gradient, view(all), stream);
        comm.reduce_scatter(gradient, view(part), reduction::sum, stream);
        comm.all_reduce(ints, view(ints_sum), reduction::sum, stream);
        comm.base().base().all_gather(part, view(parts), stream);
        stream.synchronize();
        if (comm.rank() != 0) return;
        const auto s = static_cast<std::size_t>(step);
        result.sums[s] = sum;
        result.gathers[s] = all;
        result.parts[s] = parts;
    });
    return result;
}

} // namespace

TEST_CASE("a call tells the digest and the norm of its result, in both modes")
{
    for (const report_mode mode : testing::both_modes) {
        CAPTURE(name(mode));
        const seen got = run({.mode = mode});
        REQUIRE(got.steps.size() == 2);
        for (std::size_t step = 0; step < 2; ++step) {
            const std::vector<call_record>& calls = got.steps[step].calls;
            REQUIRE(calls.size() == 3); // nothing reads the integers
            CHECK(calls[0].has_result_digest);
            CHECK(calls[0].result_digest == digest(view<const float>(got.sums[step])));
            CHECK(calls[0].result_norm == doctest::Approx(norm_of(got.sums[step])).epsilon(1e-9));
            CHECK(calls[1].has_result_digest);
            CHECK(calls[1].result_digest == digest(view<const float>(got.gathers[step])));
            CHECK(calls[1].result_norm == doctest::Approx(norm_of(got.gathers[step])).epsilon(1e-9));
            CHECK(calls[2].has_result_digest == (mode == report_mode::gather));
            CHECK(calls[2].result_norm == doctest::Approx(norm_of(got.parts[step])).epsilon(1e-9));
        }
        CHECK(got.steps[0].calls[0].result_digest != got.steps[1].calls[0].result_digest);
        CHECK(got.steps[0].calls[0].result_count == 96);
        CHECK(got.steps[0].calls[1].result_count == 384);
        CHECK(got.steps[0].calls[2].result_count == 24);
    }
}

TEST_CASE("calls are numbered over the steps, those that nothing reads too")
{
    const seen got = run({});
    CHECK(got.steps[0].first_call == 0);
    CHECK(got.steps[1].first_call == 4);
    CHECK(run({.every = 2}).steps[1].first_call == 4);
}

TEST_CASE("the parts of a scatter have one digest, which a change of any part changes")
{
    const seen clean = run({});
    CHECK(clean.steps[0].calls[2].result_digest == run({}).steps[0].calls[2].result_digest);
    for (int rank = 0; rank < 4; ++rank) {
        const seen damaged = run({}, {{.kind = fault_kind::bit_flips, .rank = rank, .call = 2, .first = 3}});
        CHECK(damaged.steps[0].calls[0].result_digest == clean.steps[0].calls[0].result_digest);
        CHECK(damaged.steps[0].calls[2].result_digest != clean.steps[0].calls[2].result_digest);
    }
}

TEST_CASE("a rank with other bits does not change the digest of the result; two halves have none")
{
    const seen clean = run({});
    const seen one = run({}, {{.kind = fault_kind::bit_flips, .rank = 0, .call = 0, .first = 3}});
    CHECK(one.steps[0].calls[0].result_digest == clean.steps[0].calls[0].result_digest);
    CHECK_FALSE(one.steps[0].calls[0].results_agree);
    const seen halves = run({}, {{.kind = fault_kind::bit_flips, .rank = 0, .call = 0, .first = 3},
                                    {.kind = fault_kind::bit_flips, .rank = 1, .call = 0, .first = 3}});
    CHECK_FALSE(halves.steps[0].calls[0].has_result_digest);
    CHECK(is_nan(halves.steps[0].calls[0].result_norm));
}

TEST_CASE("the result is sampled at the places of the order sample")
{
    const seen got = run({.order_sample = 8});
    REQUIRE(got.steps[1].calls[0].result_sample.size() == 8);
    for (std::uint64_t i = 0; i < 8; ++i) {
        const auto place = static_cast<std::size_t>(detail::sample_place(i, 8, 96));
        CHECK(got.steps[1].calls[0].result_sample[i] == got.sums[1][place]);
        CHECK(got.steps[1].calls[2].result_sample[i] == got.parts[1][place]);
    }
    CHECK(got.steps[1].calls[1].result_sample.empty()); // a gather sums nothing
    CHECK(run({}).steps[0].calls[0].result_sample.empty());
}

TEST_CASE("the time of every rank in a call is there, if times are measured")
{
    const seen got = run({});
    for (const call_record& call : got.steps[1].calls) {
        REQUIRE(call.intervals.size() == 4);
        for (const call_interval& each : call.intervals) {
            CHECK(each.nanoseconds() >= 0);
            CHECK(each.nanoseconds() < 60e9);
        }
        CHECK(call.intervals[0].entered >= got.steps[0].calls[0].intervals[0].entered);
    }
    CHECK(run({.times = false}).steps[0].calls[0].intervals.empty());
    CHECK(run({.mode = report_mode::summary}).steps[0].calls[0].intervals.empty());
}

TEST_CASE("without results, and in steps without statistics, there is no digest")
{
    CHECK_FALSE(run({.results = false}).steps[0].calls[0].has_result_digest);
    CHECK(is_nan(run({.results = false}).steps[0].calls[0].result_norm));
    CHECK(run({.every = 2}).steps[1].calls.empty());
}

} // namespace collprobe::testing::call_results_test
