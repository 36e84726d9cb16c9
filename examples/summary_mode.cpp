// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// For thousands of ranks: what a step says of a call has the same size whatever their number. It keeps spreads, extrema with
// their rank, NaN and results that differ. Of each rank it keeps the totals: loss, whole gradient, times.
#include <cstdio>
#include <limits>
#include <vector>

#include <collprobe/collprobe.hpp>

#include "report_files.hpp"

using namespace collprobe;

int main(int argc, char** argv)
{
    run_reports reports(argc, argv); // --html PATH, --jsonl PATH, --trace PATH, --prometheus PATH
    reports.begin("summary_mode", 64);
    local::run(64, [&](local::communicator& world) {
        host::stream stream;
        probed comm{world, {.mode = report_mode::summary}};
        std::vector<float> gradient(256), average(256);
        for (std::size_t i = 0; i < gradient.size(); ++i) {
            gradient[i] = static_cast<float>((i * 7919 + static_cast<std::size_t>(world.rank()) * 31) % 101);
        }
        if (world.rank() == 40) gradient[17] = std::numeric_limits<float>::infinity();

        comm.all_reduce(gradient, view(average), reduction::average, stream);
        comm.end_step(0, {.loss = world.rank() == 9 ? 2.5 : 0.5}, stream);
        stream.synchronize();

        step_record record; // the same on every rank
        if (!comm.poll(record) || world.rank() != 0) return;
        std::printf("%s", report::step_table(record).c_str());
        reports.put(record);
        std::printf("loss: mean %.4f, highest %.1f on rank %d\n", record.loss.mean, record.loss.maximum, record.loss.maximum_rank);
    });
    reports.end();
}
