// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What `judge_again` makes of the records of a probe is what a probe with the other options makes of the same buffers.
#include <doctest/doctest.h>

#if __has_include(<nlohmann/json.hpp>)
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/report/json.hpp>
#include <collprobe/step/judge_again.hpp>

#include "examples/tools/read_record.hpp"
#include "rank_steps.hpp"
#include "support/checks.hpp"
#include "support/difference.hpp"
#include "support/element_types.hpp"

namespace collprobe::testing::judge_again_test {
namespace {

/// The records as their JSON lines have them.
std::vector<step_record> read_back(const std::vector<step_record>& records)
{
    static tools::record_reader reader; // whose texts stay
    std::vector<step_record> read(records.size());
    for (std::size_t i = 0; i < records.size(); ++i)
        reader.step_of(tools::parsed(report::json_line("run", records[i])), read[i]);
    return read;
}
std::vector<step_record> again(std::vector<step_record> records, int ranks, const probe_options& options)
{
    judge_again judge(ranks, options);
    for (step_record& each : records) judge.judge(each);
    return records;
}

/// Other times: each rank's calls take 1.3 ms, but the last rank comes 1 ms late from step 40 on, at times.
std::vector<step_record> with_arrivals(std::vector<step_record> records)
{
    for (step_record& record : records) {
        for (call_record& call : record.calls) {
            const auto c = static_cast<std::uint64_t>(&call - record.calls.data());
            for (std::size_t r = 0; r < call.intervals.size(); ++r) {
                const bool is_late = c == 2 && r + 1 == call.intervals.size() && record.step > 40 && record.step % 5 < 2;
                const double jitter = 10 * testing::uniform(1000 * record.step + c, r);
                call.intervals[r].entered = static_cast<clock_stamp>(100'000 * (16 * record.step + c) + 777'777 * r);
                call.intervals[r].left
                    = call.intervals[r].entered + static_cast<clock_stamp>((is_late ? 1000 : 5000) + jitter);
            }
        }
    }
    return records;
}

void check_same(const std::vector<step_record>& a, const std::vector<step_record>& b)
{
    REQUIRE(a.size() == b.size());
    for (std::size_t step = 0; step < a.size(); ++step) {
        CAPTURE(step);
        CHECK(testing::difference(a[step], b[step]) == "");
    }
}

/// Steps in which the options make a difference.
std::size_t different(const std::vector<step_record>& a, const std::vector<step_record>& b)
{
    std::size_t steps = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        step_record of = a[i];
        of.false_alarms_per_step = b[i].false_alarms_per_step;
        steps += testing::difference(of, b[i]).empty() ? 0 : 1;
    }
    return steps;
}

} // namespace

TEST_CASE("a record is judged again, with any options, as blocks are with these")
{
    std::vector<step_record> all;
    std::size_t differing = 0;
    for (const int ranks : {3, 8}) {
        if (COLLPROBE_TEST_UNLESS_BRIEF(false, ranks == 3)) continue;
        const std::vector<int> groups = ranks == 8 ? std::vector<int>{0, 7, 0, 1, 0, 1, 0, 1} : std::vector<int>{};
        const probe_options ways[] = {
            {},
            {.lateness_floor_ns = 20'000, .false_alarms_per_step = 0.02, .false_alarms_per_run = 0.1, .tolerance = 0.05},
            {.lateness_floor_ns = 1e6, .false_alarms_per_run = 0},
            {.lateness_floor_ns = 1000, .false_alarms_per_step = 1e-3, .false_alarms_per_run = 0.3, .groups = groups},
        };
        ranked_job of{ranks, COLLPROBE_TEST_UNLESS_BRIEF(96, 80), {}, {}, testing::faults_on_the_way(0.01)};
        of.other_step = 50;
        CAPTURE(ranks);
        testing::rank_steps seen;
        const std::vector<step_record> together = judge_together(of, seen);
        check_same(again(read_back(together), ranks, of.options), together); // with the machine's processors, or few
        const std::vector<step_record> timed = with_arrivals(together);
        std::vector<std::vector<step_record>> judged;
        for (const probe_options& way : ways) {
            of.options = way;
            judged.push_back(judge_apart(of, seen, timed));
        }
        for (const std::vector<step_record>& first : judged) {
            const std::vector<step_record> read = read_back(first);
            const auto by = static_cast<std::size_t>(&first - judged.data());
            for (std::size_t next = 0; next < COLLPROBE_TEST_UNLESS_BRIEF(judged.size(), 2); ++next) {
                const std::size_t i = (by + next) % judged.size(); // brief: its own options, and the next
                CAPTURE(by);
                CAPTURE(i);
                check_same(again(read, ranks, ways[i]), judged[i]);
                differing += different(first, judged[i]);
            }
            all.insert(all.end(), first.begin(), first.end());
        }
    }
    CHECK(differing > 0);
    MESSAGE(differing, " of ", 4 * all.size(), " records are others with other options");
    for (const finding_kind each : {finding_kind::non_finite, finding_kind::duplicate, finding_kind::sum_differs,
             finding_kind::loss, finding_kind::gradient_norm, finding_kind::largest_magnitude,
             finding_kind::late, finding_kind::unlike}) {
        CAPTURE(std::string(name(each)));
        CHECK(testing::steps_with(all, each) > 0);
    }
}

TEST_CASE("a record is judged again as a probe judges, in both modes, with exact directions, and where places differ")
{
    const probe_options ways[] = {
        {.times = false},
        {.mode = report_mode::summary, .times = false},
        {.direction = direction_mode::exact, .times = false},
        {.mode = report_mode::summary, .direction = direction_mode::exact, .times = false},
        {.statistics = false, .times = false},
        {.every = 3, .times = false},
    };
    std::size_t differing = 0;
    constexpr int ranks = COLLPROBE_TEST_UNLESS_BRIEF(5, 3);
    for (const probe_options& way : ways) {
        CAPTURE(&way - ways);
        ranked_job of{ranks, COLLPROBE_TEST_UNLESS_BRIEF(64, 48), way, {}, testing::faults_on_the_way(0.002)};
        of.calls_with_fault = 600;
        of.names_differ = true;
        testing::rank_steps seen;
        const std::vector<step_record> first = judge_together(of, seen);
        const std::vector<step_record> read = read_back(first);
        check_same(again(read, ranks, of.options), first);
        of.options.false_alarms_per_step = 0.05;
        of.options.false_alarms_per_run = 0.2;
        of.options.tolerance = 0.01;
        const std::vector<step_record> expected = judge_together(of, seen);
        check_same(again(read, ranks, of.options), expected);
        check_same(again(read_back(expected), ranks, way), first);
        differing += different(first, expected);
        if (COLLPROBE_TEST_UNLESS_BRIEF(false, &way != ways && way.mode == report_mode::gather)) continue;
        of.options.times = true; // of one run alone
        const std::vector<step_record> timed = judge_together(of, seen);
        check_same(again(read_back(timed), ranks, of.options), timed);
    }
    CHECK(differing > 0);
}

TEST_CASE("judge_again forgets where the ranks have forgotten, and refuses what it cannot judge")
{
    testing::rank_steps seen;
    const std::vector<step_record> records = judge_together({.ranks = 3, .steps = 48}, seen);
    std::vector<step_record> later(records.begin() + 40, records.end());
    const std::vector<step_record> fresh = again(later, 3, {});
    std::vector<step_record> all = records;
    all[40].forgot = true;
    std::vector<step_record> judged = again(all, 3, {});
    CHECK(testing::difference(judged[47], again(records, 3, {})[47]) != "");
    judged[40].forgot = false;
    for (std::size_t i = 0; i < later.size(); ++i) CHECK(testing::difference(judged[40 + i], fresh[i]) == "");

    judge_again judge(3);
    const char* const other = "is not one that a probe of so many ranks makes";
    const auto refuses = [&](step_record record, const char* why, const probe_options& options = {}) {
        const step_record before = record;
        testing::check_error(testing::error_of([&] { judge_again(3, options).judge(record); }),
            status::invalid_argument, std::vector<std::string>{why});
        CHECK(testing::difference(record, before) == "");
    };
    refuses(records[7], "the options say that it has none", {.times = false});
    step_record record = records[7];
    for (call_record& each : record.calls) each.is_gradient = false;
    refuses(record, "an older version");
    record = records[7];
    record.losses.pop_back();
    refuses(record, other);
    record = records[7];
    record.left_out = {3};
    refuses(record, other);
    record = records[7];
    record.calls[0].inputs.clear();
    refuses(record, other);
    record = records[7];
    record.cosine.leave_one_out.assign(3, 1e300);
    refuses(record, other);
    record = records[7];
    record.add({.ranks = {0}, .call = 0, .what = finding_kind::duplicate});
    record.findings.back().call = static_cast<int>(record.calls.size());
    refuses(record, other);
    record = records[7];
    record.lateness.calls = 0;
    record.lateness_by_rank.resize(3);
    refuses(record, "the options say that it has none", {.times = false});
    testing::check_error(testing::error_of([] { judge_again(2, {.groups = {0}}); }), status::invalid_argument,
        std::vector<std::string>{"groups"});
}

} // namespace collprobe::testing::judge_again_test
#endif
