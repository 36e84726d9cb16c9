// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/order/ordered.hpp>
#include <collprobe/order/stream_order.hpp>
#include <collprobe/reduce/reproducible.hpp>
#include <collprobe/step/probed.hpp>

#include "examples/support/device_ranks.hpp"
#include "order/reports.hpp"

namespace collprobe::testing::stream_order_hooks_test {

// What the library itself tells the checker, on host streams. Compiled with COLLPROBE_STREAM_ORDER=1.

namespace {

constexpr std::uint64_t count = 64;

/// Real order that the checker cannot see, so that what is reported here is no race of the test's own.
class hidden_order {
public:
    void behind(host::stream_ref on)
    {
        on.enqueue([this] { done_.store(true, std::memory_order_release); });
    }
    void before(host::stream_ref on)
    {
        on.enqueue([this] {
            while (!done_.load(std::memory_order_acquire)) std::this_thread::yield();
        });
    }

private:
    std::atomic<bool> done_{false};
};

} // namespace

TEST_CASE("a clean step is silent: probed, or over two devices of the host")
{
    stream_order checker;
    checker.install();
    const auto step = [](auto& comm) {
        const host::buffer<float> gradient(1000), sum(1000), full(2000), copy(1000);
        const host::stream compute, communication;
        host::event ready, done;
        for (int repeat = 0; repeat < 3; ++repeat) {
            host::device::fill(compute, view<float>(gradient), 1.0f);
            ready.record(compute);
            communication.wait(ready);
            comm.all_reduce(view<const float>(gradient), view<float>(sum), reduction::sum, communication);
            comm.all_gather(view<const float>(sum), view<float>(full), communication);
            done.record(communication);
            compute.wait(done);
            host::device::copy<float>(compute, view<const float>(sum), view<float>(copy));
        }
        compute.synchronize();
    };
    SUBCASE("ranks of the host")
    {
        local::run(2, [&](local::communicator& world) {
            probed comm(world);
            step(comm);
        });
    }
    SUBCASE("ranks of a device") { local::run_on<host::device>(2, local::options{}, step); }
    CAPTURE(messages(checker));
    CHECK(checker.hazard_count() == 0);
}

TEST_CASE("a call that the library makes of several is told as one")
{
    stream_order checker;
    checker.install();
    local::run(2, [&](local::communicator& comm) {
        const host::buffer<float> gradient(count), sum(count);
        reproducible exact(comm);
        hidden_order hidden;
        const host::stream compute, communication;
        host::device::fill(compute, view<float>(gradient), 1.0f);
        hidden.behind(compute);
        hidden.before(communication);
        exact.all_reduce(view<const float>(gradient), view<float>(sum), reduction::sum, communication);
        communication.synchronize();
        compute.synchronize();
    });
    CAPTURE(messages(checker));
    REQUIRE(checker.hazards().size() == 1);
    CHECK(std::string(checker.hazards()[0].earlier.operation) == "fill");
    CHECK(std::string(checker.hazards()[0].later.operation) == "all_reduce");
}

TEST_CASE("threads of ranks begin behind who runs them, and are over when that returns")
{
    stream_order checker;
    checker.install();
    std::vector<float> data(3);
    checker.touch_host(view<float>(data), memory_access::write);
    for (int repeat = 0; repeat < 3; ++repeat) {
        local::run(3, [&](local::communicator& comm) {
            checker.touch_host({&data[static_cast<std::size_t>(comm.rank())], sizeof(float)}, memory_access::write);
        });
        checker.touch_host(view<float>(data), memory_access::read);
    }
    CAPTURE(messages(checker));
    CHECK(checker.hazard_count() == 0);
    local::run(2, [&](local::communicator&) { checker.touch_host(view<float>(data), memory_access::write); });
    CHECK(checker.hazard_count() != 0);
}

TEST_CASE("a buffer that goes while work uses it is reported, one that waits is not")
{
    stream_order checker;
    checker.install();
    [[maybe_unused]] const hidden_order hidden;
    const host::stream stream;
    const bool waits = [] {
        bool value = false;
        SUBCASE("goes at once") { value = false; }
        SUBCASE("a synchronisation") { value = true; }
        return value;
    }();
    {
        const host::buffer<float> from(count), to(count);
        host::device::fill(stream, view<float>(from), 1.0f);
        host::device::copy<float>(stream, view<const float>(from), view<float>(to));
        if (waits) {
            stream.synchronize();
        } else {
            // Waited for, but not so that the checker knows.
            std::atomic<bool> done{false};
            stream.enqueue([&done] { done.store(true, std::memory_order_release); });
            while (!done.load(std::memory_order_acquire)) std::this_thread::yield();
        }
    }
    CAPTURE(messages(checker));
    CHECK((checker.hazard_count() == 0) == waits);
    for (const stream_hazard& each : checker.hazards()) CHECK(each.kind == hazard_kind::released_in_use);
}

TEST_CASE("what a host thread has seen done is known: synchronize, query and the end of a stream")
{
    stream_order checker;
    checker.install();
    const host::buffer<float> data(count);
    int how = 0;
    SUBCASE("nothing") { how = 0; }
    SUBCASE("the stream's synchronize") { how = 1; }
    SUBCASE("the event's synchronize") { how = 2; }
    SUBCASE("the stream's query") { how = 3; }
    SUBCASE("the event's query") { how = 4; }
    SUBCASE("the end of the stream") { how = 5; }
    {
        const host::stream stream;
        host::event done;
        host::device::fill(stream, view<float>(data), 1.0f);
        done.record(stream);
        const host::event copy = done;
        if (how == 1) stream.synchronize();
        if (how == 2) copy.synchronize();
        while (how == 3 && !stream.query()) std::this_thread::yield();
        while (how == 4 && !copy.query()) std::this_thread::yield();
        if (how < 5) checker.touch_host(view<float>(data), memory_access::read);
    }
    if (how == 5) checker.touch_host(view<float>(data), memory_access::read);
    CHECK((checker.hazard_count() == 0) == (how != 0));
}

TEST_CASE("tasks of host streams that say what they touch are checked like the library's own work")
{
    stream_order checker;
    checker.install();
    const host::buffer<float> gradient(count), weights(count), full(count);
    hidden_order hidden;
    const host::stream backward, updates, traffic;
    ordered::name(backward, "backward");
    ordered::touch(backward, {}, {view<float>(gradient)}, "gradients");
    const unsigned earlier_line = __LINE__ - 1;
    backward.enqueue([data = view<float>(gradient)] { std::fill(data.begin(), data.end(), 1.0f); });
    hidden.behind(backward);
    hidden.before(updates);
    const unsigned later_line = __LINE__ + 1;
    ordered::enqueue(updates, {view<float>(gradient)}, {view<float>(weights)},
        [from = view<float>(gradient), to = view<float>(weights)] { std::copy(from.begin(), from.end(), to.begin()); },
        "optimizer step");
    // Against a call of the library, too.
    hidden_order again;
    again.behind(updates);
    again.before(traffic);
    host::device::copy<float>(traffic, view<const float>(weights), view<float>(full));
    for (const host::stream* each : {&backward, &updates, &traffic}) each->synchronize();
    CHECK(full[0] == 1.0f);
    ordered::touch_host(view<float>(full), memory_access::read);
    CAPTURE(messages(checker));
    REQUIRE(checker.hazards().size() == 2);
    const stream_hazard found = checker.hazards()[0];
    CHECK(found.kind == hazard_kind::read_after_write);
    CHECK(std::string(found.earlier.operation) == "gradients");
    CHECK(found.earlier.where.line == earlier_line);
    CHECK(std::string(found.later.operation) == "optimizer step");
    CHECK(found.later.where.line == later_line);
    CHECK(found.later.bytes.bytes == count * sizeof(float));
    CHECK(found.message().find("backward") != std::string::npos);
    CHECK(std::string(checker.hazards()[1].earlier.operation) == "optimizer step");
    CHECK(std::string(checker.hazards()[1].later.operation) == "copy");
}

TEST_CASE("work whose report throws is not enqueued, and the host's own access without a wait is a hazard")
{
    stream_order checker({.on_hazard = stream_order::raise});
    checker.install();
    const host::buffer<float> data(count), copied(count);
    const host::stream first, second, third;
    std::fill(data.begin(), data.end(), 3.0f);
    std::fill(copied.begin(), copied.end(), 0.0f);
    ordered::enqueue(first, {}, {view<float>(data)}, [] {});
    bool ran = false;
    CHECK_THROWS_AS(ordered::enqueue(second, {}, {view<float>(data)}, [&] { ran = true; }), error);
    CHECK_THROWS_AS(host::device::copy<float>(third, view<const float>(data), view<float>(copied)), error);
    CHECK_THROWS_AS(ordered::touch_host(view<float>(data), memory_access::read), error);
    for (const host::stream* each : {&first, &second, &third}) each->synchronize();
    CHECK(!ran);
    CHECK(copied[0] == 0.0f);
}

TEST_CASE("a view that is longer than its buffer is reported on the rank and the side that has it")
{
    stream_order checker({.on_hazard = stream_order::raise});
    checker.install();
    const host::buffer<float> small(2), large(8);
    const host::stream stream;
    CHECK_THROWS_AS(host::device::copy(stream, view<const float>(large.data(), 4), view<float>(small.data(), 4)), error);
    host::device::copy(stream, view<const float>(large.data(), 2), view<float>(small));
    local::run(1, [&](local::communicator& comm) {
        CHECK_THROWS_AS(comm.all_reduce(view<const float>(small.data(), 4), view<float>(large.data(), 4),
                            reduction::sum, stream),
            error);
    });
    stream.synchronize();
    REQUIRE(checker.hazards().size() == 2);
    CAPTURE(messages(checker));
    for (const stream_hazard& each : checker.hazards()) {
        CHECK(each.kind == hazard_kind::beyond_allocation);
        CHECK(each.earlier.bytes.bytes == 8);
        CHECK(each.later.bytes.bytes == 16);
    }
    CHECK(checker.hazards()[0].later.mode == memory_access::write);
    CHECK(checker.hazards()[1].later.mode == memory_access::read);
}

TEST_CASE("one checker is installed at a time, and none hears nothing")
{
    const host::buffer<float> data(count);
    const host::stream first, second;
    const auto unordered = [&] {
        host::device::fill(first, view<float>(data), 1.0f);
        first.synchronize();
        second.synchronize();
    };
    stream_order checker;
    unordered();
    checker.install();
    CHECK(checker.installed());
    stream_order another;
    CHECK_THROWS_AS(another.install(), error);
    CHECK_THROWS_AS(checker.install(), error);
    CHECK(!another.installed());
    host::event before;
    before.record(first);
    checker.uninstall();
    another.install();
    second.wait(before); // recorded for another checker: nothing is known of it
    unordered();
    CHECK(checker.hazard_count() == 0);
    CHECK(another.hazard_count() == 0);
}

TEST_CASE("threads that install at once: one of them succeeds")
{
    for (int round = 0; round < 50; ++round) {
        stream_order one, other;
        std::atomic<int> installed{0};
        const auto install = [&](stream_order& own) {
            try {
                own.install();
                ++installed;
            } catch (const error&) {
            }
        };
        std::thread first(install, std::ref(one)), second(install, std::ref(other));
        first.join();
        second.join();
        CHECK(installed == 1);
        CHECK(one.installed() != other.installed());
    }
}

} // namespace collprobe::testing::stream_order_hooks_test
