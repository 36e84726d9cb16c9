// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// With which weights the ranks' inputs are in a sum, and what an audit makes of sums that the caller may weight.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <collprobe/alarm/alarms.hpp>
#include <collprobe/audit/audit.hpp>
#include <collprobe/audit/weight_probe.hpp>
#include <collprobe/fault/faulty.hpp>
#include <collprobe/report/table.hpp>

#include "support/element_types.hpp"
#include "support/steps.hpp"

namespace collprobe::testing::weight_probe_test {
namespace {

constexpr std::uint64_t count = 4 * 1001;

template <class T>
std::vector<T> gradient(int rank, std::uint64_t elements = count)
{
    std::vector<T> data;
    std::uint64_t state = 0x9e3779b97f4a7c15u * (static_cast<std::uint64_t>(rank) + 1);
    for (std::uint64_t i = 0; i < elements; ++i) {
        const std::uint64_t bits = detail::mix64(state += 0x9e3779b97f4a7c15u);
        data.push_back(static_cast<T>(static_cast<float>(bits >> 40) * 0x1p-24f - 0.5f));
    }
    return data;
}

weight_probe weights(weight_probe_options options = {.every = 1})
{
    return weight_probe(options);
}

/// The record of the step that `work(comm, stream, seen)` makes.
template <class Work, class... Parts>
step_record one_step(int ranks, const Work& work, const Parts&... parts)
{
    return testing::records_of({ranks}, [&](auto& comm, host::stream& stream, int, step_observation& seen) {
        work(comm, stream, seen);
        stream.synchronize(testing::soon_ms);
    }, parts...)[0];
}
/// Of an average of what `make(rank)` gives.
template <class Make>
step_record average_of(int ranks, const Make& make, const std::function<double(int)>& scale = [](int) { return 1.0; })
{
    return one_step(ranks, [&](auto& comm, host::stream& stream, auto&) {
        comm.template part<weight_probe>().scale(scale(comm.rank()));
        std::vector<float> data = make(comm.rank());
        comm.all_reduce(view(data), reduction::average, stream);
        stream.synchronize(testing::soon_ms);
    }, weights());
}

using buffers = std::vector<std::vector<float>>;

/// The sum of the inputs with these weights.
std::vector<float> weighted(const buffers& inputs, const std::vector<double>& by)
{
    std::vector<float> sum(inputs[0].size());
    for (std::size_t r = 0; r < by.size(); ++r) {
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<float>(by[r]) * inputs[r][i];
    }
    return sum;
}

/// A trainer's own average of gradients, which a probe observes from outside.
struct average {
    std::vector<double> by = {0.25, 0.25, 0.25, 0.25}; ///< the ranks' weights in it
    std::vector<double> tokens = {};
    double told_scale = 1;
    reduction operation = reduction::average; ///< as the observer tells it
    double noise = 0; ///< of no rank, in the result
    int zeros = -1; ///< a rank that sends zeros
    std::uint64_t elements = count;
};

/// The records of steps in which rank r gets the result `result_of(r, inputs)`; behind the ranks' inputs is one of none.
template <class ResultOf, class... Parts>
std::vector<step_record> observe(int ranks, int steps, const average& of, const ResultOf& result_of, const Parts&... parts)
{
    const auto step = [&](auto& comm, host::stream& stream, int number, step_observation& seen) {
        if constexpr (requires { comm.template part<weight_probe>(); })
            comm.template part<weight_probe>().scale(of.told_scale);
        buffers inputs;
        for (int r = 0; r <= ranks; ++r) { // far from the numbers of any other rank and step
            const std::uint64_t seed = detail::mix64(static_cast<std::uint64_t>(number * 8 + r));
            inputs.push_back(gradient<float>(static_cast<int>(seed >> 34), of.elements));
            if (r == of.zeros) inputs.back().assign(of.elements, 0.0f);
        }
        const std::vector<float>& mine = inputs[static_cast<std::size_t>(comm.rank())];
        const auto token = comm.observe(view<const float>(mine), stream, collective::all_reduce, of.operation, call_site::named("wte"));
        const std::vector<float> result = result_of(comm.rank(), inputs);
        token.result(view<const float>(result), stream);
        seen.loss = 2.0 + 0.1 * static_cast<double>(mine[0]);
        if (!of.tokens.empty()) seen.weight = of.tokens[static_cast<std::size_t>(comm.rank())];
        stream.synchronize(testing::soon_ms);
    };
    return testing::records_of({ranks, steps, {.times = false}}, step, parts...); // a busy machine makes a rank late
}
/// Of four ranks that get the average.
template <class... Parts>
std::vector<step_record> observed_steps(int steps, const average& of, const Parts&... parts)
{
    std::vector<double> by = of.by;
    by.push_back(of.noise);
    return observe(4, steps, of, [&](int, const buffers& inputs) { return weighted(inputs, by); }, parts...);
}
template <class... Parts>
step_record observed(const average& of, const Parts&... parts)
{
    return observed_steps(1, of, parts...)[0];
}

} // namespace

TEST_CASE("what happens to gradients outside of the collective is named, on all ranks alike")
{
    struct expectation {
        average of;
        averaging how;
        int named = -1;
        bool expected = true;
        const char* described = "";
    };
    const std::vector<double> ones(4, 1.0), by_tokens{0.125, 0.25, 0.125, 0.5};
    const expectation cases[] = {
        {{}, averaging::mean, -1, true, "all ranks entered the average with weight 1/4: mean"},
        {{.by = ones, .operation = reduction::sum}, averaging::sum, -1, true, "all ranks entered the average with weight 1: sum"},
        {{.by = by_tokens, .tokens = {100, 200, 100, 400}}, averaging::token_weighted, -1, true,
            "the ranks entered the average with weights of 1/8 to 1/2: weighted by tokens"},
        {{.by = {0.25, 0.25, 0, 0.25}}, averaging::rank_lost, 2, false,
            "rank 2 entered the average with weight 0 (others 1/4): rank lost"},
        {{.by = {1, 2, 3, 4}}, averaging::other, -1, false,
            "the ranks entered the average with weights of 1 to 4: no known form"},
        {{.by = std::vector(4, 0.25 / 1024), .told_scale = 1.0 / 1024}, averaging::mean, -1, true,
            "all ranks entered the average with weight 1/4096: mean"},
        // Of an average a sum is a suspect.
        {{.by = ones}, averaging::sum, -1, false, "all ranks entered the average with weight 1: sum"},
    };
    for (const expectation& each : cases) {
        CAPTURE(each.described);
        const step_record record = observed(each.of, weights());
        const call_weights& found = record.calls.at(0).weights;
        CHECK(found.seen);
        CHECK(name(found.how) == std::string(name(each.how)));
        CHECK(found.expected == each.expected);
        CHECK(found.scale == each.of.told_scale);
        if (each.named >= 0) CHECK(found.ranks == std::vector<int>{each.named});
        REQUIRE(found.weights.size() == 4);
        for (std::size_t r = 0; r < 4; ++r) {
            const double truth = each.of.by[r];
            CHECK(std::abs(found.weights[r] - truth) <= found.bounds[r] + 1e-7 * truth);
        }
        CHECK(found.residual < found.residual_limit);
        CHECK(report::describe(0, record.calls[0].site, found) == std::string("bucket 0 'wte': ") + each.described);

        const std::vector<finding> suspects = findings_of(record, finding_kind::weights);
        REQUIRE(suspects.size() == (each.expected ? 0 : 1));
        if (each.expected) continue;
        CHECK(suspects[0].rank() == each.named);
        CHECK(suspects[0].call == 0);
        CHECK_FALSE(suspects[0].exact);
        CHECK(suspects[0].false_alarms_per_step == doctest::Approx(8e-9));
        CHECK(std::string(suspects[0].site.name) == "wte");
        if (each.how != averaging::sum) continue;
        CHECK(contains(report::describe(suspects[0]),
            "with another weight than is expected (weights): the one farthest from a mean's is 4 times that"));
    }
}

TEST_CASE("texts and JSON lines tell the form, the weights and the rank")
{
    const step_record record
        = observed({.by = {0.25, 0, 0.25, 0.25}}, weights());
    const std::string table = report::step_table(record);
    CHECK(contains(table, "\nweights: bucket 0 'wte': rank 1 entered the average with weight 0 (others 1/4): rank lost\n"));
    CHECK(contains(table, "\nfinding: bucket 0 'wte': rank 1 entered the average with another weight than is expected (weights): 0 times that of a mean\n"));
    const std::string line = report::json_line("run", record);
    CHECK(contains(line, "\"weights\":{\"form\":\"rank_lost\",\"expected\":false,\"by_rank\":[0.2"));
    CHECK(contains(line, "\"ranks\":[1],\"common\":0.2"));
    CHECK(contains(line, "\"bins\":256}"));
    const step_record equal = observed({}, weights());
    CHECK(contains(report::step_table(equal), "\nweights: as expected in 1 call\n"));
    CHECK_FALSE(contains(report::json_line("run", observed({}, audit())), "\"weights\""));

    const step_record same_inputs = average_of(3, [](int) { return gradient<float>(7); });
    CHECK(same_inputs.calls[0].weights.why_not == weights_refusal::collinear);
    CHECK(contains(report::step_table(same_inputs), "unknown: the inputs are alike, or combinations of each other\n"));
    CHECK(contains(report::json_line("run", same_inputs), "\"weights\":{\"form\":\"unknown\",\"expected\":true,\"why_not\":\"collinear\""));
}

TEST_CASE("calls that are made are measured, in place or not, beside an audit that shares the reads")
{
    const auto work = [](auto& comm, host::stream& stream, auto&) {
        std::vector<float> mine = gradient<float>(comm.rank()), result(count), part(count / 4);
        std::vector<bfloat16> half = gradient<bfloat16>(comm.rank());
        comm.all_reduce(view<const float>(mine), view<float>(result), reduction::average, stream);
        comm.reduce_scatter(view<const float>(mine), view<float>(part), reduction::sum, stream);
        comm.all_reduce(view<const bfloat16>(half), view<bfloat16>(half), reduction::average, stream);
        comm.all_reduce(view<const float>(mine), view<float>(mine), reduction::sum, stream);
        std::vector<std::int32_t> integers(100, 1);
        comm.all_reduce(view<const std::int32_t>(integers), view<std::int32_t>(integers), reduction::sum, stream);
        comm.all_reduce(view<const float>(result), view<float>(result), reduction::max, stream);
        comm.broadcast(view<const float>(result), view<float>(result), 0, stream);
        std::vector<float> none;
        comm.all_reduce(view<const float>(none), view<float>(none), reduction::sum, stream);
        stream.synchronize(testing::soon_ms);
    };
    const step_record alone = one_step(4, work, weights());
    const step_record behind = one_step(4, work, audit(), weights());
    // Of other signs no sketch can be made from the audit's.
    const step_record reread = one_step(4, work, audit(), weights({.every = 1, .seed = 5}));
    CHECK(alone.calls[0].weights.how == averaging::mean);
    CHECK(alone.calls[1].weights.how == averaging::sum);
    CHECK(alone.calls[2].weights.how == averaging::mean);
    CHECK(alone.calls[3].weights.how == averaging::sum);
    for (const std::size_t c : {4u, 5u, 6u}) CHECK_FALSE(alone.calls[c].weights.seen);
    CHECK(alone.calls[7].weights.why_not == weights_refusal::few_elements);
    for (std::size_t c = 0; c < 8; ++c) {
        const call_weights& of = behind.calls[c].weights;
        CHECK(of.how == alone.calls[c].weights.how);
        CHECK(of.how == reread.calls[c].weights.how);
        for (std::size_t r = 0; r < of.weights.size(); ++r)
            CHECK(of.weights[r] == doctest::Approx(alone.calls[c].weights.weights[r]).epsilon(1e-12));
        CHECK(behind.calls[c].audit.conserved);
        CHECK(behind.calls[c].audit.residual == reread.calls[c].audit.residual);
    }
    CHECK(behind.calls[0].audit.sum_checked);
    CHECK(behind.findings.empty());

    // The audit has more bins, so where it is the second it reads by itself.
    const step_record first = observed({}, audit(), weights());
    const step_record second = observed({}, weights(), audit());
    CHECK(first.calls[0].audit.residual == second.calls[0].audit.residual);
    CHECK(first.calls[0].weights.how == averaging::mean);
    CHECK(second.calls[0].weights.how == averaging::mean);
}

TEST_CASE("expected forms are the user's, and equal tokens are a mean")
{
    const auto suspects_of = [](const average& of, std::vector<averaging> expected) {
        return findings_of(observed(of, weights({.every = 1, .expected = expected})), finding_kind::weights).size();
    };
    CHECK(suspects_of({}, {averaging::sum}) == 1);
    CHECK(suspects_of({.by = {1, 1, 1, 1}}, {averaging::sum}) == 0);
    CHECK(suspects_of({.tokens = {5, 5, 5, 5}}, {averaging::token_weighted}) == 0);
    CHECK(suspects_of({.tokens = {5, 5, 5, 9}}, {averaging::token_weighted}) == 1);
}

TEST_CASE("what cannot be measured is refused, with the reason")
{
    // What buffers do not tell: tests/metrics. NaN stands for it.
    const step_record nan = average_of(3, [](int rank) { return std::vector<float>(count, rank == 1 ? NAN : 1.0f); });
    CHECK(nan.calls.at(0).weights.seen);
    CHECK(nan.calls[0].weights.how == averaging::unknown);
    CHECK(nan.calls[0].weights.why_not == weights_refusal::not_finite);
    CHECK(findings_of(nan, finding_kind::weights).empty());
#if !defined(COLLPROBE_TEST_SANITIZED)
    CHECK(average_of(65, [](int rank) { return gradient<float>(rank, 500); }).calls[0].weights.why_not == weights_refusal::many_ranks);
#endif
    CHECK(average_of(1, [](int rank) { return gradient<float>(rank); }).calls[0].weights.how == averaging::mean);
    const step_record scales_differ
        = average_of(2, [](int rank) { return gradient<float>(rank); }, [](int rank) { return 1.0 + rank; });
    CHECK(scales_differ.calls.at(0).weights.why_not == weights_refusal::scales_differ);
    CHECK(contains(report::step_table(scales_differ), "the ranks were told different scales\n"));

    CHECK(contains(testing::refusal([] { weight_probe({.every = -1}); }), "every"));
    CHECK(contains(testing::refusal([] { weight_probe({.bins = 100}); }), "bins"));
    CHECK(contains(testing::refusal([] { weight_probe({.scale = 0}); }), "scale"));
    local::run(1, [](local::communicator& world) {
        CHECK(contains(testing::refusal([&] { probed comm(world, {.mode = report_mode::summary}, weight_probe()); }), "summary"));
    });
}

namespace {

template <class ResultOf>
step_record observe(int ranks, const ResultOf& result_of)
{
    return observe(ranks, 1, {}, result_of, weights())[0];
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
    CHECK(contains(table, "\nweights: bucket 0 'wte': ranks 0 and 1 hold: the ranks entered the average with weights of 0 to 1: no "
        "known form; ranks 2 and 3 hold: the ranks entered the average with weights of 0 to 1: no known form\n"));
    CHECK(contains(table, "\nfinding: bucket 0 'wte': some rank entered the average with another weight than is expected (weights): in the result of "
                     "rank 2, the one farthest"));
    CHECK(contains(report::json_line("r", tied), R"("holders":[0,1],"others":[{"form":"other","expected":false,"by_rank":[)"));

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
    CHECK(contains(report::step_table(record), "the ranks hold different results\n"));
    CHECK(contains(report::json_line("run", record), "\"why_not\":\"results_differ\""));

    const auto made = testing::records_over({3},
        [](local::communicator& world) { return faulty(world, {{.rank = 1, .call = 0}}); },
        [](auto& comm, host::stream& stream, int, auto&) {
            std::vector<float> data = gradient<float>(comm.rank());
            comm.all_reduce(view(data), reduction::average, stream);
            stream.synchronize(testing::soon_ms);
        }, weights());
    CHECK(made[0].calls.at(0).weights.why_not == weights_refusal::results_differ);

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
    for (const double share : {0.0, 0.04, 0.06, 1.7}) {
        CAPTURE(share);
        const step_record record = observed({.noise = share * 0.5}, weights());
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
        CHECK(of.how == averaging::unknown);
        CHECK(of.weights.size() == 4);
        CHECK(of.residual > 10 * of.residual_limit);
        const std::string table = report::step_table(record);
        CHECK(contains(table, "a part of which comes from no rank's input (unexplained): "));
        CHECK(contains(table, "unknown: a part of the result comes from no rank's input, "));
        CHECK_FALSE(contains(table, "weights: as expected"));
        CHECK(contains(report::json_line("run", record), "\"why_not\":\"unexplained\""));
    }
    CHECK(by_weights(observed({.noise = 0.03}, weights({.every = 1, .unexplained = 0.1}))).empty());
}

TEST_CASE("an average by tokens that is observed is no wrong sum, in steps with weights and without")
{
    alarms watch(4);
    std::size_t exact = 0, others = 0, raised = 0, checked = 0;
    constexpr int steps = COLLPROBE_TEST_UNLESS_BRIEF(COLLPROBE_TEST_UNLESS_SANITIZED(3'000, 300), 300);
    const average by_tokens{.by = {0.125, 0.25, 0.125, 0.5}, .tokens = {100, 200, 100, 400}, .elements = 500};
    for (const step_record& record : observed_steps(steps, by_tokens, audit(), weight_probe({.every = 10}))) {
        const call_audit& found = record.calls.at(0).audit;
        checked += found.sum_checked ? 1 : 0;
        CHECK(found.checked);
        CHECK(found.conserved);
        CHECK(found.where == damage::none);
        CHECK(found.sum_checked == record.calls[0].weights.seen);
        CHECK(found.is_other_sum() != found.sum_checked);
        for (const finding& each : record.findings) (each.exact || each.what == finding_kind::sum_differs ? exact : others) += 1;
        raised += watch.judge(record).size();
        const bool has_note = contains(report::step_table(record),
            "note: bucket 0 'wte': its sum is not checked: what was observed is not the plain sum or mean of the inputs, "
            "and no weights are known in this step (weight_probe)\n");
        CHECK(has_note == !record.calls[0].weights.seen);
        CHECK(contains(report::json_line("r", record), R"("observed":true)"));
        if (record.calls[0].weights.seen) CHECK(record.calls[0].weights.how == averaging::token_weighted);
    }
    CHECK(exact == 0);
    CHECK(raised == 0);
    CHECK(checked == steps / 10);
    CHECK(others <= 5); // numbers, 1e-4 a step
}

TEST_CASE("either part may be the first, and a result that weights do not explain is told where they are known")
{
    const average noisy{.by = {0.125, 0.25, 0.125, 0.5}, .tokens = {100, 200, 100, 400}, .noise = 0.3};
    for (const step_record& record : {observed(noisy, audit(), weights()), observed(noisy, weights(), audit())}) {
        CHECK_FALSE(record.calls.at(0).audit.sum_checked);
        CHECK(findings_of(record, finding_kind::unexplained).size() == 1);
        CHECK(findings_of(record, finding_kind::sum_differs).size() == 0);
        CHECK(contains(report::step_table(record), "of the inputs, and no weights explain it\n"));
    }
    const average by_tokens{.by = {0.125, 0.25, 0.125, 0.5}, .tokens = {100, 200, 100, 400}};
    for (const step_record& record : {observed(by_tokens, audit(), weights()), observed(by_tokens, weights(), audit()),
             observed({}, audit()), observed({}, audit(), weights())}) { // a plain mean is checked as one that is made
        const call_audit& found = record.calls.at(0).audit;
        CHECK(found.sum_checked);
        CHECK(found.residual <= found.residual_limit);
        CHECK(record.findings.empty());
    }
}

TEST_CASE("a rank that sends zeros leaves the weights of the others known, and right or wrong by what was told")
{
    struct expectation {
        average of;
        averaging how;
        std::vector<averaging> expected;
        bool is_expected;
        const char* described;
    };
    const std::vector<averaging> by_tokens{averaging::token_weighted};
    const std::vector<double> thirds(4, 1.0 / 3);
    const char* const of_four = "all ranks entered the average with weight 1/4, but for rank 3, which sent zeros: mean";
    const char* const of_three = "all ranks entered the average with weight 1/3, but for rank 3, which sent zeros: mean";
    const expectation cases[] = {
        {{.tokens = {1, 1, 1, 1}, .zeros = 3}, averaging::mean, by_tokens, true, of_four},
        {{.by = thirds, .tokens = {1, 1, 1, 1}, .zeros = 3}, averaging::mean, by_tokens, false, of_three},
        {{.by = thirds, .tokens = {100, 100, 100, 0}, .zeros = 3}, averaging::token_weighted, by_tokens, true,
            "the ranks entered the average with weights of 1/3 to 1/3, but for rank 3, which sent zeros: weighted by tokens"},
    };
    for (const expectation& each : cases) {
        CAPTURE(each.described);
        const step_record record = observed(each.of, audit(), weights({.every = 1, .expected = each.expected}));
        const call_weights& found = record.calls.at(0).weights;
        CHECK(std::string(name(found.how)) == name(each.how));
        CHECK(found.expected == each.is_expected);
        REQUIRE(found.weights.size() == 4);
        CHECK(is_nan(found.weights[3]));
        CHECK(findings_of(record, finding_kind::weights).size() == (each.is_expected ? 0 : 1));
        CHECK(findings_of(record, finding_kind::sum_differs).size() == 0);
        CHECK(record.calls[0].audit.sum_checked);
        CHECK(report::describe(0, record.calls[0].site, found) == std::string("bucket 0 'wte': ") + each.described);
        CHECK(contains(report::step_table(record), each.described));
        REQUIRE(record.zero_ranks.size() == 1);
        CHECK(record.zero_ranks[0].has_no_weight == (each.of.tokens[3] == 0));
    }
}

} // namespace collprobe::testing::weight_probe_test
