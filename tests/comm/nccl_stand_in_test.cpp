// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <latch>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <collprobe/comm/nccl/communicator.hpp>

#include "conformance/communicator_conformance.hpp"
#include "support/checks.hpp"
#include "support/count_allocations.hpp"
#include "tests/support/stand_in/kernels.hpp"
#include "tests/support/stand_in/nccl_ranks.hpp"

namespace collprobe::testing::nccl_stand_in_test {
namespace {

constexpr std::uint64_t larger(int ranks) { return ranks <= 3 ? 2051 : 331; }

} // namespace

TEST_CASE("NCCL communicators conform: element types, operations, counts, placements, calls, barriers and refusals")
{
    stand_in::nccl::set_launch_delay_ms(0);
    const auto enqueue = [](cuda::stream_ref on, auto task) { cuda::check(stand_in::enqueue(on.get(), task), "task"); };
    for (const nccl::blocking_mode mode : nccl_modes) {
        for (const int ranks : {1, 2, 3, 8}) {
            CAPTURE(ranks);
            const nccl_provider provider{ranks, {.mode = mode}};
            CHECK_NOTHROW(conformance::check_types(provider, larger(ranks)));
            CHECK_NOTHROW(conformance::check_calls(provider, 50));
            CHECK_NOTHROW(conformance::check_barrier(provider, 10, enqueue));
            if (ranks == 3) CHECK_NOTHROW(conformance::check_refusals(provider));
        }
        const wrapped_provider borrowed{nccl_provider{3, {.mode = mode}},
            [](nccl_owner& comm) { return nccl::communicator_ref(comm.native_handle(), {.name = "borrowed"}); }};
        CHECK_NOTHROW(conformance::check_calls(borrowed, 50));
    }
    CHECK_NOTHROW(conformance::check_type<float8_e4m3>(nccl_provider{3}, larger(3)));
    CHECK_NOTHROW(conformance::check_type<float8_e5m2>(nccl_provider{3}, larger(3)));
    CHECK(stand_in::nccl::live_communicators() == 0);
}

TEST_CASE("a communicator tells what it is")
{
    nccl_provider{3, {.name = "dp"}}.run([](nccl_owner& comm) {
        require(comm.size() == 3 && comm.device_ordinal() == comm.rank() && comm.name() == "dp", "own");
        nccl::communicator_ref lent = comm;
        require(lent.native_handle() == comm.native_handle() && lent.rank() == comm.rank(), "lent");
        {
            const cuda::device_guard elsewhere(7);
            const auto scope = comm.device_scope();
            int device = -1;
            cudaGetDevice(&device);
            require(device == comm.rank(), "device_scope");
        }
    });
}

TEST_CASE("sends and receives in a group do the all-to-all of an older NCCL")
{
    for (const nccl::blocking_mode mode : nccl_modes) {
        nccl_provider{3, {.mode = mode}}.run([](nccl_owner& comm) {
            const cuda::stream stream;
            device_values<std::int32_t> send(6, 0);
            device_values<std::int32_t> receive(6, -1);
            for (int i = 0; i < 6; ++i) send[static_cast<std::size_t>(i)] = 10 * comm.rank() + i;
            ncclResult_t result = nccl::detail::exchange_parts(
                send.data(), receive.data(), 2, 4, ncclInt32, 3, comm.native_handle(), stream.get());
            while (result == ncclInProgress) ncclCommGetAsyncError(comm.native_handle(), &result);
            require(result == ncclSuccess, "exchange_parts");
            comm.synchronize(stream);
            for (int i = 0; i < 6; ++i) {
                require(receive[static_cast<std::size_t>(i)] == 10 * (i / 2) + 2 * comm.rank() + i % 2, "all-to-all");
            }
        });
    }
}

TEST_CASE("a non-blocking communicator's call returns when its work is enqueued")
{
    stand_in::nccl::set_launch_delay_ms(30);
    nccl_provider{2, {.mode = nccl::blocking_mode::non_blocking}}.run([](nccl_owner& comm) {
        const cuda::stream stream;
        device_values<float> values(100, 1.0f);
        const auto start = std::chrono::steady_clock::now();
        comm.all_reduce(values.in(), values.out(), reduction::sum, stream);
        require(std::chrono::steady_clock::now() - start >= std::chrono::milliseconds(30), "it must have waited");
        // So an event behind the call is behind the collective.
        cuda::event behind;
        behind.record(stream);
        behind.synchronize();
        require(values.all(2.0f), "the event did not capture the collective");
    });
    stand_in::nccl::set_launch_delay_ms(0);
}

TEST_CASE("a group enqueues at its end")
{
    for (const nccl::blocking_mode mode : nccl_modes) {
        nccl_provider{2, {.mode = mode}}.run([](nccl_owner& comm) {
            const cuda::stream stream;
            device_values<std::int32_t> a(4, 1);
            device_values<std::int32_t> b(4, 10);
            require(comm.enqueues_at_once() && !nccl::group::is_open(), "no group yet");
            nccl::group outer;
            comm.all_reduce(a.in(), a.out(), reduction::sum, stream);
            {
                nccl::group inner;
                comm.all_reduce(b.in(), b.out(), reduction::sum, stream);
                require(!comm.enqueues_at_once() && nccl::group::is_open(), "in a group");
                inner.end();
            }
            require(nccl::group::is_open(), "still in the outer group");
            comm.synchronize(stream);
            require(a.all(1) && b.all(10), "nothing may run before the end");
            outer.end();
            require(!nccl::group::is_open() && comm.enqueues_at_once(), "after the group");
            comm.synchronize(stream);
            require(a.all(2) && b.all(20), "sums of a group");
        });
    }
}

TEST_CASE("collectives are captured and replayed with fresh data")
{
    for (const nccl::blocking_mode mode : nccl_modes) {
        for (const int ranks : {1, 2, 3}) {
            CAPTURE(ranks);
            nccl_provider{ranks, {.mode = mode}}.run([](nccl_owner& comm) {
                const cuda::stream stream;
                const cudaStream_t raw = stream.get();
                const auto n = static_cast<std::size_t>(comm.size());
                device_values<std::int32_t> value(5, 0);
                device_values<std::int32_t> all(5 * n, -1);
                device_values<std::int32_t> exchanged(5 * n, -1);
                cudaGraph_t graph = nullptr;
                cudaGraphExec_t replay = nullptr;
                // The first calls of the communicator: nothing may need a warm-up.
                require(cudaStreamBeginCapture(raw, cudaStreamCaptureModeThreadLocal) == cudaSuccess, "begin");
                comm.all_reduce(value.in(), value.out(), reduction::sum, stream);
                comm.barrier(stream);
                comm.all_gather(value.in(), all.out(), stream);
                comm.all_to_all(all.in(), exchanged.out(), stream);
                comm.check();
                require(cudaStreamEndCapture(raw, &graph) == cudaSuccess, "the capture must have stayed valid");
                require(cudaGraphInstantiate(&replay, graph, 0) == cudaSuccess, "instantiate");
                int expected = 0;
                for (int round = 1; round <= 4; ++round) {
                    for (std::size_t i = 0; i < 5; ++i) value[i] = round * (comm.rank() + 1);
                    require(cudaGraphLaunch(replay, raw) == cudaSuccess, "launch");
                    comm.synchronize(stream);
                    expected = round * comm.size() * (comm.size() + 1) / 2;
                    require(value.all(expected) && all.all(expected) && exchanged.all(expected), "replayed");
                    // Between replays the communicator works as ever.
                    comm.all_reduce(value.in(), value.out(), reduction::max, stream);
                    comm.synchronize(stream);
                    require(value.all(expected), "between replays");
                }
                cudaGraphExecDestroy(replay);
                cudaGraphDestroy(graph);
            });
        }
    }
}

TEST_CASE("a steady collective is one NCCL call, allocates nothing and never waits")
{
    constexpr int n = 3;
    std::latch warm(n);
    std::latch counted(n);
    std::latch worked(n);
    std::latch noted(n);
    std::atomic<long> before{0};
    std::atomic<long> after{0};
    struct {
        const char* function;
        std::uint64_t wanted;
        std::uint64_t before = 0;
        std::uint64_t after = 0;
    } counts[] = {{"ncclAllReduce", 2 * 20 * n}, {"ncclReduceScatter", 20 * n}, {"ncclAllGather", 20 * n},
        {"ncclBroadcast", 20 * n},
        // What must not happen on the way.
        {"ncclGroupStart", 0}, {"cudaStreamSynchronize", 0}, {"cudaEventSynchronize", 0}, {"cudaStreamQuery", 0},
        {"cudaEventQuery", 0}, {"cudaDeviceSynchronize", 0}, {"cudaMalloc", 0}, {"cudaFree", 0},
        {"cudaHostAlloc", 0}, {"cudaEventCreateWithFlags", 0}, {"cudaStreamCreateWithFlags", 0},
        {"cudaMemcpyAsync", 0}, {"cudaSetDevice", 0}};
    nccl_provider{n, {.mode = nccl::blocking_mode::blocking}}.run([&](nccl_owner& comm) {
        device_values<collprobe::float16> send(639, collprobe::float16(1.0f));
        device_values<collprobe::float16> receive(639, collprobe::float16(0.0f));
        const view<collprobe::float16> part = receive.out().part(0, 213);
        const cuda::stream stream;
        const auto work = [&] {
            for (int call = 0; call < 20; ++call) {
                comm.all_reduce(send.in(), receive.out(), reduction::average, stream);
                comm.reduce_scatter(send.in(), part, reduction::max, stream);
                comm.all_gather(send.in().part(0, 213), receive.out(), stream);
                comm.all_to_all(send.in(), receive.out(), stream);
                comm.broadcast(send.in(), receive.out(), 2, stream);
                comm.barrier(stream);
                comm.check();
            }
        };
        // The stand-in's queue keeps what it ever needed: let it be longer here than it can get below.
        for (int round = 0; round < 2; ++round) {
            std::latch go(1);
            stand_in::enqueue(stream.get(), [&go] { go.wait(); });
            work();
            work();
            go.count_down();
            comm.synchronize(stream);
        }
        warm.arrive_and_wait();
        if (comm.rank() == 0) {
            before = allocations.load();
            for (auto& each : counts) each.before = stand_in::calls(each.function);
        }
        counted.arrive_and_wait();
        work();
        worked.arrive_and_wait();
        if (comm.rank() == 0) {
            after = allocations.load();
            for (auto& each : counts) each.after = stand_in::calls(each.function);
        }
        noted.arrive_and_wait();
        comm.synchronize(stream);
    });
    // The counters' own look-ups allocate, on one side of `before` only.
    CHECK(after - before <= static_cast<long>(std::size(counts)));
    for (const auto& each : counts) {
        CAPTURE(std::string(each.function));
        CHECK(each.after - each.before == each.wanted);
    }
}

} // namespace collprobe::testing::nccl_stand_in_test
