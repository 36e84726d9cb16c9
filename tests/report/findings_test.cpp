// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <collprobe/report/findings.hpp>

#include "sample.hpp"

namespace collprobe::testing::findings_test {
namespace {

step_record step_of(std::uint64_t step, const std::vector<finding>& findings = {})
{
    step_record record = sample_step(step);
    record.calls.resize(2);
    record.findings = findings;
    return record;
}

finding alarm_of(std::uint64_t step, finding_kind what, const std::vector<int>& ranks, advice action)
{
    finding raised;
    raised.step = step;
    raised.call = 1;
    raised.site.name = "wte";
    raised.what = what;
    raised.ranks = ranks;
    raised.action = action;
    raised.source = action == advice::resync ? 0 : -1;
    return raised;
}

} // namespace

TEST_CASE("a run without findings says among how much it found nothing")
{
    report::run_findings found;
    CHECK(found.verdict() == "No step was recorded.");
    found.add(step_of(0));
    CHECK(found.verdict() == "Nothing was found in 1 step of 3 ranks.");
    step_record record = step_of(1);
    record.unread_calls = 3;
    record.unprobed_calls = 1;
    found.add(record);
    CHECK(found.verdict() == "Nothing was found in 2 steps of 3 ranks; 4 of 8 calls were not looked at.");
    CHECK(found.calls == 8);
}

TEST_CASE("without alarms the verdict is the exact finding before the statistical, then the most frequent")
{
    const finding norm{.ranks = {1}, .call = 0, .what = finding_kind::gradient_norm, .exact = false};
    const finding nan{.ranks = {2}, .call = 1, .what = finding_kind::non_finite, .site = {"a/train.cpp", "", 7, ""}};
    report::run_findings found;
    found.add(step_of(0, {norm}));
    found.add(step_of(1, {norm}));
    CHECK(found.verdict()
        == "Rank 1 had a gradient norm that stands out in 2 of 2 steps, first in step 0, bucket 0.");
    found.add(step_of(2, {nan, norm}));
    CHECK(found.verdict()
        == "Rank 2 sent NaN or infinity in 1 of 3 steps, step 2, bucket 1 (train.cpp:7). 1 other finding in the run.");
    found.add(step_of(3, {{.call = 0, .what = finding_kind::result_differs}}));
    found.add(step_of(4, {{.call = 0, .what = finding_kind::result_differs}}));
    CHECK(found.verdict()
        == "Some rank held other bits of a result than the other ranks in 2 of 5 steps, first in step 3, bucket 0. "
           "2 other findings in the run.");
    CHECK(found.suspicious_steps == 5);
    REQUIRE(found.findings.size() == 3);
    CHECK(found.findings[0].steps == 3);
    CHECK(found.findings[0].last_step == 2);
}

TEST_CASE("with alarms the verdict is the one with the gravest advice")
{
    report::run_findings found;
    for (std::uint64_t step = 0; step < 10; ++step) {
        found.add(step_of(step));
        found.add(alarm_of(step, finding_kind::gradient_norm, {1}, advice::recheck));
        if (step == 7) found.add(alarm_of(step, finding_kind::result_differs, {0, 2}, advice::resync));
    }
    CHECK(found.verdict()
        == "Ranks 0 and 2 held other bits of a result than the other ranks in 1 of 10 steps, step 7, bucket 1 'wte': "
           "resync from rank 0. 1 other alarm in the run.");
    CHECK(found.alarm_count == 11);
    REQUIRE(found.alarms.size() == 2);
    CHECK(found.alarms[0].steps == 10);
    CHECK(found.alarms[0].first_step == 0);
    CHECK(found.alarms[0].last_step == 9);
}

TEST_CASE("where the gravest alarm names nobody, the verdict says with whom it began")
{
    report::run_findings found;
    for (std::uint64_t step = 0; step < 10; ++step) {
        found.add(step_of(step));
        if (step == 1) found.add(alarm_of(step, finding_kind::gradient_norm, {0}, advice::recheck));
        if (step == 3) found.add(alarm_of(step, finding_kind::non_finite, {2}, advice::skip));
        if (step == 4) found.add(alarm_of(step, finding_kind::non_finite, {0, 1, 2}, advice::skip));
        if (step >= 5) found.add(alarm_of(step, finding_kind::non_finite, {}, advice::resync));
    }
    CHECK(found.verdict()
        == "Most ranks sent NaN or infinity in 5 of 10 steps, first in step 5, bucket 1 'wte': resync from rank 0. "
           "It began with rank 2 in step 3, bucket 1 'wte'. 2 other alarms in the run.");
}

TEST_CASE("the verdict of what is told once says since when it lasts")
{
    report::run_findings found;
    for (std::uint64_t step = 0; step < 40; ++step) found.add(step_of(step));
    finding raised = alarm_of(19, finding_kind::zeros, {2}, advice::recheck);
    raised.number.since = 4;
    found.add(raised);
    CHECK(found.verdict() == "Rank 2 sent zeros only, where others did not, since step 4, bucket 1 'wte': look closer, or repeat the step.");
    report::run_findings missing;
    missing.add(step_of(30));
    raised = alarm_of(30, finding_kind::call_missing, {}, advice::recheck);
    raised.call = -1;
    raised.number = {.steps = 30, .since = 30};
    raised.statistic = 1;
    raised.other = {.count = 1024, .site = call_site::named("head", "", "", 0)};
    missing.add(raised);
    CHECK(missing.verdict()
        == "Since step 30 without all_reduce 'head' (1,024 elements of float), made in all 30 steps before: "
           "look closer, or repeat the step.");
}

TEST_CASE("what came behind the gravest alarm did not begin it")
{
    report::run_findings found;
    for (std::uint64_t step = 0; step < 10; ++step) {
        found.add(step_of(step));
        if (step >= 2) found.add(alarm_of(step, finding_kind::non_finite, {}, advice::resync));
        if (step == 4) found.add(alarm_of(step, finding_kind::non_finite, {2}, advice::skip));
    }
    CHECK(found.verdict()
        == "Most ranks sent NaN or infinity in 8 of 10 steps, first in step 2, bucket 1 'wte': resync from rank 0. "
           "1 other alarm in the run.");
}

TEST_CASE("a repeated alarm keeps the strongest evidence and the gravest advice")
{
    report::run_findings found;
    found.add(step_of(0));
    finding raised = alarm_of(0, finding_kind::loss, {1}, advice::recheck);
    for (std::uint64_t step = 0; step < 3; ++step) {
        raised.step = step;
        raised.statistic = step == 1 ? 9 : 5;
        raised.threshold = step == 1 ? 4 : 3;
        raised.number.value = static_cast<double>(step);
        raised.action = step == 2 ? advice::quarantine : advice::recheck;
        found.add(raised);
    }
    REQUIRE(found.alarms.size() == 1);
    CHECK(found.alarms[0].first.statistic == 9);
    CHECK(found.alarms[0].first.threshold == 4);
    CHECK(found.alarms[0].first.number.value == 1);
    CHECK(found.alarms[0].first.action == advice::quarantine);
}

TEST_CASE("memory is bounded whatever the run, and no finding is lost without a trace")
{
    report::run_findings found;
    const int more = static_cast<int>(report::run_findings::most) + 10;
    for (int i = 0; i < more; ++i) {
        found.add(step_of(static_cast<std::uint64_t>(i), {{.ranks = {0}, .call = i, .what = finding_kind::stale}}));
        finding raised = alarm_of(static_cast<std::uint64_t>(i), finding_kind::stale, {0}, advice::skip);
        raised.call = i;
        found.add(raised);
    }
    CHECK(found.findings.size() == report::run_findings::most);
    CHECK(found.alarms.size() == report::run_findings::most);
    CHECK(found.alarm_count == static_cast<std::uint64_t>(more));
    CHECK(found.suspicious_steps == static_cast<std::uint64_t>(more));
}

} // namespace collprobe::testing::findings_test
