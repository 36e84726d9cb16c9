// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Secondary shards over NCCL and on CUDA streams: two nodes of two ranks.
#include <doctest/doctest.h>

#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <vector>

#include <collprobe/comm/nccl/communicator.hpp>
#include <collprobe/comm/node_groups.hpp>
#include <collprobe/guard/shard.hpp>

#include "step/nccl_steps.hpp"
#include "support/checks.hpp"
#include "tests/support/stand_in/stand_in_nccl.hpp"
#include "tests/support/stand_in/stand_in_test_tools.hpp"

using namespace collprobe;
using namespace collprobe::testing;

namespace {

using shard_of_floats = secondary_shard<nccl::communicator, float>;

float value(std::uint64_t index, int generation)
{
    return static_cast<float>(index + 1) + 0.25f * static_cast<float>(generation);
}

void write_primary(shard_of_floats& shard, cuda::stream_ref on, int generation)
{
    shard.write_primary(on, [&](view<float> slice) {
        const auto write = [slice, range = shard.primary_range(), generation] {
            for (std::uint64_t i = 0; i < slice.count(); ++i) slice[i] = value(range.first + i, generation);
        };
        cuda::check(stand_in::enqueue(on.get(), write), "enqueue");
    });
}
bool is_parameter(const device_vector<float>& gathered, std::uint64_t count, int generation)
{
    for (std::uint64_t i = 0; i < gathered.size(); ++i) {
        if (gathered.data()[i] != (i < count ? value(i, generation) : 0.0f)) return false;
    }
    return true;
}

/// Runs `body(nodes, shard, parameter, compute, on, other)` on every rank, for each count.
template <class Body>
void run_with_shards(std::initializer_list<std::uint64_t> counts, Body body)
{
    run_nccl(4, [&](nccl::communicator& world) {
        node_groups nodes(world, 2);
        for (const std::uint64_t count : counts) {
            shard_of_floats shard(nodes, count);
            const cuda::device_guard here(world.device_ordinal());
            device_vector<float> parameter(shard.padded_count());
            const cuda::stream compute, on, other;
            body(nodes, shard, parameter, compute.get(), on.get(), other.get());
            for (const auto* each : {&compute, &on, &other}) each->synchronize(soon_ms);
        }
    });
}

} // namespace

TEST_CASE("over NCCL a gather is behind the regeneration and a gated write, and reads the old shard without the guard")
{
    // No slice is empty: each rank has its own gate to wait for.
    CHECK_NOTHROW(run_with_shards({37, 1000}, [](auto& nodes, auto& shard, auto& parameter, cuda::stream_ref compute,
                                      cuda::stream_ref on, cuda::stream_ref other) {
        write_primary(shard, compute, 1);
        shard.regenerate(on, {}, {});
        shard.gather(parameter, other, {}, {}).synchronize(soon_ms);
        require(is_parameter(parameter, shard.count(), 1), "another parameter");
        const view<float> kept = shard.secondary().memory();
        for (const bool guarded_call : {false, true}) {
            const int generation = guarded_call ? 3 : 2;
            gate closed(compute);
            write_primary(shard, compute, generation);
            shard.regenerate(on, {}, {});
            if (guarded_call) {
                shard.gather(parameter, other, {}, {});
                require(!other.query(), "it did not wait");
            } else {
                nodes.within_node().all_gather(view<const float>(kept), view<float>(parameter), other);
                other.synchronize(soon_ms);
                require(is_parameter(parameter, shard.count(), 1), "the control did not read the old shard");
            }
            closed.open();
            on.synchronize(soon_ms);
            other.synchronize(soon_ms);
        }
        require(is_parameter(parameter, shard.count(), 3), "another parameter behind the gate");
        require(shard.total_bytes().inter_node == 3 * shard.layout().slot() * sizeof(float), "other bytes between nodes");
        require(shard.total_bytes().intra_node == 2 * kept.size_bytes(), "other bytes within the node");
    }));
    CHECK(stand_in::nccl::live_communicators() == 0);
}

TEST_CASE("the life of a shard can be captured, and each launch makes it anew")
{
    CHECK_NOTHROW(run_with_shards({0, 1, 37, 1000}, [](auto&, auto& shard, auto& parameter, cuda::stream_ref compute,
                                                        cuda::stream_ref on, cuda::stream_ref other) {
        const auto step = [&](int generation) {
            write_primary(shard, compute, generation);
            shard.regenerate(on, {compute}, {});
            shard.gather(parameter, other, {on}, {compute});
        };
        step(1); // NCCL makes its connections outside
        for (const cuda::stream_ref each : {compute, on, other}) each.synchronize(soon_ms);
        captured_graph graph(compute, cudaStreamCaptureModeThreadLocal);
        step(2);
        require(graph.end() == cudaSuccess, "it was not captured");
        require(is_parameter(parameter, shard.count(), 1), "the capture ran");
        for (int i = 0; i < 2; ++i) {
            graph.launch(compute);
            compute.synchronize(soon_ms);
            require(is_parameter(parameter, shard.count(), 2), "the launch gave another parameter");
        }
    }));
}

TEST_CASE("a shard is on the device of its communicator, and a step costs three events and no wait of the host")
{
    CHECK_NOTHROW(run_nccl(1, [](nccl::communicator& world) {
        node_groups nodes(world, 1); // another device is current
        shard_of_floats shard(nodes, 100);
        cudaPointerAttributes where{};
        require(cudaPointerGetAttributes(&where, shard.secondary().memory().data()) == cudaSuccess, "no device memory");
        require(where.device == world.device_ordinal(), "on another device");

        const cuda::device_guard here(world.device_ordinal());
        device_vector<float> parameter(shard.padded_count());
        const cuda::stream compute, on;
        const auto step = [&] {
            write_primary(shard, compute, 1);
            shard.regenerate(on, {}, {on});
            shard.gather(parameter, on, {}, {compute});
        };
        for (int i = 0; i < 3; ++i) step(); // takes events from the pool
        const auto synchronized = [] {
            return stand_in::calls("cudaStreamSynchronize") + stand_in::calls("cudaEventSynchronize")
                + stand_in::calls("cudaDeviceSynchronize");
        };
        const std::uint64_t records = stand_in::calls("cudaEventRecord"), waits = stand_in::calls("cudaStreamWaitEvent"),
                            created = stand_in::calls("cudaEventCreateWithFlags"), waited = synchronized();
        step();
        CHECK(stand_in::calls("cudaEventRecord") - records == 3);
        CHECK(stand_in::calls("cudaStreamWaitEvent") - waits <= 4);
        CHECK(stand_in::calls("cudaEventCreateWithFlags") == created);
        CHECK(synchronized() == waited);
        for (const auto* each : {&compute, &on}) each->synchronize(soon_ms);
    }));
}
