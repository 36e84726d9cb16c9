// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <collprobe/comm/nccl/communicator.hpp>
#include <collprobe/guard/copy_then_all_gather.hpp>
#include <collprobe/order/nccl/ordered.hpp>

#include "support/checks.hpp"
#include "tests/support/stand_in/nccl_ranks.hpp"
#include "tests/support/stand_in/stand_in.hpp"
#include "tests/support/stand_in/stand_in_test_tools.hpp"

// What CUDA and NCCL calls tell the checker: those of the library by themselves, foreign ones by the wrappers.
// Compiled with COLLPROBE_STREAM_ORDER=1, as is the stand-in.

using namespace collprobe;
using testing::check_all;
using testing::clean_stand_in;
using testing::require;
using testing::run_each_nccl;

namespace {

constexpr std::size_t count = 64;
constexpr std::size_t size = count * sizeof(float);

/// Real order that the checker cannot see, so that what is reported here is no race of the test's own.
class hidden_order {
public:
    void operator()(cuda::stream_ref from, cuda::stream_ref to)
    {
        cuda::check(stand_in::enqueue(from.get(), [this] { done_.store(true, std::memory_order_release); }), "enqueue");
        cuda::check(stand_in::enqueue(to.get(),
                        [this] {
                            while (!done_.load(std::memory_order_acquire)) std::this_thread::yield();
                        }),
            "enqueue");
    }

private:
    std::atomic<bool> done_{false};
};

std::vector<hazard_kind> kinds(const stream_order& checker)
{
    std::vector<hazard_kind> result;
    for (const stream_hazard& each : checker.hazards()) result.push_back(each.kind);
    return result;
}
using list = std::vector<hazard_kind>;

std::string messages(const stream_order& checker)
{
    std::string text;
    for (const stream_hazard& each : checker.hazards()) text += each.message() + "\n";
    return text;
}

void must(cudaError_t code) { REQUIRE(code == cudaSuccess); }

} // namespace

TEST_CASE("the library's copy and NCCL gather without an edge are reported with both lines, with one they are silent")
{
    const clean_stand_in clean;
    int how = 0;
    SUBCASE("no edge") { how = 0; }
    SUBCASE("an event") { how = 1; }
    SUBCASE("guarded") { how = 2; }
    SUBCASE("no edge, in a group") { how = 3; }
    stream_order checker;
    checker.install();
    std::atomic<unsigned> copy_line{0};
    std::atomic<unsigned> gather_line{0};
    check_all(run_each_nccl(2, {}, [&](testing::nccl_owner& comm) {
        const cuda::buffer<float> master(count), shard(count), full(2 * count);
        hidden_order hidden;
        const cuda::stream copies, gathers;
        cuda::event copied;
        if (how == 2) {
            cuda::device::zero(copies, view<float>(master));
            copy_then_all_gather(view<const float>(master), view<float>(full), comm, gathers, {copies}, {copies});
        } else {
            copy_line = __LINE__ + 1;
            cuda::device::copy(copies, view<const float>(master), view<float>(shard));
            hidden(copies, gathers);
            if (how == 1) {
                copied.record(copies);
                gathers.wait(copied);
            }
            if (how == 3) {
                nccl::group group;
                comm.all_gather(view<const float>(shard), view<float>(full), gathers);
                group.end();
            } else {
                gather_line = __LINE__ + 1;
                comm.all_gather(view<const float>(shard), view<float>(full), gathers);
            }
        }
        gathers.synchronize();
        copies.synchronize();
    }));
    CAPTURE(messages(checker));
    if (how == 1 || how == 2) {
        CHECK(checker.hazard_count() == 0);
        return;
    }
    REQUIRE(kinds(checker) == list{hazard_kind::read_after_write});
    const stream_hazard found = checker.hazards()[0];
    CHECK(found.count == 2);
    CHECK(found.earlier.where.line == copy_line);
    CHECK(std::string(found.later.operation) == "all_gather");
    if (how == 0) CHECK(found.later.where.line == gather_line);
}

TEST_CASE("a trainer's own ZeRO-1 step: optimizer on one stream, grouped gathers on another, by the wrappers")
{
    const clean_stand_in clean;
    int how = 0;
    SUBCASE("no edge") { how = 0; }
    SUBCASE("an event") { how = 1; }
    SUBCASE("staging overwritten within the group") { how = 2; }
    stream_order checker;
    checker.install();
    check_all(run_each_nccl(2, {.mode = nccl::blocking_mode::blocking}, [&](testing::nccl_owner& owner) {
        const ncclComm_t comm = owner.native_handle();
        hidden_order hidden;
        const cuda::stream compute_owner, communication_owner;
        const cudaStream_t compute = compute_owner.get();
        const cudaStream_t communication = communication_owner.get();
        const auto require = [](bool holds) {
            if (!holds) throw std::runtime_error("a call failed");
        };
        float* weights = nullptr;
        float* shard = nullptr;
        cudaEvent_t ready = nullptr;
        require(ordered::malloc(reinterpret_cast<void**>(&weights), 2 * size) == cudaSuccess);
        require(ordered::malloc(reinterpret_cast<void**>(&shard), size) == cudaSuccess);
        require(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming) == cudaSuccess);
        ordered::touch(compute, {}, {{shard, size}}, "adam");
        if (how == 0) hidden(compute, communication);
        if (how != 0) {
            require(ordered::event_record(ready, compute) == cudaSuccess);
            require(ordered::stream_wait_event(communication, ready) == cudaSuccess);
        }
        require(ordered::group_start() == ncclSuccess);
        require(ordered::all_gather(shard, weights, count, ncclFloat32, comm, communication) == ncclSuccess);
        if (how == 2) require(ordered::memset_async(shard, 0, size, communication) == cudaSuccess);
        require(ordered::group_end() == ncclSuccess);
        require(ordered::event_record(ready, communication) == cudaSuccess);
        require(ordered::event_synchronize(ready) == cudaSuccess);
        if (how == 0) require(ordered::stream_synchronize(compute) == cudaSuccess);
        require(ordered::free(weights) == cudaSuccess);
        require(ordered::free(shard) == cudaSuccess);
        require(ordered::event_destroy(ready) == cudaSuccess);
    }));
    CAPTURE(messages(checker));
    if (how == 0) {
        REQUIRE(kinds(checker) == list{hazard_kind::read_after_write});
        CHECK(std::string(checker.hazards()[0].earlier.operation) == "adam");
        CHECK(std::string(checker.hazards()[0].later.operation) == "ncclAllGather");
        CHECK(checker.hazards()[0].later.bytes.bytes == size);
    } else if (how == 1) {
        CHECK(checker.hazard_count() == 0);
    } else {
        CHECK(kinds(checker) == list{hazard_kind::overwritten_in_group});
    }
}

TEST_CASE("raw handles: an unrecorded event, a reused one, synchronisation and release")
{
    const clean_stand_in clean;
    stream_order checker;
    checker.install();
    const cuda::stream first_owner, second_owner;
    const cudaStream_t first = first_owner.get();
    const cudaStream_t second = second_owner.get();
    void* data = nullptr;
    must(ordered::malloc(&data, size));
    cudaEvent_t event = nullptr;
    must(ordered::event_create(&event, cudaEventDisableTiming));
    SUBCASE("a wait for an event that was never recorded")
    {
        must(ordered::stream_wait_event(second, event));
        CHECK(kinds(checker) == list{hazard_kind::unrecorded_event});
    }
    SUBCASE("known by a query or a synchronisation, else not")
    {
        must(ordered::memset_async(data, 0, size, first));
        must(ordered::event_record(event, first));
        SUBCASE("query")
        {
            while (ordered::event_query(event) != cudaSuccess) std::this_thread::yield();
        }
        SUBCASE("stream query")
        {
            while (ordered::stream_query(first) != cudaSuccess) std::this_thread::yield();
        }
        SUBCASE("stream") { must(ordered::stream_synchronize(first)); }
        SUBCASE("device") { must(ordered::device_synchronize()); }
        ordered::touch_host({data, size}, memory_access::read);
        ordered::touch(second, {}, {{data, size}});
        CHECK(checker.hazard_count() == 0);
        must(cudaDeviceSynchronize());
        must(ordered::device_synchronize());
    }
    SUBCASE("an event of the library, waited for by its handle")
    {
        cuda::event own;
        for (int step = 0; step < 2; ++step) {
            must(ordered::memset_async(data, 0, size, first));
            own.record(first_owner);
            must(ordered::stream_wait_event(second, own.get()));
            ordered::touch(second, {{data, size}}, {}, "reader");
            own.record(second_owner);
            first_owner.wait(own);
        }
        must(ordered::event_synchronize(own.get()));
        ordered::touch_host({data, size}, memory_access::write);
        CHECK(checker.hazard_count() == 0);
    }
    SUBCASE("released in use, and used after")
    {
        ordered::touch(first, {{data, size}}, {}, "reader");
        must(ordered::free(data));
        ordered::touch(second, {{data, size}}, {}, "late");
        CHECK(kinds(checker) == list{hazard_kind::released_in_use, hazard_kind::use_after_release});
        must(ordered::malloc(&data, size));
    }
    SUBCASE("released in the order of a stream")
    {
        void* pooled = nullptr;
        must(ordered::malloc_async(&pooled, size, first));
        ordered::touch(first, {}, {{pooled, size}}, "writer");
        must(ordered::event_record(event, first));
        must(ordered::stream_wait_event(second, event));
        must(ordered::free_async(pooled, second));
        CHECK(checker.hazard_count() == 0);
        must(ordered::malloc_async(&pooled, size, first));
        must(ordered::free_async(pooled, second));
        CHECK(kinds(checker) == list{hazard_kind::released_in_use});
        must(ordered::device_synchronize());
    }
    must(cudaDeviceSynchronize());
    must(ordered::event_destroy(event));
    must(cudaFree(data));
}

TEST_CASE("a size in bytes in the place of a count of floats is reported before the call is made")
{
    const clean_stand_in clean;
    stream_order checker({.on_hazard = stream_order::raise});
    checker.install();
    std::uint32_t raw_line = 0;
    check_all(run_each_nccl(1, {}, [&](testing::nccl_owner& comm) {
        const cuda::stream owner;
        const cudaStream_t stream = owner.get();
        void* loss = nullptr;
        const auto sum = [&](std::size_t elements) {
            raw_line = __LINE__ + 1;
            return ordered::all_reduce(loss, loss, elements, ncclFloat, ncclSum, comm.native_handle(), stream);
        };
        require(ordered::malloc(&loss, sizeof(float)) == cudaSuccess, "malloc");
        require(ordered::memset_async(loss, 0, sizeof(float), stream) == cudaSuccess, "memset");
        CHECK_THROWS_AS((void)sum(sizeof(float)), error);
        require(sum(1) == ncclSuccess, "all_reduce");
        auto* const floats = static_cast<float*>(loss);
        const auto own_sum = [&](std::uint64_t elements) {
            comm.all_reduce(view<const float>(floats, elements), view<float>(floats, elements), reduction::sum, owner);
        };
        CHECK_THROWS_AS(own_sum(sizeof(float)), error); // the communicator is the first to see it
        own_sum(1);
        require(ordered::stream_synchronize(stream) == cudaSuccess, "stream_synchronize");
        require(ordered::free(loss) == cudaSuccess, "free");
        // The library's own allocations are told by themselves.
        const cuda::buffer<float> from(4), to(8);
        CHECK_THROWS_AS(cuda::device::copy(owner, view<const float>(from.data(), 8), view<float>(to)), error);
        cuda::device::copy(owner, view<const float>(from), view<float>(to.data(), 4));
        owner.synchronize();
    }));
    CAPTURE(messages(checker));
    REQUIRE(kinds(checker) == list(3, hazard_kind::beyond_allocation));
    const auto found = checker.hazards();
    for (std::size_t at = 0; at < 2; ++at) {
        CHECK(found[at].earlier.bytes.bytes == sizeof(float));
        CHECK(found[at].later.bytes.bytes == sizeof(float) * sizeof(float));
        CHECK(found[at].later.mode == (at % 2 == 0 ? memory_access::read : memory_access::write));
        CHECK(found[at].later.where.line == raw_line);
        CHECK(std::string(found[at].later.operation) == "ncclAllReduce");
    }
    CHECK(std::string(found[2].later.operation) == "copy");
}

TEST_CASE("copies and fills of the default stream are known to the host where CUDA promises it")
{
    const clean_stand_in clean;
    stream_order checker;
    checker.install();
    // Not ordered with the default stream but through the host.
    const cuda::stream other_owner;
    const cudaStream_t other = other_owner.get();
    std::vector<float> pageable(count);
    void* data = nullptr;
    void* copy = nullptr;
    void* pinned = nullptr;
    void* managed = nullptr;
    must(ordered::malloc(&data, size));
    must(ordered::malloc(&copy, size));
    must(ordered::malloc_host(&pinned, size));
    must(ordered::malloc_managed(&managed, size));
    ordered::touch(nullptr, {}, {{data, size}}, "writer");
    list expected;
    SUBCASE("device to pageable")
    {
        must(ordered::memcpy(pageable.data(), data, size, cudaMemcpyDeviceToHost));
        ordered::touch_host({pageable.data(), size}, memory_access::read);
        ordered::touch(other, {{data, size}}, {}, "reader");
    }
    SUBCASE("device to pinned")
    {
        must(ordered::memcpy(pinned, data, size, cudaMemcpyDefault));
        ordered::touch_host({pinned, size}, memory_access::write);
    }
    SUBCASE("host to host")
    {
        must(ordered::memcpy(pageable.data(), pinned, size, cudaMemcpyHostToHost));
        ordered::touch_host({pageable.data(), size}, memory_access::write);
        ordered::touch_host({pinned, size}, memory_access::write);
    }
    SUBCASE("pinned to device")
    {
        must(ordered::memcpy(data, pinned, size, cudaMemcpyHostToDevice));
        ordered::touch_host({pinned, size}, memory_access::write);
        ordered::touch(other, {{data, size}}, {}, "reader");
    }
    SUBCASE("pageable to device: the source is free, the destination written in the order of the stream")
    {
        must(ordered::memcpy(copy, pageable.data(), size, cudaMemcpyHostToDevice));
        ordered::touch_host({pageable.data(), size}, memory_access::write);
        ordered::touch(other, {{data, size}}, {}, "reader of what was there before");
        CHECK(checker.hazard_count() == 0);
        ordered::touch(other, {{copy, size}}, {}, "reader");
        expected = {hazard_kind::read_after_write};
    }
    SUBCASE("device to device: in the order of the stream")
    {
        must(ordered::memcpy(copy, data, size, cudaMemcpyDeviceToDevice));
        ordered::touch(nullptr, {{copy, size}}, {}, "reader behind it");
        CHECK(checker.hazard_count() == 0);
        ordered::touch(other, {{copy, size}}, {}, "reader");
        expected = {hazard_kind::read_after_write};
    }
    SUBCASE("a source that another stream writes")
    {
        ordered::touch(other, {}, {{copy, size}}, "writer");
        must(ordered::memcpy(pageable.data(), copy, size, cudaMemcpyDeviceToHost));
        expected = {hazard_kind::read_after_write};
    }
    SUBCASE("a fill of device memory: in the order of the stream")
    {
        must(ordered::memset(copy, 0, size));
        ordered::touch(other, {{copy, size}}, {}, "reader");
        expected = {hazard_kind::read_after_write};
    }
    SUBCASE("a fill of pinned or managed memory")
    {
        must(ordered::memset(pinned, 0, size));
        must(ordered::memset(managed, 0, size));
        ordered::touch_host({pinned, size}, memory_access::read);
        ordered::touch(other, {{managed, size}}, {}, "reader");
    }
    SUBCASE("an event, a copy and a fill of the default stream")
    {
        cudaEvent_t event = nullptr;
        must(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
        must(ordered::memset_async(copy, 0, size));
        must(ordered::memcpy_async(data, copy, size, cudaMemcpyDeviceToDevice));
        must(ordered::event_record(event));
        must(ordered::stream_wait_event(other, event));
        ordered::touch(other, {{data, size}}, {}, "reader");
        must(ordered::event_destroy(event));
    }
    SUBCASE("memory that was given back")
    {
        must(ordered::device_synchronize());
        must(ordered::free(managed));
        must(ordered::free_host(pinned));
        ordered::touch(other, {{managed, size}}, {}, "late");
        ordered::touch_host({pinned, size}, memory_access::read);
        expected = {hazard_kind::use_after_release, hazard_kind::use_after_release};
        must(ordered::malloc_managed(&managed, size));
        must(ordered::malloc_host(&pinned, size));
    }
    CAPTURE(messages(checker));
    CHECK(kinds(checker) == expected);
    must(ordered::device_synchronize());
    must(ordered::free(data));
    must(ordered::free(copy));
    must(ordered::free(managed));
    must(ordered::free_host(pinned));
}

TEST_CASE("the legacy default stream is ordered with blocking streams only")
{
    const clean_stand_in clean;
    stream_order checker;
    checker.install();
    cudaStream_t stream = nullptr;
    const bool blocking = [] {
        bool value = false;
        SUBCASE("blocking") { value = true; }
        SUBCASE("not blocking") { value = false; }
        return value;
    }();
    must(cudaStreamCreateWithFlags(&stream, blocking ? cudaStreamDefault : cudaStreamNonBlocking));
    const cuda::buffer<float> data(count);
    ordered::touch(stream, {}, {view<float>(data)}, "kernel");
    ordered::touch(cudaStreamLegacy, {view<float>(data)}, {}, "legacy");
    ordered::touch(stream, {}, {view<float>(data)}, "kernel");
    CHECK((checker.hazard_count() == 0) == blocking);
    must(ordered::stream_destroy(stream));
    must(ordered::device_synchronize());
}

TEST_CASE("a stream whose handle comes again is another one")
{
    const clean_stand_in clean;
    stream_order checker;
    checker.install();
    const cuda::buffer<float> data(count);
    {
        const cuda::stream stream;
        cuda::device::zero(stream, view<float>(data));
        stream.synchronize();
        ordered::touch(stream.get(), {}, {view<float>(data)}, "not waited for");
    }
    const cuda::stream again;
    ordered::touch(again.get(), {view<float>(data)}, {}, "on another stream");
    CHECK(kinds(checker) == list{hazard_kind::read_after_write});
}

TEST_CASE("a captured step is checked inside, launched as one operation, and not half")
{
    const clean_stand_in clean;
    stream_order checker;
    checker.install();
    const cuda::buffer<float> master(count), shard(count), result(count);
    const cuda::stream compute, other;
    const cudaStream_t raw = compute.get();
    cuda::event fork, join;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t runnable = nullptr;
    bool edge = true;
    SUBCASE("with its edge") { edge = true; }
    SUBCASE("without") { edge = false; }
    must(ordered::stream_begin_capture(raw, cudaStreamCaptureModeThreadLocal));
    fork.record(compute);
    other.wait(fork);
    cuda::device::copy(compute, view<const float>(master), view<float>(shard));
    if (edge) {
        fork.record(compute);
        other.wait(fork);
    }
    cuda::device::copy(other, view<const float>(shard), view<float>(result));
    CHECK(checker.hazard_count() == (edge ? 0 : 1));
    checker.clear_reports();
    join.record(other);
    compute.wait(join);
    bool uncaptured = false;
    SUBCASE("an uncaptured half")
    {
        uncaptured = true;
        const cuda::stream outside;
        ordered::touch(outside.get(), {view<float>(shard)}, {}, "outside");
    }
    must(ordered::stream_end_capture(raw, &graph));
    must(ordered::graph_instantiate(&runnable, graph));
    if (edge) {
        const cuda::stream second;
        must(ordered::graph_launch(runnable, raw));
        CHECK(kinds(checker) == (uncaptured ? list{hazard_kind::half_captured} : list{}));
        checker.clear_reports();
        SUBCASE("used behind it") { ordered::touch(raw, {view<float>(result)}, {}, "use"); }
        SUBCASE("used on another stream without an edge")
        {
            ordered::touch(second.get(), {view<float>(result)}, {}, "use");
            REQUIRE(kinds(checker) == list{hazard_kind::read_after_write});
            CHECK(std::string(checker.hazards()[0].earlier.operation) == "graph launch");
            checker.clear_reports();
        }
    }
    compute.synchronize();
    must(cudaGraphExecDestroy(runnable));
    must(cudaGraphDestroy(graph));
}
