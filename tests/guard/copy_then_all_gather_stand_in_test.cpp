// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// The guarded all-gather over NCCL and on CUDA streams: what it costs, captures, groups, raw handles.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include <collprobe/guard/copy_then_all_gather.hpp>
#include <collprobe/guard/nccl/copy_then_all_gather.hpp>

#include "support/checks.hpp"
#include "tests/support/stand_in/nccl_ranks.hpp"
#include "tests/support/stand_in/stand_in_test_tools.hpp"

namespace collprobe::testing::copy_then_all_gather_stand_in_test {
namespace {

constexpr std::size_t slot = 300;

/// Floats of the current device, which `set` copies there in the order of a stream.
struct device_vector : cuda::buffer<float> {
    explicit device_vector(std::size_t count) : cuda::buffer<float>(count), pinned(count) {}
    void set(const std::vector<float>& values, cuda::stream_ref on)
    {
        std::copy(values.begin(), values.end(), pinned.begin());
        cuda::device::copy(on, view<const float>(pinned), view<float>(*this));
    }
    cuda::pinned_buffer<float> pinned;
};

std::vector<float> shard_of(int rank, int generation)
{
    std::vector<float> values(slot);
    for (std::size_t i = 0; i < slot; ++i) {
        values[i] = static_cast<float>(1000 * rank + static_cast<int>(i)) + 0.25f * static_cast<float>(generation);
    }
    return values;
}
bool gathered(const device_vector& full, int ranks, int generation)
{
    for (int rank = 0; rank < ranks; ++rank) {
        const std::vector<float> expected = shard_of(rank, generation);
        for (std::size_t i = 0; i < slot; ++i) {
            if (full.data()[static_cast<std::size_t>(rank) * slot + i] != expected[i]) return false;
        }
    }
    return true;
}
struct counted {
    std::uint64_t records = stand_in::calls("cudaEventRecord");
    std::uint64_t waits = stand_in::calls("cudaStreamWaitEvent");
    std::uint64_t created = stand_in::calls("cudaEventCreateWithFlags");
    std::uint64_t synchronized = stand_in::calls("cudaStreamSynchronize") + stand_in::calls("cudaEventSynchronize")
        + stand_in::calls("cudaDeviceSynchronize") + stand_in::calls("cudaEventQuery") + stand_in::calls("cudaStreamQuery");

    friend counted operator-(counted a, const counted& b)
    {
        a.records -= b.records;
        a.waits -= b.waits;
        a.created -= b.created;
        a.synchronized -= b.synchronized;
        return a;
    }
};

} // namespace

TEST_CASE("one producer and one consumer cost two events, streams that coincide none, and the host never waits")
{
    // One rank, so that what NCCL's stand-in does by itself is not counted.
    CHECK_NOTHROW(nccl_provider{1}.run([](nccl_owner& world) {
        device_vector shard(slot), full(slot);
        const cuda::stream compute, on, other;
        shard.set(shard_of(0, 1), compute);
        const auto cost = [&](auto call) {
            call(); // takes events from the pool: those of one call are in use during the next
            call();
            const counted before;
            call();
            return counted{} - before;
        };
        const counted apart = cost([&] { copy_then_all_gather(shard, full, world, on, {compute}, {compute}); });
        CHECK(apart.records == 2);
        CHECK(apart.waits == 2);
        const counted repeated
            = cost([&] { copy_then_all_gather(shard, full, world, on, {compute, on, compute}, {compute, compute, on}); });
        CHECK(repeated.records == 2);
        CHECK(repeated.waits == 2);
        const counted many = cost([&] { copy_then_all_gather(shard, full, world, on, {compute, other}, {compute, other}); });
        CHECK(many.records == 3);
        CHECK(many.waits == 4);
        const counted same = cost([&] { copy_then_all_gather(shard, full, world, on, {on}, {on}); });
        CHECK(same.records == 0);
        CHECK(same.waits == 0);
        guarded<cuda::device, float> kept(slot), result(slot);
        const counted with_history = cost([&] {
            copy_then_all_gather(shard, result, world, on, {compute}, {compute}, {.shard = &kept});
        });
        CHECK(with_history.records == 2);
        CHECK(with_history.waits == 2);
        for (const counted& each : {apart, repeated, many, same, with_history}) {
            CHECK(each.created == 0);
            CHECK(each.synchronized == 0);
        }
        for (const auto* each : {&compute, &on, &other}) each->synchronize(soon_ms);
        CHECK(gathered(full, 1, 1));
    }));
}

TEST_CASE("a destination that is longer than its allocation is refused before the copy")
{
    CHECK_NOTHROW(nccl_provider{1}.run([](nccl_owner& world) {
        device_vector shard(slot), full(slot);
        const cuda::stream on;
        shard.set(shard_of(0, 1), on);
        full.set(shard_of(0, 2), on);
        const auto refused = error_of([&] {
            copy_then_all_gather(shard, view<float>(full.data(), slot + 1), world, on, {on}, {on});
        });
        on.synchronize(soon_ms);
        check_error(refused, status::invalid_argument, {"all_gather", "destination reaches beyond its allocation"});
        CHECK(gathered(full, 1, 2));
        copy_then_all_gather(shard, full, world, on, {on}, {on});
        on.synchronize(soon_ms);
        CHECK(gathered(full, 1, 1));
    }));
}

TEST_CASE("a captured gather is right at each replay, with fresh data, on buffers used before and after")
{
    CHECK_NOTHROW(nccl_provider{2}.run([](nccl_owner& world) {
        device_vector master(slot), full(2 * slot);
        guarded<cuda::device, float> kept(slot), result{view<float>(full)};
        const cuda::stream compute, on;
        const auto gather = [&] {
            // `on` becomes part of a capture by the edge from `compute`.
            copy_then_all_gather(master, result, world, on, {compute}, {compute}, {.shard = &kept});
        };
        const auto step = [&](int generation, auto run) {
            master.set(shard_of(world.rank(), generation), compute);
            run();
            compute.synchronize(soon_ms);
            require(gathered(full, 2, generation), "wrong data");
        };
        step(1, gather);
        on.synchronize(soon_ms);
        captured_graph graph(compute, cudaStreamCaptureModeThreadLocal);
        const counted before;
        gather();
        gather();
        require((counted{} - before).synchronized == 0 || world.size() > 1, "the host waited within a capture");
        cuda::check(graph.end(), "end");
        for (int replay = 2; replay < 6; ++replay) {
            step(replay, [&] { result.write(compute, [&](view<float>) { graph.launch(compute); }); });
        }
        step(6, gather);
        step(7, [&] { result.write(compute, [&](view<float>) { graph.launch(compute); }); });
        on.synchronize(soon_ms);
    }));
}

TEST_CASE("an access outside an open capture does not make the capture forget its own")
{
    stand_in::reset();
    const cuda::stream a, b, outside;
    guarded<cuda::device, float> data(100);
    data.write(a, [](view<float>) {});
    a.synchronize(soon_ms);
    for (const bool disturbed : {false, true}) {
        captured_graph graph(a, cudaStreamCaptureModeThreadLocal);
        data.write(0, 50, a, [](view<float>) {});
        if (disturbed) {
            data.write(50, 50, outside, [](view<float>) {});
            outside.synchronize(soon_ms);
        }
        const counted before;
        data.read(0, 50, b, [](view<const float>) {});
        CHECK((counted{} - before).waits >= 1);
        CHECK(b.capturing());
        data.write(0, 50, a, [](view<float>) {}); // joins b
        CHECK(graph.end() == cudaSuccess);
    }
    // Captures that have ended are forgotten when somebody meets them, and nobody joins them.
    data.write(outside, [](view<float>) {});
    CHECK(!outside.capturing());
    outside.synchronize(soon_ms);
}

TEST_CASE("a captured gather does not wait for work outside: it is refused, and the capture stays valid")
{
    CHECK_NOTHROW(nccl_provider{1}.run([](nccl_owner& world) {
        device_vector shard(slot), full(slot);
        const cuda::stream compute, on, outside;
        shard.set(shard_of(0, 1), compute);
        compute.synchronize(soon_ms);
        captured_graph graph(compute, cudaStreamCaptureModeThreadLocal);
        // Work outside that still uses a guarded buffer cannot be waited for.
        guarded<cuda::device, float> busy(slot);
        {
            gate closed(outside);
            busy.write(outside, [](view<float>) {});
            CHECK(contains(
                refusal([&] { copy_then_all_gather(shard, busy, world, on, {compute}, {compute}); }), "outside the capture"));
            closed.open();
            outside.synchronize(soon_ms);
        }
        copy_then_all_gather(shard, busy, world, on, {compute}, {compute});
        CHECK(graph.end() == cudaSuccess);
        graph.launch(compute);
        compute.synchronize(soon_ms);
        CHECK(busy.memory()[1] == shard_of(0, 1)[1]);
    }));
}

} // namespace collprobe::testing::copy_then_all_gather_stand_in_test
