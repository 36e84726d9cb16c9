// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/core/record.hpp>

#include "../../examples/studies/silent_inconsistency/device_trainer.hpp"
#include "../../examples/studies/silent_inconsistency/trainer.hpp"
#include "examples/support/device_ranks.hpp"

/// Short runs of the trainers, on made-up images of ten kinds.
namespace trainer_runs {

using namespace trainer;

struct outcome {
    std::vector<collprobe::step_record> records;
    double test_accuracy = 0;
    std::uint64_t skipped_updates = 0;
    std::set<std::uint64_t> weights; // of all ranks: one if they agree

    /// Who was suspected of what, and where.
    std::vector<std::string> verdict() const
    {
        std::vector<std::string> all;
        for (const collprobe::step_record& record : records) {
            for (const collprobe::finding& found : record.findings) {
                all.push_back(std::to_string(record.step) + ": rank " + std::to_string(found.rank())
                    + ", bucket " + std::to_string(found.call) + ": " + name(found.what));
            }
        }
        return all;
    }
};

inline options small_run(int ranks, std::uint64_t steps)
{
    options given;
    given.ranks = ranks;
    given.steps = steps;
    given.batch = 16;
    given.hidden = 24;
    return given;
}

inline fault fault_of(int rank, fault_kind kind, std::uint64_t at, std::optional<std::size_t> bucket)
{
    return {.rank = rank, .kind = kind, .at = at, .factor = 100, .bucket = bucket};
}

inline split_dataset made_up_digits()
{
    random_stream random(4);
    std::vector<float> kinds;
    for (std::size_t i = 0; i < classes * pixels; ++i) kinds.push_back(static_cast<float>(random.uniform()));
    dataset all;
    for (std::size_t sample = 0; sample < 1000; ++sample) {
        const std::size_t kind = random.below(classes);
        for (std::size_t i = 0; i < pixels; ++i) {
            const double value = static_cast<double>(kinds[kind * pixels + i]) + 0.5 * random.uniform();
            all.inputs.push_back(i % 7 == 0 ? 0 : static_cast<float>(value / 1.5));
        }
        all.labels.push_back(static_cast<int>(kind));
    }
    return split(all);
}

inline sampler some_pools(std::size_t samples)
{
    std::vector<std::vector<std::size_t>> pools(4);
    for (std::size_t i = 0; i < samples; ++i) pools[i % 4].push_back(i);
    return sampler(std::move(pools));
}

/// `run_ranks(fn)` calls `fn(communicator&)` for every rank.
template <class Trainer, class RunRanks>
outcome run(const options& given, setting seeds, RunRanks run_ranks)
{
    const split_dataset data = made_up_digits();
    const sampler samples = some_pools(data.train.size());
    const job work{given, data, samples, seeds, {}};
    outcome result;
    std::vector<std::uint64_t> weights(static_cast<std::size_t>(given.ranks));
    run_ranks([&](auto& comm) {
        const int rank = comm.rank();
        Trainer self(work, std::move(comm));
        for (std::uint64_t step = 0; step < given.steps; ++step) {
            self.step(step);
            collprobe::step_record record;
            REQUIRE(self.poll(record)); // at once
            if (rank == 0) result.records.push_back(record);
        }
        weights[static_cast<std::size_t>(rank)] = self.weights_digest();
        if (rank != 0) return;
        result.test_accuracy = self.test_accuracy();
        result.skipped_updates = self.skipped_updates();
    });
    result.weights.insert(weights.begin(), weights.end());
    return result;
}

template <class Wire>
outcome on_host(const options& given, setting seeds = setting::strict)
{
    namespace local = collprobe::local;
    return run<rank_trainer<Wire, local::communicator>>(
        given, seeds, [&](auto rank) { local::run(given.ranks, rank); });
}

template <class Wire, class Device>
outcome on_device(const options& given, setting seeds = setting::strict)
{
    namespace local = collprobe::local;
    return run<device_trainer<Wire, local::device_communicator<Device>>>(
        given, seeds, [&](auto rank) { local::run_on<Device>(given.ranks, {}, rank); });
}

/// Losses and norms of all steps equal to `tolerance`, relative; and they are not all the same.
inline void require_alike(const outcome& a, const outcome& b, double tolerance)
{
    REQUIRE(a.records.size() == b.records.size());
    for (std::size_t step = 0; step < a.records.size(); ++step) {
        CAPTURE(step);
        const collprobe::step_record& x = a.records[step];
        const collprobe::step_record& y = b.records[step];
        REQUIRE(x.losses.size() == y.losses.size());
        for (std::size_t rank = 0; rank < x.losses.size(); ++rank) {
            REQUIRE(std::abs(x.losses[rank] - y.losses[rank]) <= tolerance * std::abs(x.losses[rank]));
            REQUIRE(std::abs(x.gradient_norms[rank] - y.gradient_norms[rank])
                <= 10 * tolerance * x.gradient_norms[rank]);
        }
    }
    CHECK(a.weights.size() == 1);
    CHECK(b.weights.size() == 1);
    CHECK(std::abs(a.test_accuracy - b.test_accuracy) < 0.02);
}

} // namespace trainer_runs
