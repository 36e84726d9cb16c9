// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Faults over MPI, where each rank is a process: they do what the plan says, and all-gathers with them are judged alike.
#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/audit/audit.hpp>
#include <collprobe/comm/mpi/communicator.hpp>
#include <collprobe/fault/faulty.hpp>
#include <collprobe/step/probed.hpp>

#include "fault/fault_cases.hpp"
#include "mpi/mpi_checks.hpp"

using namespace collprobe;
using namespace collprobe::testing;

namespace {

/// The calls of all kinds of faults in a phase, against a computation of the whole by each rank for itself.
template <element T>
void check_faults(const mpi::communicator_ref& world, collective where, fault_phase phase)
{
    const fault_calls all{.where = where, .ranks = world.size(), .count = 77, .calls = 3};
    const int victim = where == collective::broadcast ? 0 : world.size() - 1;
    std::vector<fault> faults;
    for (int k = 0; k <= static_cast<int>(fault_kind::infinity); ++k) {
        const auto kind = static_cast<fault_kind>(k);
        if (kind == fault_kind::untouched_tail && phase != fault_phase::after) continue;
        faults.push_back({.kind = kind, .phase = phase, .rank = victim, .probability = 0.6, .magnitude = 0.5});
    }
    const outcome_of_calls<T> wanted = expected<T>(all, faults);
    faulty comm{mpi::communicator_ref(world), faults, {.max_bytes = 1 << 14}};
    make_calls<T>(comm, all, [&](std::uint64_t call, const rank_buffers<T>& own) {
        const rank_buffers<T>& want = wanted[call][static_cast<std::size_t>(world.rank())];
        CHECK(same_bits(own.send, want.send));
        CHECK(same_values(own.receive, want.receive));
    });
    CHECK((comm.injected_total() != 0) == (world.rank() == victim));
}

void check_gather(const mpi::communicator_ref& world)
{
    const int sender = world.size() - 1;
    probed comm{faulty{mpi::communicator_ref(world), {{.phase = fault_phase::during, .rank = sender, .call = 1}}}, {}, audit()};
    std::vector<float> shard(100), whole(shard.size() * static_cast<std::size_t>(world.size()));
    host::stream stream;
    for (const std::uint64_t step : {0u, 1u}) {
        shard.assign(100, static_cast<float>(1 + 10 * step) + static_cast<float>(world.rank()));
        comm.all_gather(view<const float>(shard), view<float>(whole), stream);
        comm.end_step(step, stream);
        step_record record;
        CHECK(comm.wait(record));
        CHECK(record.findings.size() == step);
        CHECK(record.calls.at(0).audit.culprits == (step == 0 ? std::vector<int>{} : std::vector<int>{sender}));
    }
}

} // namespace

int main(int argc, char** argv)
{
    testing::end_after(100);
    const mpi_session session(&argc, &argv);
    const auto world = mpi::communicator_ref(testing::made_of(), {.timeout_ms = 30'000, .name = "world"});
    for (const fault_phase phase : {fault_phase::before, fault_phase::during, fault_phase::after}) {
        for (const collective where : {collective::all_gather, collective::all_to_all, collective::broadcast}) {
            check_faults<float>(world, where, phase);
        }
        check_faults<std::int32_t>(world, collective::all_reduce, phase); // sums in any order
    }
    check_gather(world);
}
