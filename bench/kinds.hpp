// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/alarm/alarms.hpp>
#include <collprobe/audit/audit.hpp>
#include <collprobe/audit/weight_probe.hpp>
#include <collprobe/collprobe.hpp>
#include <collprobe/report/table.hpp>

/// Small trainers with the faults that public bug reports tell of, each beside a healthy twin, in the words of a user:
/// default options, the parts `audit` and `weight_probe`. One program for a kind of fault.
namespace kinds {

using namespace collprobe;

constexpr int ranks = 4;

/// One rank of a trainer.
struct rank_of_job {
    rank_of_job(local::communicator& world, std::vector<averaging> expected)
        : rank(world.rank()),
          probe(world, {.times = false}, audit(), weight_probe({.expected = std::move(expected)})),
          generator(static_cast<std::uint64_t>(rank) + 7)
    {
    }

    /// A gradient of a common direction, and noise of the rank's own.
    std::vector<float>& draw(std::size_t count, double level = 1)
    {
        std::vector<float>& to = buffer(count);
        std::mt19937_64 common(99 + count);
        std::normal_distribution<float> signal, noise;
        for (float& x : to) x = static_cast<float>(level) * (0.5f * signal(common) + noise(generator));
        return to;
    }
    std::vector<float>& buffer(std::size_t count)
    {
        if (used == buffers.size()) buffers.emplace_back();
        buffers[used].assign(count, 0);
        return buffers[used++];
    }
    void all_reduce(const std::vector<float>& gradient, const char* name, reduction how = reduction::average)
    {
        probe.all_reduce(gradient, view(buffer(gradient.size())), how, stream, call_site::named(name));
    }
    /// An all-reduce of the trainer's own, which the probe does not make.
    std::vector<float>& sum(std::vector<float> scaled, double factor = 1)
    {
        std::vector<float>& result = buffer(scaled.size());
        for (float& x : scaled) x *= static_cast<float>(factor);
        probe.base().all_reduce(view<const float>(scaled), view(result), reduction::sum, stream);
        stream.synchronize(60'000);
        return result;
    }
    void end_step(std::uint64_t step, step_observation seen)
    {
        std::normal_distribution<double> noise(2, 0.1);
        seen.loss = noise(generator);
        probe.end_step(step, seen, stream);
        stream.synchronize(60'000);
        probe.wait(record);
        used = 0;
    }

    int rank;
    host::stream stream;
    probed<local::communicator, audit, weight_probe> probe;
    std::mt19937_64 generator;
    std::deque<std::vector<float>> buffers; ///< of the step
    std::size_t used = 0;
    step_record record;
};

struct kind {
    const char* report; ///< what was reported, in a few words
    finding_kind what; ///< that tells it
    int rank; ///< that it names; -1: none
    std::uint64_t first; ///< the step in which it can be told first
    /// One step; `is_wrong`: of the faulty program.
    void (*step)(rank_of_job&, std::uint64_t step, bool is_wrong, step_observation&);
    std::vector<averaging> expected = {}; ///< `weight_probe_options::expected`
};

/// What was told of a program.
struct outcome {
    std::uint64_t steps = 0;
    std::uint64_t first = no_index; ///< the first step that tells the kind, and names its rank
    std::uint64_t exact = 0; ///< steps with exact findings
    std::uint64_t statistical = 0; ///< steps with others
    std::uint64_t alarms = 0; ///< steps with alarms
    std::string text; ///< of the first finding of any kind
};

inline const std::vector<kind>& all()
{
    using job = rank_of_job;
    using seen = step_observation;
    static const std::vector<kind> list{
        {"a float16 sum of finite gradients overflows", finding_kind::overflow, -1, 0,
            [](job& own, std::uint64_t, bool is_wrong, seen&) {
                static thread_local std::vector<float16> gradient(4096), result(4096);
                std::normal_distribution<float> noise;
                for (float16& x : gradient) x = float16(noise(own.generator));
                gradient[100] = float16(is_wrong ? 20000.0f : 16000.0f);
                own.probe.all_reduce(gradient, view(result), reduction::sum, own.stream, call_site::named("wte"));
            }},
        {"a loader of one rank has run dry: it sends zeros", finding_kind::zeros, 3, 20,
            [](job& own, std::uint64_t step, bool is_wrong, seen&) {
                std::vector<float>& gradient = own.draw(4096);
                const bool is_dry = is_wrong ? step >= 5 : step % 16 > 12; // at the end of an epoch it may
                if (own.rank == 3 && is_dry) std::fill(gradient.begin(), gradient.end(), 0.0f);
                own.all_reduce(gradient, "wte");
            }},
        {"one parameter has no gradient on one rank", finding_kind::zeros, 1, 20,
            [](job& own, std::uint64_t step, bool is_wrong, seen&) {
                own.all_reduce(own.draw(4096), "wte");
                std::vector<float>& gradient = own.draw(640);
                if (own.rank == 1 && is_wrong && step >= 5) std::fill(gradient.begin(), gradient.end(), 0.0f);
                own.all_reduce(gradient, "bias");
            }},
        {"ranks of unequal tokens are averaged alike", finding_kind::weights, -1, 0,
            [](job& own, std::uint64_t, bool is_wrong, seen& told) {
                static constexpr double tokens[ranks] = {300, 100, 250, 150};
                const std::vector<float>& gradient = own.draw(4096);
                told.weight = tokens[own.rank];
                const auto token = own.probe.observe(view<const float>(gradient), own.stream);
                const std::vector<float>& result = own.sum(gradient, is_wrong ? 0.25 : tokens[own.rank] / 800);
                token.result(view<const float>(result), own.stream);
            },
            {averaging::token_weighted}},
        {"an average returns the sum", finding_kind::weights, -1, 0,
            [](job& own, std::uint64_t, bool is_wrong, seen&) {
                const std::vector<float>& gradient = own.draw(4096);
                const auto token = own.probe.observe(
                    view<const float>(gradient), own.stream, collective::all_reduce, reduction::average);
                token.result(view<const float>(own.sum(gradient, is_wrong ? 1 : 0.25)), own.stream);
            }},
        {"a tensor is reduced no more, from step 30 on", finding_kind::call_missing, -1, 30,
            [](job& own, std::uint64_t step, bool is_wrong, seen&) {
                own.all_reduce(own.draw(4096), "wte");
                if (!is_wrong || step < 30) own.all_reduce(own.draw(2048), "wpe");
                own.all_reduce(own.draw(640), "bias");
            }},
        {"a rank reduces another tensor of the same shape", finding_kind::other_call, 2, 0,
            [](job& own, std::uint64_t, bool is_wrong, seen&) {
                const bool is_swapped = is_wrong && own.rank == 2;
                own.all_reduce(own.draw(640), is_swapped ? "forces" : "energy");
                own.all_reduce(own.draw(640), is_swapped ? "energy" : "forces");
            }},
        {"a second backward behind the reduction: gradients part", finding_kind::value_differs, 1, 0,
            [](job& own, std::uint64_t, bool is_wrong, seen&) {
                const std::vector<float>& gradient = own.draw(4096);
                std::vector<float>& mean = own.buffer(gradient.size());
                own.probe.all_reduce(gradient, view(mean), reduction::average, own.stream);
                own.stream.synchronize(60'000);
                if (is_wrong && own.rank == 1) mean[7] += gradient[7];
                own.probe.expect_equal("gradient after sync", view<const float>(mean), own.stream);
            }},
        {"a rank has another learning rate", finding_kind::value_differs, 2, 0,
            [](job& own, std::uint64_t step, bool is_wrong, seen&) {
                const double lr = 1e-3 / (1 + 0.01 * static_cast<double>(step));
                own.probe.expect_equal("lr", is_wrong && own.rank == 2 ? 2 * lr : lr);
            }},
        {"ranks drop out by one seed", finding_kind::value_repeats, 0, 0,
            [](job& own, std::uint64_t step, bool is_wrong, seen&) {
                own.probe.expect_distinct("dropout seed", is_wrong ? step : step * ranks + static_cast<unsigned>(own.rank));
            }},
        {"the norm is taken of shards that are not reduced", finding_kind::norm_differs, -1, 0,
            [](job& own, std::uint64_t, bool is_wrong, seen& told) {
                const std::vector<float>& gradient = own.draw(4096);
                std::vector<float>& shard = own.buffer(gradient.size() / ranks);
                own.probe.reduce_scatter(gradient, view(shard), reduction::average, own.stream);
                own.stream.synchronize(60'000);
                std::vector<float> squares(1);
                for (const float x : shard) squares[0] += x * x;
                if (!is_wrong) squares = own.sum(squares);
                told.gradient_norm = std::sqrt(static_cast<double>(squares[0]));
            }},
        {"each rank shuffles by a seed of its own", finding_kind::value_repeats, -1, 0,
            [](job& own, std::uint64_t step, bool is_wrong, seen&) {
                std::vector<std::uint64_t> ids(512);
                for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = i;
                std::mt19937_64 random(step * 10 + (is_wrong ? static_cast<unsigned>(own.rank) : 0u));
                std::shuffle(ids.begin(), ids.end(), random);
                sample_set drawn;
                for (std::size_t i = static_cast<std::size_t>(own.rank); i < ids.size(); i += ranks) drawn.add(ids[i]);
                own.probe.expect_partition("samples of the epoch", drawn, sample_set::first(ids.size()));
            }},
        {"only the last of four micro-batches trains", finding_kind::unexplained, -1, 0,
            [](job& own, std::uint64_t, bool is_wrong, seen&) {
                std::vector<float> all(4096), last;
                for (int batch = 0; batch < 4; ++batch) {
                    last = own.draw(4096);
                    for (std::size_t i = 0; i < all.size(); ++i) all[i] += last[i];
                }
                const auto token = own.probe.observe(view<const float>(own.buffer(0) = all), own.stream);
                token.result(view<const float>(own.sum(is_wrong ? last : all, 0.25)), own.stream);
            }},
    };
    return list;
}

inline outcome run(const kind& of, bool is_wrong, std::uint64_t steps)
{
    outcome told;
    told.steps = steps;
    local::run(ranks, [&](local::communicator& world) {
        rank_of_job own(world, of.expected);
        alarms watch(ranks);
        for (std::uint64_t step = 0; step < steps; ++step) {
            step_observation seen;
            of.step(own, step, is_wrong, seen);
            own.end_step(step, seen);
            if (own.rank != 0) continue;
            told.alarms += watch.judge(own.record).empty() ? 0 : 1;
            bool exact = false;
            for (const finding& found : own.record.findings) {
                exact = exact || found.exact;
                if (told.text.empty()) told.text = "step " + std::to_string(step) + ", " + report::describe(found);
                if (found.what == of.what && found.rank() == of.rank && told.first == no_index) told.first = step;
            }
            if (exact) ++told.exact;
            else if (!own.record.findings.empty()) ++told.statistical;
        }
    });
    return told;
}

} // namespace kinds
