// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/fault/faulty.hpp>
#include <collprobe/replica/agreement.hpp>
#include <collprobe/replica/majority_repair.hpp>
#include <collprobe/replica/replica_averaging.hpp>

#include "tests/support/run_ranks.hpp"

namespace collprobe::testing::repaired_average_test {
namespace {

struct outcome {
    repair_result result;
    std::vector<float> weights;
    std::vector<double> more;
};

/// An average on every rank under faults of the averages themselves, and a majority repair of what it left.
std::vector<outcome> average_with(int ranks, const std::vector<fault>& faults)
{
    std::vector<outcome> all(static_cast<std::size_t>(ranks));
    local::run(ranks, [&](local::communicator& comm) {
        outcome& own = all[static_cast<std::size_t>(comm.rank())];
        own.weights.assign(1000, static_cast<float>(comm.rank()) + 0.25F);
        own.more.assign(77, static_cast<double>(comm.rank()) - 3.5);
        // Only its all-reduces: the broadcasts of the repair are clean unless a test says otherwise.
        faulty hit(comm, faults, {.calls = {collective::all_reduce}});
        agreement check(comm, {.max_buffers = 2});
        const host::stream stream;
        const std::vector<replica> list{view(own.weights), view(own.more)};
        replica_averaging repair(std::move(hit), list, every{.steps = 1, .through_adaptors = true});
        repair.step(stream);
        own.result = majority_repair(check, list, stream);
        stream.synchronize();
    });
    return all;
}

} // namespace

TEST_CASE("an average that was hit on its way to a rank ends with the bits of one that was not")
{
    for (const int ranks : {3, 4, 8}) {
        const std::vector<outcome> clean = average_with(ranks, {});
        CHECK(clean[0].result.repaired);
        CHECK(clean[0].result.rounds == 0);
        for (int rank = 0; rank < ranks; ++rank) {
            for (const std::uint64_t call : {0u, 1u}) {
                const auto all = average_with(ranks,
                    {{.kind = fault_kind::bit_flips, .phase = fault_phase::after, .rank = rank, .call = call, .elements = 5,
                        .stride = 7, .bits = 3}});
                for (const outcome& each : all) {
                    CHECK(each.result.repaired);
                    CHECK(each.result.majority);
                    CHECK(each.result.rounds == 1);
                    REQUIRE(each.result.found.size() == 1);
                    CHECK(each.result.found[0].buffer == static_cast<int>(call));
                    CHECK(each.result.found[0].others == std::vector<int>{rank});
                    CHECK(each.weights == clean[0].weights);
                    CHECK(each.more == clean[0].more);
                }
            }
        }
    }
}

TEST_CASE("where noise hits the average of every rank there is no majority, and it says so")
{
    for (const outcome& each : average_with(4, paft_noise(1e-2, 1))) {
        CHECK(!each.result.repaired);
        CHECK(!each.result.majority);
        CHECK(each.result.rounds == 0);
    }
}

TEST_CASE("what all ranks receive alike is not found: a rank that was wrong before is in the average")
{
    const auto all = average_with(4, {{.kind = fault_kind::scale, .phase = fault_phase::during, .rank = 1, .call = 0, .magnitude = 2}});
    const auto clean = average_with(4, {});
    for (const outcome& each : all) {
        CHECK(each.result.repaired);
        CHECK(each.result.rounds == 0);
        CHECK(each.weights == all[0].weights);
        CHECK(each.weights != clean[0].weights);
    }
}

} // namespace collprobe::testing::repaired_average_test
