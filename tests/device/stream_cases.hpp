// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <latch>
#include <string>
#include <thread>
#include <utility>

#include <collprobe/core/view.hpp>

#include "support/checks.hpp"

/// What streams and events do on every platform, which has `device`, `stream`, `event` and `enqueue`. The values are
/// plain memory: ThreadSanitizer checks the order, too.
namespace collprobe::testing {

template <class Platform>
void captures_what_was_before()
{
    std::latch go(1);
    int before = 0;
    const typename Platform::stream producer, consumer;
    typename Platform::event recorded;
    Platform::enqueue(producer, [&] { before = 1; });
    recorded.record(producer);
    Platform::enqueue(producer, [&] { go.wait(); });
    recorded.synchronize(soon_ms); // does not wait for the task behind the record
    CHECK(before == 1);
    CHECK(recorded.query());
    consumer.wait(recorded);
    consumer.synchronize(soon_ms);
    CHECK_FALSE(producer.query());
    go.count_down();
    producer.synchronize(soon_ms); // a stream of CUDA does not wait when it goes
}

template <class Platform>
void waits_for_the_last_record_before()
{
    std::latch first(1), second(1);
    bool ran = false;
    const typename Platform::stream producer, consumer;
    typename Platform::event reused;
    Platform::enqueue(producer, [&] { first.wait(); });
    reused.record(producer);
    consumer.wait(reused);
    Platform::enqueue(consumer, [&] { ran = true; });
    Platform::enqueue(producer, [&] { second.wait(); });
    reused.record(producer); // does not change what the consumer waits for
    CHECK_FALSE(reused.query());
    CHECK_FALSE(consumer.query());
    first.count_down();
    consumer.synchronize(soon_ms);
    CHECK(ran);
    CHECK_FALSE(reused.query());
    second.count_down();
    reused.synchronize(soon_ms);
    CHECK(reused.query());
}

template <class Platform>
void copies_keep_their_point()
{
    std::latch go(1);
    const typename Platform::stream held, free, waits;
    Platform::enqueue(held, [&] { go.wait(); });
    typename Platform::event original;
    original.record(held);
    const typename Platform::event copy = original;
    original.record(free);
    original.synchronize(soon_ms);
    CHECK_FALSE(copy.query());
    waits.wait(copy);
    CHECK(error_of([&] { waits.synchronize(20); }));
    go.count_down();
    waits.synchronize(soon_ms);
    CHECK(copy.query());
}

template <class Platform>
void orders_two_streams_both_ways()
{
    int value = 0;
    int seen = -1;
    const typename Platform::stream producer, consumer;
    typename Platform::event ready, read;
    for (int round = 1; round <= 200; ++round) {
        Platform::enqueue(producer, [&, round] { value = round; });
        ready.record(producer);
        consumer.wait(ready);
        Platform::enqueue(consumer, [&] { seen = value; });
        read.record(consumer);
        producer.wait(read); // the next value must not overwrite what is being read
    }
    consumer.synchronize(soon_ms);
    CHECK(seen == 200);
}

template <class Platform>
void does_not_order_without_a_wait()
{
    std::latch at_the_end(1);
    bool ran = false;
    const typename Platform::stream blocked, free;
    Platform::enqueue(blocked, [&] { at_the_end.wait(); });
    Platform::enqueue(free, [&] { ran = true; });
    free.synchronize(soon_ms);
    CHECK(ran);
    typename Platform::event own;
    own.record(free);
    free.wait(own); // is no work
    free.synchronize(soon_ms);
    CHECK(own.query());
    CHECK_FALSE(blocked.query());
    at_the_end.count_down();
    blocked.synchronize(soon_ms);
}

template <class Platform>
void refuses_an_event_without_a_record()
{
    const typename Platform::stream stream;
    const typename Platform::event never;
    CHECK_FALSE(never.recorded());
    const std::pair<const char*, std::function<void()>> uses[]{
        {"wait", [&] { stream.wait(never); }},
        {"query", [&] { (void)never.query(); }},
        {"synchronize", [&] { never.synchronize(); }},
        {"synchronize", [&] { never.synchronize(100); }},
    };
    for (const auto& [call, use] : uses) {
        const auto failure = error_of(use);
        check_error(failure, status::invalid_argument, {"the event was never recorded"});
        CHECK(std::string(failure->call()) == call);
    }
}

template <class Platform>
void waits_for_a_stream_that_is_gone()
{
    int value = 0;
    int seen = 0;
    const typename Platform::stream consumer;
    {
        const typename Platform::stream producer;
        typename Platform::event ready;
        Platform::enqueue(producer, [&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            value = 5;
        });
        ready.record(producer);
        consumer.wait(ready);
        Platform::enqueue(consumer, [&] { seen = value; });
    }
    consumer.synchronize(soon_ms);
    CHECK(seen == 5);
}

/// Copies and fills their range, in the order of the stream.
template <class Platform>
void copies_and_fills_exactly()
{
    using device = typename Platform::device;
    typename device::template host_buffer<std::int32_t> source(64), destination(66);
    for (std::uint64_t i = 0; i < 64; ++i) source[i] = static_cast<std::int32_t>(i);
    for (std::int32_t& value : destination) value = -1;
    const typename Platform::stream stream;
    Platform::enqueue(stream, [&] { source[5] = 500; });
    device::copy(stream, view<const std::int32_t>(source), view<std::int32_t>(destination).part(1, 64));
    Platform::enqueue(stream, [&] { source[6] = 600; });
    device::fill(stream, view<std::int32_t>(destination).part(60, 3), 9);
    stream.synchronize(soon_ms);
    for (std::int32_t i = 0; i < 66; ++i) {
        const std::int32_t expected = i == 0 || i == 65 ? -1 : i >= 60 && i < 63 ? 9 : i == 6 ? 500 : i - 1;
        CHECK(destination[static_cast<std::uint64_t>(i)] == expected);
    }
}

template <class Platform>
void refuses_bad_memory()
{
    using device = typename Platform::device;
    typename device::template host_buffer<float> memory(20);
    for (float& value : memory) value = 1.0f;
    const typename Platform::stream stream;
    const view<float> all(memory), none(nullptr, 10);
    const auto copy = [&](view<const float> from, view<float> to) {
        return refusal([&] { device::copy(stream, from, to); });
    };
    const auto fill = [&](view<float> to) { return refusal([&] { device::fill(stream, to, 2.0f); }); };
    CHECK(contains(copy(all.part(0, 4), all.part(8, 5)), "differ in count"));
    CHECK(contains(copy(none, all.part(0, 10)), "null"));
    CHECK(contains(copy(all.part(0, 10), none), "null"));
    CHECK(contains(copy(all.part(0, 8), all.part(7, 8)), "overlap"));
    CHECK(contains(copy(all.part(0, 8), all.part(0, 8)), "overlap"));
    CHECK(contains(copy(all.part(0, 8), all.part(7, 8)), "stream_cases.hpp"));
    CHECK(contains(fill(none), "null"));
    auto* const odd = reinterpret_cast<float*>(reinterpret_cast<unsigned char*>(memory.data()) + 1);
    CHECK(contains(fill({odd, 2}), "destination is not aligned"));
    stream.synchronize(soon_ms);
    for (const float value : memory) CHECK(value == 1.0f);
    CHECK(copy(all.part(0, 8), all.part(8, 8)) == "accepted"); // neighbours
    CHECK(copy({nullptr, 0}, {nullptr, 0}) == "accepted");
    CHECK(fill({nullptr, 0}) == "accepted");
    stream.synchronize(soon_ms);
}

/// `ONE(name, function)` for each of them.
#define COLLPROBE_STREAM_CASES(ONE)                                                                                    \
    ONE("an event captures the work before its record and no later work", captures_what_was_before)                    \
    ONE("recording again does not change what an earlier wait waits for", waits_for_the_last_record_before)            \
    ONE("a copy of an event keeps its point when the original is recorded anew", copies_keep_their_point)              \
    ONE("events order the work of two streams in both directions", orders_two_streams_both_ways)                       \
    ONE("without a wait two streams are not ordered", does_not_order_without_a_wait)                                   \
    ONE("an event that was never recorded is an error that names the call", refuses_an_event_without_a_record)         \
    ONE("a stream may wait for an event whose stream goes first", waits_for_a_stream_that_is_gone)                        \
    ONE("copy and fill write exactly their range, in stream order", copies_and_fills_exactly)                          \
    ONE("copy and fill refuse bad arguments by name and enqueue nothing", refuses_bad_memory)

} // namespace collprobe::testing
