// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// A shard is computed on one stream, gathered on another and read on the first: one call orders all of it by events, and
// the host never waits. The work is delayed, so that without the events the gather would read zeros.
#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

#include <collprobe/collprobe.hpp>
#include <collprobe/guard.hpp>

using namespace collprobe;

int main()
{
    local::run(4, [](local::communicator& world) {
        constexpr std::size_t slot = 1000; // elements of a rank
        std::vector<float> weights(slot), parameters(slot * static_cast<std::size_t>(world.size()));
        host::stream compute, traffic;
        double sum = 0;

        compute.enqueue([&] { // the optimiser
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            for (float& weight : weights) weight = static_cast<float>(world.rank() + 1);
        });
        copy_then_all_gather(weights, parameters, world, traffic, {compute}, {compute});
        compute.enqueue([&] { // the next forward pass
            for (const float parameter : parameters) sum += parameter;
        });

        compute.synchronize();
        if (world.rank() == 0) std::printf("rank 0 read a sum of %.0f; right is 10000\n", sum);
    });
}
