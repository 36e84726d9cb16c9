// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What arithmetic does an all-reduce do? In which order it adds, what its partial sums keep, how far it is from the exact
// sum.
#include <cstdio>
#include <vector>

#include <collprobe/collprobe.hpp>
#include <collprobe/inspect.hpp>
#include <collprobe/report.hpp>

#include "report_files.hpp"

using namespace collprobe;

int main(int argc, char** argv)
{
    run_reports reports(argc, argv); // --html PATH, --jsonl PATH, --trace PATH, --prometheus PATH
    reports.begin("inspect", 6);
    for (const auto order : {local::reduction_order::ring, local::reduction_order::tree}) {
        local::run(6, {.order = order}, [&](local::communicator& world) {
            host::stream stream;
            const inspection sums = inspect<float>(world, stream, 4096);
            const inspection short_sums = inspect<bfloat16>(world, stream, 4096);
            if (world.rank() != 0) return; // all ranks have the same
            reports.put(sums);
            reports.put(short_sums);
            std::printf("%s\n%s", report::inspection_table({sums, short_sums}).c_str(), report::order_list(sums).c_str());
        });
    }
    reports.end();
}
