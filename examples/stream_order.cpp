// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Which edge is missing? A copy on one stream, an all-gather that reads it on another, first without an event between
// them. The checker names both accesses and the cure, whatever the timing. All of the program is compiled with
// COLLPROBE_STREAM_ORDER=1 (CMake target collprobe::stream_order).
#include <cstdio>
#include <vector>

#include <collprobe/collprobe.hpp>
#include <collprobe/order.hpp>

using namespace collprobe;

namespace {

void gather(local::communicator& world, bool with_event)
{
    const std::vector<float> weights(1000, 1.0f);
    std::vector<float> shard(1000), parameters(1000 * static_cast<std::size_t>(world.size()));
    host::event copied;
    const host::stream copies, traffic;
    host::device::copy<float>(copies, view(weights), view(shard));
    if (with_event) {
        copied.record(copies);
        traffic.wait(copied);
    }
    world.all_gather(shard, view(parameters), traffic);
    copies.synchronize();
    traffic.synchronize();
}

} // namespace

int main()
{
    for (const bool with_event : {false, true}) {
        stream_order checker;
        checker.install();
        local::run(1, [&](local::communicator& world) { gather(world, with_event); });
        std::printf("%s an event: %u hazard\n", with_event ? "with" : "without",
            static_cast<unsigned>(checker.hazard_count()));
        for (const stream_hazard& hazard : checker.hazards()) std::puts(hazard.message().c_str());
    }
}
