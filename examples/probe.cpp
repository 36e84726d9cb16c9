// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// The README's example: four ranks, a gradient each, one of them damaged.
#include <cstdio>
#include <limits>
#include <vector>

#include <collprobe/collprobe.hpp>

#include "report_files.hpp"

using namespace collprobe;

int main(int argc, char** argv)
{
    run_reports reports(argc, argv); // --html PATH, --jsonl PATH, --trace PATH, --prometheus PATH
    reports.begin("probe", 4);
    local::run(4, [&](local::communicator& world) { // four ranks, a thread each
        std::vector<float> gradient(1000), average(1000);
        host::stream stream; // asynchronous, as a cudaStream_t is
        probed comm{world}; // wraps a communicator, is one itself
        for (unsigned i = 0; i < 1000; ++i) gradient[i] = float((i * 7919u + unsigned(world.rank()) * 31u) % 101u);
        if (world.rank() == 2) gradient[17] = std::numeric_limits<float>::quiet_NaN();

        comm.all_reduce(gradient, view(average), reduction::average, stream); // the trainer's call, as before
        comm.end_step(0, {.loss = 0.5}, stream); // once a step: one small message
        stream.synchronize();

        step_record record; // the same on every rank
        while (comm.poll(record)) { // never blocks
            if (world.rank() != 0) continue;
            std::printf("%s", report::step_table(record).c_str());
            reports.put(record);
        }
    });
    reports.end();
}
