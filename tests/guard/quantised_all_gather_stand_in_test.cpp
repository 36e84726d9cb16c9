// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// The quantised gather over NCCL and on CUDA streams: what it costs, captures, groups.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include <collprobe/guard/quantised_all_gather.hpp>

#include "guard/quantised_weights.hpp"
#include "step/nccl_steps.hpp"
#include "support/checks.hpp"
#include "tests/support/stand_in/stand_in_test_tools.hpp"

using namespace collprobe;
using namespace collprobe::testing;

namespace {

constexpr std::uint64_t count = 600;
using quantised_weights = quantised_all_gather<nccl::communicator, bfloat16>;

std::vector<float> shard_of(const quantised_weights& weights, std::uint64_t generation)
{
    return weights_of<float>(weights.shard_range().first, weights.shard_range().count, generation);
}
bool gathered(const device_vector<bfloat16>& full, int ranks, std::uint64_t generation)
{
    const auto expected = coded_weights<bfloat16, float>(count, static_cast<std::uint64_t>(ranks), generation, {});
    return std::memcmp(full.data(), expected.data(), count * sizeof(bfloat16)) == 0;
}
/// Calls that create events, or for which the host waits.
std::uint64_t costly_calls()
{
    return stand_in::calls("cudaEventCreateWithFlags") + stand_in::calls("cudaStreamSynchronize")
        + stand_in::calls("cudaEventSynchronize") + stand_in::calls("cudaDeviceSynchronize")
        + stand_in::calls("cudaEventQuery") + stand_in::calls("cudaStreamQuery") + stand_in::calls("cudaMalloc")
        + stand_in::calls("cudaMallocHost");
}

} // namespace

TEST_CASE("over NCCL a gather waits for a gated encoding, and costs an event besides those of its streams")
{
    CHECK_NOTHROW(run_nccl(2, [](nccl::communicator& world) {
        quantised_weights weights(world, count);
        const cuda::device_guard here(world.device_ordinal());
        device_vector<float> shard(weights.shard_range().count);
        device_vector<bfloat16> full(count);
        const cuda::stream compute, on, consumer;
        for (std::uint64_t generation = 1; generation < 4; ++generation) {
            gate closed(compute);
            shard.set(shard_of(weights, generation), compute);
            weights.encode(shard, generation, compute, {}, {});
            weights.gather(full, generation, on, {}, {consumer});
            require(!consumer.query(), "it did not wait");
            closed.open();
            consumer.synchronize(soon_ms);
            require(gathered(full, 2, generation), "other weights");
            compute.synchronize(soon_ms);
        }
    }));
    CHECK_NOTHROW(run_nccl(1, [](nccl::communicator& world) {
        quantised_weights weights(world, count);
        const cuda::device_guard here(world.device_ordinal());
        device_vector<float> shard(count);
        device_vector<bfloat16> full(count);
        const cuda::stream compute, on;
        shard.set(shard_of(weights, 1), compute);
        const auto step = [&](std::uint64_t generation) {
            weights.encode(shard, generation, compute, {}, {});
            weights.gather(full, generation, on, {compute}, {compute});
        };
        for (std::uint64_t generation = 1; generation < 4; ++generation) step(generation); // takes events from the pool
        const std::uint64_t before = costly_calls();
        const std::uint64_t records = stand_in::calls("cudaEventRecord"), waits = stand_in::calls("cudaStreamWaitEvent");
        step(4);
        CHECK(costly_calls() == before);
        CHECK(stand_in::calls("cudaEventRecord") - records == 3); // the encoding, the producer, the gather
        CHECK(stand_in::calls("cudaStreamWaitEvent") - waits == 4); // and both back edges
        compute.synchronize(soon_ms);
        CHECK(gathered(full, 1, 1));
    }));
}

TEST_CASE("captured, encoding and gathers are right at each replay, with fresh weights")
{
    CHECK_NOTHROW(run_nccl(2, [](nccl::communicator& world) {
        quantised_weights weights(world, count);
        const cuda::device_guard here(world.device_ordinal());
        device_vector<float> shard(weights.shard_range().count);
        device_vector<bfloat16> full(count), again(count);
        const cuda::stream compute, on, other;
        const auto call = [&](std::uint64_t generation) {
            weights.encode(shard, generation, compute, {}, {});
            weights.gather(full, generation, on, {}, {compute});
            weights.gather(again, generation, other, {}, {compute});
        };
        const auto replay = [&](std::uint64_t generation, auto run) {
            shard.set(shard_of(weights, generation), compute);
            run();
            compute.synchronize(soon_ms);
            require(gathered(full, 2, generation) && gathered(again, 2, generation), "other weights");
        };
        replay(1, [&] { call(1); });
        for (const auto* each : {&on, &other}) each->synchronize(soon_ms);
        captured_graph graph(compute, cudaStreamCaptureModeThreadLocal);
        call(2);
        call(2); // a back edge within the capture
        cuda::check(graph.end(), "end");
        const auto launch = [&] {
            weights.arrivals().write(compute, [&](view<std::uint8_t>) {
                weights.codes().write(compute, [&](view<std::uint8_t>) { graph.launch(compute); });
            });
        };
        for (std::uint64_t generation = 3; generation < 6; ++generation) {
            replay(generation, launch);
            require(weights.generation() == generation, "the launch counts as an encoding");
        }
        replay(6, [&] { call(6); });
        replay(7, launch);
        weights.gather(full, 7, on, {}, {}).synchronize(soon_ms);
        require(gathered(full, 2, 7), "other weights behind the graph");
    }));
}

TEST_CASE("a gather inside somebody's group is refused, an encoding is taken")
{
    CHECK_NOTHROW(run_nccl(2, [](nccl::communicator& world) {
        quantised_weights weights(world, count);
        const cuda::device_guard here(world.device_ordinal());
        device_vector<float> shard(weights.shard_range().count);
        device_vector<bfloat16> full(count);
        const cuda::stream compute, on;
        shard.set(shard_of(weights, 1), compute);
        {
            nccl::group open;
            weights.encode(shard, 1, compute, {}, {});
            const auto refused = error_of([&] { weights.gather(full, 1, on, {}, {}); });
            CHECK((refused && refused->code() == status::unsupported));
        }
        weights.gather(full, 1, on, {}, {}).synchronize(soon_ms);
        require(gathered(full, 2, 1), "other weights after the group");
    }));
}

TEST_CASE("half of an encoding or gather is not captured, and memory beyond its allocation is named")
{
    CHECK_NOTHROW(run_nccl(1, [](nccl::communicator& world) {
        quantised_weights weights(world, count);
        const cuda::device_guard here(world.device_ordinal());
        device_vector<float> shard(count);
        device_vector<bfloat16> full(count), small(count - 1);
        const cuda::stream compute, on, outside;
        shard.set(shard_of(weights, 1), compute);
        weights.encode(shard, 1, compute, {}, {});
        CHECK(contains(refusal([&] { weights.gather(view<bfloat16>(small.data(), count), 1, on, {}, {}); }),
            "destination reaches beyond its allocation"));
        compute.synchronize(soon_ms);
        {
            captured_graph graph(compute, cudaStreamCaptureModeThreadLocal);
            CHECK(contains(refusal([&] { weights.encode(shard, 2, on, {compute, outside}, {}); }),
                "half of it would be captured"));
            CHECK(weights.generation() == 1);
            CHECK(contains(refusal([&] { weights.gather(full, 1, on, {compute, outside}, {}); }),
                "half of it would be captured"));
            weights.gather(full, 1, on, {compute}, {compute});
            CHECK(graph.end() == cudaSuccess);
            graph.launch(compute);
            compute.synchronize(soon_ms);
        }
        CHECK(gathered(full, 1, 1));
    }));
}
