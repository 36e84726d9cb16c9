// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <collprobe/audit/weight_probe.hpp>
#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/report/json.hpp>
#include <collprobe/report/table.hpp>
#include <collprobe/step/probed.hpp>

#include "support/errors.hpp"
#include "support/run_ranks.hpp"
#include "weight_steps.hpp"

using namespace collprobe;
using namespace testing_weights;

TEST_CASE("what cannot be measured is refused, with the reason")
{
    const auto reduce_of = [](auto make) {
        return [make](auto& comm, host::stream& stream) {
            std::vector<float> data = make(comm.rank());
            comm.all_reduce(view<const float>(data), view<float>(data), reduction::average, stream);
            comm.end_step(0, stream);
            stream.synchronize(testing::soon_ms);
        };
    };
    const auto why = [&](int ranks, auto make) {
        const step_record record = one_step(ranks, reduce_of(make), weights());
        CHECK(record.calls.at(0).weights.seen);
        CHECK(record.calls[0].weights.how == averaging::unknown);
        for (const suspect& each : record.suspects) CHECK(each.what != finding::weights);
        return record.calls[0].weights.why_not;
    };
    CHECK(why(3, [](int rank) { return std::vector<float>(1001, rank == 1 ? 0.0f : 1.0f); }) != weights_refusal::none);
    CHECK(why(3, [](int rank) {
        auto data = gradient<float>(rank);
        if (rank == 2) data[5] = detail::bit_cast<float>(0x7fc00000u);
        return data;
    }) == weights_refusal::not_finite);
    CHECK(why(3, [](int rank) { return times(gradient<float>(rank), rank == 1 ? 0 : 1); }) == weights_refusal::zero_input);
    CHECK(why(3, [](int rank) { return gradient<float>(rank, 5); }) == weights_refusal::few_elements);
#if !defined(COLLPROBE_TEST_SANITIZED)
    CHECK(why(65, [](int rank) { return gradient<float>(rank, 500); }) == weights_refusal::many_ranks);
#endif
    const step_record one = one_step(1, reduce_of([](int rank) { return gradient<float>(rank); }),
        weights());
    CHECK(one.calls[0].weights.how == averaging::mean);

    testing::local_provider{2}.run([&](local::communicator& world) {
        const auto refused = [](auto&& make) {
            try {
                make();
            } catch (const error& problem) {
                return problem.code() == status::invalid_argument;
            }
            return false;
        };
        testing::require(refused([&] { probed comm(world, {.mode = report_mode::summary}, weight_probe()); }), "summary");
        testing::require(refused([&] { weight_probe({.every = -1}); }), "every");
        testing::require(refused([&] { weight_probe({.bins = 100}); }), "bins");
        testing::require(refused([&] { weight_probe({.scale = 0}); }), "scale");
        testing::require(refused([&] { weight_probe({.miss = 0}); }), "miss");
    });
}

TEST_CASE("ranks with different results have no common weights, and none is named by them")
{
    using buffers = std::vector<std::vector<float>>;
    using result_of_rank = std::function<std::vector<float>(int, const buffers&, std::vector<float>)>;
    const auto observe = [](int ranks, const result_of_rank& result_of) {
        return one_step(ranks, [&](auto& comm, host::stream& stream) {
            buffers inputs;
            for (int r = 0; r < ranks; ++r) inputs.push_back(gradient<float>(r));
            std::vector<float> mean(count);
            for (const auto& each : inputs) {
                for (std::size_t i = 0; i < count; ++i) mean[i] += each[i] / static_cast<float>(ranks);
            }
            const std::vector<float> result = result_of(comm.rank(), inputs, mean);
            const auto& mine = inputs[static_cast<std::size_t>(comm.rank())];
            comm.observe_input(view<const float>(mine), stream);
            comm.observe_result(view<const float>(result), stream);
            comm.end_step(0, stream);
            stream.synchronize(testing::soon_ms);
        }, weights());
    };
    const auto refused = [&](int ranks, const result_of_rank& result_of) {
        const step_record record = observe(ranks, result_of);
        const call_weights& found = record.calls.at(0).weights;
        CHECK(found.how == averaging::unknown);
        CHECK(found.weights.empty());
        for (const suspect& each : record.suspects) CHECK(each.what != finding::weights);
        CHECK(report::step_table(record).find("the ranks hold different results\n") != std::string::npos);
        CHECK(report::json_line("run", record).find("\"why_not\":\"results_differ\"") != std::string::npos);
        return found.why_not == weights_refusal::results_differ;
    };
    CHECK(refused(4, [](int rank, const buffers& inputs, const auto&) { return inputs[static_cast<std::size_t>(rank)]; }));
    CHECK(refused(4, [](int rank, const buffers& inputs, auto mean) {
        const auto& next = inputs[static_cast<std::size_t>((rank + 1) % 4)];
        for (std::size_t i = 0; i < count; ++i) mean[i] -= next[i] / 4;
        return mean;
    }));
    CHECK(refused(2, [](int rank, const buffers& inputs, const auto& mean) { return rank == 1 ? inputs[1] : mean; }));
    CHECK(refused(4, [](int rank, const buffers&, const auto& mean) { return times(mean, rank == 1 ? 2 : 1); }));
    CHECK(refused(4, [](int rank, const buffers&, const auto& mean) { return times(mean, rank == 3 ? 0 : 1); }));
    CHECK(refused(3, [](int rank, const buffers&, auto mean) {
        if (rank == 2) mean[count - 1] = mean[count - 1] * (1 + 0x1p-20f);
        return mean;
    }));
    const step_record alike = observe(4, [](int, const buffers&, const auto& mean) { return mean; });
    CHECK(alike.calls[0].weights.how == averaging::mean);
    const step_record damaged = observe(3, [](int rank, const buffers&, auto mean) {
        if (rank == 1) mean[7] = detail::bit_cast<float>(0x7fc00000u);
        return mean;
    });
    CHECK(damaged.calls[0].weights.why_not == weights_refusal::not_finite);
}

TEST_CASE("scales that differ between ranks are refused")
{
    const step_record record = one_step(2, [](auto& comm, host::stream& stream) {
        comm.template part<weight_probe>().scale(comm.rank() == 0 ? 1 : 2);
        std::vector<float> data = gradient<float>(comm.rank());
        comm.all_reduce(view<const float>(data), view<float>(data), reduction::average, stream);
        comm.end_step(0, stream);
        stream.synchronize(testing::soon_ms);
    }, weights());
    CHECK(record.calls.at(0).weights.why_not == weights_refusal::scales_differ);
    CHECK(report::step_table(record).find("the ranks were told different scales\n") != std::string::npos);
}

TEST_CASE("a result that is partly of no rank is no pass, and tells how much of it")
{
    const step_record record = one_step(4, [](auto& comm, host::stream& stream) {
        const std::vector<float> mine = gradient<float>(comm.rank());
        comm.observe_input(view<const float>(mine), stream);
        std::vector<float> data = mine;
        if (comm.rank() == 1) std::fill(data.begin(), data.begin() + count / 100, 0.0f);
        comm.base().all_reduce(view<const float>(data), view<float>(data), reduction::average, stream);
        stream.synchronize(testing::soon_ms);
        comm.observe_result(view<const float>(data), stream);
        comm.end_step(0, stream);
        stream.synchronize(testing::soon_ms);
    }, weights());
    const call_weights& found = record.calls.at(0).weights;
    CHECK(found.how == averaging::unknown);
    CHECK(found.why_not == weights_refusal::unexplained);
    CHECK(found.weights.size() == 4);
    CHECK(found.residual > 1e4 * found.residual_limit);
    CHECK(record.suspects.empty());
    const std::string table = report::step_table(record);
    CHECK(table.find("unknown, because of: a part of the result is of no rank, ") != std::string::npos);
    CHECK(table.find("weights: as expected") == std::string::npos);
    CHECK(report::json_line("run", record).find("\"why_not\":\"unexplained\"") != std::string::npos);
}

TEST_CASE("healthy averages of one or two magnitudes, and of tokens, make no suspects")
{
    testing::local_provider{16}.run([&](local::communicator& world) {
        probed comm{world, {.times = false}, weights()()}; // a busy machine makes a rank late
        host::stream stream;
        std::uint64_t state = static_cast<std::uint64_t>(world.rank());
        std::vector<float> data(4096);
        step_record record;
        for (int step = 0; step < 20; ++step) {
            const float unit = 1 + 0.05f * static_cast<float>(step);
            for (float& each : data) each = detail::mix64(state += 16) % 2 == 0 ? unit : 2 * unit;
            comm.all_reduce(view<const float>(data), view<float>(data), reduction::average, stream);
            comm.end_step(static_cast<std::uint64_t>(step), stream);
            testing::require(comm.wait(record), "no record");
            testing::require(record.calls.at(0).weights.how == averaging::mean, "not a mean");
            for (std::size_t r = 0; r < 16; ++r) {
                const call_weights& of = record.calls[0].weights;
                testing::require(std::abs(of.weights[r] - 1.0 / 16) <= of.bounds[r], "beyond its bound");
            }
            testing::require(record.suspects.empty(), "suspects");
        }
    });
}
