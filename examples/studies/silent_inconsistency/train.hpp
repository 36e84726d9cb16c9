// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <collprobe/alarm/alarms.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/report/json.hpp>

#include "../../report_files.hpp"
#include "../digits/dump.hpp"
#include "../digits/progress.hpp"
#include "conclusion.hpp"
#include "job.hpp"
#include "options.hpp"

namespace trainer {

/// Trains one setting on all ranks, each a `Trainer`. Rank 0's records stand for all: every rank has the
/// same. `run_ranks(fn)` calls `fn(communicator&)` once for each rank, on a thread of its own.
template <class Trainer, class RunRanks>
run_result train(const job& work, run_reports& reports, progress& shown, RunRanks run_ranks)
{
    run_result result;
    result.name = name(work.seeds);
    result.history = run_history(result.name);
    reports.begin(result.name, work.given.ranks, settings_of(work.given, work.seeds));
    collprobe::alarms watch(work.given.ranks);
    std::vector<std::uint64_t> weights(static_cast<std::size_t>(work.given.ranks));

    run_ranks([&](auto& comm) {
        const int rank = comm.rank();
        Trainer self(work, std::move(comm));
        collprobe::step_record record;
        for (std::uint64_t step = 0; step < work.given.steps; ++step) {
            self.step(step);
            while (self.poll(record)) {
                if (rank != 0) continue;
                result.history.add(record);
                reports.put(record);
                const collprobe::view<const collprobe::finding> raised = watch.judge(record);
                for (const collprobe::finding& each : raised) result.history.add(each);
                reports.put(raised);
                if (work.dumps(record.step)) write_losses(work.dump_folder, record);
            }
            if (rank == 0) shown.advance(result.name.c_str());
        }
        weights[static_cast<std::size_t>(rank)] = self.weights_digest();
        if (rank == 0) {
            result.test_accuracy = self.test_accuracy();
            result.skipped_updates = self.skipped_updates();
        }
    });
    result.weights_agree
        = std::all_of(weights.begin(), weights.end(), [&](auto each) { return each == weights[0]; });
    reports.end();
    reports.line(json_line(result.history.summarize(), result.test_accuracy));
    return result;
}

} // namespace trainer
