// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

/// What a step's record costs: the training thread, which copies it, and the writing thread, by sink. Processor time, and
/// the bytes of the files; see bench/results/sinks.md.
///
///     sink_costs [FOLDER]        files go there (/tmp), and are removed

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include <unistd.h>

#include <collprobe/report.hpp>

#include "cpu_timing.hpp"

namespace {

using namespace collprobe;

/// A healthy step of made-up numbers, with all that the default options measure.
step_record made_up_step(std::uint64_t step, int ranks, int calls)
{
    const auto value = [step](int a, int b) {
        return 1 + 0.1 * std::sin(static_cast<double>(step) + 12.9898 * a + 78.233 * b);
    };
    step_record record;
    record.step = step;
    record.first_call = step * static_cast<std::uint64_t>(calls);
    record.ranks = ranks;
    record.loss = {.mean = value(1, 0), .std = 0.1, .std_sample = 0.11, .range = 0.3, .minimum = 0.9, .maximum = 1.2};
    record.gradient_norm = {.mean = value(2, 0), .std = 0.1, .cv = 0.1, .minimum = 0.9, .maximum = 1.2};
    record.cosine = {.mean_pairwise = 0.25, .pooled = value(3, 0) / 4, .noise_scale = 3, .predicted_cosine = 0.25,
        .leave_one_out = {}, .pairwise = {}};
    for (int rank = 0; rank < ranks; ++rank) {
        record.losses.push_back(value(4, rank));
        record.gradient_norms.push_back(value(5, rank));
        record.cosine.leave_one_out.push_back(value(6, rank) / 3);
    }
    record.lateness = {.calls = calls, .present = ranks, .last = 1, .behind = 2000, .noise = 1000, .floor = 50000};
    record.lateness_by_rank.resize(static_cast<std::size_t>(ranks));
    record.calls.resize(static_cast<std::size_t>(calls));
    for (int c = 0; c < calls; ++c) {
        call_record& call = record.calls[static_cast<std::size_t>(c)];
        call.count = call.result_count = 1 << 20;
        call.site = {"train.cpp", "", 88, "layers.wte.weight"};
        call.has_result_digest = true;
        call.result_digest = collprobe::detail::mix64(step * 4096 + static_cast<std::uint64_t>(c));
        call.result_norm = value(7, c);
        call.gradient_norm = record.gradient_norm;
        call.pooled_cosine = value(8, c) / 4;
        call.lateness = {.present = ranks, .last = 1, .spread = 2000, .transport = 100000};
        call.inputs.resize(static_cast<std::size_t>(ranks));
        for (int rank = 0; rank < ranks; ++rank) { // a call each 2 ms
            const auto at = static_cast<std::uint32_t>((step * static_cast<std::uint64_t>(calls) + static_cast<unsigned>(c)) * 8);
            call.intervals.push_back({at, at + 4});
        }
    }
    return record;
}

/// One sink over a run, on this thread, flushed after each record as at 100 records a second.
template <class Sink>
void measure(report::text_table& table, const char* name, Sink sink, const std::string& path, int steps, int ranks, int calls)
{
    run_record run = report::describe_process("costs");
    run.ranks = ranks;
    std::vector<step_record> records;
    for (int step = 0; step < steps; ++step) records.push_back(made_up_step(static_cast<std::uint64_t>(step), ranks, calls));
    std::uint64_t now = run.started_ns;
    const double spent = bench::seconds([&] {
        sink.open(run);
        for (const step_record& record : records) {
            const record_context context{run, now += 10'000'000, 0};
            sink.on_step(record, context);
            sink.flush(context);
        }
        sink.close({run, now, 0});
    });
    const double microseconds = 1e6 * spent / steps;
    table.row(name).cell(report::short_number(microseconds)).cell(report::short_number(microseconds * 100 / 1e4));
    table.cell(std::to_string(std::filesystem::file_size(path) / static_cast<std::uint64_t>(steps)));
    std::filesystem::remove(path);
}

/// `put` on the training thread, with a writer that does nothing.
double put_microseconds(int ranks, int calls)
{
    struct nothing : report::sink {
        std::string target() const override { return ""; }
    };
    report::sinks out(report::describe_process("costs"), {.room = 64}, nothing());
    const step_record record = made_up_step(1, ranks, calls);
    const auto round = [&] {
        const double spent = bench::seconds([&] {
            for (int i = 0; i < 32; ++i) out.put(record);
        });
        out.flush();
        return spent / 32;
    };
    for (int i = 0; i < 8; ++i) round();
    std::vector<double> times;
    for (int i = 0; i < 101; ++i) times.push_back(round());
    return 1e6 * bench::median(times);
}

} // namespace

int main(int argc, char** argv)
{
    const std::string folder = argc > 1 ? argv[1] : "/tmp";
    struct {
        int ranks, calls, steps;
    } const sizes[] = {{8, 4, 3000}, {8, 76, 1000}, {64, 76, 300}};
    for (const auto& [ranks, calls, steps] : sizes) {
        std::printf("%d ranks, %d calls a step, %d steps; put, on the training thread: %.2f us\n", ranks, calls, steps,
            put_microseconds(ranks, calls));
        const std::string base = folder + "/sink_costs." + std::to_string(getpid());
        report::text_table table;
        table.row("sink").cell("us a record").cell("% of a core at 100/s").cell("bytes a record");
        const auto add = [&](const char* name, const std::string& path, auto sink) {
            measure(table, name, std::move(sink), path, steps, ranks, calls);
        };
        add("json_lines", base + ".jsonl", report::json_lines(base + ".jsonl"));
        add("prometheus", base + ".prom", report::prometheus(base + ".prom"));
        std::printf("%s\n", table.text().c_str());
    }
}
