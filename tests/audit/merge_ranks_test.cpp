// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What `merge_ranks` makes of blocks is what `probed` with an audit makes of the same buffers, bit for bit.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <collprobe/audit/audit.hpp>
#include <collprobe/audit/merge_ranks.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/widen.hpp>

#include "rank_blocks.hpp"
#include "rank_steps.hpp"
#include "support/checks.hpp"
#include "support/difference.hpp"
#include "support/element_types.hpp"
#include "support/steps.hpp"

namespace collprobe::testing::merge_ranks_test {

TEST_CASE("merge_ranks makes of blocks the record that probed makes of messages, with the same options")
{
    constexpr double floor = 50'000;
    const probe_options ways[] = {
        {.lateness_floor_ns = floor},
        {.lateness_floor_ns = floor, .false_alarms_per_step = 0.02, .false_alarms_per_run = 0.1, .tolerance = 0.05},
        {.times = false, .tolerance = 2},
        {.lateness_floor_ns = 1e6, .false_alarms_per_run = 0},
        {.results = false},
        {.statistics = false},
    };
    std::vector<step_record> all;
    std::uint64_t turn = 0;
    for (const int ranks : {1, 2, 3, 8}) {
        for (const probe_options& way : ways) {
            ranked_job of{ranks, COLLPROBE_TEST_UNLESS_BRIEF(64, 48), way, {}, faults_on_the_way(0.01)};
            ++turn;
            // A brief run has each of the ways with two of the four numbers of ranks.
            if (COLLPROBE_TEST_UNLESS_BRIEF(false, ((&way - ways) / 2 % 2 == 0) == (ranks % 2 == 0))) continue;
            if (turn % 2 == 1) {
                for (int r = 0; r < ranks; ++r) of.options.groups.push_back(r == 1 ? 7 : r % 2);
                of.audited.conservation = {.sketch = {.bins = 128}, .order = rounding_order::tree};
                of.audited.sums = turn % 4 == 1;
            }
            CAPTURE(ranks);
            CAPTURE(turn);
            testing::rank_steps seen;
            const std::vector<step_record> together = judge_together(of, seen);
            std::vector<step_record> apart = judge_apart(of, seen, together);
            for (std::size_t step = 0; step < of.steps; ++step) {
                CAPTURE(step);
                CHECK(testing::difference(together[step], apart[step]) == "");
            }
            for (step_record& each : apart) all.push_back(std::move(each));
        }
        ++turn;
    }
    for (const finding_kind each : {finding_kind::non_finite, finding_kind::duplicate, finding_kind::stale,
             finding_kind::result_differs, finding_kind::sum_differs, finding_kind::shard_differs,
             finding_kind::overflow, finding_kind::gradient_norm, finding_kind::unlike, finding_kind::norm_differs,
             finding_kind::call_missing}) {
        CAPTURE(name(each));
        CHECK(steps_with(all, each) > 0);
    }
}

namespace {

/// Steps of all-reduces that are made here, one rank after the other, and judged.
class own_steps {
public:
    own_steps(int ranks, const probe_options& options = {}) : judge(ranks, options), ranks_(ranks) {}

    /// A sum of the ranks' inputs; each rank receives the sum of the inputs times its factor.
    template <element T>
    void all_reduce(const std::vector<std::vector<T>>& inputs, const std::vector<double>& factors = {},
        const char* name = "", std::uint64_t bucket = 0)
    {
        merged_call call{.type = element_traits<T>::type, .count = inputs[0].size(), .result_count = inputs[0].size(),
            .bucket = bucket, .site = call_site::named(name)};
        call.bins = testing::bins_of<T>(call);
        std::vector<T> sum(inputs[0].size());
        for (std::size_t i = 0; i < sum.size(); ++i) {
            double total = 0;
            for (std::size_t r = 0; r < inputs.size(); ++r) {
                total += detail::widen(inputs[r][i]) * (factors.empty() ? 1 : factors[r]);
            }
            sum[i] = static_cast<T>(total);
        }
        for (std::size_t r = 0; r < inputs.size(); ++r) {
            testing::rank_reader<T> reader(call, view<const T>(inputs[r]), false);
            words_.push_back(reader.with_result(view<const T>(sum), 0));
            blocks.push_back({nullptr, true, true, factors.empty() ? 1 : factors[r]});
        }
        calls.push_back(call);
    }
    /// A call that moves what the ranks send; each rank may send and get another number of elements.
    void move(collective what, const std::vector<std::vector<float>>& sent, const std::vector<std::vector<float>>& got)
    {
        merged_call call{.call = what, .type = element_type::float32, .count = sent[0].size(), .result_count = got[0].size()};
        for (std::size_t r = 0; r < sent.size(); ++r) {
            testing::rank_reader<float> reader(call, view<const float>(sent[r]), false);
            words_.push_back(reader.with_result(view<const float>(got[r]), 0));
            blocks.push_back({nullptr, true, true, 1});
        }
        calls.push_back(call);
    }
    block_words& words(std::size_t call, int rank)
    {
        return words_[call * static_cast<std::size_t>(ranks_) + static_cast<std::size_t>(rank)];
    }
    rank_measurement& measurement(std::size_t call, int rank)
    {
        return rank_call_layout::measurement(reinterpret_cast<unsigned char*>(words(call, rank).data()));
    }
    /// Judges the calls, and begins the next step.
    const step_record& end(merged_step of = {})
    {
        for (std::size_t i = 0; i < blocks.size(); ++i) {
            if (!words_[i].empty()) blocks[i].bytes = testing::bytes_of(words_[i]);
        }
        of.step = next_++;
        of.calls = calls;
        of.blocks = blocks;
        judge.judge(of, record);
        calls.clear();
        blocks.clear();
        words_.clear();
        return record;
    }

    merge_ranks judge;
    std::vector<merged_call> calls;
    std::vector<rank_block> blocks;
    step_record record;

private:
    int ranks_;
    std::uint64_t next_ = 0;
    std::vector<block_words> words_;
};

template <element T>
std::vector<std::vector<T>> gradients(int ranks, std::uint64_t step, std::size_t call, std::uint64_t count)
{
    std::vector<std::vector<T>> all;
    for (int r = 0; r < ranks; ++r) all.push_back(gradient<T>(r, step, call, count));
    return all;
}

} // namespace

TEST_CASE("without digests of its shards an all-gather is judged by the whole result")
{
    constexpr int ranks = 4;
    own_steps steps(ranks);
    for (std::uint64_t step = 0; step < 3; ++step) {
        std::vector<std::vector<float>> shards = gradients<float>(ranks, step, 0, 600);
        if (step == 2) shards[3] = gradients<float>(ranks, 1, 0, 600)[3];
        std::vector<std::vector<float>> got(ranks);
        for (std::vector<float>& whole : got)
            for (const std::vector<float>& shard : shards) whole.insert(whole.end(), shard.begin(), shard.end());
        if (step == 1) got[2][700] += 1;
        steps.move(collective::all_gather, shards, got);
        const step_record& record = steps.end();
        CHECK(record.calls[0].has_result_digest); // which an audit by shards does not take
        CHECK(record.calls[0].audit.checked);
        CHECK(record.calls[0].audit.culprits == (step == 1 ? std::vector<int>{2} : std::vector<int>()));
        CHECK(told(record) == (step == 0 ? "" : step == 1 ? "result_differs 2 in 0" : "stale 3 in 0"));
    }
}

TEST_CASE("a pre-multiplied sum has the norms and directions of what is summed")
{
    constexpr int ranks = 4;
    const std::vector<double> factors{0.25, 2, -0.5, 1}; // exact
    own_steps with_factors(ranks);
    own_steps multiplied(ranks);
    for (std::uint64_t step = 0; step < 3; ++step) {
        const std::vector<std::vector<float>> inputs = gradients<float>(ranks, step, 0, 500);
        std::vector<std::vector<float>> products = inputs;
        for (std::size_t r = 0; r < products.size(); ++r) {
            for (float& each : products[r]) each *= static_cast<float>(factors[r]);
        }
        with_factors.all_reduce(inputs, factors);
        multiplied.all_reduce(products);
        const step_record& a = with_factors.end();
        const step_record& b = multiplied.end();
        CHECK(a.gradient_norms == b.gradient_norms);
        CHECK(to_bits(a.cosine.pooled) == to_bits(b.cosine.pooled));
        CHECK(to_bits(a.calls[0].pooled_cosine) == to_bits(b.calls[0].pooled_cosine));
        for (std::size_t r = 0; r < ranks; ++r) {
            CHECK(a.calls[0].inputs[r].absolute_maximum == b.calls[0].inputs[r].absolute_maximum);
            CHECK(a.calls[0].inputs[r].sum == b.calls[0].inputs[r].sum);
            CHECK(a.calls[0].inputs[r].sum_of_squares == b.calls[0].inputs[r].sum_of_squares);
        }
        CHECK(a.findings.empty());
        CHECK_FALSE(a.calls[0].audit.sum_checked); // the products are rounded, too
        CHECK(b.calls[0].audit.sum_checked);
    }
}

TEST_CASE("a sum with a factor that nobody knows is no gradient, but searched and compared")
{
    constexpr int ranks = 4;
    own_steps steps(ranks);
    std::vector<std::vector<float>> inputs = gradients<float>(ranks, 0, 0, 500);
    inputs[1][5] = static_cast<float>(detail::not_a_number());
    steps.all_reduce(inputs);
    steps.blocks[2].scale = detail::not_a_number();
    steps.measurement(0, 3).entry.result.digest ^= 1;
    const step_record& record = steps.end();
    CHECK(record.gradient_norms.empty());
    CHECK_FALSE(record.calls[0].audit.sum_checked);
    CHECK(told(record) == "non_finite 1 in 0; result_differs 3 in 0");
}

TEST_CASE("a call that a rank lacks keeps its place, and the others are judged")
{
    constexpr int ranks = 4;
    own_steps steps(ranks);
    for (std::size_t c = 0; c < 3; ++c) steps.all_reduce(gradients<float>(ranks, 0, c, 500), {}, "", c);
    steps.words(1, 2).clear();
    steps.measurement(1, 0).entry.input.nan = 3;
    steps.measurement(2, 1).entry.result.digest ^= 1;
    const step_record& record = steps.end({.first_call = 40, .unread_calls = 7});
    CHECK(record.first_call == 40);
    CHECK(record.unread_calls == 7);
    REQUIRE(record.calls.size() == 3);
    CHECK(record.calls[0].has_result_digest);
    CHECK_FALSE(record.calls[1].has_result_digest);
    CHECK(record.calls[1].inputs.empty());
    CHECK_FALSE(record.calls[1].audit.checked);
    CHECK(record.calls[1].results_agree);
    CHECK(told(record) == "non_finite 0 in 1; result_differs 1 in 2"); // what another rank sent is known
}

TEST_CASE("a call is compared with the earlier ones of its bucket and form, wherever it stands in its step")
{
    constexpr int ranks = 4;
    own_steps steps(ranks);
    const std::vector<std::vector<float>> first = gradients<float>(ranks, 7, 7, 500);
    std::vector<std::vector<float>> again = gradients<float>(ranks, 8, 7, 500);
    again[2] = first[2];
    steps.all_reduce(gradients<float>(ranks, 0, 0, 500), {}, "first", 0);
    steps.all_reduce(first, {}, "second", 3);
    CHECK(steps.end().findings.empty());
    steps.all_reduce(again, {}, "second", 3); // at another index, and the only call of the step
    const step_record& stale = steps.end();
    REQUIRE(told(stale) == "stale 2 in 0");
    CHECK(std::string(stale.findings[0].site.name) == "second");
    // The form changes, or the bucket: another call, which has no past.
    steps.all_reduce(first, {}, "third", 4);
    CHECK(steps.end().findings.empty());
    // Nothing is compared where steps do not repeat.
    steps.all_reduce(again, {}, "third", 4);
    CHECK(steps.end({.repeats = false}).findings.empty());
    steps.judge.forget();
    steps.all_reduce(first, {}, "third", 4);
    CHECK(steps.end().findings.empty());
}

TEST_CASE("all-to-alls, even and uneven, keep squares; lost elements show")
{
    constexpr int ranks = 4;
    for (const bool even : {true, false}) {
        CAPTURE(even);
        own_steps steps(ranks);
        for (std::uint64_t step = 0; step < 40; ++step) {
            // Rank r sends to rank s so many elements.
            const auto between = [&](int r, int s) { return even ? 50u : 20u + static_cast<unsigned>((7 * r + 3 * s + static_cast<int>(step)) % 60); };
            std::vector<std::vector<float>> sent(ranks), got(ranks);
            for (int r = 0; r < ranks; ++r) {
                for (int s = 0; s < ranks; ++s) {
                    const std::vector<float> part = gradient<float>(r, step, static_cast<std::size_t>(s), between(r, s));
                    sent[static_cast<std::size_t>(r)].insert(sent[static_cast<std::size_t>(r)].end(), part.begin(), part.end());
                    got[static_cast<std::size_t>(s)].insert(got[static_cast<std::size_t>(s)].end(), part.begin(), part.end());
                }
            }
            const bool damaged = step % 4 == 3;
            if (damaged) std::fill_n(got[1].begin() + 16, 8, 0.0f);
            steps.move(collective::all_to_all, sent, got);
            const step_record& record = steps.end();
            CHECK(told(record) == (damaged ? "shard_differs in 0" : ""));
            CHECK((record.calls[0].excess > 1) == damaged);
        }
    }
}

TEST_CASE("adjacent steps tell the time between them, others do not, and their clocks may have wrapped around")
{
    for (const bool follows : {true, false}) {
        own_steps steps(2);
        for (clock_stamp step = 0; step < 2; ++step) {
            steps.all_reduce(gradients<float>(2, step, 0, 64));
            for (int r = 0; r < 2; ++r) {
                // Rank 1 works longer before the second step, by 2000 ticks.
                const clock_stamp begin = (follows ? 10'000u : 0x90000000u) * step + (r == 1 ? 2000 * step : 0);
                steps.measurement(0, r).input_done = begin;
                steps.measurement(0, r).result_begun = (follows ? 10'000u : 0x90000000u) * step + 5000;
            }
            steps.end({.follows = follows});
        }
        const call_lateness& told = steps.record.calls[0].lateness;
        CHECK(told.last == 1);
        CHECK(told.spread == 2000 * 256.0);
        if (follows) CHECK(told.gain_before == 2000 * 256.0);
        else CHECK(is_nan(told.gain_before)); // nobody knows when the call before ended
    }
}

TEST_CASE("merge_ranks refuses what it cannot judge")
{
    step_record record;
    merge_ranks judge(2);
    const merged_call call{.count = 1, .result_count = 1};
    const rank_block block;
    const step_observation lone;
    const auto refuses = [](const auto& make, const char* part) {
        testing::check_error(testing::error_of(make), status::invalid_argument, std::vector<std::string>{part});
    };
    refuses([&] { judge.judge({.calls = {&call, 1}, .blocks = {&block, 1}}, record); }, "one block for each call and rank");
    refuses([] { merge_ranks(0); }, "at least 1 rank");
    refuses([&] { judge.judge({.observations = {&lone, 1}}, record); }, "an observation of each rank, or none");
    refuses([] { merge_ranks(2, {.false_alarms_per_step = 0}); }, "false_alarms_per_step");
    refuses([] { merge_ranks(2, {.false_alarms_per_run = 1}); }, "false_alarms_per_run");
    refuses([] { merge_ranks(2, {.tolerance = -1}); }, "tolerance");
    refuses([] { merge_ranks(2, {.groups = {0, 0, 1}}); }, "groups");
    refuses([] { merge_ranks(2, {.lateness_floor_ns = -1}); }, "lateness_floor_ns");
}

} // namespace collprobe::testing::merge_ranks_test
