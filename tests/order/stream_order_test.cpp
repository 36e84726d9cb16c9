// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <collprobe/order/stream_order.hpp>

#include "order/calling_thread.hpp"
#include "order/reports.hpp"

namespace collprobe::testing::stream_order_test {
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

TEST_CASE("each kind of hazard is told with what is missing, and with its cure")
{
    const memory m{};
    const auto side = [&](const char* operation, std::uint64_t number, std::size_t elements, unsigned line) {
        stream_hazard::side made;
        made.operation = operation;
        made.number = number;
        made.bytes = m.part(0, elements);
        made.where = {"a.cpp", "", line};
        return made;
    };
    const auto copy = side("copy", 3, 4, 7), use = side("use", 5, 8, 9), release = side("cudaFree", 5, 8, 9);
    auto host = side("host", 1, 4, 2);
    host.on_host = true;
    using enum hazard_kind;
    const struct {
        hazard_kind kind;
        stream_hazard::side earlier, later;
        const char* missing;
        const char* cure;
    } told[]{
        {read_after_write, copy, use, "nothing orders use [a.cpp:9] on stream 5 behind copy [a.cpp:7] on stream 3",
            "record an event on stream 3 after copy [a.cpp:7] and let stream 5 wait for it before use [a.cpp:9]"},
        {read_after_write, copy, host, "behind copy", "and synchronise host thread 1 with it before host [a.cpp:2]"},
        {write_after_read, host, copy, "behind host", "let the thread that enqueues copy [a.cpp:7] learn of host"},
        {write_after_write, host, host, "behind host", "hand the bytes over from host thread 1"},
        {released_in_use, copy, release, "behind copy", "options::free_synchronizes takes it that it does"},
        {unrecorded_event, {}, use, "the event that stream 5 waits for at use [a.cpp:9] was never recorded",
            "record the event before use [a.cpp:9]"},
        {use_after_release, copy, use, "the bytes have no owner since copy [a.cpp:7] on stream 3", "release them after use"},
        {overwritten_in_group, use, copy, "use [a.cpp:9] reads when its group ends, and copy [a.cpp:7] on stream 3",
            "end the group before copy [a.cpp:7]"},
        {half_captured, copy, use, "it was enqueued while the graph was captured", "capture both or neither, or record"},
        {beyond_allocation, copy, use, "the last 16 of these bytes, because the allocation of 16 bytes from 0x",
            "give use [a.cpp:9] the count of its elements, not of bytes or of another buffer, or allocate 32 bytes"},
    };
    for (const auto& each : told) {
        stream_hazard found;
        found.kind = each.kind;
        found.earlier = each.earlier;
        found.later = each.later;
        detail::explain(found);
        CAPTURE(found.message());
        CHECK(found.missing.find(each.missing) != std::string::npos);
        CHECK(found.cure.find(each.cure) != std::string::npos);
        CHECK(found.message().find(name(found.kind)) != std::string::npos);
    }
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

TEST_CASE("each pair of call sites is told once, as it is at the end of the call, also if the list is full")
{
    const memory m{};
    struct listener {
        stream_order* checker = nullptr;
        std::vector<std::string> told;
    } heard;
    std::size_t most = 0;
    SUBCASE("a list of none") { most = 0; }
    SUBCASE("a list of one") { most = 1; }
    SUBCASE("a list with room") { most = 10; }
    const auto hear = [](const stream_hazard& found, void* to) {
        listener& own = *static_cast<listener*>(to);
        (void)own.checker->hazards(); // the call may call the checker
        own.told.push_back(found.later.operation + std::to_string(found.later.bytes.bytes));
    };
    stream_order checker({.on_hazard = hear, .context = &heard, .most_reports = most});
    heard.checker = &checker;
    for (std::size_t part = 0; part < 4; ++part) {
        checker.launch(compute, {}, {m.part(4 * part, 4)}, "write", {"a.cpp", "", 1});
    }
    for (int repeat = 0; repeat < 3; ++repeat) {
        checker.launch(gather, {m.part(0, 16)}, {}, "first", {"a.cpp", "", 2});
        checker.launch(other, {m.part(0, 16)}, {}, "second", {"a.cpp", "", 3});
    }
    REQUIRE(heard.told.size() == 2);
    CHECK(heard.told[0] == (most > 0 ? "first64" : "first16"));
    CHECK(heard.told[1] == (most > 1 ? "second64" : "second16"));
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

TEST_CASE("two operations that meet in several tensors, runs and ways are one report")
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
    // The runs of one write, each by a call of its own, are one range of bytes.
    checker.clear_reports();
    checker.allocate(m.shard_bytes()); // forgets what was done to it
    for (std::size_t at = 0; at < 64; at += 8) checker.launch(compute, {}, {m.part(at, 8)}, "copy", {"a.cpp", "", 1});
    checker.launch(gather, {m.shard_bytes()}, {}, "all_gather", {"a.cpp", "", 2});
    REQUIRE(checker.hazards().size() == 1);
    CHECK(checker.hazards()[0].count == 1);
    CHECK(checker.hazards()[0].later.bytes.bytes == sizeof m.shard);
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

TEST_CASE("a hazard may be thrown by the call itself")
{
    const memory m{};
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

TEST_CASE("threads with streams of their own do not disturb each other, and a shared byte is reported")
{
    bool shared = false;
    SUBCASE("each its own bytes") { shared = false; }
    SUBCASE("one shared") { shared = true; }
    stream_order checker;
    constexpr std::uint64_t threads = 4;
    std::vector<float> data(threads * 64);
    std::vector<std::thread> running;
    for (std::uint64_t index = 0; index < threads; ++index) {
        running.emplace_back([&, index] {
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

#if !COLLPROBE_STREAM_ORDER
TEST_CASE("installing is refused where the library's calls tell nobody")
{
    stream_order checker;
    CHECK_THROWS_AS(checker.install(), error);
    CHECK(!checker.installed());
}
#endif

} // namespace collprobe::testing::stream_order_test
