// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Results that the caller makes itself, and may weight: checked by the weights that are found, and else not.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <collprobe/alarm/alarms.hpp>
#include <collprobe/audit/audit.hpp>
#include <collprobe/audit/weight_probe.hpp>
#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/report/json.hpp>
#include <collprobe/report/table.hpp>
#include <collprobe/step/probed.hpp>

#include "support/element_types.hpp"
#include "support/errors.hpp"
#include "support/run_ranks.hpp"
#include "weight_steps.hpp"

using namespace collprobe;
using namespace testing_weights;

namespace {

constexpr int ranks = 4;

/// An average by tokens, as a trainer makes it: the gradients are multiplied, added, and divided.
struct average {
    std::vector<double> tokens = {100, 200, 100, 400};
    double total = 800;
    double noise = 0; ///< of no rank, in the result
    std::vector<int> zeros = {}; ///< ranks that send zeros
    std::uint64_t elements = count;
};

using watcher = std::function<void(const step_record&)>;

/// Steps from 0 on, as rank 0 sees them.
template <class... Parts>
void run(std::uint64_t steps, const average& of, const watcher& see, const Parts&... parts)
{
    testing::local_provider{ranks}.run([&](local::communicator& world) {
        probe_options options;
        options.times = false; // a busy machine makes a rank late
        probed comm{world, options, parts()...};
        host::stream stream;
        step_record record;
        const int rank = comm.rank();
        const double own = of.tokens[static_cast<std::size_t>(rank)];
        for (std::uint64_t step = 0; step < steps; ++step) {
            const auto fresh = [&](int number) { // far from the numbers of any other rank and step
                const std::uint64_t seed = detail::mix64(step * 8 + static_cast<std::uint64_t>(number));
                return gradient<float>(static_cast<int>(seed >> 34), of.elements);
            };
            std::vector<float> mine = fresh(rank);
            for (const int zero : of.zeros)
                if (zero == rank) mine.assign(mine.size(), 0.0f);
            const auto token = comm.observe(view<const float>(mine), stream, collective::all_reduce, reduction::average, call_site::named("wte"));
            std::vector<float> data = times(mine, own);
            comm.base().all_reduce(view<const float>(data), view<float>(data), reduction::sum, stream);
            stream.synchronize(testing::soon_ms);
            data = times(data, 1 / of.total);
            const std::vector<float> other = fresh(ranks);
            for (std::size_t i = 0; i < data.size(); ++i) data[i] += static_cast<float>(of.noise) * other[i];
            token.result(view<const float>(data), stream);
            comm.end_step(step, {.loss = 2.0 + 0.1 * static_cast<double>(mine[0]), .weight = own}, stream);
            testing::require(comm.wait(record), "no record");
            if (rank == 0) see(record);
        }
    });
}
template <class... Parts>
step_record one(const average& of, const Parts&... parts)
{
    step_record found;
    run(1, of, [&](const step_record& record) { found = record; }, parts...);
    return found;
}
auto audits()
{
    return [] { return audit(); };
}
bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

std::size_t count_of(const step_record& record, finding_kind what)
{
    std::size_t found = 0;
    for (const finding& each : record.findings) found += each.what == what ? 1 : 0;
    return found;
}

} // namespace

TEST_CASE("an average by tokens that is observed is no wrong sum, in steps with weights and without")
{
    alarms watch(ranks);
    std::size_t exact = 0, raised = 0, checked = 0;
    run(120, {}, [&](const step_record& record) {
        const call_audit& found = record.calls.at(0).audit;
        checked += found.sum_checked ? 1 : 0;
        CHECK(found.checked);
        CHECK(found.conserved);
        CHECK(found.where == damage::none);
        CHECK(found.sum_checked == record.calls[0].weights.seen);
        CHECK(found.is_other_sum() != found.sum_checked);
        for (const finding& each : record.findings) exact += each.exact || each.what == finding_kind::sum_differs ? 1 : 0;
        raised += watch.judge(record).size();
        const bool has_note = has(report::step_table(record),
            "note: bucket 0 'wte': its sum is not checked: what was observed is not the plain sum or mean of the inputs, "
            "and no weights are known in this step (weight_probe)\n");
        CHECK(has_note == !record.calls[0].weights.seen);
        CHECK(has(report::json_line("r", record), R"("observed":true)"));
        if (record.calls[0].weights.seen) CHECK(record.calls[0].weights.how == averaging::token_weighted);
    }, audits(), [] { return weight_probe(); });
    CHECK(exact == 0);
    CHECK(raised == 0);
    CHECK(checked == 2);
}

TEST_CASE("either part may be the first, and a result that weights do not explain is told where they are known")
{
    const average noisy{.noise = 0.3};
    for (const step_record& record : {one(noisy, audits(), weights()), one(noisy, weights(), audits())}) {
        CHECK_FALSE(record.calls.at(0).audit.sum_checked);
        CHECK(count_of(record, finding_kind::unexplained) == 1);
        CHECK(count_of(record, finding_kind::sum_differs) == 0);
        CHECK(has(report::step_table(record), "of the inputs, and no weights explain it\n"));
    }
    for (const step_record& record : {one({}, audits(), weights()), one({}, weights(), audits())}) {
        const call_audit& found = record.calls.at(0).audit;
        CHECK(found.sum_checked);
        CHECK(found.residual <= found.residual_limit);
        CHECK(record.findings.empty());
    }
}

TEST_CASE("a plain mean that is observed is checked as one that is made")
{
    const average plain{.tokens = {1, 1, 1, 1}, .total = 4};
    for (const step_record& record : {one(plain, audits()), one(plain, audits(), weights())}) {
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
    const char* const of_four = "all ranks entered the average with weight 1/4, but for rank 3, which sent zeros: mean";
    const char* const of_three = "all ranks entered the average with weight 1/3, but for rank 3, which sent zeros: mean";
    const expectation cases[] = {
        {{{1, 1, 1, 1}, 4, 0, {3}}, averaging::mean, {}, true, of_four},
        {{{1, 1, 1, 1}, 3, 0, {3}}, averaging::mean, {}, true, of_three},
        {{{1, 1, 1, 1}, 4, 0, {3}}, averaging::mean, by_tokens, true, of_four},
        {{{1, 1, 1, 1}, 3, 0, {3}}, averaging::mean, by_tokens, false, of_three},
        {{{100, 100, 100, 0}, 300, 0, {3}}, averaging::token_weighted, by_tokens, true,
            "the ranks entered the average with weights of 1/3 to 1/3, but for rank 3, which sent zeros: weighted by tokens"},
        {{{100, 100, 100, 0}, 400, 0, {3}}, averaging::mean, by_tokens, false, of_four},
    };
    for (const expectation& each : cases) {
        CAPTURE(each.described);
        const step_record record = one(each.of, audits(), weights({.every = 1, .expected = each.expected}));
        const call_weights& found = record.calls.at(0).weights;
        CHECK(std::string(name(found.how)) == name(each.how));
        CHECK(found.expected == each.is_expected);
        REQUIRE(found.weights.size() == 4);
        CHECK(is_nan(found.weights[3]));
        CHECK(count_of(record, finding_kind::weights) == (each.is_expected ? 0 : 1));
        CHECK(count_of(record, finding_kind::sum_differs) == 0);
        CHECK(record.calls[0].audit.sum_checked);
        CHECK(report::describe(0, record.calls[0].site, found) == std::string("bucket 0 'wte': ") + each.described);
        CHECK(has(report::step_table(record), each.described));
        REQUIRE(record.zero_ranks.size() == 1);
        CHECK(record.zero_ranks[0].has_no_weight == (each.of.tokens[3] == 0));
    }
}

TEST_CASE("healthy averages by tokens are silent over 10000 steps")
{
    alarms watch(ranks);
    std::size_t exact = 0, others = 0, raised = 0;
    run(COLLPROBE_TEST_UNLESS_SANITIZED(10'000, 1'000), {.elements = 500}, [&](const step_record& record) {
        for (const finding& each : record.findings) (each.exact ? exact : others) += 1;
        raised += watch.judge(record).size();
    }, audits(), [] { return weight_probe({.every = 10}); });
    CHECK(exact == 0);
    CHECK(others <= 5); // numbers, 1e-4 a step
    CHECK(raised == 0);
}
