// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Faults over MPI, where each rank is a process: they do what the plan says, and all-gathers with them are judged alike.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <collprobe/comm/mpi/communicator.hpp>
#include <collprobe/fault/faulty.hpp>

#include "audit/lone_checks.hpp"
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
    faulty comm{mpi::communicator_ref(world), {{.phase = fault_phase::during, .rank = sender, .call = 1}}};
    testing::gather_check check(comm);
    std::vector<float> shard(100, 1.5f), whole(shard.size() * static_cast<std::size_t>(world.size()));
    testing::verdict verdict[2];
    {
        host::stream stream;
        for (testing::verdict& each : verdict) {
            check.before<float>(shard, stream);
            comm.all_gather(view<const float>(shard), view<float>(whole), stream);
            check.after<float>(whole, stream);
            stream.synchronize(30'000);
            each = check.verdict();
        }
    }
    CHECK(verdict[0].intact());
    CHECK(verdict[1].damaged() == static_cast<std::uint64_t>(world.size()));
    CHECK(verdict[1].culprits() == std::vector<int>{sender});
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
