// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <collprobe/order/stream_order.hpp>

#include "order/calling_thread.hpp"

using namespace collprobe;

namespace {

const order_stream compute{.number = 3};
const order_stream gather{.number = 5};
const order_stream other{.number = 8};

/// Buffers that nobody touches.
struct memory {
    float shard[64];
    float full[256];
    memory_range shard_bytes() const { return {shard, sizeof shard}; }
    memory_range full_bytes() const { return {full, sizeof full}; }
    memory_range part(std::size_t first, std::size_t count) const { return {shard + first, count * sizeof(float)}; }
};

std::vector<hazard_kind> kinds(const stream_order& checker)
{
    std::vector<hazard_kind> result;
    for (const stream_hazard& each : checker.hazards()) result.push_back(each.kind);
    return result;
}
using list = std::vector<hazard_kind>;

void edge(stream_order& checker, const order_stream& from, const order_stream& to)
{
    order_point event;
    checker.record(event, from);
    checker.wait(to, event);
}
/// The calling thread waits for all streams of a space.
void synchronize_space(stream_order& checker, stream_space space)
{
    order_point now;
    checker.record_space(now, space);
    checker.reached(now);
}

} // namespace

TEST_CASE("a read on another stream without an edge is reported with both sides, the edge and the cure")
{
    const memory m{};
    stream_order checker;
    checker.name(compute, "compute");
    checker.launch(compute, {}, {m.shard_bytes()}, "copy", {"train.cpp", "step", 12});
    checker.launch(gather, {m.part(16, 8)}, {m.full_bytes()}, "all_gather", {"train.cpp", "step", 20});
    REQUIRE(kinds(checker) == list{hazard_kind::read_after_write});
    const stream_hazard found = checker.hazards()[0];
    CHECK(std::string(found.earlier.operation) == "copy");
    CHECK(found.earlier.number == 3);
    CHECK(found.earlier.stream_name == "compute");
    CHECK(found.earlier.mode == memory_access::write);
    CHECK(found.earlier.where.line == 12);
    CHECK(std::string(found.later.operation) == "all_gather");
    CHECK(found.later.number == 5);
    CHECK(found.later.mode == memory_access::read);
    CHECK(found.later.where.line == 20);
    CHECK(found.later.bytes.first == m.part(16, 8).first);
    CHECK(found.later.bytes.bytes == 32);
    CHECK(found.cure
        == "record an event on stream 3 (compute) after copy [train.cpp:12] and let stream 5 wait for it before "
           "all_gather [train.cpp:20]");
    const std::string text = found.message();
    for (const char* const part : {"read after write", "copy [train.cpp:12]", "all_gather [train.cpp:20]",
             "stream 3 (compute)", "stream 5", "32 bytes from 0x", "Missing: ", "Cure: "}) {
        CAPTURE(part);
        CHECK(text.find(part) != std::string::npos);
    }
}

TEST_CASE("an event between the two, or a byte apart, is silent")
{
    const memory m{};
    stream_order checker;
    checker.launch(compute, {}, {m.part(0, 32)}, "copy");
    checker.launch(gather, {m.part(32, 32)}, {}, "all_gather");
    edge(checker, compute, gather);
    checker.launch(gather, {m.part(0, 32)}, {m.full_bytes()}, "all_gather");
    edge(checker, gather, compute);
    checker.launch(compute, {m.full_bytes()}, {m.shard_bytes()}, "next");
    CHECK(checker.hazard_count() == 0);
}

TEST_CASE("write after read and write after write are told apart")
{
    const memory m{};
    stream_order checker;
    checker.launch(gather, {m.shard_bytes()}, {}, "all_gather");
    checker.launch(compute, {}, {m.shard_bytes()}, "next copy");
    CHECK(kinds(checker) == list{hazard_kind::write_after_read});
    checker.launch(other, {}, {m.shard_bytes()}, "third");
    CHECK(kinds(checker) == list{hazard_kind::write_after_read, hazard_kind::write_after_write});
}

TEST_CASE("two reads need no order, but a write needs it to both")
{
    const memory m{};
    stream_order checker;
    checker.launch(compute, {m.shard_bytes()}, {}, "first read");
    checker.launch(gather, {m.shard_bytes()}, {}, "second read");
    CHECK(checker.hazard_count() == 0);
    edge(checker, compute, other);
    checker.launch(other, {}, {m.shard_bytes()}, "write");
    REQUIRE(kinds(checker) == list{hazard_kind::write_after_read});
    CHECK(std::string(checker.hazards()[0].earlier.operation) == "second read");
}

TEST_CASE("an event stands for the work before its record, also a copy, and a new record leaves waits alone")
{
    const memory m{};
    stream_order checker;
    order_point event;
    SUBCASE("a record before the copy is no edge for it")
    {
        checker.record(event, compute);
        checker.launch(compute, {}, {m.shard_bytes()}, "copy");
        checker.wait(gather, event);
        checker.launch(gather, {m.shard_bytes()}, {}, "all_gather");
        CHECK(kinds(checker) == list{hazard_kind::read_after_write});
    }
    SUBCASE("work after the record is not waited for")
    {
        checker.launch(compute, {}, {m.shard_bytes()}, "copy");
        checker.record(event, compute);
        checker.launch(compute, {}, {m.full_bytes()}, "unrelated");
        checker.wait(gather, event);
        checker.launch(gather, {m.shard_bytes()}, {}, "all_gather");
        CHECK(checker.hazard_count() == 0);
        checker.launch(gather, {m.full_bytes()}, {}, "too early");
        CHECK(kinds(checker) == list{hazard_kind::read_after_write});
    }
    SUBCASE("recorded anew elsewhere before the wait, the first point is lost")
    {
        checker.launch(compute, {}, {m.shard_bytes()}, "copy");
        checker.record(event, compute);
        checker.record(event, other);
        checker.wait(gather, event);
        checker.launch(gather, {m.shard_bytes()}, {}, "all_gather");
        CHECK(kinds(checker) == list{hazard_kind::read_after_write});
    }
    SUBCASE("recorded anew after the wait, the edge stays")
    {
        checker.launch(compute, {}, {m.shard_bytes()}, "copy");
        checker.record(event, compute);
        checker.wait(gather, event);
        checker.record(event, other);
        checker.launch(gather, {m.shard_bytes()}, {}, "all_gather");
        CHECK(checker.hazard_count() == 0);
    }
    SUBCASE("a copy keeps its point")
    {
        checker.launch(compute, {}, {m.shard_bytes()}, "copy");
        checker.record(event, compute);
        const order_point kept = event;
        checker.record(event, other);
        checker.wait(gather, kept);
        checker.launch(gather, {m.shard_bytes()}, {}, "all_gather");
        CHECK(checker.hazard_count() == 0);
    }
}

TEST_CASE("a wait for an event that was never recorded is reported, and is no edge")
{
    const memory m{};
    stream_order checker;
    int handle = 0;
    checker.launch(compute, {}, {m.shard_bytes()}, "copy");
    SUBCASE("by value") { checker.wait(gather, order_point{}, {"a.cpp", "", 7}); }
    SUBCASE("by handle")
    {
        checker.event_created(&handle);
        checker.wait(gather, &handle, {"a.cpp", "", 7});
    }
    REQUIRE(kinds(checker) == list{hazard_kind::unrecorded_event});
    CHECK(checker.hazards()[0].later.where.line == 7);
    CHECK(checker.hazards()[0].later.number == gather.number);
    CHECK(checker.hazards()[0].message().find("before wait [a.cpp:7]") != std::string::npos);
    checker.launch(gather, {m.shard_bytes()}, {}, "all_gather");
    CHECK(kinds(checker) == list{hazard_kind::unrecorded_event, hazard_kind::read_after_write});
}

TEST_CASE("a handle that becomes another event's forgets the record")
{
    stream_order checker;
    int handle = 0;
    checker.record(&handle, compute);
    checker.wait(gather, &handle);
    CHECK(checker.hazard_count() == 0);
    checker.event_created(&handle);
    checker.wait(gather, &handle);
    CHECK(kinds(checker) == list{hazard_kind::unrecorded_event});
}

TEST_CASE("of an event of which nothing was told, a wait is neither a hazard nor an order")
{
    const memory m{};
    stream_order checker;
    int handle = 0;
    checker.launch(compute, {}, {m.shard_bytes()}, "copy");
    checker.wait(gather, &handle);
    CHECK(checker.hazard_count() == 0);
    checker.launch(gather, {m.shard_bytes()}, {}, "all_gather");
    CHECK(kinds(checker) == list{hazard_kind::read_after_write});
}

TEST_CASE("a host that waits for an event waits for what the event held at the call")
{
    const memory m{};
    stream_order checker;
    int handle = 0;
    checker.record(&handle, compute);
    const order_point now = checker.point_of(&handle);
    testing::calling_thread(checker, 77)->launch(compute, {}, {m.shard_bytes()}, "copy");
    testing::calling_thread(checker, 77)->record(&handle, compute);
    checker.reached(now);
    checker.touch_host(m.shard_bytes(), memory_access::read);
    CHECK(kinds(checker) == list{hazard_kind::read_after_write});
}

TEST_CASE("a stream is behind what its creator knows, if its beginning is told")
{
    const memory m{};
    const bool told = [] {
        bool value = false;
        SUBCASE("told") { value = true; }
        SUBCASE("not told") { value = false; }
        return value;
    }();
    stream_order checker;
    testing::calling_thread(checker, 1)->touch_host(m.shard_bytes(), memory_access::write);
    if (told) testing::calling_thread(checker, 1)->stream_began(compute);
    testing::calling_thread(checker, 2)->launch(compute, {m.shard_bytes()}, {}, "step");
    CHECK(checker.hazard_count() == (told ? 0 : 1));
}

TEST_CASE("each pair of call sites is told once, as it is at the end of the call, also if the list is full")
{
    const memory m{};
    std::vector<std::string> told;
    std::size_t most = 0;
    SUBCASE("a list of none") { most = 0; }
    SUBCASE("a list of one") { most = 1; }
    SUBCASE("a list with room") { most = 10; }
    stream_order checker({.on_hazard =
                              [](const stream_hazard& found, void* to) {
                                  static_cast<std::vector<std::string>*>(to)->push_back(found.later.operation
                                      + std::to_string(found.later.bytes.bytes));
                              },
        .context = &told,
        .most_reports = most});
    for (std::size_t part = 0; part < 4; ++part) {
        checker.launch(compute, {}, {m.part(4 * part, 4)}, "write", {"a.cpp", "", 1});
    }
    for (int repeat = 0; repeat < 3; ++repeat) {
        checker.launch(gather, {m.part(0, 16)}, {}, "first", {"a.cpp", "", 2});
        checker.launch(other, {m.part(0, 16)}, {}, "second", {"a.cpp", "", 3});
    }
    REQUIRE(told.size() == 2);
    CHECK(told[0] == (most > 0 ? "first64" : "first16"));
    CHECK(told[1] == (most > 1 ? "second64" : "second16"));
}

TEST_CASE("a graph's handle stands for the last capture it was made of, and the last handle ends the capture")
{
    const memory m{};
    stream_order checker;
    const order_object graph(std::uint64_t{50}), step(std::uint64_t{51});
    order_stream captured = compute;
    const auto capture = [&](std::uint64_t number, memory_range bytes) {
        captured.capture = number;
        checker.launch(captured, {}, {bytes}, "captured");
        checker.capture_end(number);
        checker.set_capture_of(graph, number);
        checker.set_capture_of(step, checker.capture_of(graph));
    };
    capture(4, m.shard_bytes());
    checker.launch(gather, {}, {m.shard_bytes()}, "copy");
    SUBCASE("captured anew: the bytes of the new capture count")
    {
        capture(5, m.full_bytes());
        checker.launch_graph(step, compute);
        CHECK(checker.hazard_count() == 0);
        checker.launch(other, {m.full_bytes()}, {}, "use");
        CHECK(kinds(checker) == list{hazard_kind::read_after_write});
    }
    SUBCASE("destroyed: nothing is launched any more")
    {
        checker.set_capture_of(graph, 0);
        checker.launch_graph(step, gather);
        CHECK(checker.hazard_count() == 0);
        checker.set_capture_of(step, 0);
        checker.launch_graph(4, compute); // the capture is forgotten
        CHECK(checker.hazard_count() == 0);
    }
    SUBCASE("as it is")
    {
        checker.launch_graph(step, compute);
        CHECK(kinds(checker) == list{hazard_kind::write_after_write});
    }
}

TEST_CASE("a free waits for the device only if that is an option")
{
    const memory m{};
    const order_stream first{.number = 100, .space = {2}};
    const order_stream second{.number = 101, .space = {3}};
    bool waits = false;
    SUBCASE("it does not") { waits = false; }
    SUBCASE("it does") { waits = true; }
    stream_order checker({.free_synchronizes = waits});
    checker.allocate(m.shard_bytes());
    checker.launch(first, {}, {m.shard_bytes()}, "copy");
    checker.launch(second, {}, {m.full_bytes()}, "another device");
    checker.free(m.shard, {2}, "cudaFree");
    CHECK(checker.hazard_count() == (waits ? 0 : 1));
    if (!waits) CHECK(checker.hazards()[0].message().find("free_synchronizes") != std::string::npos);
    checker.touch_host(m.full_bytes(), memory_access::read);
    CHECK(checker.hazard_count() == (waits ? 1 : 2));
}

TEST_CASE("ranges at the end of the addresses do not wrap around")
{
    const memory m{};
    stream_order checker;
    checker.launch(compute, {}, {m.shard_bytes()}, "copy");
    checker.touch_host({m.shard, SIZE_MAX}, memory_access::read);
    CHECK(kinds(checker) == list{hazard_kind::read_after_write});
    const auto* const last = reinterpret_cast<const void*>(UINTPTR_MAX - 15);
    checker.launch(gather, {}, {{last, 16}}, "first");
    checker.launch(other, {}, {{last, 16}}, "second");
    CHECK(checker.hazards().size() == 2);
    checker.launch(gather, strided_range{last, 0, 16, 50'000'000'000}, {}, "nothing");
    CHECK(checker.hazards().size() == 2);
}

TEST_CASE("a host thread knows what it has synchronised with, and so does what it enqueues")
{
    const memory m{};
    stream_order checker;
    checker.launch(compute, {}, {m.shard_bytes()}, "copy");
    SUBCASE("without a synchronisation")
    {
        checker.touch_host(m.shard_bytes(), memory_access::read);
        REQUIRE(kinds(checker) == list{hazard_kind::read_after_write});
        CHECK(checker.hazards()[0].later.on_host);
        CHECK(checker.hazards()[0].cure.find("synchronise") != std::string::npos);
    }
    SUBCASE("with the stream")
    {
        checker.synchronize(compute);
        checker.touch_host(m.shard_bytes(), memory_access::write);
        checker.launch(gather, {m.shard_bytes()}, {}, "all_gather");
        CHECK(checker.hazard_count() == 0);
    }
    SUBCASE("with an event")
    {
        order_point event;
        checker.record(event, compute);
        checker.reached(event);
        checker.launch(gather, {m.shard_bytes()}, {}, "all_gather");
        CHECK(checker.hazard_count() == 0);
    }
    SUBCASE("with the device")
    {
        synchronize_space(checker, compute.space);
        checker.launch(gather, {m.shard_bytes()}, {}, "all_gather");
        CHECK(checker.hazard_count() == 0);
    }
    SUBCASE("with another device")
    {
        synchronize_space(checker, {compute.space.number + 1});
        checker.launch(gather, {m.shard_bytes()}, {}, "all_gather");
        CHECK(kinds(checker) == list{hazard_kind::read_after_write});
    }
    SUBCASE("another thread does not, unless it is told")
    {
        const auto second = [&] { return testing::calling_thread(checker, 1'000'000); };
        checker.synchronize(compute);
        SUBCASE("not told")
        {
            second()->launch(gather, {m.shard_bytes()}, {}, "all_gather");
            CHECK(kinds(checker) == list{hazard_kind::read_after_write});
        }
        SUBCASE("a mutex that is told of")
        {
            int tag = 0;
            checker.handoff_release(&tag);
            second()->handoff_acquire(&tag);
            second()->launch(gather, {m.shard_bytes()}, {}, "all_gather");
            CHECK(checker.hazard_count() == 0);
        }
        SUBCASE("a thread that began later")
        {
            order_point begin;
            checker.record_thread(begin);
            second()->thread_began(begin);
            second()->launch(gather, {m.shard_bytes()}, {}, "all_gather");
            CHECK(checker.hazard_count() == 0);
        }
    }
}

TEST_CASE("collectives on several streams are not in order: only an event makes them so")
{
    const memory m{};
    float dummy[4]{};
    const memory_range some{dummy, sizeof dummy};
    stream_order checker;
    checker.launch(compute, {}, {m.shard_bytes()}, "copy");
    checker.collective(compute, {some}, {some}, "dummy");
    SUBCASE("no event")
    {
        checker.collective(gather, {m.shard_bytes()}, {m.full_bytes()}, "all_gather");
        REQUIRE(kinds(checker) == list{hazard_kind::read_after_write});
        CHECK(std::string(checker.hazards()[0].earlier.operation) == "copy");
    }
    SUBCASE("an event")
    {
        edge(checker, compute, gather);
        checker.collective(gather, {m.shard_bytes()}, {m.full_bytes()}, "all_gather");
        CHECK(checker.hazard_count() == 0);
    }
}

TEST_CASE("a group's collectives read when it ends: what has changed by then is reported")
{
    const memory m{};
    float staging[8]{};
    const memory_range stage{staging, sizeof staging};
    const memory_range first{m.full, 32 * sizeof(float)};
    const memory_range second{m.full + 32, 32 * sizeof(float)};
    stream_order checker;
    checker.group_begin();
    checker.launch(gather, {}, {stage}, "copy 1");
    checker.collective(gather, {stage}, {first}, "gather 1");
    SUBCASE("one staging buffer for two")
    {
        checker.launch(gather, {}, {stage}, "copy 2");
        checker.collective(gather, {stage}, {second}, "gather 2");
        checker.group_end();
        REQUIRE(kinds(checker) == list{hazard_kind::overwritten_in_group});
        CHECK(std::string(checker.hazards()[0].earlier.operation) == "gather 1");
        CHECK(std::string(checker.hazards()[0].later.operation) == "copy 2");
    }
    SUBCASE("a buffer each")
    {
        checker.launch(gather, {}, {m.shard_bytes()}, "copy 2");
        checker.collective(gather, {m.shard_bytes()}, {second}, "gather 2");
        checker.group_end();
        CHECK(checker.hazard_count() == 0);
    }
    SUBCASE("a group each")
    {
        checker.group_end();
        checker.group_begin();
        checker.launch(gather, {}, {stage}, "copy 2");
        checker.collective(gather, {stage}, {second}, "gather 2");
        checker.group_end();
        CHECK(checker.hazard_count() == 0);
    }
    SUBCASE("a communicator of one rank enqueues at once")
    {
        checker.launch(other, {}, {m.shard_bytes()}, "copy");
        checker.collective(other, {m.shard_bytes()}, {second}, "gather", false);
        checker.launch(other, {}, {m.shard_bytes()}, "copy");
        checker.group_end();
        CHECK(checker.hazard_count() == 0);
    }
}

TEST_CASE("a group is one operation on all its streams, and nothing orders its members")
{
    const memory m{};
    float result[2][8]{};
    const memory_range results[2]{{result[0], sizeof result[0]}, {result[1], sizeof result[1]}};
    stream_order checker;
    checker.launch(compute, {}, {m.shard_bytes()}, "copy");
    checker.group_begin();
    checker.collective(gather, {m.shard_bytes()}, {results[0]}, "first");
    SUBCASE("all wait for the work on each stream, and all work behind for all")
    {
        checker.collective(compute, {m.shard_bytes()}, {results[1]}, "second");
        checker.group_end();
        checker.launch(compute, {results[0], results[1]}, {}, "use");
        checker.launch(gather, {results[0], results[1]}, {}, "use");
        CHECK(checker.hazard_count() == 0);
    }
    SUBCASE("the result of one is not ready for another")
    {
        checker.collective(compute, {results[0]}, {results[1]}, "second");
        checker.group_end();
        CHECK(kinds(checker) == list{hazard_kind::read_after_write});
    }
    SUBCASE("an event recorded within the group does not stand for it")
    {
        order_point done;
        checker.collective(compute, {m.shard_bytes()}, {results[1]}, "second");
        checker.record(done, gather);
        checker.group_end();
        checker.wait(other, done);
        checker.launch(other, {results[0]}, {}, "use");
        CHECK(kinds(checker) == list{hazard_kind::read_after_write});
    }
}

TEST_CASE("a release must come behind every use, and no use behind it until the bytes are allocated")
{
    const memory m{};
    stream_order checker;
    checker.launch(gather, {m.shard_bytes()}, {m.full_bytes()}, "all_gather");
    SUBCASE("by the host too early")
    {
        checker.release(m.shard_bytes());
        CHECK(kinds(checker) == list{hazard_kind::released_in_use});
    }
    SUBCASE("by the host in time")
    {
        checker.synchronize(gather);
        checker.release(m.shard_bytes());
        CHECK(checker.hazard_count() == 0);
        SUBCASE("used then")
        {
            checker.launch(compute, {m.part(3, 1)}, {}, "late");
            REQUIRE(kinds(checker) == list{hazard_kind::use_after_release});
            CHECK(std::string(checker.hazards()[0].later.operation) == "late");
        }
        SUBCASE("allocated and used")
        {
            checker.allocate(m.shard_bytes());
            checker.launch(compute, {}, {m.shard_bytes()}, "new owner");
            CHECK(checker.hazard_count() == 0);
        }
    }
    SUBCASE("memory that others share is not watched")
    {
        checker.synchronize(gather);
        checker.release(m.shard_bytes(), false);
        checker.launch(compute, {}, {m.shard_bytes()}, "new owner");
        CHECK(checker.hazard_count() == 0);
    }
    SUBCASE("in the order of a stream too early")
    {
        checker.release(m.shard_bytes(), compute);
        CHECK(kinds(checker) == list{hazard_kind::released_in_use});
    }
    SUBCASE("in the order of a stream in time, and allocated on one")
    {
        edge(checker, gather, compute);
        checker.release(m.shard_bytes(), compute);
        checker.allocate(m.shard_bytes(), compute);
        checker.launch(compute, {}, {m.shard_bytes()}, "new owner");
        CHECK(checker.hazard_count() == 0);
        checker.launch(other, {}, {m.shard_bytes()}, "not behind the allocation");
        CHECK(kinds(checker) == list{hazard_kind::write_after_write});
    }
}

TEST_CASE("memory that is allocated and released again and again has one entry among those that are watched")
{
    const memory m{};
    stream_order checker({.most_released = 2});
    for (int repeat = 0; repeat < 5; ++repeat) {
        checker.allocate(m.part(0, 4));
        checker.release(m.part(0, 4));
    }
    checker.release(m.part(8, 4));
    checker.launch(compute, {}, {m.part(0, 1)}, "late");
    CHECK(kinds(checker) == list{hazard_kind::use_after_release});
    // A third range takes the place of the first, which was written meanwhile; the second is still watched.
    checker.release(m.part(16, 4));
    checker.launch(gather, {}, {m.part(8, 1)}, "late, too");
    CHECK(kinds(checker) == list{hazard_kind::use_after_release, hazard_kind::use_after_release});
}

TEST_CASE("the legacy default stream is ordered with blocking streams both ways, not with independent ones")
{
    const memory m{};
    const order_stream legacy{.number = 100, .kind = stream_kind::legacy};
    order_stream peer{.number = 101, .kind = stream_kind::blocking};
    const bool blocking = [&] {
        SUBCASE("blocking") {}
        SUBCASE("independent") { peer.kind = stream_kind::independent; }
        SUBCASE("of another device") { peer.space = {1}; }
        return peer.kind == stream_kind::blocking && peer.space == stream_space{};
    }();
    stream_order checker;
    checker.launch(peer, {}, {m.shard_bytes()}, "copy");
    checker.launch(legacy, {m.shard_bytes()}, {m.full_bytes()}, "all_gather");
    checker.launch(peer, {m.full_bytes()}, {}, "use");
    CHECK(checker.hazards().size() == (blocking ? 0 : 2));
}

TEST_CASE("a host that asks a stream, or waits for it, tells the stream nothing")
{
    const memory m{};
    stream_order checker;
    const order_stream legacy{.number = 100, .kind = stream_kind::legacy};
    const order_stream first{.number = 101, .kind = stream_kind::blocking};
    const order_stream second{.number = 102, .kind = stream_kind::blocking};
    order_point seen;
    SUBCASE("a thread that has waited for the copy polls the stream that must wait, too")
    {
        testing::calling_thread(checker, 1)->launch(gather, {}, {m.shard_bytes()}, "copy");
        testing::calling_thread(checker, 2)->synchronize(gather);
        testing::calling_thread(checker, 2)->look(seen, compute);
        SUBCASE("not ready") {}
        SUBCASE("ready") { testing::calling_thread(checker, 2)->reached(seen); }
        SUBCASE("synchronised") { testing::calling_thread(checker, 2)->synchronize(compute); }
        testing::calling_thread(checker, 1)->launch(compute, {m.shard_bytes()}, {}, "step");
        CHECK(kinds(checker) == list{hazard_kind::read_after_write});
    }
    SUBCASE("what that thread enqueues is behind the copy")
    {
        testing::calling_thread(checker, 1)->launch(gather, {}, {m.shard_bytes()}, "copy");
        testing::calling_thread(checker, 2)->synchronize(gather);
        testing::calling_thread(checker, 2)->launch(compute, {}, {}, "anything");
        testing::calling_thread(checker, 1)->launch(compute, {m.shard_bytes()}, {}, "step");
        CHECK(checker.hazard_count() == 0);
    }
    SUBCASE("a query of the legacy stream between two blocking streams")
    {
        checker.launch(legacy, {}, {}, "earlier");
        checker.launch(first, {}, {m.shard_bytes()}, "copy");
        checker.look(seen, legacy);
        checker.launch(second, {m.shard_bytes()}, {}, "step");
        CHECK(kinds(checker) == list{hazard_kind::read_after_write});
    }
    SUBCASE("but the host that waits for the legacy stream knows of all blocking ones, and the other way round")
    {
        checker.launch(first, {}, {m.shard_bytes()}, "copy");
        checker.synchronize(legacy);
        checker.touch_host(m.shard_bytes(), memory_access::read);
        checker.launch(legacy, {}, {m.full_bytes()}, "copy");
        checker.synchronize(second);
        checker.touch_host(m.full_bytes(), memory_access::read);
        CHECK(checker.hazard_count() == 0);
    }
}

TEST_CASE("what an ended stream was behind stays known to its device, and to the legacy stream")
{
    const memory m{};
    stream_order checker;
    const order_stream on_first{.number = 100, .space = {2}};
    const order_stream next{.number = 102, .space = {3}, .kind = stream_kind::independent};
    order_stream ended{.number = 101, .space = {3}, .kind = stream_kind::blocking};
    const order_stream legacy{.number = 103, .space = {3}, .kind = stream_kind::legacy};
    bool is_blocking = true;
    SUBCASE("blocking") {}
    SUBCASE("independent")
    {
        is_blocking = false;
        ended.kind = stream_kind::independent;
    }
    checker.launch(on_first, {}, {m.shard_bytes()}, "copy");
    edge(checker, on_first, ended);
    checker.stream_ended(ended);
    checker.launch(next, {}, {}, "has the line of the one that ended");
    SUBCASE("the device")
    {
        synchronize_space(checker, {3});
        checker.touch_host(m.shard_bytes(), memory_access::read);
        CHECK(checker.hazard_count() == 0);
    }
    SUBCASE("the legacy stream")
    {
        checker.launch(legacy, {m.shard_bytes()}, {}, "use");
        CHECK(checker.hazard_count() == (is_blocking ? 0 : 1));
    }
    SUBCASE("another device does not know")
    {
        synchronize_space(checker, {4});
        checker.touch_host(m.shard_bytes(), memory_access::read);
        CHECK(checker.hazard_count() == 1);
    }
}

TEST_CASE("a stream number that comes again is another stream")
{
    const memory m{};
    stream_order checker;
    checker.launch(compute, {}, {m.shard_bytes()}, "old");
    const bool waited = [&] {
        bool value = false;
        SUBCASE("the old one was waited for") { value = true; }
        SUBCASE("it was not") { value = false; }
        return value;
    }();
    if (waited) checker.synchronize(compute);
    checker.stream_ended(compute);
    checker.launch(compute, {m.shard_bytes()}, {}, "new");
    CHECK(checker.hazards().size() == (waited ? 0 : 1));
}

TEST_CASE("a capture is checked inside, and is one operation when launched")
{
    const memory m{};
    stream_order checker;
    order_stream captured_compute = compute;
    order_stream captured_gather = gather;
    captured_compute.capture = captured_gather.capture = 4;
    SUBCASE("a missing edge within it")
    {
        checker.launch(captured_compute, {}, {m.shard_bytes()}, "copy");
        checker.launch(captured_gather, {m.shard_bytes()}, {}, "all_gather");
        CHECK(kinds(checker) == list{hazard_kind::read_after_write});
    }
    SUBCASE("ordered within, and launched")
    {
        // What was enqueued before the capture is no part of it.
        checker.launch(other, {}, {m.full_bytes()}, "before");
        checker.launch(captured_compute, {}, {m.shard_bytes()}, "copy");
        edge(checker, captured_compute, captured_gather);
        checker.launch(captured_gather, {m.shard_bytes()}, {m.full_bytes()}, "all_gather");
        checker.capture_end(4);
        CHECK(checker.hazard_count() == 0);
        SUBCASE("on a stream behind what it needs")
        {
            edge(checker, other, compute);
            checker.launch_graph(4, compute);
            checker.launch_graph(4, compute);
            checker.launch(compute, {m.full_bytes()}, {}, "use");
            CHECK(checker.hazard_count() == 0);
        }
        SUBCASE("not behind it")
        {
            checker.launch_graph(4, compute);
            CHECK(kinds(checker) == list{hazard_kind::write_after_write});
        }
        SUBCASE("twice on two streams")
        {
            edge(checker, other, compute);
            checker.launch_graph(4, compute);
            checker.launch_graph(4, gather);
            CHECK(checker.hazard_count() != 0);
        }
        SUBCASE("as one executable on two streams, which does not overlap itself, and as two")
        {
            const order_object first(std::uint64_t{100}), second(std::uint64_t{101});
            checker.set_capture_of(first, 4);
            checker.set_capture_of(second, 4);
            edge(checker, other, compute);
            checker.launch_graph(first, compute);
            checker.launch_graph(first, gather);
            CHECK(checker.hazard_count() == 0);
            checker.launch_graph(second, compute);
            CHECK(checker.hazard_count() != 0);
        }
    }
    SUBCASE("an access while the capture is open, with no order before the launch, is half of a pair")
    {
        bool later = false;
        SUBCASE("before the captured one") { later = false; }
        SUBCASE("behind the captured one") { later = true; }
        checker.capture_begin(4);
        if (later) checker.launch(captured_compute, {}, {m.shard_bytes()}, "copy");
        checker.launch(gather, {m.shard_bytes()}, {}, "all_gather");
        if (!later) checker.launch(captured_compute, {}, {m.shard_bytes()}, "copy");
        checker.capture_end(4);
        CHECK(checker.hazard_count() == 0);
        bool waits = false;
        SUBCASE("with an event before the launch") { waits = true; }
        SUBCASE("without") { waits = false; }
        if (waits) edge(checker, gather, compute);
        checker.launch_graph(4, compute);
        if (waits) {
            CHECK(checker.hazard_count() == 0);
            return;
        }
        REQUIRE(kinds(checker) == list{hazard_kind::half_captured});
        CHECK(std::string(checker.hazards()[0].earlier.operation) == "all_gather");
        CHECK(checker.hazards()[0].message().find("while the graph was captured") != std::string::npos);
    }
    SUBCASE("an input of the graph that the host writes while the capture is open is written before the launch")
    {
        checker.launch(captured_compute, {m.shard_bytes()}, {}, "step");
        checker.touch_host(m.shard_bytes(), memory_access::write);
        checker.launch_graph(4, compute);
        CHECK(checker.hazard_count() == 0);
    }
    SUBCASE("before the capture begins, or after it has ended, is a race like any other")
    {
        checker.launch(gather, {}, {m.shard_bytes()}, "copy");
        checker.capture_begin(4);
        checker.launch(captured_compute, {m.shard_bytes()}, {}, "step");
        checker.capture_end(4);
        checker.launch(other, {}, {m.full_bytes()}, "copy");
        CHECK(checker.hazard_count() == 0);
        checker.launch_graph(4, compute);
        CHECK(kinds(checker) == list{hazard_kind::read_after_write});
    }
}

TEST_CASE("a pair of call sites is reported once and counted, and the list is bounded")
{
    const memory m{};
    stream_order checker({.most_reports = 2});
    for (int repeat = 0; repeat < 5; ++repeat) {
        checker.launch(compute, {}, {m.part(0, 4), m.part(8, 4)}, "copy", {"a.cpp", "", 1});
        checker.launch(gather, {m.shard_bytes()}, {}, "all_gather", {"a.cpp", "", 2});
        checker.launch(compute, {m.shard_bytes()}, {}, "use", {"a.cpp", "", 3});
    }
    REQUIRE(checker.hazards().size() == 2);
    CHECK(checker.hazards()[0].count == 5);
    CHECK(checker.hazards()[0].kind == hazard_kind::read_after_write);
    CHECK(checker.hazards()[1].kind == hazard_kind::write_after_read);
    checker.launch(other, {}, {m.shard_bytes()}, "third pair", {"a.cpp", "", 4});
    CHECK(checker.hazards().size() == 2);
    CHECK(checker.hazard_count() > 9);
    checker.clear_reports();
    CHECK(checker.hazards().empty());
    CHECK(checker.hazard_count() == 0);
}

TEST_CASE("two operations that meet in several tensors and ways are one report")
{
    const memory m{};
    stream_order checker;
    checker.launch(compute, {m.part(32, 8)}, {m.part(0, 8), m.part(16, 8)}, "step");
    checker.launch(gather, {m.part(0, 8), m.part(16, 8)}, {m.part(32, 8), m.part(0, 4)}, "gather");
    REQUIRE(checker.hazards().size() == 1);
    const stream_hazard found = checker.hazards()[0];
    CHECK(found.kind == hazard_kind::read_after_write);
    CHECK(found.count == 1);
    CHECK(found.further_runs == 3);
    CHECK(found.message().find("and 3 more runs of bytes") != std::string::npos);
    CHECK(checker.hazard_count() == 1);
}

TEST_CASE("rows with a stride are touched without the gaps, and bounded as a whole")
{
    const memory m{};
    stream_order checker;
    const strided_range columns{m.full, 4, 16, 64};
    checker.launch(compute, {}, columns, "columns");
    checker.launch(gather, {{m.full + 1, 4}, {m.full + 253, 12}}, {}, "gaps");
    CHECK(checker.hazard_count() == 0);
    checker.launch(gather, {{m.full + 252, 4}}, {}, "the last one");
    CHECK(kinds(checker) == list{hazard_kind::read_after_write});
    checker.allocate({m.full, 16 * 63});
    checker.launch(compute, columns, {}, "columns");
    CHECK(kinds(checker) == list{hazard_kind::read_after_write, hazard_kind::beyond_allocation});
    CHECK(checker.hazards()[1].later.bytes.bytes == 63 * 16 + 4);
    const std::vector<memory_range> listed{m.part(0, 4), m.part(8, 4)};
    checker.launch(compute, {}, listed, "writes");
    checker.launch(gather, strided_range{m.shard, 16, 32, 2}, {}, "reads");
    checker.launch(gather, strided_range{m.shard, 16, 32, 0}, strided_range{}, "nothing");
    CHECK(checker.hazards().size() == 3);
}

TEST_CASE("bytes that an earlier access wrote in several runs are one report")
{
    const memory m{};
    stream_order checker;
    for (std::size_t at = 0; at < 64; at += 8) {
        checker.launch(compute, {}, {m.part(at, 8)}, "copy", {"a.cpp", "", 1});
    }
    checker.launch(gather, {m.shard_bytes()}, {}, "all_gather", {"a.cpp", "", 2});
    REQUIRE(checker.hazards().size() == 1);
    CHECK(checker.hazards()[0].count == 1);
    CHECK(checker.hazards()[0].later.bytes.bytes == sizeof m.shard);
}

TEST_CASE("a hazard is told to who asks, by the call itself, and may be thrown")
{
    const memory m{};
    SUBCASE("thrown")
    {
        stream_order checker({.on_hazard = stream_order::raise});
        checker.launch(compute, {}, {m.shard_bytes()}, "copy");
        try {
            checker.launch(gather, {m.shard_bytes()}, {}, "all_gather", {"a.cpp", "", 33});
            FAIL("nothing was thrown");
        } catch (const error& known) {
            CHECK(known.where().line == 33);
            CHECK(std::string(known.what()).find("Cure: ") != std::string::npos);
        }
        checker.launch(compute, {m.shard_bytes()}, {}, "fine");
        CHECK(checker.hazards().size() == 1);
    }
    SUBCASE("called, once for a pair of call sites; the call may call the checker")
    {
        struct listener {
            stream_order* checker = nullptr;
            int calls = 0;
        } heard;
        stream_order checker({.on_hazard =
                                  [](const stream_hazard&, void* context) {
                                      listener& own = *static_cast<listener*>(context);
                                      ++own.calls;
                                      (void)own.checker->hazards();
                                  },
            .context = &heard});
        heard.checker = &checker;
        for (int repeat = 0; repeat < 3; ++repeat) {
            checker.launch(compute, {}, {m.shard_bytes()}, "copy", {"a.cpp", "", 1});
            checker.launch(gather, {m.shard_bytes()}, {}, "all_gather", {"a.cpp", "", 2});
        }
        CHECK(heard.calls == 2);
    }
}

TEST_CASE("threads with streams of their own do not disturb each other, and a shared byte is reported")
{
    stream_order checker;
    constexpr int threads = 4;
    std::vector<float> data(threads * 64);
    const bool shared = [] {
        bool value = false;
        SUBCASE("each its own bytes") { value = false; }
        SUBCASE("one shared") { value = true; }
        return value;
    }();
    std::vector<std::thread> running;
    for (int number = 0; number < threads; ++number) {
        running.emplace_back([&, number] {
            const auto index = static_cast<std::uint64_t>(number);
            const order_stream first{.number = 10 + 2 * index};
            const order_stream second{.number = 11 + 2 * index};
            const memory_range own{data.data() + 64 * index, 64 * sizeof(float)};
            order_point event;
            for (int repeat = 0; repeat < 500; ++repeat) {
                checker.launch(first, {}, {own}, "write");
                checker.record(event, first);
                checker.wait(second, event);
                checker.launch(second, {own}, {}, "read");
                if (shared) checker.launch(second, {}, {{data.data(), 4}}, "shared");
                checker.record(event, second);
                checker.wait(first, event);
                checker.reached(event);
            }
        });
    }
    for (std::thread& each : running) each.join();
    CHECK((checker.hazard_count() != 0) == shared);
}

TEST_CASE("what is known of bytes agrees with a list of all bytes, with 10000 runs and more")
{
    // Each byte's last writer, by stream: a stream that has seen nothing of the others conflicts with each.
    constexpr std::uint64_t size = 60'000;
    std::vector<unsigned char> memory(size);
    std::vector<unsigned> writer(size, 0);
    detail::order_shadow shadow;
    std::uint64_t state = 1;
    const auto random = [&state](std::uint64_t below) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return (state >> 33) % below;
    };
    for (unsigned step = 1; step < 60'000; ++step) {
        const std::uint64_t first = random(size);
        const std::uint64_t longest = step % 1000 == 0 ? 5000 : 6;
        const std::uint64_t count = 1 + random(std::min(longest, size - first));
        const memory_range range{memory.data() + first, count};
        const auto expect = [&](memory_range bytes, const detail::order_segment& known) {
            for (std::uintptr_t byte = bytes.first; byte < bytes.end(); ++byte) {
                if (writer[byte - reinterpret_cast<std::uintptr_t>(memory.data())] != known.write.epoch) {
                    FAIL("step " << step);
                }
            }
        };
        const unsigned kind = step % 16;
        if (kind == 0) {
            shadow.forget(range);
            for (std::uint64_t at = 0; at < count; ++at) writer[first + at] = 0;
        } else if (kind < 4) {
            std::uint64_t seen = 0;
            shadow.visit(range, [&](memory_range bytes, detail::order_segment& known) {
                expect(bytes, known);
                seen += bytes.bytes;
            });
            REQUIRE(seen == count);
        } else {
            detail::order_segment& made = shadow.replace(range, expect);
            made.write = {step, 0, 0};
            for (std::uint64_t at = 0; at < count; ++at) writer[first + at] = step;
        }
    }
    std::size_t runs = 0;
    std::uint64_t known_bytes = 0;
    shadow.look({memory.data(), size}, [&](memory_range bytes, const detail::order_segment& known) {
        ++runs;
        if (known.write.epoch != 0) known_bytes += bytes.bytes;
    });
    CHECK(runs > 10'000);
    CHECK(known_bytes == size - static_cast<std::uint64_t>(std::count(writer.begin(), writer.end(), 0u)));
}

#if !COLLPROBE_STREAM_ORDER
TEST_CASE("installing is refused where the library's calls tell nobody")
{
    stream_order checker;
    CHECK_THROWS_AS(checker.install(), error);
    CHECK(!checker.installed());
}
#endif
