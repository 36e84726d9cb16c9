// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <new>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <collprobe/device/cuda/device.hpp>

#include "device/stream_cases.hpp"
#include "tests/support/count_allocations.hpp"
#include "tests/support/stand_in/stand_in_test_tools.hpp"

namespace collprobe::testing::cuda_stand_in_test {

using cuda::device;

namespace {

std::string hex(cudaStream_t stream) { return cuda::detail::describe(0, stream); }

int current()
{
    int ordinal = -1;
    (void)cudaGetDevice(&ordinal);
    return ordinal;
}

/// A thread that has chosen device 0, which a thread that never set one has not.
void use_first_device() { REQUIRE(cudaSetDevice(0) == cudaSuccess); }

template <class Memory>
concept host_readable = requires(const Memory& own) {
    own[0];
    own.begin();
};

struct cuda_streams {
    using device = cuda::device;
    using stream = cuda::stream;
    using event = cuda::event;
    static void enqueue(const stream& on, auto task) { cuda::check(stand_in::enqueue(on.get(), task), "enqueue"); }
};

} // namespace

#define ON_CUDA(name, function) \
    TEST_CASE(name) { function<cuda_streams>(); }
COLLPROBE_STREAM_CASES(ON_CUDA)

TEST_CASE("a stream_ref takes any stream that a trainer has, and no literal")
{
    static_assert(std::is_convertible_v<cudaStream_t, cuda::stream_ref>);
    static_assert(!std::is_constructible_v<cuda::stream_ref, std::nullptr_t>);
    static_assert(!std::is_constructible_v<cuda::stream_ref, int>);
    static_assert(std::is_convertible_v<const cuda::stream&, cuda::stream_ref>);
    const cuda::stream own;
    const cuda::stream_ref plain = own.get();
    CHECK(plain == own);
    CHECK_FALSE(plain.is_default());
    CHECK_FALSE(plain.is_per_thread());
    CHECK(plain.device() == 0);
    CHECK(own.device() == 0);
    CHECK_FALSE(plain.capturing());
    const cuda::stream other;
    CHECK_FALSE(plain == other);
    CHECK(cuda::stream_ref(cudaStream_t{}).is_default());
    CHECK(cuda::stream_ref(cudaStream_t{}) == cuda::stream_ref(cudaStreamLegacy));
    CHECK(cuda::stream_ref(cudaStreamLegacy).is_default());
    CHECK_FALSE(cuda::stream_ref(cudaStreamLegacy).is_per_thread());
    CHECK(cuda::stream_ref(cudaStreamPerThread).is_per_thread());
    CHECK_FALSE(cuda::stream_ref(cudaStreamPerThread).is_default());
}

TEST_CASE("a stream has an id that neither a later stream nor another thread has")
{
    const cuda::stream first, second;
    CHECK(first.id() == cuda::stream_ref(first.get()).id());
    CHECK_FALSE(first.id() == second.id());
    CHECK(cuda::stream_ref(cudaStream_t{}).id() == cuda::stream_ref(cudaStreamLegacy).id());
    std::set<unsigned long long> numbers;
    std::set<cudaStream_t> handles;
    for (int i = 0; i < 20; ++i) {
        const cuda::stream shortlived;
        CHECK(numbers.insert(shortlived.id().number).second);
        handles.insert(shortlived.get());
    }
    MESSAGE(handles.size(), " handles of 20 streams");
    const cuda::stream_ref own(cudaStreamPerThread);
    const cuda::stream_id here = own.id();
    CHECK(own.id() == here);
    cuda::stream_id there;
    std::thread([&] { there = own.id(); }).join();
    CHECK_FALSE(there == here);
}

TEST_CASE("work and events of the default streams")
{
    for (const cudaStream_t handle : {cudaStream_t{}, cudaStreamLegacy, cudaStreamPerThread}) {
        const cuda::stream_ref on = handle;
        cuda::pinned_buffer<int> values(100);
        device::fill(on, view(values), 7);
        cuda::event filled;
        filled.record(on);
        const cuda::stream reader;
        reader.wait(filled);
        cuda::pinned_buffer<int> seen(100);
        device::copy(reader, view<const int>(values), view(seen));
        reader.synchronize(soon_ms);
        CHECK(seen[99] == 7);
        on.synchronize();
        on.synchronize(soon_ms);
        CHECK(on.query());
    }
}

TEST_CASE("a stream that was moved from is refused everywhere, and nothing reaches the default stream")
{
    stand_in::reset();
    cuda::stream from;
    cuda::event point;
    point.record(from);
    const cuda::stream_ref borrowed = from; // is of the stream, wherever that goes
    const cuda::stream to(std::move(from));
    cuda::buffer<int> values(4);
    cuda::event event;
    const auto refuses = [](auto call) { return contains(refusal(call), "the stream was moved from"); };
    const auto enqueued = [] {
        return stand_in::calls("cudaMemsetAsync") + stand_in::calls("cudaLaunchKernel")
            + stand_in::calls("cudaEventRecord") + stand_in::calls("cudaStreamSynchronize");
    };
    const std::uint64_t before = enqueued();
    CHECK(refuses([&] { (void)from.get(); }));
    CHECK(refuses([&] { (void)from.capturing(); }));
    CHECK(refuses([&] { from.wait(point); }));
    CHECK(refuses([&] { from.synchronize(); }));
    CHECK(refuses([&] { from.synchronize(soon_ms); }));
    CHECK(refuses([&] { event.record(from); }));
    CHECK(refuses([&] { device::fill(from, view(values), 1); }));
    CHECK(from.query());
    CHECK(refuses([&] { (void)from.device(); }));
    CHECK(enqueued() == before);
    CHECK_FALSE(event.recorded());
    borrowed.synchronize(soon_ms);
    from = cuda::stream(); // and it may be one again
    device::fill(from, view(values), 1);
    CHECK(enqueued() > before);
    from.synchronize(soon_ms);
}

TEST_CASE("a stream's destructor does not wait, and its work still runs")
{
    std::atomic<bool> ran{false};
    cuda::event left;
    {
        cuda::stream dying;
        gate hold(dying);
        (void)stand_in::enqueue(dying.get(), [&] { ran = true; });
        left.record(dying);
        const cuda::stream gone(std::move(dying));
        CHECK_FALSE(gone.query());
    }
    left.synchronize(soon_ms);
    CHECK(ran);
}

TEST_CASE("streams and events of a device that is not current")
{
    use_first_device();
    cuda::event marker;
    {
        const cuda::stream first;
        marker.record(first); // an event of device 0 from here on
    }
    cuda::stream second = [] {
        const cuda::device_guard other(1);
        return cuda::stream();
    }();
    CHECK(current() == 0);
    CHECK(second.device() == 1);
    CHECK(second.device() == 1);
    const cudaEvent_t of_first = marker.get();
    marker.record(second); // CUDA refuses an event of device 0 here
    CHECK(marker.get() != of_first);
    CHECK(current() == 0);
    const cuda::stream third;
    third.wait(marker); // waits may cross devices
    third.synchronize(soon_ms);
    second.synchronize(soon_ms);
    CHECK(marker.query());
    marker.record(third);
    CHECK(marker.query());
#if CUDART_VERSION >= 12080
    const cuda::stream_ref borrowed = second.get(); // the handle alone, as a trainer gives it
    CHECK(borrowed.device() == 1);
    marker.record(borrowed);
    marker.synchronize(soon_ms);
    // A driver older than the runtime cannot tell: then it is the current device.
    stand_in::fail_next("cudaStreamGetDevice", cudaErrorCallRequiresNewerDriver);
    CHECK(borrowed.device() == 0);
    CHECK(cudaGetLastError() == cudaSuccess);
#endif
}

TEST_CASE("device_guard switches, restores and nests, and calls nothing where there is nothing to switch")
{
    use_first_device();
    stand_in::reset();
    {
        const cuda::device_guard same(0);
        CHECK(stand_in::calls("cudaSetDevice") == 0);
    }
    CHECK(stand_in::calls("cudaSetDevice") == 0);
    {
        const cuda::device_guard outer(1);
        CHECK(current() == 1);
        {
            cuda::device_guard inner(0);
            CHECK(current() == 0);
            const cuda::device_guard moved(std::move(inner));
        }
        CHECK(current() == 1);
    }
    CHECK(current() == 0);
    const auto failure = error_of([] { const cuda::device_guard none(5); });
    REQUIRE(failure);
    CHECK(failure->code() == status::device_failure);
    CHECK(contains(failure->what(), "cudaSetDevice"));
    CHECK(contains(failure->what(), "cudaErrorInvalidDevice"));
    CHECK(contains(failure->what(), "device 5"));
    CHECK(current() == 0);
}

TEST_CASE("a device_guard that may not throw leaves the device as it was on failure")
{
    use_first_device();
    const cuda::device_guard none(5, std::nothrow);
    CHECK(current() == 0);
    CHECK(cudaPeekAtLastError() == cudaSuccess);
}

TEST_CASE("no context is created on a device nobody asked for")
{
    std::optional<cuda::stream> stream;
    std::optional<cuda::stream> spare;
    cuda::event recorded;
    cuda::buffer<int> memory;
    cuda::pinned_buffer<int> pinned;
    std::thread([&] {
        const cuda::device_guard other(1);
        stream.emplace();
        spare.emplace();
        memory = cuda::buffer<int>(4);
        pinned = cuda::pinned_buffer<int>(4);
        recorded.record(*stream);
    }).join();
    // Threads that never set a device: CUDA takes device 0 for theirs.
    const std::vector<std::function<void()>> uses{
        [] { const cuda::device_guard other(1); },
        [] {
            const cuda::device_guard outer(1);
            const cuda::device_guard inner(1);
        },
        [&] { (void)recorded.query(); },
        [&] { recorded.synchronize(); },
        [&] { recorded.synchronize(soon_ms); },
        [&] { (void)stream->query(); },
        [&] { (void)stream->capturing(); },
        [&] { stream->synchronize(); },
        [&] { stream->synchronize(soon_ms); },
        [&] { stream->wait(recorded); },
        [&] { cuda::event().record(*stream); },
        [&] { create_event(1); },
        [&] { spare.reset(); },
        [&] { memory = {}; },
        [&] { pinned = {}; },
    };
    for (std::size_t use = 0; use < uses.size(); ++use) {
        CAPTURE(use);
        stand_in::forget_contexts();
        std::thread(uses[use]).join();
        CHECK_FALSE(stand_in::has_context(0));
    }
    CHECK(stand_in::has_context(1));
    use_first_device();
}

TEST_CASE("a deadline that passes is a timeout that says what was left")
{
    const cuda::stream stream;
    gate closed(stream);
    cuda::event captured;
    captured.record(stream);
    const auto start = std::chrono::steady_clock::now();
    const auto of_stream = error_of([&] { stream.synchronize(40); });
    const auto of_event = error_of([&] { captured.synchronize(40); });
    CHECK(std::chrono::steady_clock::now() - start >= std::chrono::milliseconds(80));
    for (const auto& failure : {of_stream, of_event}) {
        REQUIRE(failure);
        CHECK(failure->code() == status::timeout);
        CHECK(std::string(failure->call()) == "synchronize");
        CHECK(contains(failure->what(), "40 ms"));
        CHECK(contains(failure->what(), hex(stream.get())));
    }
    CHECK(contains(of_stream->what(), "work on the stream"));
    CHECK(contains(of_event->what(), "the work captured by the event"));
    CHECK(error_of([&] { captured.synchronize(0); })); // 0 asks once
    CHECK(cudaPeekAtLastError() == cudaSuccess); // no "not ready" is left for the trainer to find
    closed.open();
    stream.synchronize(-1);
    captured.synchronize(-1);
    captured.synchronize(0);
    CHECK(captured.query());
}

TEST_CASE("a deadline covers the work before the call only")
{
    const cuda::stream stream;
    cuda::event end;
    std::atomic<bool> stop{false};
    std::thread feeder([&] {
        while (!stop) {
            (void)stand_in::enqueue(
                stream.get(), [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); });
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    });
    CHECK_FALSE(error_of([&] { stream.synchronize(soon_ms); }));
    stop = true;
    feeder.join();
}

TEST_CASE("every call that fails is named, with device and stream, and leaves no error behind")
{
    stand_in::reset();
    const cuda::stream stream;
    const cudaStream_t handle = stream.get();
    cuda::event recorded;
    recorded.record(stream);
    cuda::pinned_buffer<int> a(8);
    cuda::pinned_buffer<int> b(8);
    struct failing {
        const char* function;
        bool on_stream;
        std::function<void()> use;
    };
    std::vector<failing> all{
        {"cudaGetDevice", false, [] { const cuda::stream fresh; }},
        {"cudaGetDevice", false, [] { const cuda::device_guard guard(0); }},
        {"cudaGetDevice", false, [] { const cuda::buffer<int> fresh(1); }},
        {"cudaStreamCreateWithFlags", false, [] { const cuda::stream fresh; }},
        {"cudaStreamSynchronize", true, [&] { stream.synchronize(); }},
        {"cudaStreamIsCapturing", true, [&] { stream.synchronize(); }},
        {"cudaStreamIsCapturing", true, [&] { (void)stream.capturing(); }},
        {"cudaStreamWaitEvent", true, [&] { stream.wait(recorded); }},
        {"cudaStreamGetCaptureInfo", true, [&] { cuda::event().record(stream); }},
        {"cudaEventRecord", true, [&] { cuda::event().record(stream); }},
        {"cudaEventRecord", true, [&] { stream.synchronize(1000); }},
        {"cudaEventQuery", true, [&] { (void)recorded.query(); }},
        {"cudaEventQuery", true, [&] { recorded.synchronize(1000); }},
        {"cudaEventSynchronize", true, [&] { recorded.synchronize(); }},
        {"cudaMemcpyAsync", true, [&] { device::copy(stream, view<const int>(a), view(b)); }},
        {"cudaLaunchKernel", true, [&] { device::fill(stream, view(b), 1); }},
        {"cudaMalloc", false, [] { const cuda::buffer<int> fresh(1); }},
        {"cudaMalloc", false, [] { const cuda::workspace fresh; }},
        {"cudaHostAlloc", false, [] { const cuda::pinned_buffer<int> fresh(1); }},
        {"cudaEventCreateWithFlags", false, [] { create_event(0); }},
    };
#if CUDART_VERSION >= 12080
    all.push_back({"cudaStreamGetDevice", true, [&] { (void)cuda::stream_ref(handle).device(); }});
    all.push_back({"cudaStreamGetDevice", true, [&] { cuda::event().record(handle); }});
#endif
    for (const failing& each : all) {
        CAPTURE(each.function);
        stand_in::fail_next(each.function, cudaErrorECCUncorrectable);
        const auto failure = error_of(each.use);
        REQUIRE(failure);
        const std::string text = failure->what();
        CAPTURE(text);
        CHECK(failure->code() == status::device_failure);
        CHECK(std::string(failure->call()) == each.function);
        CHECK(contains(text, "cudaErrorECCUncorrectable (said by the stand-in)"));
        CHECK(contains(text, "device 0"));
        CHECK(contains(text, hex(handle)) == each.on_stream);
        CHECK(cudaPeekAtLastError() == cudaSuccess);
        each.use(); // and nothing is wrong once the call works
    }
    stand_in::fail_next("cudaMemsetAsync", cudaErrorECCUncorrectable);
    const std::size_t live = stand_in::live_allocations();
    CHECK(error_of([] { const cuda::workspace fresh; }));
    CHECK(stand_in::live_allocations() == live);
    stream.synchronize(soon_ms);
}

TEST_CASE("a record that fails leaves the earlier one")
{
    const cuda::stream held;
    const cuda::stream free;
    cuda::event marker;
    marker.record(free);
    const cudaEvent_t handle = marker.get();
    marker.synchronize(soon_ms);
    stand_in::fail_next("cudaEventRecord", cudaErrorInvalidValue);
    CHECK(error_of([&] { marker.record(held); }));
    CHECK(marker.get() == handle);
    CHECK(marker.query());
    cuda::event empty;
    stand_in::fail_next("cudaEventRecord", cudaErrorInvalidValue);
    CHECK(error_of([&] { empty.record(held); }));
    CHECK_FALSE(empty.recorded());
}

TEST_CASE("an older error of the trainer's is not taken away")
{
    const cuda::stream stream;
    CHECK(cudaSetDevice(99) == cudaErrorInvalidDevice);
    cuda::event marker;
    marker.record(stream);
    marker.synchronize(soon_ms);
    CHECK(marker.query());
    CHECK(stream.query());
    CHECK(cudaGetLastError() == cudaErrorInvalidDevice);
    CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("destructors drop errors and CUDA's last error with them")
{
    stand_in::reset();
    cudaStream_t handle = nullptr;
    int* on_device = nullptr;
    int* pinned = nullptr;
    {
        const cuda::stream stream;
        const cuda::buffer<int> a(4);
        const cuda::pinned_buffer<int> b(4);
        handle = stream.get();
        on_device = a.data();
        pinned = b.data();
        for (const char* const function : {"cudaStreamDestroy", "cudaFree", "cudaFreeHost"}) {
            stand_in::fail_next(function, cudaErrorInvalidValue);
        }
    }
    CHECK(cudaPeekAtLastError() == cudaSuccess);
    CHECK(cudaFree(on_device) == cudaSuccess);
    CHECK(cudaFreeHost(pinned) == cudaSuccess);
    CHECK(cudaStreamDestroy(handle) == cudaSuccess);
}

TEST_CASE("a fault in a kernel surfaces where the host asks")
{
    for (const int way : {0, 1, 2, 3, 4}) {
        stand_in::reset();
        const cuda::stream stream;
        cuda::event end;
        (void)stand_in::enqueue(stream.get(), [] { throw std::runtime_error("fault"); });
        end.record(stream);
        const auto failure = error_of([&] {
            if (way == 0) stream.synchronize();
            if (way == 1) stream.synchronize(soon_ms);
            if (way == 2) end.synchronize();
            if (way == 3) end.synchronize(soon_ms);
            while (way == 4 && !end.query()) std::this_thread::yield();
        });
        REQUIRE(failure);
        CHECK(failure->code() == status::device_failure);
        CHECK(contains(failure->what(), "cudaErrorLaunchFailure"));
        CHECK(mentions(error_of([&] { end.record(stream); }), "cudaErrorLaunchFailure")); // as of every call from now on
        CHECK(stream.query()); // nothing more will happen there
    }
    stand_in::reset();
}

TEST_CASE("steady work creates no events, allocates nothing and never blocks the host")
{
    const cuda::stream producer;
    const cuda::stream consumer;
    cuda::pinned_buffer<float> a(64);
    cuda::pinned_buffer<float> b(64);
    cuda::event ready;
    cuda::event last;
    const auto step = [&] {
        device::fill(producer, view(a), 1.0f);
        ready.record(producer);
        consumer.wait(ready);
        device::copy(consumer, view<const float>(a), view(b));
        ready.record(consumer);
        last = ready; // shared now: the next record takes another event
        producer.wait(last);
        cuda::event local; // and one that lives for a step
        local.record(producer);
        (void)local.query();
    };
    for (int i = 0; i < 200; ++i) step();
    consumer.synchronize(soon_ms);
    producer.synchronize(soon_ms);
    stand_in::reset();
    const long before = allocations.load();
    for (int round = 0; round < 20; ++round) {
        for (int i = 0; i < 10; ++i) step();
        while (!last.query()) std::this_thread::yield();
    }
    CHECK(allocations.load() == before);
    for (const char* const function : {"cudaEventCreateWithFlags", "cudaEventDestroy", "cudaMalloc",
             "cudaHostAlloc", "cudaStreamCreateWithFlags", "cudaStreamSynchronize", "cudaEventSynchronize",
             "cudaDeviceSynchronize", "cudaSetDevice"}) {
        CAPTURE(function);
        CHECK(stand_in::calls(function) == 0);
    }
    CHECK(stand_in::calls("cudaEventRecord") == 600);
    CHECK(stand_in::calls("cudaStreamWaitEvent") == 400);
    consumer.synchronize(soon_ms);
    producer.synchronize(soon_ms);
}

/// Records that many events at the same time, on the current device.
void record_events(std::uint64_t count)
{
    const cuda::stream stream;
    std::vector<cuda::event> events(count);
    for (cuda::event& each : events) each.record(stream);
}

TEST_CASE("threads share the pool, and copies of an event may die anywhere")
{
    constexpr unsigned threads = 4;
    constexpr int rounds = 300;
    stand_in::reset();
    stand_in::set_device_count(3);
    const cuda::device_guard third(2); // whose pool is empty
    const cuda::stream shared;
    cuda::event common;
    common.record(shared);
    std::vector<std::thread> all;
    for (unsigned thread = 0; thread < threads; ++thread) {
        all.emplace_back([&shared, mine = common] {
            const cuda::device_guard guard(2);
            const cuda::stream own;
            for (int round = 0; round < rounds; ++round) {
                cuda::event a;
                a.record(own);
                cuda::event b = a;
                a.record(shared);
                own.wait(a);
                own.wait(mine);
                b = a;
                (void)b.query();
            }
            own.synchronize(soon_ms);
        });
    }
    for (std::thread& each : all) each.join();
    const std::uint64_t created = stand_in::calls("cudaEventCreateWithFlags");
    CHECK(created >= 3);
    CHECK(created <= threads * 3 + 1);
    record_events(created - 1); // all came back but one, which is in use
    CHECK(stand_in::calls("cudaEventCreateWithFlags") == created);
    record_events(created);
    CHECK(stand_in::calls("cudaEventCreateWithFlags") == created + 1);
    shared.synchronize(soon_ms);
}

TEST_CASE("buffers own memory of the device that was current")
{
    use_first_device();
    static_assert(!std::is_copy_constructible_v<cuda::buffer<int>>);
    static_assert(!host_readable<cuda::buffer<int>>);
    static_assert(host_readable<cuda::pinned_buffer<int>>);
    stand_in::reset();
    const std::size_t live = stand_in::live_allocations();
    {
        cuda::buffer<double> empty;
        CHECK(empty.data() == nullptr);
        CHECK(empty.device() == -1);
        CHECK(cuda::buffer<double>(0).data() == nullptr);
        CHECK(cuda::pinned_buffer<double>(0).size() == 0);
        CHECK(stand_in::calls("cudaMalloc") + stand_in::calls("cudaHostAlloc") == 0);
        cuda::buffer<double> on_second = [] {
            const cuda::device_guard guard(1);
            return cuda::buffer<double>(100);
        }();
        CHECK(on_second.size() == 100);
        CHECK(on_second.device() == 1);
        CHECK(view<const double>(on_second).count() == 100);
        cudaPointerAttributes attributes{};
        REQUIRE(cudaPointerGetAttributes(&attributes, on_second.data() + 99) == cudaSuccess);
        CHECK(attributes.type == cudaMemoryTypeDevice);
        CHECK(attributes.device == 1);
        double* const memory = on_second.data();
        empty = std::move(on_second);
        CHECK(empty.data() == memory);
        const cuda::buffer<double> moved(std::move(empty));
        CHECK(moved.data() == memory);
        CHECK(empty.data() == nullptr);
        cuda::pinned_buffer<int> pinned(3);
        for (int& value : pinned) value = 4;
        pinned[2] = 5;
        CHECK(pinned.data()[2] == 5);
        REQUIRE(cudaPointerGetAttributes(&attributes, pinned.data()) == cudaSuccess);
        CHECK(attributes.type == cudaMemoryTypeHost);
        CHECK(stand_in::live_allocations() == live + 2);
    }
    CHECK(stand_in::live_allocations() == live);
    CHECK(current() == 0);
    for (const std::uint64_t much : {std::uint64_t{1} << 60, std::uint64_t{1} << 62, ~std::uint64_t{0}}) {
        const auto failure = error_of([&] { const cuda::buffer<double> large(much); });
        REQUIRE(failure);
        CHECK(contains(failure->what(), "cudaErrorMemoryAllocation"));
        CHECK(contains(failure->what(), "cudaMalloc"));
    }
}

} // namespace collprobe::testing::cuda_stand_in_test
