// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <string>

#include <doctest/doctest.h>

#include <collprobe/report/alarm.hpp>

#include "support/checks.hpp"

namespace {

using namespace collprobe;
using testing::contains;

alarm_record differing()
{
    alarm_record raised;
    raised.step = 17;
    raised.call = 1;
    raised.what = finding::result_differs;
    raised.where = damage::broadcast;
    raised.ranks = {3};
    raised.statistic = 1;
    raised.action = advice::resync;
    raised.source = 0;
    return raised;
}
alarm_record statistical()
{
    alarm_record raised;
    raised.step = 18;
    raised.call = 1;
    raised.what = finding::gradient_norm;
    raised.where = damage::input;
    raised.ranks = {5};
    raised.statistic = 12.5;
    raised.threshold = 10;
    raised.false_alarms_per_step = 1e-9;
    raised.action = advice::quarantine;
    raised.number = {.value = 3.1, .expected = 2, .usual_difference = 0.2, .steps = 384};
    return raised;
}

} // namespace

TEST_CASE("an alarm in words says who, where, on what evidence and what to do")
{
    CHECK(report::describe(differing())
        == "step 17, bucket 1: rank 3 held other bits of a result than the other ranks (result_differs); damage: on the result's way "
           "to the ranks, or in their memory; what to do: resync from rank 0");
    alarm_record nobody = differing();
    nobody.what = finding::value_differs;
    nobody.statistic = 2;
    nobody.where = damage::unknown;
    nobody.ranks.clear();
    nobody.source = -1;
    CHECK(report::describe(nobody)
        == "step 17, bucket 1: some rank held another value than the other ranks, where all must have the same (value_differs): "
           "the ranks have 2 different values, since step 0; the evidence does not show where the damage happened; what to do: resync from elsewhere: no rank is known "
           "to hold what is right");
    alarm_record sum = nobody;
    sum.what = finding::sum_differs;
    sum.statistic = 40;
    sum.threshold = 8;
    sum.false_alarms_per_step = 3e-12;
    sum.action = advice::recheck;
    CHECK(report::describe(sum)
        == "step 17, bucket 1: some rank received a result that is not the sum of the inputs (sum_differs): residual 40, "
           "limit 8; about 3e-12 false alarms a step; the evidence does not show where the damage happened; what to "
           "do: look closer, or repeat the step");
}

TEST_CASE("an alarm of a number has the number, what was expected, and the rate")
{
    CHECK(report::describe(statistical())
        == "step 18, bucket 1: rank 5 had a gradient norm that stands out (gradient_norm): the norm of its gradient, 3.1, is 1.1 above the 2 expected "
           "from the other ranks; the largest such difference in the last 384 steps was 0.2; at most 1e-09 false alarms a step; "
           "damage: in the rank's own data, before the call; what to do: take out of the job");
    alarm_record late = statistical();
    late.call = -1;
    late.what = finding::late;
    late.where = damage::none;
    late.action = advice::none;
    late.number = {.value = 12e6, .expected = 2e6, .usual_difference = 0.5e6, .steps = 20};
    const std::string text = report::describe(late);
    CHECK(contains(text, "step 18, whole step: rank 5 came later to the calls than usual (late): the delay of its arrival, "));
    CHECK(contains(text, "12 ms, is 10 ms above the 2 ms expected from the other ranks; "));
    CHECK(contains(text, "the last 20 steps was 0.5 ms; at most 1e-09 false alarms a step; what to do: "));
    late.ranks.clear();
    CHECK(contains(report::describe(late), ": some rank came later to the calls than usual (late): "));
    CHECK_FALSE(contains(report::describe(late), " its "));
}

TEST_CASE("an alarm of NaN that most ranks have says since when")
{
    alarm_record spread;
    spread.step = 17;
    spread.what = finding::non_finite;
    spread.where = damage::input;
    spread.statistic = 6;
    spread.action = advice::skip;
    spread.number = {.is_new_level = true, .since = 1234};
    const std::string text = report::describe(spread);
    CHECK(contains(text, "step 17, whole step: most ranks sent NaN or infinity (non_finite): 6 ranks "));
    CHECK(contains(text, " since step 1,234"));
    CHECK(contains(text, "; damage: in the rank's own data, before the call; what to do: "));
    const std::string line = report::json_line("a", spread);
    CHECK(contains(line, "\"new_level\":true,\"since\":1234}"));
    spread.number = {}; // the control: one that is no spread
    CHECK_FALSE(contains(report::describe(spread), "since step"));
}

TEST_CASE("each advice has words of its own")
{
    const advice all[] = {advice::none, advice::recheck, advice::skip, advice::resync, advice::quarantine};
    for (const advice a : all) {
        for (const advice b : all) {
            alarm_record one = differing();
            alarm_record two = differing();
            one.action = a;
            two.action = b;
            CHECK((report::describe(one) == report::describe(two)) == (a == b));
        }
    }
}

TEST_CASE("what all ranks have is not told of some rank")
{
    alarm_record raised = differing();
    raised.ranks.clear();
    const auto says = [&](finding what, const std::string& text) {
        raised.what = what;
        CAPTURE(report::describe(raised));
        CHECK(report::describe(raised).find("bucket 1: " + text) != std::string::npos);
    };
    says(finding::overflow, "the ranks received NaN or infinity");
    says(finding::call_missing, "the ranks left out calls that all steps before had (call_missing): since step 0 without ");
    says(finding::norm_differs, "the ranks computed a gradient norm that is not that of the reduced gradient");
    says(finding::unexplained, "the ranks received a result, a part of which comes from no rank's input");
    says(finding::value_repeats, "the ranks together did not draw the samples that are expected");
    says(finding::weights, "some rank entered the average");
    says(finding::non_finite, "some rank sent NaN");
    raised.number.is_new_level = true;
    says(finding::non_finite, "most ranks sent NaN");
}

TEST_CASE("ten ranks are listed and the others counted")
{
    alarm_record raised = differing();
    raised.ranks.clear();
    for (int rank = 0; rank < 10; ++rank) raised.ranks.push_back(rank);
    const auto names = [&](const char* ranks) {
        return report::describe(raised).find(": " + std::string(ranks) + " held") != std::string::npos;
    };
    CHECK(names("ranks 0, 1, 2, 3, 4, 5, 6, 7, 8 and 9"));
    for (int rank = 10; rank < 100; ++rank) raised.ranks.push_back(rank);
    CHECK(names("ranks 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 90 others"));
}

TEST_CASE("an alarm is one JSON line with the members of the struct")
{
    CHECK(report::json_line("run \"1\"", differing())
        == "{\"schema\":1,\"kind\":\"alarm\",\"run\":\"run \\\"1\\\"\",\"step\":17,\"bucket\":1,"
           "\"check\":\"result_differs\",\"damage\":\"broadcast\",\"ranks\":[3],\"statistic\":1,\"threshold\":0,"
           "\"false_alarms_per_step\":0,\"advice\":\"resync\",\"source\":0}\n");
    CHECK(report::json_line("a", statistical())
        == "{\"schema\":1,\"kind\":\"alarm\",\"run\":\"a\",\"step\":18,\"bucket\":1,"
           "\"check\":\"gradient_norm\",\"damage\":\"input\",\"ranks\":[5],\"statistic\":12.5,\"threshold\":10,"
           "\"false_alarms_per_step\":1e-09,\"advice\":\"quarantine\",\"source\":null,"
           "\"text\":\"the norm of its gradient, 3.1, is 1.1 above the 2 expected from the other ranks; the largest such "
           "difference in the last 384 steps was 0.2\",\"value\":3.1,"
           "\"expected\":2,\"usual_difference\":0.2,\"window\":384}\n");
}
