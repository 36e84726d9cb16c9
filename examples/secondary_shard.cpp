// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Weights that every node keeps, as by ZeRO++'s hpZ: they cross the slow network once a step, for the forward pass. Each
// rank then copies its part of the node's weights, its secondary shard, and the backward pass gathers within the node.
// The copy and that gather race unless an event lies between them. The checker of stream order says where one is missing.
#include <chrono>
#include <cstdio>
#include <thread>

#include <collprobe/collprobe.hpp>
#include <collprobe/comm/node_groups.hpp>
#include <collprobe/guard.hpp>
#include <collprobe/order.hpp>

using namespace collprobe;
using device = host::device; // for GPUs cuda::device

namespace {

constexpr std::uint64_t slice = 1000; // elements that a rank owns

void step(local::communicator& world, bool is_guarded)
{
    node_groups nodes(world, 2);
    const std::uint64_t count = slice * static_cast<std::uint64_t>(world.size()); // of all weights
    const std::uint64_t part = count / static_cast<std::uint64_t>(nodes.ranks_per_node()); // of a secondary shard
    const std::uint64_t first = part * static_cast<std::uint64_t>(nodes.local_rank());
    device::buffer<float> own(slice);
    guarded<device, float> weights(count), shard(part), again(count);
    const device::stream compute, copies, traffic;
    double sum = 0;

    device::fill(compute, view<float>(own), static_cast<float>(world.rank() + 1));
    copy_then_all_gather(own, weights, world, traffic, {compute}, {});

    const auto keep = [&](view<const float> from, view<float> to) { // takes a while: a gather would not wait by itself
        copies.enqueue([] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
        device::copy(copies, from, to);
    };
    if (is_guarded) {
        weights.read(first, part, copies, [&](view<const float> from) {
            shard.write(copies, [&](view<float> to) { keep(from, to); });
        });
        copy_then_all_gather(shard, again, nodes.within_node(), traffic, {}, {});
        again.read(compute, [&](view<const float> all) { // the backward pass
            compute.enqueue([all, &sum] {
                for (const float weight : all) sum += weight;
            });
        });
    } else {
        weights.read(first, part, copies, [&](view<const float> from) { keep(from, shard.memory()); });
        nodes.within_node().all_gather(shard.memory(), again.memory(), traffic);
    }
    for (const device::stream* each : {&compute, &copies, &traffic}) each->synchronize();
    if (world.rank() == 0 && is_guarded) std::printf("the backward pass read a sum of %.0f; right is 10000\n", sum);
}

} // namespace

int main()
{
    for (const bool is_guarded : {false, true}) {
        stream_order checker;
        checker.install();
        local::run(4, [&](local::communicator& world) { step(world, is_guarded); });
        std::printf("%s the guard: %s\n", is_guarded ? "with" : "without",
            checker.hazard_count() > 0 ? "a race was found" : "no race");
        for (const stream_hazard& hazard : checker.hazards()) {
            if (hazard.message().find("all_gather") != std::string::npos) std::puts(hazard.message().c_str());
        }
    }
}
