// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Audits and alarms across processes, with and without faults. Run with 3 ranks or more.
#include <cstdint>
#include <vector>

#include <collprobe/alarm.hpp>
#include <collprobe/audit.hpp>
#include <collprobe/step/probed.hpp>
#include <collprobe/comm/mpi/communicator.hpp>
#include <collprobe/fault.hpp>

#include "mpi/mpi_checks.hpp"

using namespace collprobe;

namespace {

std::vector<float> gradient(int rank, std::uint64_t step, std::size_t count)
{
    std::vector<float> data;
    for (std::size_t i = 0; i < count; ++i) {
        const std::uint64_t bits = detail::mix64(i + (step << 32) + (static_cast<std::uint64_t>(rank) << 48));
        data.push_back(static_cast<float>(bits >> 40) * 0x1p-24f - 0.5f);
    }
    return data;
}

/// Step 1 has a flipped bit in what the last rank receives, step 2 one in what it sends, step 3 nothing.
void check_audits()
{
    const mpi::communicator_ref world = mpi::communicator_ref(testing::made_of(), {.timeout_ms = 30'000});
    const int last = world.size() - 1;
    const std::uint64_t exponent = 0x40000000;
    probed comm{faulty{mpi::communicator_ref(world),
        {{.kind = fault_kind::bit_flips, .phase = fault_phase::after, .rank = last, .call = 1, .mask = 1},
            {.kind = fault_kind::bit_flips, .phase = fault_phase::during, .rank = last, .call = 2, .mask = exponent}}}, {}, audit()};
    const host::stream stream;
    for (std::uint64_t step = 0; step < 4; ++step) {
        const std::vector<float> own = gradient(world.rank(), step, 5000);
        std::vector<float> sum(own.size());
        comm.all_reduce(own, view(sum), reduction::sum, stream);
        comm.end_step(step, stream);
        stream.synchronize(30'000);
    }
    alarms watch(world.size());
    step_record record;
    const damage expected[] = {damage::none, damage::broadcast, damage::reduce, damage::none};
    for (std::uint64_t step = 0; step < 4; ++step) {
        CHECK(comm.poll(record));
        CHECK(record.step == step);
        CHECK(record.calls.size() == 1 && record.calls[0].audit.where == expected[step]);
        const view<const finding> raised = watch.judge(record);
        CHECK(raised.size() == (expected[step] == damage::none ? 0 : 1));
        if (step == 1) CHECK(raised[0].ranks == std::vector<int>{last} && raised[0].action == advice::resync);
    }
}

} // namespace

int main(int argc, char** argv)
{
    testing::end_after(100);
    const mpi_session session(&argc, &argv);
    check_audits();
}
