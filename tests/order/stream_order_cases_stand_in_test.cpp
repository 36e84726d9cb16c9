// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Each case of order/cases with its mistake and without. Compiled with COLLPROBE_STREAM_ORDER=1.

#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "order/reports.hpp"
#include "tests/support/stand_in/nccl_ranks.hpp"
#include "tests/support/stand_in/stand_in.hpp"

#include "order/cases/captures.hpp"
#include "order/cases/collectives.hpp"
#include "order/cases/copies.hpp"
#include "order/cases/default_streams.hpp"
#include "order/cases/events.hpp"
#include "order/cases/host_threads.hpp"
#include "order/cases/memory_life.hpp"

namespace collprobe::testing::stream_order_cases_stand_in_test {

using namespace collprobe::order_cases;

namespace {

void check(const order_case& one)
{
    for (const bool right : {false, true}) {
        const testing::clean_stand_in clean;
        CAPTURE(std::string(one.rule));
        CAPTURE(right);
        stream_order checker({.free_synchronizes = one.free_synchronizes});
        checker.install();
        {
            bench on;
            one.run(on, right);
        }
        CAPTURE(testing::messages(checker));
        CHECK(testing::kinds(checker) == (right ? testing::list{} : one.found));
        for (const stream_hazard& each : checker.hazards()) {
            // The call sites are those of the case.
            CHECK(std::string(each.later.where.file).find("order/cases/") != std::string::npos);
        }
    }
    stand_in::drain_destroyed_streams();
}

} // namespace

TEST_CASE("order by events")
{
    for (const order_case& each : events) check(each);
}
TEST_CASE("what host threads know and tell")
{
    for (const order_case& each : host_threads) check(each);
}
TEST_CASE("the order of default streams")
{
    for (const order_case& each : default_streams) check(each);
}
TEST_CASE("what a copy or a fill has waited for")
{
    for (const order_case& each : copies) check(each);
}
TEST_CASE("allocation, release and bounds")
{
    for (const order_case& each : memory_life) check(each);
}
TEST_CASE("captures and graphs")
{
    for (const order_case& each : captures) check(each);
}
TEST_CASE("calls of NCCL")
{
    for (const order_case& each : collective_cases) check(each);
}

} // namespace collprobe::testing::stream_order_cases_stand_in_test
