// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Three faults of a kind, rank and call of your choice, to try your checks with: the same ones in every run.
#include <cstdint>
#include <cstdio>
#include <vector>

#include <collprobe/collprobe.hpp>
#include <collprobe/fault.hpp>

using namespace collprobe;

int main()
{
    const std::vector<fault> faults = {
        {.kind = fault_kind::nan, .phase = fault_phase::before, .rank = 1, .call = 1}, // memory goes bad
        {.kind = fault_kind::stale, .phase = fault_phase::during, .rank = 2, .call = 2}, // sends the last call's data
        {.kind = fault_kind::zero_slice, .phase = fault_phase::after, .rank = 3, .call = 3}, // 64 zeros arrive
    };
    local::run(4, [&](local::communicator& world) {
        host::stream stream;
        faulty comm{world, faults}; // a communicator again: wrap it, or hand it to what you test
        std::vector<float> gradient(1000), average(1000);
        std::vector<std::uint64_t> wrong(1), everywhere(4);
        for (unsigned call = 0; call < 4; ++call) {
            const float right = static_cast<float>(call + 1);
            gradient.assign(gradient.size(), right);
            comm.all_reduce(gradient, view(average), reduction::average, stream);
            stream.synchronize();
            wrong[0] = 0;
            for (const float value : average) wrong[0] += value == right ? 0 : 1;
            world.all_gather(wrong, view(everywhere), stream);
            stream.synchronize();
            if (world.rank() != 0) continue;
            std::printf("call %u: wrong elements on each rank:", call);
            for (const std::uint64_t elements : everywhere) std::printf(" %u", static_cast<unsigned>(elements));
            std::printf("\n");
        }
        for (const injection& done : comm.injected()) { // what this rank was hit by
            std::printf("rank %d, call %u: %s (%s)\n", done.rank, static_cast<unsigned>(done.call), name(done.kind),
                name(done.phase));
        }
    });
}
