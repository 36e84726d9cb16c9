// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Audits, alarms and repairs across processes, with and without faults. Run with 3 ranks or more.
#include <cstdint>
#include <vector>

#include <collprobe/alarm.hpp>
#include <collprobe/audit.hpp>
#include <collprobe/step/probed.hpp>
#include <collprobe/comm/mpi/communicator.hpp>
#include <collprobe/fault.hpp>
#include <collprobe/replica.hpp>

#include "mpi/mpi_checks.hpp"
#include "support/length_calls.hpp"

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

/// Healthy calls of all kinds of data, over MPI's own sums.
template <floating_element T>
void check_lengths(report_mode mode)
{
    const mpi::communicator_ref world = mpi::communicator_ref(testing::made_of(), {.timeout_ms = 30'000});
    probed comm{mpi::communicator_ref(world), {.mode = mode, .times = false}};
    const host::stream stream;
    step_record record;
    testing::seen_lengths seen;
    for (std::uint64_t step = 0; step < 40; ++step) {
        std::vector<T> send(static_cast<std::size_t>(world.size()) * (1 + step % 30));
        fill(send, static_cast<testing::data>(step % static_cast<std::uint64_t>(testing::data::kinds)), world.rank(), step);
        testing::make_calls(comm, send, world.size(), step, stream);
        comm.end_step(step, stream);
        CHECK(comm.wait(record));
        seen.add(record);
    }
    CHECK(seen.beyond == 0 && seen.known > 100 && seen.largest > 0.6);
}

void check_repair()
{
    mpi::communicator_ref world = mpi::communicator_ref(testing::made_of(), {.timeout_ms = 30'000});
    agreement check(world);
    const host::stream stream;
    const std::vector<float> right = gradient(7, 7, 30'000);
    std::vector<float> weights = right;
    std::vector<double> moments(500, 0.25);
    const std::vector<replica> all{view(weights), view(moments)};
    CHECK(check.agreed(all, stream));
    if (world.rank() == 1) {
        weights[12345] += 1;
        moments[0] = -0.25;
    }
    const std::vector<disagreement> found = check.locate(all, stream);
    CHECK(found.size() == 2);
    CHECK(found[0].others == std::vector<int>{1} && found[0].differences[0].first == 12345);
    const repair_result repaired = majority_repair(check, all, stream);
    CHECK(repaired.repaired && repaired.rounds == 1);
    CHECK(weights == right && moments == std::vector<double>(500, 0.25));
}

} // namespace

int main(int argc, char** argv)
{
    testing::end_after(100);
    const mpi_session session(&argc, &argv);
    check_audits();
    check_repair();
    for (const report_mode mode : {report_mode::gather, report_mode::summary}) {
        check_lengths<float>(mode);
        check_lengths<bfloat16>(mode);
    }
}
