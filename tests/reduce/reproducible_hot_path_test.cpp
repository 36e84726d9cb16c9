// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <latch>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/reduce/reproducible.hpp>

#include "support/count_allocations.hpp"
#include "support/run_ranks.hpp"

using namespace collprobe;

TEST_CASE("steady reductions under a contract allocate nothing and never wait for the host")
{
    for (const auto how :
        {reduction_algorithm::exchange, reduction_algorithm::one_shot, reduction_algorithm::fixed_point}) {
        std::latch warm(3), counted(3), worked(3);
        std::atomic<long> before{0}, after{0};
        std::atomic<std::uint64_t> waits{0};
        testing::local_provider{3}.run([&](local::communicator& world) {
            std::vector<float> send(2 * 5003, 1.5f), receive(5003);
            const host::stream stream;
            reproducible comm(
                world, contract<reproducibility::order_invariant>{}, {.scratch_bytes = 1 << 14, .algorithm = how});
            const auto work = [&] {
                for (int call = 0; call < 3; ++call) {
                    comm.all_reduce(view<const float>(send), view<float>(receive), reduction::average, stream, {.leaves = 2});
                }
            };
            // The queues keep what they ever needed: let them be longer here than they can get below.
            for (int round = 0; round < 2; ++round) {
                std::latch go(1);
                stream.enqueue([&go] { go.wait(); });
                work();
                work();
                go.count_down();
                stream.synchronize(20'000);
            }
            warm.arrive_and_wait();
            if (world.rank() == 0) before = allocations.load();
            counted.arrive_and_wait();
            const std::uint64_t waited = stream.synchronizations();
            work();
            waits += stream.synchronizations() - waited;
            stream.synchronize(20'000);
            worked.arrive_and_wait();
            if (world.rank() == 0) after = allocations.load();
        });
        CHECK(after - before == 0);
        CHECK(waits == 0);
    }
}

TEST_CASE("a reduction returns before its peers have called")
{
    std::latch all_returned(1);
    CHECK_NOTHROW(testing::local_provider{2}.run([&](local::communicator& world) {
        std::vector<float> values(100'000, 1.0f);
        const host::stream stream;
        reproducible comm(world, contract<reproducibility::correctly_rounded>{}, {.scratch_bytes = 1 << 14});
        if (world.rank() == 1) all_returned.wait();
        comm.all_reduce(view<const float>(values), view<float>(values), reduction::sum, stream);
        if (world.rank() == 0) all_returned.count_down();
        stream.synchronize(20'000);
    }));
}
