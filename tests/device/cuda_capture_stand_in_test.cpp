// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Streams, events and memory of CUDA while streams are captured into graphs.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <thread>

#include "tests/support/stand_in/stand_in_test_tools.hpp"

namespace collprobe::testing::cuda_capture_stand_in_test {

using cuda::device;

namespace {

/// Runs `body` on another thread to its end.
template <class Body>
void elsewhere(Body body)
{
    std::thread(body).join();
}

} // namespace

TEST_CASE("a captured chain over two streams runs at each launch with the data of then")
{
    const cuda::stream first;
    const cuda::stream second;
    cuda::pinned_buffer<int> input(100);
    cuda::pinned_buffer<int> middle(100);
    cuda::pinned_buffer<int> output(100);
    for (int& value : output) value = -1;
    captured_graph chain(first);
    CHECK(first.capturing());
    CHECK_FALSE(second.capturing());
    {
        cuda::event copied;
        cuda::event back;
        device::copy(first, view<const int>(input), view(middle));
        copied.record(first);
        second.wait(copied);
        CHECK(second.capturing());
        device::copy(second, view<const int>(middle), view(output));
        back.record(second);
        first.wait(back);
        copied.record(first); // recording anew must not disturb the wait above
    }
    REQUIRE(chain.end() == cudaSuccess);
    CHECK_FALSE(second.capturing());
    const cuda::stream other;
    for (int round = 1; round <= 5; ++round) {
        for (int& value : input) value = round;
        const cuda::stream_ref on = round % 2 == 0 ? first : other;
        chain.launch(on);
        on.synchronize(soon_ms);
        CHECK(output[99] == round);
    }
}

TEST_CASE("polling, allocating and freeing leave a capture valid, of another thread or its own")
{
    const cuda::stream captured;
    const cuda::stream free;
    cuda::event done;
    done.record(free);
    free.synchronize();
    const auto work = [&] {
        CHECK(done.query());
        done.synchronize();
        done.synchronize(soon_ms);
        free.synchronize();
        free.synchronize(soon_ms);
        CHECK(free.query());
        const cuda::buffer<int> memory(10);
        const cuda::pinned_buffer<int> pinned(10);
        const cuda::workspace scratch;
        const cuda::stream fresh;
        create_event(0);
    };
    captured_graph graph(captured, cudaStreamCaptureModeGlobal);
    elsewhere(work);
    CHECK(graph.end() == cudaSuccess);
    captured_graph own(captured, cudaStreamCaptureModeThreadLocal);
    work();
    CHECK(own.end() == cudaSuccess);
}

TEST_CASE("control: the plain calls do invalidate it, and our calls leave the thread's mode alone")
{
    const cuda::stream captured;
    const cuda::stream free;
    cuda::event done;
    done.record(free);
    done.synchronize(soon_ms);
    for (const int way : {0, 1, 2}) {
        captured_graph graph(captured, cudaStreamCaptureModeGlobal);
        elsewhere([&] {
            CHECK(done.query());
            void* memory = nullptr;
            const cudaError_t code = way == 0 ? cudaEventQuery(done.get())
                : way == 1                    ? cudaStreamQuery(free.get())
                                              : cudaMalloc(&memory, 4);
            CHECK(code == cudaErrorStreamCaptureUnsupported);
        });
        CHECK(graph.end() == cudaErrorStreamCaptureInvalidated);
    }
}

TEST_CASE("the host cannot wait for an event of a capture, and asking leaves the capture valid")
{
    const cuda::stream stream;
    cuda::event inside;
    captured_graph graph(stream);
    inside.record(stream);
    CHECK(inside.recorded());
    for (const std::string& text : {refusal([&] { (void)inside.query(); }),
             refusal([&] { inside.synchronize(); }), refusal([&] { inside.synchronize(100); })}) {
        CHECK(contains(text, "the event was recorded in a capture"));
        CHECK(contains(text, "cuda_capture_stand_in_test.cpp"));
    }
    const cuda::event copy = inside;
    CHECK(graph.end() == cudaSuccess);
    CHECK(contains(refusal([&] { (void)inside.query(); }), "recorded in a capture"));
    CHECK(contains(refusal([&] { (void)copy.query(); }), "recorded in a capture"));
    inside.record(stream); // a later record outside makes it an ordinary event
    inside.synchronize(soon_ms);
    CHECK(inside.query());
}

TEST_CASE("a stream that captures has nothing to synchronise with, and asking leaves the capture valid")
{
    const cuda::stream stream;
    captured_graph graph(stream);
    CHECK(contains(refusal([&] { stream.synchronize(); }), "the stream is capturing"));
    CHECK(contains(refusal([&] { stream.synchronize(100); }), "the stream is capturing"));
    CHECK_FALSE(stream.query());
    CHECK(graph.end() == cudaSuccess);
    CHECK(stream.query());
}

TEST_CASE("waits across the border of a capture are refused by name")
{
    const cuda::stream captured;
    const cuda::stream free;
    cuda::event outside;
    outside.record(free);
    cuda::event inside;
    {
        captured_graph graph(captured);
        inside.record(captured);
        CHECK(
            contains(refusal([&] { captured.wait(outside); }), "the event was recorded outside the capture"));
        CHECK(graph.end() == cudaErrorStreamCaptureInvalidated); // CUDA gives it up
    }
    CHECK(contains(refusal([&] { free.wait(inside); }), "a capture that has ended or is not the stream's"));
    CHECK_FALSE(free.capturing());
    CHECK(cudaPeekAtLastError() == cudaSuccess);
    captured_graph next(captured);
    CHECK(
        contains(refusal([&] { captured.wait(inside); }), "a capture that has ended or is not the stream's"));
    CHECK(next.end() == cudaErrorStreamCaptureInvalidated);
}

TEST_CASE("the default stream refuses to work while a stream that it waits for captures")
{
    cudaStream_t handle = nullptr;
    REQUIRE(cudaStreamCreate(&handle) == cudaSuccess);
    {
        const cuda::stream_ref blocking = handle;
        const cuda::stream_ref plain = cudaStreamLegacy;
        captured_graph graph(blocking);
        CHECK_FALSE(plain.query());
        cuda::event marker;
        const auto failure = error_of([&] { marker.record(plain); });
        REQUIRE(failure);
        CHECK(contains(failure->what(), "cudaErrorStreamCaptureImplicit"));
        CHECK(graph.end() == cudaSuccess);
    }
    CHECK(cudaStreamDestroy(handle) == cudaSuccess);
}

} // namespace collprobe::testing::cuda_capture_stand_in_test
