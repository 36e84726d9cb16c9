// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <set>
#include <string>

#include <doctest/doctest.h>

#include <collprobe/report/json.hpp>
#include <collprobe/report/table.hpp>

#include "support/checks.hpp"

namespace collprobe::testing::alarm_test {
namespace {

finding differing()
{
    finding raised;
    raised.step = 17;
    raised.call = 1;
    raised.what = finding_kind::result_differs;
    raised.where = damage::broadcast;
    raised.ranks = {3};
    raised.statistic = 1;
    raised.action = advice::resync;
    raised.source = 0;
    return raised;
}
finding statistical()
{
    finding raised;
    raised.step = 18;
    raised.call = 1;
    raised.what = finding_kind::gradient_norm;
    raised.where = damage::input;
    raised.ranks = {5};
    raised.statistic = 12.5;
    raised.threshold = 10;
    raised.exact = false;
    raised.false_alarms_per_step = 1e-9;
    raised.action = advice::quarantine;
    raised.number = {.value = 3.1, .expected = 2, .usual_difference = 0.2, .steps = 384};
    return raised;
}

} // namespace

TEST_CASE("an alarm in words says who, where, on what evidence and what to do")
{
    CHECK(report::describe_alarm(differing())
        == "step 17, bucket 1: rank 3 held other bits of a result than the other ranks (result_differs); damage: on the result's way "
           "to the ranks, or in their memory; what to do: resync from rank 0");
    finding nobody = differing();
    nobody.what = finding_kind::value_differs;
    nobody.statistic = 2;
    nobody.where = damage::unknown;
    nobody.ranks.clear();
    nobody.source = -1;
    CHECK(report::describe_alarm(nobody)
        == "step 17, bucket 1: some rank held another value than the other ranks, where all must have the same (value_differs): "
           "2 different values, since step 0; the evidence does not show where the damage happened; what to do: resync from elsewhere: no rank is known "
           "to hold what is right");
    finding sum = nobody;
    sum.what = finding_kind::sum_differs;
    sum.statistic = 40;
    sum.threshold = 8;
    sum.exact = false;
    sum.false_alarms_per_step = 3e-12;
    sum.action = advice::recheck;
    CHECK(report::describe_alarm(sum)
        == "step 17, bucket 1: some rank received a result that is not the sum of the inputs (sum_differs): residual 40, "
           "limit 8; false alarms: about 3e-12 a step, unless a rank is far larger than the others; the evidence does not show where the damage happened; what to "
           "do: look closer, or repeat the step");
}

TEST_CASE("an alarm of a number has the number, what was expected, and the rate")
{
    CHECK(report::describe_alarm(statistical())
        == "step 18, bucket 1: rank 5 had a gradient norm that stands out (gradient_norm): the norm of its gradient, 3.1, is 1.1 above the 2 expected "
           "from the other ranks; the largest such difference in the last 384 steps was 0.2; false alarms: at most 1e-09 a step; "
           "damage: in the rank's own data, before the call; what to do: take out of the job");
}

TEST_CASE("each advice has words of its own")
{
    std::set<std::string> told;
    for (const advice each : {advice::none, advice::recheck, advice::skip, advice::resync, advice::quarantine}) {
        finding raised = differing();
        raised.action = each;
        CHECK(told.insert(report::describe_alarm(raised)).second);
    }
}

TEST_CASE("what all ranks have is not told of some rank")
{
    finding raised = differing();
    raised.ranks.clear();
    const auto says = [&](finding_kind what, const std::string& text) {
        raised.what = what;
        CAPTURE(report::describe_alarm(raised));
        CHECK(report::describe_alarm(raised).find("bucket 1: " + text) != std::string::npos);
    };
    says(finding_kind::overflow, "the ranks received NaN or infinity");
    says(finding_kind::call_missing, "the ranks left out calls that all steps before had (call_missing): since step 0 without ");
    says(finding_kind::norm_differs, "the ranks computed a gradient norm that is not that of the reduced gradient");
    says(finding_kind::unexplained, "the ranks received a result, a part of which comes from no rank's input");
    says(finding_kind::value_repeats, "the ranks together did not draw the samples that are expected");
    says(finding_kind::weights, "some rank entered the average");
    says(finding_kind::non_finite, "most ranks sent NaN");
}

TEST_CASE("ten ranks are listed and the others counted")
{
    finding raised = differing();
    raised.ranks.clear();
    for (int rank = 0; rank < 10; ++rank) raised.ranks.push_back(rank);
    const auto names = [&](const char* ranks) {
        return report::describe_alarm(raised).find(": " + std::string(ranks) + " held") != std::string::npos;
    };
    CHECK(names("ranks 0, 1, 2, 3, 4, 5, 6, 7, 8 and 9"));
    for (int rank = 10; rank < 100; ++rank) raised.ranks.push_back(rank);
    CHECK(names("ranks 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 90 others"));
}

TEST_CASE("an alarm is one JSON line with the members of the struct")
{
    CHECK(report::json_line("run \"1\"", differing())
        == "{\"schema\":1,\"kind\":\"alarm\",\"run\":\"run \\\"1\\\"\",\"step\":17,\"check\":\"result_differs\",\"ranks\":[3],"
           "\"other_rank\":null,\"bucket\":1,\"exact\":true,\"statistic\":1,\"threshold\":0,\"index\":null,"
           "\"false_alarms_per_step\":0,\"damage\":\"broadcast\",\"advice\":\"resync\",\"source\":0}\n");
    CHECK(report::json_line("a", statistical())
        == "{\"schema\":1,\"kind\":\"alarm\",\"run\":\"a\",\"step\":18,\"check\":\"gradient_norm\",\"ranks\":[5],"
           "\"other_rank\":null,\"bucket\":1,\"exact\":false,\"statistic\":12.5,\"threshold\":10,\"index\":null,"
           "\"false_alarms_per_step\":1e-09,\"damage\":\"input\",\"advice\":\"quarantine\",\"source\":null,"
           "\"text\":\"the norm of its gradient, 3.1, is 1.1 above the 2 expected from the other ranks; the largest such "
           "difference in the last 384 steps was 0.2\",\"value\":3.1,"
           "\"expected\":2,\"usual_difference\":0.2,\"window\":384}\n");
}

} // namespace collprobe::testing::alarm_test
