// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

/// What a step's report costs at up to 100,000 ranks: bytes and messages by the layout that is sent, host time by doing it
/// with made-up records. No network: see bench/results/scale.md.
///
/// Tables are judged of up to 8192 ranks: they need 100 bytes and 130 doubles of history for each rank and bucket.

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <collprobe/alarm/alarms.hpp>
#include <collprobe/step/detail/judge.hpp>

#include "cpu_timing.hpp"
#include "made_up_messages.hpp"
#include "summary_simulation.hpp"

namespace {

using namespace collprobe;

constexpr std::uint64_t buckets = 76;

/// CPU time of a call in microseconds, of many.
template <class Call>
double microseconds(const Call& call)
{
    constexpr int calls = 5000;
    return 1e6 / calls * bench::seconds([&] {
        for (int i = 0; i < calls; ++i) call(i);
    });
}

/// ceil(log2 n)
int levels(int ranks) { return std::bit_width(static_cast<unsigned>(ranks) - 1); }

struct host_times {
    double pack = 0; // one rank's contribution
    double judge = 0; // from what the all-reduces gave to the record
    double alarm = 0; // from the record, with one finding, to the alarms
};

host_times summary_times(int ranks)
{
    summary_simulation::combined_step combined(ranks, buckets);
    detail::step_judge judge(ranks, {.false_alarms_per_run = 0}, report_mode::summary);
    summary_simulation::rank_values values{0, std::vector<double>(buckets), {}, 42};
    step_record record;
    for (std::uint64_t step = 0; step < 2; ++step) { // the second has references
        double sum = 0;
        combined.begin();
        for (int rank = 0; rank < ranks; ++rank) {
            summary_simulation::make_up(step, rank, values);
            values.nonfinite.clear();
            if (rank == ranks - 1) values.nonfinite.assign(buckets, 1);
            sum += values.loss - 2;
            combined.pack(summary_simulation::message_of(step, values), rank);
            combined.combine();
        }
        combined.judge(judge, ranks, record);
        if (record.findings.size() != buckets || record.findings[0].rank() != ranks - 1) std::exit(1);
        const double mean = 2 + sum / ranks;
        if (!(std::fabs(record.loss.mean - mean) <= 1e-12 * mean)) std::exit(1);
    }
    host_times times;
    const std::vector<std::uint64_t> message = summary_simulation::message_of(3, values);
    times.pack = microseconds([&](int) { combined.pack(message, 5 % ranks); });
    times.judge = microseconds([&](int) { combined.judge(judge, ranks, record); });
    record.settle_findings();
    alarms watch(ranks);
    times.alarm = microseconds([&](int i) {
        record.step = static_cast<std::uint64_t>(i);
        if (watch.judge(record).empty()) std::exit(1);
    });
    return times;
}

/// Of a step in gather mode, judged by each rank: in microseconds.
double gather_time(int ranks)
{
    detail::step_judge judge(ranks, {.false_alarms_per_run = 0});
    bench::made_up_messages made(ranks, buckets, false);
    const auto calls = made.calls();
    step_record record;
    std::vector<double> times;
    for (int step = 0; step < 5; ++step) {
        const detail::gathered_step gathered = made.next();
        times.push_back(1e6 * bench::seconds([&] { judge.judge(gathered, calls, {}, {}, record); }));
    }
    return bench::median(times);
}

std::string bytes(double count)
{
    char text[32];
    if (count < 10000) std::snprintf(text, sizeof text, "%.0f", count);
    else if (count < 1e6) std::snprintf(text, sizeof text, "%.1f K", count / 1024);
    else std::snprintf(text, sizeof text, "%.1f M", count / 1024 / 1024);
    return text;
}

} // namespace

int main()
{
    std::printf("76 buckets:\n\n"
                "| ranks | summary: payload (B) | sent by a rank (B) | rounds | pack (us) | judge (us) | alarms (us) | "
                "gather: received (B) | rounds | judge (us) |\n|---|---|---|---|---|---|---|---|---|---|\n");
    for (const int ranks : {2, 8, 64, 1024, 8192, 65536, 100000}) {
        summary_simulation::combined_step layout(ranks, buckets);
        const double payload = static_cast<double>(layout.sums_bytes() + layout.keys_bytes());
        const host_times times = summary_times(ranks);
        const double gathered = static_cast<double>(detail::message_layout{.times = true}.bytes(buckets)) * (ranks - 1);
        std::printf("| %d | %s | %s | %d | %.2f | %.1f | %.2f | %s | %d | ", ranks, bytes(payload).c_str(),
            bytes(2 * payload * (ranks - 1) / ranks).c_str(), 2 * 2 * levels(ranks), times.pack, times.judge, times.alarm,
            bytes(gathered).c_str(), levels(ranks));
        if (ranks <= 8192) std::printf("%.0f |\n", gather_time(ranks));
        else std::printf("- |\n");
        std::fflush(stdout);
    }
    return 0;
}
