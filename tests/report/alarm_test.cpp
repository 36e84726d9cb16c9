// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <string>

#include <doctest/doctest.h>

#include <collprobe/report/alarm.hpp>

namespace {

using namespace collprobe;

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
    raised.what = finding::cosine;
    raised.where = damage::input;
    raised.ranks = {1, 2, 5};
    raised.statistic = -12.5;
    raised.threshold = 10;
    raised.false_alarms_per_step = 0.25;
    raised.strikes = 4;
    raised.action = advice::quarantine;
    return raised;
}

} // namespace

TEST_CASE("an alarm in words says who, where, on what evidence and what to do")
{
    CHECK(report::describe(differing())
        == "step 17, bucket 1: result_differs: rank 3; damage: broadcast; advice: resync from rank 0");
    CHECK(report::describe(statistical())
        == "step 18, whole step: cosine: ranks 1, 2 and 5, score -12.5 against 10, strike 4, at most 0.25 false alarms "
           "a step; damage: input; advice: take out of the job");
    alarm_record nobody = differing();
    nobody.what = finding::replica_differs;
    nobody.where = damage::unknown;
    nobody.ranks.clear();
    nobody.source = -1;
    CHECK(report::describe(nobody)
        == "step 17, bucket 1: replica_differs: nobody is named; damage: unknown; advice: resync from elsewhere: no rank "
           "is known to hold what is right");
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

TEST_CASE("ten ranks are listed and the others counted")
{
    alarm_record raised = differing();
    raised.ranks.clear();
    for (int rank = 0; rank < 10; ++rank) raised.ranks.push_back(rank);
    const auto names = [&](const char* ranks) {
        return report::describe(raised).find(": " + std::string(ranks) + "; damage") != std::string::npos;
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
           "\"false_alarms_per_step\":0,\"strikes\":1,\"advice\":\"resync\",\"source\":0}\n");
    CHECK(report::json_line("a", statistical())
        == "{\"schema\":1,\"kind\":\"alarm\",\"run\":\"a\",\"step\":18,\"bucket\":null,\"check\":\"cosine\","
           "\"damage\":\"input\",\"ranks\":[1,2,5],\"statistic\":-12.5,\"threshold\":10,"
           "\"false_alarms_per_step\":0.25,\"strikes\":4,\"advice\":\"quarantine\",\"source\":null}\n");
}
