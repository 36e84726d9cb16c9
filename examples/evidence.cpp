// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Rank 2's losses are a little smaller than the others', whose tails are heavy: no step shows it, the run does. The
// evidence is saved with the checkpoint at step 10, and goes on behind it.
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include <collprobe/alarm.hpp>
#include <collprobe/collprobe.hpp>
#include <collprobe/report/table.hpp>

#include "report_files.hpp"

using namespace collprobe;

int main(int argc, char** argv)
{
    run_reports reports(argc, argv); // --html PATH, --jsonl PATH, --trace PATH, --prometheus PATH
    reports.begin("evidence", 4);
    local::run(4, [&](local::communicator& world) {
        std::mt19937_64 random(static_cast<std::uint64_t>(world.rank()));
        const auto loss = [&] { // Student's t with 2 degrees of freedom, about 2
            const double u = (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53;
            return 2 + 0.1 * (2 * u - 1) / std::sqrt(2 * u * (1 - u)) - (world.rank() == 2 ? 0.3 : 0);
        };
        host::stream stream;
        alarms watch(world.size());
        std::vector<std::uint64_t> checkpoint;
        const auto train = [&](std::uint64_t from, std::uint64_t to) {
            probed comm{world};
            if (!checkpoint.empty()) comm.restore_evidence(checkpoint);
            for (std::uint64_t step = from; step < to; ++step) {
                comm.end_step(step, {.loss = loss()}, stream);
                step_record record;
                comm.wait(record);
                if (world.rank() != 0) continue;
                reports.put(record);
                const view<const finding> raised = watch.judge(record);
                for (const finding& each : raised) std::puts(report::describe_alarm(each).c_str());
                reports.put(raised);
            }
            checkpoint = comm.evidence_state();
        };
        train(0, 10);
        train(10, 60);
    });
    reports.end();
}
