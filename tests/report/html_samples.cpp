// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Writes pages of made-up runs into a folder, for html_check.py and for people who change the page:
// html_samples <folder>
#include <cmath>
#include <cstdio>
#include <string>

#include <collprobe/report.hpp>

#include "html_sample.hpp"

using namespace collprobe;

int main(int argc, char** argv)
{
    if (argc != 2) {
        std::fprintf(stderr, "usage: html_samples <folder>\n");
        return 2;
    }
    const std::string folder = argv[1];
    const auto write = [&](const char* name, const made_up_run& of) {
        const run_record run = describe_made_up(of);
        report::html page(folder + "/" + name + ".html");
        page.open(run);
        record_context at{run, run.started_ns, 0};
        for (std::uint64_t step = 0; step < of.steps; ++step) {
            at.unix_ns += 1'250'000'000;
            const step_record record = made_up_step(of, step);
            page.on_step(record, at);
            for (const finding& raised : made_up_alarms(record)) page.on_alarm(raised, at);
        }
        if (of.inspected) page.on_inspection(made_up_inspection(), at);
        page.close(at);
    };
    write("healthy", {.steps = 300, .inspected = true});
    write("alarms", {.steps = 300, .faults = true, .quantised = true, .inspected = true});
    write("summary", {.ranks = 4096, .steps = 300, .faults = true, .mode = report_mode::summary});
    write("one_step", {.steps = 1});
    write("no_step", {.steps = 0});
    write("large", {.ranks = 64, .steps = 10000, .faults = true});
    return 0;
}
