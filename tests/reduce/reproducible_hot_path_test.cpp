// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
#include <latch>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/comm/node_groups.hpp>
#include <collprobe/reduce/reproducible.hpp>

#include "support/hot_path.hpp"
#include "support/run_ranks.hpp"

using namespace collprobe;

TEST_CASE("steady reductions under a contract allocate nothing and never wait for the host")
{
    for (const auto how :
        {reduction_algorithm::exchange, reduction_algorithm::one_shot, reduction_algorithm::fixed_point}) {
        testing::hot_path steady(3);
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
            steady.measure(world.rank(), stream, work);
        });
        CHECK(steady.allocations() == 0);
        CHECK(steady.waits() == 0);
    }
}

TEST_CASE("nor do those in two levels, whatever form the partial sums take")
{
    const auto check = []<class Contract>(Contract, bool scatter, std::uint64_t leaves) {
        testing::hot_path steady(4);
        testing::local_provider{4}.run([&](local::communicator& world) {
            std::vector<float> send(leaves * 5004, 1.5f), receive(scatter ? 1251 : 5004);
            const host::stream stream;
            node_groups nodes(world, 2);
            reproducible comm(world, Contract{}, nodes,
                {.scratch_bytes = 1 << 14, .algorithm = reduction_algorithm::two_level, .overlap_levels = scatter});
            const auto work = [&] {
                const view<const float> from(send);
                const view<float> to(receive);
                if (scatter) comm.reduce_scatter(from, to, reduction::average, stream, {.leaves = leaves});
                else comm.all_reduce(from, to, reduction::average, stream, {.leaves = leaves});
            };
            steady.measure(world.rank(), stream, work);
        });
        CHECK(steady.allocations() == 0);
        CHECK(steady.waits() == 0);
    };
    using enum reproducibility;
    check(contract<size_invariant>{}, false, 1);
    check(contract<size_invariant, accumulation::compensated>{}, true, 1);
    check(contract<order_invariant>{}, false, 2); // terms
    check(contract<order_invariant>{}, true, 6); // words
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
