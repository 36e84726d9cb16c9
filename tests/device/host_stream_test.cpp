// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <latch>
#include <memory>
#include <new>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include <collprobe/core/element.hpp>
#include <collprobe/device/host/device.hpp>

#include "device/stream_cases.hpp"
#include "support/count_allocations.hpp"

namespace collprobe::testing::host_stream_test {
namespace {

void sleep_ms(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

/// Takes 20 ms for a block.
struct slow {
    using partial = int;
    static constexpr std::uint64_t block = 8;
    static partial identity() { return 0; }
    void run(partial&, std::uint64_t, std::uint64_t) const
    {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    static void merge(partial&, partial) {}
    static int finish(partial all) { return all; }
};

struct host_streams {
    using device = host::device;
    using stream = host::stream;
    using event = host::event;
    static void enqueue(const stream& on, auto task) { on.enqueue(task); }
};

} // namespace

#define ON_HOST(name, function) \
    TEST_CASE(name) { testing::function<host_streams>(); }
COLLPROBE_STREAM_CASES(ON_HOST)

TEST_CASE("a stream has an id that no later stream has")
{
    std::set<std::uint64_t> ids;
    for (int i = 0; i < 20; ++i) {
        const host::stream shortlived;
        CHECK(shortlived.id() == shortlived.id());
        CHECK(ids.insert(shortlived.id()).second);
    }
}

TEST_CASE("an exception surfaces at synchronize once, and later tasks are cancelled")
{
    const host::stream stream;
    std::atomic<int> ran{0};
    std::latch go(1);
    stream.enqueue([&] { go.wait(); });
    stream.enqueue([&] { ++ran; });
    stream.enqueue([] { throw std::runtime_error("first"); });
    stream.enqueue([&] { ++ran; });
    stream.enqueue([] { throw std::runtime_error("second"); });
    go.count_down();
    CHECK_THROWS_WITH_AS(stream.synchronize(soon_ms), "first", std::runtime_error);
    CHECK(ran == 1);
    CHECK_NOTHROW(stream.synchronize(soon_ms));
    stream.enqueue([&] { ran = 10; });
    CHECK_NOTHROW(stream.synchronize(soon_ms));
    CHECK(ran == 10);
}

TEST_CASE("a cancelled task is told why and destroyed")
{
    struct told {
        std::string* reason;
        std::shared_ptr<int> alive;
        void operator()() const { *reason = "ran"; }
        void cancel(const std::exception_ptr& cause) const noexcept
        {
            try {
                std::rethrow_exception(cause);
            } catch (const std::exception& known) {
                *reason = known.what();
            }
        }
    };
    std::string reason;
    auto alive = std::make_shared<int>(1);
    const host::stream stream;
    stream.enqueue([] { throw std::runtime_error("why"); });
    stream.enqueue(told{&reason, alive});
    stream.enqueue([alive] {});
    CHECK_THROWS(stream.synchronize(soon_ms));
    CHECK(reason == "why");
    CHECK(alive.use_count() == 1);
}

TEST_CASE("a failure travels through events to the streams that wait")
{
    const host::stream first;
    const host::stream second;
    const host::stream third;
    std::atomic<bool> ran{false};
    host::event one;
    host::event two;
    first.enqueue([] { throw std::runtime_error("upstream"); });
    one.record(first);
    second.wait(one);
    second.enqueue([&] { ran = true; });
    two.record(second);
    third.wait(two);
    third.enqueue([&] { ran = true; });
    CHECK_THROWS_WITH_AS(third.synchronize(soon_ms), "upstream", std::runtime_error);
    CHECK_THROWS_WITH_AS(second.synchronize(soon_ms), "upstream", std::runtime_error);
    CHECK_THROWS_WITH_AS(one.synchronize(soon_ms), "upstream", std::runtime_error);
    CHECK_THROWS_WITH_AS(first.synchronize(soon_ms), "upstream", std::runtime_error);
    CHECK_FALSE(ran);
}

TEST_CASE("an event recorded before a failure does not carry it")
{
    const host::stream producer;
    const host::stream consumer;
    host::event good;
    producer.enqueue([] {});
    good.record(producer);
    producer.enqueue([] { throw std::runtime_error("later"); });
    consumer.wait(good);
    CHECK_NOTHROW(consumer.synchronize(soon_ms));
    CHECK_NOTHROW(good.synchronize(soon_ms));
    CHECK_THROWS(producer.synchronize(soon_ms));
}

TEST_CASE("synchronize gives up at its deadline and can be called again")
{
    std::latch go(1);
    const host::stream stream;
    host::event captured;
    stream.enqueue([&] { go.wait(); });
    captured.record(stream);
    const auto start = std::chrono::steady_clock::now();
    for (const auto& failure :
        {error_of([&] { stream.synchronize(50); }), error_of([&] { captured.synchronize(50); })}) {
        REQUIRE(failure);
        CHECK(failure->code() == status::timeout);
        CHECK(std::string(failure->what()).find("50 ms") != std::string::npos);
    }
    CHECK(std::chrono::steady_clock::now() - start >= std::chrono::milliseconds(100));
    go.count_down();
    CHECK_NOTHROW(stream.synchronize(soon_ms));
}

TEST_CASE("of several waits for one stream each ends with its own work")
{
    constexpr int waiters = 4;
    constexpr int rounds = 500;
    for (const bool with_naps : {false, true}) {
        const host::stream stream;
        std::vector<std::thread> threads;
        std::atomic<int> late{0};
        for (int waiter = 0; waiter < waiters; ++waiter) {
            threads.emplace_back([&, waiter] {
                for (int round = 0; round < (with_naps ? rounds / 10 : rounds); ++round) {
                    // Not atomic: the end of the wait must order it.
                    int done = 0;
                    host::event marked;
                    const int behind = (waiter + round) % 5;
                    stream.enqueue([&done, with_naps] {
                        if (with_naps) sleep_ms(1);
                        done = 1;
                    });
                    marked.record(stream);
                    for (int i = 0; i < behind; ++i) stream.enqueue([] {});
                    // Now and then one gives up first: what it has announced is of no use then.
                    if (round % 7 == 0) (void)error_of([&] { marked.synchronize(1); });
                    if (error_of([&] { marked.synchronize(soon_ms); }) || done != 1) ++late;
                }
            });
        }
        for (std::thread& thread : threads) thread.join();
        CHECK(late == 0);
    }
}

TEST_CASE("work on a stream may not wait for that stream")
{
    const host::stream stream;
    const host::stream other;
    std::optional<error> refused;
    std::optional<error> allowed;
    stream.enqueue([&, on = host::stream_ref(stream)] { refused = error_of([&] { on.synchronize(100); }); });
    stream.enqueue([&, on = host::stream_ref(other)] { allowed = error_of([&] { on.synchronize(100); }); });
    stream.synchronize(soon_ms);
    REQUIRE(refused);
    CHECK(refused->code() == status::invalid_argument);
    CHECK_FALSE(allowed);
}

TEST_CASE("host synchronisations are counted and waits of streams are not")
{
    const host::stream a;
    const host::stream b;
    host::event ready;
    ready.record(a);
    b.wait(ready);
    CHECK(a.synchronizations() == 0);
    CHECK(b.synchronizations() == 0);
    b.synchronize(soon_ms);
    ready.synchronize(soon_ms);
    CHECK(a.synchronizations() == 1);
    CHECK(b.synchronizations() == 1);
}

TEST_CASE("many producers feed one stream and each keeps its order")
{
    constexpr int producers = 8;
    constexpr int each = 5000;
    std::array<int, producers> last{};
    bool ordered = true;
    {
        const host::stream stream;
        std::vector<std::thread> threads;
        for (int producer = 0; producer < producers; ++producer) {
            threads.emplace_back([&, producer] {
                for (int i = 1; i <= each; ++i) {
                    stream.enqueue([&, producer, i] {
                        int& previous = last[static_cast<std::size_t>(producer)];
                        ordered = ordered && previous == i - 1;
                        previous = i;
                    });
                }
            });
        }
        for (std::thread& thread : threads) thread.join();
    }
    CHECK(ordered);
    for (const int count : last) CHECK(count == each);
}

TEST_CASE("captures of any size and alignment arrive whole and are destroyed once")
{
    struct alignas(64) block {
        std::array<std::uint64_t, 64> words;
    };
    block large{};
    large.words.fill(7);
    bool right = false;
    bool aligned = false;
    auto counted = std::make_shared<int>(0);
    {
        const host::stream stream;
        stream.enqueue([&right, large] {
            right = true;
            for (const auto word : large.words) right = right && word == 7;
        });
        stream.enqueue([&aligned, large] { aligned = reinterpret_cast<std::uintptr_t>(&large) % 64 == 0; });
        std::array<std::shared_ptr<int>, 40> many;
        many.fill(counted);
        stream.enqueue([many, counted] { *counted += static_cast<int>(many.size()); });
        stream.enqueue([own = std::make_unique<int>(3), counted] { *counted += *own; }); // move-only
    }
    CHECK(right);
    CHECK(aligned);
    CHECK(*counted == 43);
    CHECK(counted.use_count() == 1);
}

TEST_CASE("a task that cannot be copied in leaves the queue as it was")
{
    struct fragile {
        bool* ran;
        explicit fragile(bool* flag) : ran(flag) {}
        fragile(const fragile&) { throw std::runtime_error("no copy"); }
        void operator()() const { *ran = true; }
    };
    bool wrong = false;
    bool right = false;
    const host::stream stream;
    const fragile task(&wrong);
    CHECK_THROWS_WITH_AS(stream.enqueue(task), "no copy", std::runtime_error);
    stream.enqueue([&] { right = true; });
    stream.synchronize(soon_ms);
    CHECK(right);
    CHECK_FALSE(wrong);
}

TEST_CASE("steady work allocates nothing")
{
    const host::stream producer;
    const host::stream consumer;
    host::event ready;
    std::array<char, 200> payload{};
    std::atomic<int> ran{0};
    const auto work = [&] {
        for (int i = 0; i < 50; ++i) {
            producer.enqueue([&ran, payload] { ran += 1 + payload[0]; });
            ready.record(producer);
            consumer.wait(ready);
            consumer.enqueue([&ran, payload] { ran += 1 + payload[1]; });
        }
        producer.synchronize(soon_ms);
        consumer.synchronize(soon_ms);
    };
    {
        // The queues are as long as they get while nothing leaves them.
        std::latch go(1);
        producer.enqueue([&go] { go.wait(); });
        consumer.enqueue([&go] { go.wait(); });
        for (int i = 0; i < 150; ++i) {
            producer.enqueue([payload] { (void)payload; });
            consumer.enqueue([payload] { (void)payload; });
        }
        go.count_down();
        producer.synchronize(soon_ms);
        consumer.synchronize(soon_ms);
    }
    for (int round = 0; round < 20; ++round) work();
    const long before = allocations.load();
    for (int round = 0; round < 20; ++round) work();
    CHECK(allocations.load() == before);
    CHECK(ran == 40 * 100);
}

TEST_CASE("streams compare by identity and move")
{
    host::stream a;
    const host::stream_ref borrowed = a;
    const host::stream moved = std::move(a);
    CHECK(borrowed == moved);
    const host::stream other;
    CHECK_FALSE(borrowed == other);
    bool ran = false;
    borrowed.enqueue([&] { ran = true; });
    moved.synchronize(soon_ms);
    CHECK(ran);
}

TEST_CASE("a stream that was moved from refuses work and has none")
{
    host::stream a;
    const host::stream moved = std::move(a);
    host::event event;
    CHECK_THROWS_WITH_AS(a.enqueue([] {}), doctest::Contains("enqueue: invalid argument: the stream was moved from"), error);
    CHECK_THROWS_WITH_AS(event.record(a), doctest::Contains("the stream was moved from"), error);
    CHECK_THROWS_WITH_AS(a.synchronize(soon_ms), doctest::Contains("the stream was moved from"), error);
    CHECK_THROWS_WITH_AS(a.id(), doctest::Contains("the stream was moved from"), error);
    CHECK_THROWS_WITH_AS(a.synchronizations(), doctest::Contains("the stream was moved from"), error);
    CHECK(a.query());
    event.record(moved);
    CHECK_THROWS_WITH_AS(a.wait(event), doctest::Contains("the stream was moved from"), error);
}

TEST_CASE("a stream that failed still comes after the work of others that it waits for")
{
    for (int round = 0; round < 100; ++round) {
        host::stream failing;
        host::stream other;
        int written = 0;
        host::event done;
        failing.enqueue([] { throw std::runtime_error("broken"); });
        other.enqueue([&] {
            std::this_thread::yield();
            written = 1;
        });
        done.record(other);
        failing.wait(done);
        CHECK_THROWS_AS(failing.synchronize(20'000), std::runtime_error);
        CHECK(written == 1);
    }
}

TEST_CASE("buffers own aligned memory and move")
{
    host::buffer<double> empty;
    CHECK(empty.size() == 0);
    CHECK(empty.data() == nullptr);
    host::buffer<double> full(100);
    CHECK(full.size() == 100);
    CHECK(reinterpret_cast<std::uintptr_t>(full.data()) % 64 == 0);
    for (double& x : full) x = 2.5;
    full[99] = 3.5;
    double* const where = full.data();
    host::buffer<double> moved(std::move(full));
    CHECK(moved.data() == where);
    empty = std::move(moved);
    CHECK(empty.data() == where);
    CHECK(empty[99] == 3.5);
    CHECK(host::buffer<char>(0).data() == nullptr);
    struct alignas(128) wide {
        char bytes[128];
    };
    CHECK(reinterpret_cast<std::uintptr_t>(host::buffer<wide>(3).data()) % 128 == 0);
    CHECK(view<const double>(empty).count() == 100);
}

TEST_CASE("a reduction notes when it began and when its result was written, if asked")
{
    CHECK(nanoseconds_between(0xffffffffu, 1) == 512.0); // across the end of the range
    CHECK(nanoseconds_between(1, 0xffffffffu) == -512.0);
    const host::stream stream;
    host::device::workspace workspace;
    int result = 1;
    clock_stamp stamps[4] = {7, 7, 7, 7};
    const clock_stamp before = detail::host_stamp();
    host::device::reduce(stream, slow{}, 1, &result, workspace, {&stamps[0], &stamps[1]});
    host::device::reduce(stream, slow{}, 1, &result, workspace, {nullptr, &stamps[2]});
    host::device::reduce(stream, slow{}, 1, &result, workspace);
    stream.synchronize(soon_ms);
    const clock_stamp after = detail::host_stamp();
    CHECK(nanoseconds_between(before, stamps[0]) >= 0);
    CHECK(nanoseconds_between(stamps[0], stamps[1]) >= 19e6);
    CHECK(nanoseconds_between(stamps[1], stamps[2]) >= 19e6);
    CHECK(nanoseconds_between(stamps[2], after) >= 19e6);
    CHECK(stamps[3] == 7);
}

#if defined(__SSE__)
TEST_CASE("work on a stream has subnormal numbers, also where the threads that make and use the stream drop them")
{
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040);
    const auto half_of_least = [] {
        volatile float least = 0x1p-126f;
        return to_bits(static_cast<float>(least / 2));
    };
    const auto on_a = [&](const host::stream& on) {
        std::uint32_t bits = 0;
        on.enqueue([&] { bits = half_of_least(); });
        on.synchronize(soon_ms);
        return bits;
    };
    const std::uint32_t on_its_thread = on_a(host::stream());
    const std::uint32_t at_once = on_a(host::stream::at_once());
    const std::uint32_t here = half_of_least();
    _mm_setcsr(before);
    CHECK(on_its_thread == 0x00400000);
    CHECK(at_once == 0x00400000);
    CHECK(here == 0);
}
#endif

} // namespace collprobe::testing::host_stream_test
