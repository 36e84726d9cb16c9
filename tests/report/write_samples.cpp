// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
//
// write_samples FOLDER: files of the sink for prometheus_check.py, which reads them with another parser.
//     FOLDER/prometheus/<run>/rank<r>.prom    the made-up run of sample_run.hpp, as each rank writes it
#include <cstdio>
#include <exception>
#include <filesystem>
#include <stdexcept>
#include <string>

#include <collprobe/report/prometheus.hpp>
#include <collprobe/report/sinks.hpp>

#include "sample_run.hpp"

namespace {

using namespace collprobe;

std::string folder_of(const std::string& path)
{
    std::filesystem::create_directories(path);
    return path + '/';
}

/// Gives the run to the sink through `sinks`, as programs do.
template <class Sink>
void write_run(const run_record& run, const Sink& sink, report_mode mode = report_mode::gather)
{
    report::sinks out(run, report::sinks_options{.room = 1000}, sink);
    for (int number = 0; number < sample_run::steps; ++number) {
        step_record record = sample_run::step(number);
        if (mode == report_mode::summary) {
            record.mode = mode;
            record.losses.clear();
            record.gradient_norms.clear();
            record.cosine.leave_one_out.clear();
            record.lateness_by_rank.clear();
            for (call_record& call : record.calls) call.inputs.clear();
        }
        out.put(record);
        if (number == 4) {
            for (const finding_kind what : sample_run::all_findings()) out.put(sample_run::alarm(what, number));
        }
    }
    out.close();
    for (const std::string& failure : out.failures()) throw std::runtime_error(failure);
}

void write_prometheus(const std::string& folder)
{
    const std::string format = folder + "prometheus/";
    const auto write = [&](const std::string& file, const run_record& run, bool all_ranks = false,
                           report_mode mode = report_mode::gather) {
        const report::prometheus_options options{.all_ranks = all_ranks};
        write_run(run, report::prometheus(file + ".prom", options), mode);
    };
    for (int rank = 0; rank < sample_run::ranks; ++rank) {
        const run_record run = sample_run::describe(rank);
        write(folder_of(format + "ranks") + "rank" + std::to_string(rank), run);
        write(folder_of(format + "summary") + "rank" + std::to_string(rank), run, false, report_mode::summary);
    }
    write(folder_of(format + "all_ranks") + "rank0", sample_run::describe(0), true);
}

} // namespace

int main(int argc, char** argv)
{
    if (argc != 2) {
        std::fputs("usage: write_samples FOLDER\n", stderr);
        return 2;
    }
    try {
        write_prometheus(folder_of(argv[1]));
    } catch (const std::exception& problem) {
        std::fprintf(stderr, "write_samples: %s\n", problem.what());
        return 1;
    }
    return 0;
}
