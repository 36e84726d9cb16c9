// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <collprobe/order/stream_order.hpp>

#include "order/reports.hpp"

namespace collprobe::testing::allocation_bounds_test {
namespace {

const order_stream compute{.number = 3};
const order_stream gather{.number = 5};

/// Addresses of a buffer that nobody touches.
struct memory {
    float values[64];
    memory_range part(std::size_t first, std::size_t count) const { return {values + first, count * sizeof(float)}; }
    const float* at(std::size_t index) const { return values + index; }
};

const list beyond{hazard_kind::beyond_allocation};

/// What an access of one stream says, whatever was accessed before.
list said_of(stream_order& checker, memory_range bytes)
{
    checker.clear_reports();
    checker.launch(compute, {bytes}, {}, "read");
    return kinds(checker);
}

} // namespace

TEST_CASE("an access that ends behind its allocation is reported with both")
{
    const memory m{};
    stream_order checker;
    checker.allocate(m.part(4, 1));
    checker.launch(gather, {m.part(4, 4)}, {}, "all_reduce", {"train.cpp", "step", 20});
    REQUIRE(kinds(checker) == beyond);
    CHECK(checker.hazard_count() == 1);
    const stream_hazard found = checker.hazards()[0];
    CHECK(std::string(found.later.operation) == "all_reduce");
    CHECK(found.later.number == 5);
    CHECK(found.later.mode == memory_access::read);
    CHECK(found.later.where.line == 20);
    CHECK(found.later.bytes.first == m.part(4, 1).first);
    CHECK(found.later.bytes.bytes == 16);
    CHECK(std::string(found.earlier.operation).empty());
    CHECK(found.earlier.bytes.first == m.part(4, 1).first);
    CHECK(found.earlier.bytes.bytes == 4);
}

TEST_CASE("both sides of a call are reported, each once, and nothing of a group that was never enqueued")
{
    const memory m{};
    stream_order checker;
    checker.allocate(m.part(0, 8));
    checker.allocate(m.part(32, 8));
    checker.group_begin();
    checker.collective(gather, {m.part(0, 9)}, {}, "all_gather");
    checker.group_end(false);
    CHECK(checker.hazard_count() == 0);
    for (int step = 0; step < 3; ++step) {
        checker.collective(gather, {m.part(0, 9)}, {m.part(32, 10)}, "all_reduce", true, {"train.cpp", "step", 20});
    }
    REQUIRE(kinds(checker) == list{hazard_kind::beyond_allocation, hazard_kind::beyond_allocation});
    CHECK(checker.hazards()[0].later.mode == memory_access::read);
    CHECK(checker.hazards()[0].earlier.bytes.first == m.part(0, 8).first);
    CHECK(checker.hazards()[1].later.mode == memory_access::write);
    CHECK(checker.hazards()[1].earlier.bytes.first == m.part(32, 8).first);
    CHECK(checker.hazards()[1].count == 3);
}

TEST_CASE("parts that another allocator hands on have the bounds of what they are parts of")
{
    const memory m{};
    stream_order checker;
    checker.allocate(m.part(0, 32));
    for (const bool watch : {true, false}) {
        CAPTURE(watch);
        checker.allocate(m.part(0, 8));
        checker.allocate(m.part(8, 8));
        CHECK(checker.allocated_bytes(m.at(0)) == 32);
        CHECK(said_of(checker, m.part(0, 32)).empty());
        CHECK(said_of(checker, m.part(8, 25)) == beyond);
        checker.release(m.part(8, 8), watch);
        checker.release(m.part(0, 8), watch);
        CHECK(checker.allocated_bytes(m.at(0)) == 128); // the one around
        CHECK(said_of(checker, m.part(16, 17)) == beyond);
        checker.allocate(m.part(0, 32));
        CHECK(said_of(checker, m.part(0, 32)).empty());
    }
}

TEST_CASE("in a capture an access is checked when it is captured, and not again as a part of the graph")
{
    const memory m{};
    stream_order checker;
    checker.allocate(m.part(0, 8));
    checker.allocate(m.part(8, 8));
    order_stream captured = compute;
    captured.capture = 1;
    checker.capture_begin(1);
    checker.launch(captured, {}, {m.part(0, 8)}, "one");
    checker.launch(captured, {}, {m.part(8, 8)}, "its neighbour");
    CHECK(checker.hazard_count() == 0);
    checker.capture_end(1);
    checker.launch_graph(1, compute);
    CHECK(checker.hazard_count() == 0);
    captured.capture = 2;
    checker.launch(captured, {}, {m.part(0, 9)}, "too much");
    CHECK(kinds(checker) == beyond);
    checker.capture_end(2);
    checker.launch_graph(2, compute);
    CHECK(checker.hazard_count() == 1);
}

} // namespace collprobe::testing::allocation_bounds_test
