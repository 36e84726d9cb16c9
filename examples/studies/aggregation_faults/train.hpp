// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/fault/faulty.hpp>
#include <collprobe/replica/replica.hpp>
#include <collprobe/replica/replica_averaging.hpp>
#include <collprobe/step/probed.hpp>

#include "../digits/dataset.hpp"
#include "../digits/random.hpp"
#include "../digits/rank_trainer.hpp"
#include "options.hpp"
#include "repair.hpp"

namespace aggregation_faults {

using trainer::descent;
using trainer::rank_trainer;

/// One run of the program's list.
struct run_plan {
    method how = method::clean;
    double sigma2 = 0;
    int ranks = 0;
    std::uint64_t interval = 0; ///< of periodic
    std::uint64_t seed = 1;
};

/// What the ranks of a run ended with.
struct rank_result {
    std::vector<float> weights = {};
    std::vector<float> velocity = {};
    double accuracy = 0;
    double seconds = 0;
    std::uint64_t rounds = 0; ///< averages or repairs
    std::uint64_t bytes = 0; ///< that the repair handed to collectives
    std::uint64_t faults = 0; ///< that hit this rank
    bool without_majority = false; ///< whether majority gave up
};

/// The faults of a run; the same in all of its methods but clean.
inline std::vector<collprobe::fault> faults_of(const options& given, const run_plan& plan)
{
    using namespace collprobe;
    if (plan.how == method::clean) return {};
    if (given.fault == fault_model::gaussian) {
        return paft_noise(plan.sigma2, trainer::derive(plan.seed, 7), given.burst, given.burst > 0 ? burst_period : 0);
    }
    // One flipped exponent bit, a few bits of one element, and a warp's stores: each on a rank that is drawn anew.
    const std::uint64_t seed = trainer::derive(plan.seed, 8);
    return {{.kind = fault_kind::bit_flips, .rank = fault::random_rank, .probability = 0.004, .mask = 1u << 30, .seed = seed},
        {.kind = fault_kind::bit_flips, .rank = fault::random_rank, .probability = 0.004, .bits = 3, .seed = seed},
        {.kind = fault_kind::bit_flips, .rank = fault::random_rank, .probability = 0.004, .elements = 32, .stride = 8,
            .alignment = 32, .bits = 2, .seed = seed}};
}

/// A whole run as one rank sees it. `take` gets the record of each step; `advance()` is called after a step.
template <class Take, class Advance>
rank_result train(const options& given, const trainer::split_dataset& data, const run_plan& plan,
    collprobe::local::communicator& world, Take take, Advance advance)
{
    using namespace collprobe;
    rank_trainer self(data.train, {trainer::pixels, 64, 64, trainer::classes}, plan.seed, world.rank(),
        given.batch_of(world.size()));
    probed comm(faulty(world, faults_of(given, plan), {.max_bytes = 0}));
    step_record record;
    std::vector<replica> averaged = self.weights();
    std::vector<replica> all = averaged;
    all.push_back(self.state());
    if (given.state) averaged = all;

    // Averages travel by the communicator beneath the faults: PAFT's assumption.
    std::optional<replica_averaging<local::communicator, every>> periodic;
    std::optional<replica_averaging<local::communicator, when_worth_it>> dynamic;
    std::optional<majority_or_average> majority;
    if (plan.how == method::majority) majority.emplace(world, all);
    if (plan.how == method::periodic) periodic.emplace(world, averaged, every{.steps = plan.interval});
    if (plan.how == method::dynamic || plan.how == method::dynamic_corrected) {
        const interval_rule rule = plan.how == method::dynamic ? interval_rule::published : interval_rule::corrected;
        dynamic.emplace(world, self.weights(),
            when_worth_it{.rule = rule, .gain = given.gain, .momentum = descent::momentum},
            given.state ? std::vector<replica>{self.state()} : std::vector<replica>{});
    }
    const host::stream stream; // gone before what its work uses
    const auto begin = std::chrono::steady_clock::now();
    for (std::uint64_t step = 0; step < given.steps; ++step) {
        const double rate = descent::first_rate * (1 - static_cast<double>(step) / static_cast<double>(given.steps));
        self.compute(step);
        comm.all_reduce(self.gradient(), self.average(), reduction::average, stream, call_site::named("gradient"));
        comm.end_step(step, stream);
        if (dynamic) dynamic->before_update(self.averages(), rate, stream);
        stream.synchronize();
        self.update(rate);
        if (periodic) (void)periodic->step(stream);
        if (dynamic) (void)dynamic->step(stream);
        if (majority) majority->step(stream);
        stream.synchronize();
        while (comm.poll(record)) take(record);
        advance();
    }
    while (comm.wait(record)) take(record);
    // What is handed out at the end is one model.
    if (periodic) periodic->finish(stream);
    if (dynamic) dynamic->finish(stream);
    if (majority) majority->finish(stream);
    stream.synchronize();
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;

    rank_result result{.weights = self.all_weights(), .velocity = self.velocity(), .accuracy = self.accuracy(data.test),
        .seconds = passed.count()};
    result.faults = comm.base().injected_total();
    const auto count = [&](const auto& repair) {
        if (!repair) return;
        result.rounds = repair->rounds();
        result.bytes = repair->bytes();
    };
    count(periodic);
    count(dynamic);
    count(majority);
    result.without_majority = majority && majority->fell_back();
    return result;
}

} // namespace aggregation_faults
