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
#include <collprobe/fault/faulty.hpp>
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
        for (const finding& each : record.findings) CHECK(each.what != finding_kind::weights);
        return record.calls[0].weights.why_not;
    };
    CHECK(why(3, [](int rank) { return std::vector<float>(1001, rank == 1 ? 0.0f : 1.0f); }) != weights_refusal::none);
    CHECK(why(3, [](int rank) {
        auto data = gradient<float>(rank);
        if (rank == 2) data[5] = detail::bit_cast<float>(0x7fc00000u);
        return data;
    }) == weights_refusal::not_finite);
    CHECK(why(3, [](int) { return std::vector<float>(count); }) == weights_refusal::few_elements);
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
    });
}

namespace {

using buffers = std::vector<std::vector<float>>;
using result_of_rank = std::function<std::vector<float>(int, const buffers&)>;

/// The sum of the inputs with these weights.
std::vector<float> weighted(const buffers& inputs, const std::vector<double>& by)
{
    std::vector<float> sum(count);
    for (std::size_t r = 0; r < inputs.size(); ++r) {
        for (std::size_t i = 0; i < count; ++i) sum[i] += static_cast<float>(by[r]) * inputs[r][i];
    }
    return sum;
}

step_record observe(int ranks, const result_of_rank& result_of, const weight_probe_options& options = {.every = 1})
{
    return one_step(ranks, [&](auto& comm, host::stream& stream) {
        buffers inputs;
        for (int r = 0; r < ranks; ++r) inputs.push_back(gradient<float>(r));
        const std::vector<float> result = result_of(comm.rank(), inputs);
        const auto& mine = inputs[static_cast<std::size_t>(comm.rank())];
        const auto token = comm.observe(view<const float>(mine), stream, collective::all_reduce, reduction::average, call_site::named("wte"));
        token.result(view<const float>(result), stream);
        comm.end_step(0, stream);
        stream.synchronize(testing::soon_ms);
    }, weights(options));
}

/// By result: its holders and their weights must be these.
void check_results(
    const step_record& record, const std::vector<std::vector<int>>& holders, const std::vector<std::vector<double>>& truth)
{
    const call_weights& first = record.calls.at(0).weights;
    REQUIRE(first.others.size() + 1 == holders.size());
    for (std::size_t k = 0; k < holders.size(); ++k) {
        CAPTURE(k);
        const call_weights& of = k == 0 ? first : first.others[k - 1];
        CHECK(of.holders == holders[k]);
        REQUIRE(of.weights.size() == truth[k].size());
        for (std::size_t r = 0; r < truth[k].size(); ++r) {
            CHECK(of.bounds[r] < 1e-4);
            CHECK(std::abs(of.weights[r] - truth[k][r]) <= of.bounds[r] + 1e-7);
        }
        CHECK(of.residual <= of.residual_limit);
    }
}
std::vector<finding> by_weights(const step_record& record)
{
    std::vector<finding> found;
    for (const finding& each : record.findings)
        if (each.what == finding_kind::weights || each.what == finding_kind::unexplained) found.push_back(each);
    return found;
}
bool has(const std::string& text, const char* part) { return text.find(part) != text.npos; }

} // namespace

TEST_CASE("ranks that observe different results have the weights of each")
{
    // The embeddings of a pipeline, tied between its first and its last stage.
    const std::vector<double> of_first{0.5, 0.5, 0, 1}, of_second{1, 0, 0.5, 0.5};
    const step_record tied = observe(4,
        [&](int rank, const buffers& inputs) { return weighted(inputs, rank < 2 ? of_first : of_second); });
    check_results(tied, {{0, 1}, {2, 3}}, {of_first, of_second});
    const std::vector<finding> found = by_weights(tied);
    REQUIRE(found.size() == 2);
    CHECK(found[0].other_rank == 0);
    CHECK(found[1].other_rank == 2);
    const std::string table = report::step_table(tied);
    CHECK(has(table, "\nweights: bucket 0 'wte': ranks 0 and 1 hold: the ranks entered the average with weights of 0 to 1: no "
        "known form; ranks 2 and 3 hold: the ranks entered the average with weights of 0 to 1: no known form\n"));
    CHECK(has(table, "\nfinding: bucket 0 'wte': some rank entered the average with another weight than is expected (weights): in the result of "
                     "rank 2, the one farthest"));
    CHECK(has(report::json_line("r", tied), R"("holders":[0,1],"others":[{"form":"other","expected":false,"by_rank":[)"));

    const std::vector<double> mean(4, 0.25);
    // A damaged element makes another result, with the same weights.
    const step_record damaged = observe(4, [&](int rank, const buffers& inputs) {
        auto result = weighted(inputs, mean);
        if (rank == 2) result[count - 1] *= 1 + 0x1p-20f;
        return result;
    });
    check_results(damaged, {{0, 1, 3}, {2}}, {mean, mean});
    CHECK(by_weights(damaged).empty());
    // Ranks that keep their own gradients.
    std::vector<std::vector<double>> own(4, std::vector<double>(4));
    for (std::size_t r = 0; r < 4; ++r) own[r][r] = 1;
    const step_record apart = observe(4, [](int rank, const buffers& inputs) { return inputs[static_cast<std::size_t>(rank)]; });
    check_results(apart, {{0}, {1}, {2}, {3}}, own);
    CHECK(by_weights(apart).size() == 4);
    // One rank has none.
    const step_record zero = observe(4, [&](int rank, const buffers& inputs) {
        return weighted(inputs, rank == 3 ? std::vector<double>(4) : mean);
    });
    CHECK(zero.calls[0].weights.how == averaging::mean);
    REQUIRE(zero.calls[0].weights.others.size() == 1);
    CHECK(zero.calls[0].weights.others[0].why_not == weights_refusal::zero_result);
    const step_record alike = observe(4, [&](int, const buffers& inputs) { return weighted(inputs, mean); });
    CHECK(alike.calls[0].weights.how == averaging::mean);
    CHECK(alike.calls[0].weights.holders.empty());
    CHECK(alike.findings.empty());
}

TEST_CASE("more different results than four have no weights, nor have those of a call that was made")
{
    const step_record record
        = observe(5, [](int rank, const buffers& inputs) { return inputs[static_cast<std::size_t>(rank)]; });
    const call_weights& found = record.calls.at(0).weights;
    CHECK(found.why_not == weights_refusal::results_differ);
    CHECK(found.weights.empty());
    CHECK(found.others.empty());
    CHECK(by_weights(record).empty());
    CHECK(has(report::step_table(record), "the ranks hold different results\n"));
    CHECK(has(report::json_line("run", record), "\"why_not\":\"results_differ\""));

    std::vector<step_record> records(3);
    testing::local_provider{3}.run([&](local::communicator& world) {
        probed comm{faulty(local::communicator(world), {{.kind = fault_kind::bit_flips, .rank = 1, .call = 0}}), {}, weights()()};
        host::stream stream;
        std::vector<float> data = gradient<float>(comm.rank());
        comm.all_reduce(view<const float>(data), view<float>(data), reduction::average, stream);
        comm.end_step(0, stream);
        stream.synchronize(testing::soon_ms);
        (void)comm.wait(records[static_cast<std::size_t>(comm.rank())]);
    });
    CHECK(records[0].calls.at(0).weights.why_not == weights_refusal::results_differ);

    const step_record damaged = observe(3, [](int rank, const buffers& inputs) {
        auto mean = weighted(inputs, std::vector<double>(3, 1.0 / 3));
        if (rank == 1) mean[7] = detail::bit_cast<float>(0x7fc00000u);
        return mean;
    });
    CHECK(damaged.calls[0].weights.why_not == weights_refusal::not_finite);
}

TEST_CASE("what no input explains is a suspect above its share, and else a line")
{
    // Of four micro-batches, each with a gradient of its own, the last alone was observed; or a quarter of it is noise.
    const auto with_other = [](double share) {
        return [share](int, const buffers& inputs) {
            auto result = weighted(inputs, std::vector<double>(4, 0.25));
            const std::vector<float> other = gradient<float>(99);
            for (std::size_t i = 0; i < count; ++i) result[i] += static_cast<float>(share * 0.5) * other[i];
            return result;
        };
    };
    for (const double share : {0.0, 0.04, 0.06, 1.7}) {
        CAPTURE(share);
        const step_record record = observe(4, with_other(share));
        const std::vector<finding> found = by_weights(record);
        REQUIRE(found.size() == (share > 0.05 ? 1 : 0));
        const call_weights& of = record.calls.at(0).weights;
        CHECK((of.why_not == weights_refusal::unexplained) == (share > 0));
        if (found.empty()) continue;
        CHECK(found[0].what == finding_kind::unexplained);
        CHECK(found[0].rank() == -1);
        CHECK(found[0].call == 0);
        CHECK(found[0].threshold == 0.05);
        // The inputs are independent, so the squares of the parts add up.
        CHECK(found[0].statistic == doctest::Approx(share / std::sqrt(1 + share * share)).epsilon(0.06));
        CHECK(has(report::step_table(record), "a part of which comes from no rank's input (unexplained): "));
    }
    CHECK(by_weights(observe(4, with_other(0.06), {.every = 1, .unexplained = 0.1})).empty());
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
        const auto token = comm.observe(view<const float>(mine), stream);
        std::vector<float> data = mine;
        if (comm.rank() == 1) std::fill(data.begin(), data.begin() + count / 100, 0.0f);
        comm.base().all_reduce(view<const float>(data), view<float>(data), reduction::average, stream);
        stream.synchronize(testing::soon_ms);
        token.result(view<const float>(data), stream);
        comm.end_step(0, stream);
        stream.synchronize(testing::soon_ms);
    }, weights());
    const call_weights& found = record.calls.at(0).weights;
    CHECK(found.how == averaging::unknown);
    CHECK(found.why_not == weights_refusal::unexplained);
    CHECK(found.weights.size() == 4);
    CHECK(found.residual > 1e4 * found.residual_limit);
    REQUIRE(record.findings.size() == 1);
    CHECK(record.findings[0].what == finding_kind::unexplained);
    const std::string table = report::step_table(record);
    CHECK(table.find("unknown: a part of the result comes from no rank's input, ") != std::string::npos);
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
            testing::require(record.findings.empty(), "suspects");
        }
    });
}

TEST_CASE("the part of a result that is of no input is told as its share of the norm")
{
    for (const double foreign : {0.01, 0.3}) {
        std::size_t told = 0;
        local::run(2, [&](local::communicator& world) {
            probed comm{world, {.times = false}, weight_probe({.every = 1})};
            host::stream stream;
            step_record record;
            std::vector<float> gradient(256), sum(256);
            for (std::uint64_t step = 0; step < 100; ++step) {
                double squares = 0;
                for (std::size_t i = 0; i < gradient.size(); ++i) {
                    const auto of = [&](std::uint64_t rank) {
                        const std::uint64_t bits = detail::mix64(detail::mix64(2 * step + rank) + i);
                        return static_cast<float>(static_cast<double>(bits >> 11) * 0x1p-52 - 1);
                    };
                    gradient[i] = of(static_cast<std::uint64_t>(world.rank()));
                    sum[i] = (of(0) + of(1)) / 2;
                    squares += static_cast<double>(sum[i]) * static_cast<double>(sum[i]);
                }
                const auto size = static_cast<float>(foreign * detail::square_root(squares / 256));
                for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += detail::mix64(step * 999 + i) % 2 == 0 ? size : -size;
                const auto token = comm.observe(view<const float>(gradient), stream);
                token.result(view<const float>(sum), stream);
                comm.end_step(step, stream);
                stream.synchronize(60'000);
                REQUIRE(comm.wait(record));
                for (const finding& each : record.findings) {
                    if (each.what != finding_kind::unexplained || world.rank() != 0) continue;
                    ++told;
                    CHECK(each.statistic > foreign / 2);
                    CHECK(each.statistic < foreign * 2);
                }
            }
        });
        CHECK(told == (foreign > 0.1 ? 100 : 0));
    }
}
