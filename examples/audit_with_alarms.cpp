// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Is the result of each all-reduce right, and the same on all ranks? One rank receives a flipped bit in step 2.
#include <cstdio>
#include <string>
#include <vector>

#include <collprobe/alarm.hpp>
#include <collprobe/audit.hpp>
#include <collprobe/collprobe.hpp>
#include <collprobe/fault.hpp>
#include <collprobe/report.hpp>

#include "report_files.hpp"

using namespace collprobe;

int main(int argc, char** argv)
{
    run_reports reports(argc, argv); // --html PATH, --jsonl PATH, --trace PATH, --prometheus PATH
    reports.begin("audit_with_alarms", 4);
    local::run(4, [&](local::communicator& world) {
        host::stream stream;
        // In place of a bad link: the third call's result has another bit on rank 3.
        probed comm{faulty{world, {{.kind = fault_kind::bit_flips, .rank = 3, .call = 2, .first = 17}}}, {}, audit()};
        alarms watch(world.size());
        std::vector<float> gradient(1000), average(1000);
        for (std::uint64_t step = 0; step < 4; ++step) {
            stream.enqueue([&, step] { // the backward pass
                for (std::size_t i = 0; i < gradient.size(); ++i) {
                    gradient[i] = static_cast<float>((i * 37 + step) % 101) / static_cast<float>(world.rank() + 3);
                }
            });
            comm.all_reduce(gradient, view(average), reduction::average, stream); // as before
            comm.end_step(step, stream); // once a step: one small message
        }
        for (step_record record; comm.wait(record);) { // `poll` where the host must not wait
            const view<const finding> alarms = watch.judge(record); // the same on every rank
            if (world.rank() != 0) continue;
            for (const finding& raised : alarms) std::puts(report::describe_alarm(raised).c_str());
            reports.put(record);
            reports.put(alarms);
        }
    });
    reports.end();
}
