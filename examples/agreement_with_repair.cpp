// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Do all ranks hold the same weights and optimizer state? One bit differs on rank 2: who, where, which bits; then rank 2
// gets what most ranks hold.
#include <cstdio>
#include <vector>

#include <collprobe/collprobe.hpp>
#include <collprobe/replica.hpp>

using namespace collprobe;

int main()
{
    local::run(4, [](local::communicator& world) {
        std::vector<bfloat16> weights(5000, bfloat16(0.5f));
        std::vector<float> momentum(5000, 0.25f);
        if (world.rank() == 2) momentum[1234] = 0.25000003f; // the next float above

        host::stream stream;
        agreement check(world); // in a step that must not wait: check.check(...), and check.poll(...) later
        std::vector<replica> list = {view(weights), view(momentum)};
        const repair_result repair = majority_repair(check, view<const replica>(list), stream);
        if (world.rank() != 0) return; // the verdict is the same on every rank
        for (const disagreement& buffer : repair.found.buffers) {
            for (const difference& other : buffer.differences) {
                std::printf("buffer %d: rank %d differs in %u element, the first at %u: bits %08x in place of %08x\n",
                    buffer.buffer, other.rank, static_cast<unsigned>(other.elements), static_cast<unsigned>(other.first),
                    static_cast<unsigned>(other.actual_bits), static_cast<unsigned>(other.expected_bits));
            }
        }
        std::printf("%s in %d round, %u bytes sent\n", repair.repaired ? "repaired" : "not repaired", repair.rounds,
            static_cast<unsigned>(repair.bytes));
    });
}
