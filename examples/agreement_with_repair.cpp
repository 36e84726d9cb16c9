// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Do all ranks hold the same weights and optimizer state? Each step tells them, and its record says which rank differs.
// Then the ranks look for the elements and bits, and the rank gets what most ranks hold.
#include <algorithm>
#include <cstdint>
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
        const std::vector<replica> list = {view(weights), view(momentum)};
        const host::stream stream;
        probed comm(world);
        agreement check(comm);
        step_record record;
        for (std::uint64_t step = 0; step < 4; ++step) {
            if (step == 2 && world.rank() == 2) momentum[1234] = 0.25000003f; // the next float above
            comm.expect_equal("weights", view<const bfloat16>(weights), stream);
            comm.expect_equal("momentum", view<const float>(momentum), stream);
            comm.end_step(step, stream);
            // The record is the same on every rank, and so is the step in which wait returns it. A step that must not
            // wait takes an older one: if (comm.pending_steps() > 2) comm.wait(record);
            comm.wait(record);
            const auto differs = [](const expectation_record& value) { return !value.holds; };
            if (std::none_of(record.expectations.begin(), record.expectations.end(), differs)) continue;
            const repair_result repair = majority_repair(check, view<const replica>(list), stream);
            if (world.rank() != 0) continue; // the verdict, too, is the same on every rank
            for (const finding& each : record.findings)
                std::printf("step %u, %s\n", static_cast<unsigned>(record.step), report::describe(each).c_str());
            for (const disagreement& buffer : repair.found) {
                for (const difference& other : buffer.differences) {
                    std::printf("buffer %d: rank %d differs in %u element, the first at %u: bits %08x in place of %08x\n",
                        buffer.buffer, other.rank, static_cast<unsigned>(other.elements), static_cast<unsigned>(other.first),
                        static_cast<unsigned>(other.actual_bits), static_cast<unsigned>(other.expected_bits));
                }
            }
            std::printf("%s in %d round, %u bytes sent\n", repair.repaired ? "repaired" : "not repaired", repair.rounds,
                static_cast<unsigned>(repair.bytes));
        }
    });
}
