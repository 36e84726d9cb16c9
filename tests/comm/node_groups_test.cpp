// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/comm/node_groups.hpp>

#include "support/checks.hpp"
#include "support/run_ranks.hpp"

namespace collprobe::testing::node_groups_test {

TEST_CASE("each rank meets its node, and those of its place in the others")
{
    for (int nodes = 1; nodes <= 4; ++nodes) {
        for (int ranks_per_node = 1; ranks_per_node <= 4; ++ranks_per_node) {
            CHECK_NOTHROW(local_provider{nodes * ranks_per_node}.run([&](local::communicator& world) {
                node_groups groups(world, ranks_per_node);
                const auto require = [](bool condition) {
                    if (!condition) throw std::runtime_error("another group");
                };
                require(groups.nodes() == nodes && groups.ranks_per_node() == ranks_per_node);
                require(groups.node() == world.rank() / ranks_per_node);
                require(groups.local_rank() == world.rank() % ranks_per_node);
                const host::stream on;
                const std::vector<int> own{world.rank()};
                std::vector<int> across(static_cast<std::size_t>(nodes)), within(static_cast<std::size_t>(ranks_per_node));
                groups.across_nodes().all_gather(view<const int>(own), view<int>(across), on);
                groups.within_node().all_gather(view<const int>(own), view<int>(within), on);
                on.synchronize(soon_ms);
                for (int k = 0; k < nodes; ++k) {
                    require(across[static_cast<std::size_t>(k)] == k * ranks_per_node + groups.local_rank());
                }
                for (int l = 0; l < ranks_per_node; ++l) {
                    require(within[static_cast<std::size_t>(l)] == groups.node() * ranks_per_node + l);
                }
            }));
        }
    }
}

TEST_CASE("a world that is not so many whole nodes is refused on all ranks, with both numbers")
{
    for (const int ranks_per_node : {-1, 0, 2, 4}) {
        const auto outcomes = run_each(
            local::group(3), [&](local::communicator& world) { node_groups nodes(world, ranks_per_node); });
        for (const rank_outcome& outcome : outcomes) {
            CHECK(mentions(outcome.failure(),
                "ranks_per_node is " + std::to_string(ranks_per_node) + ", which does not divide size(), 3"));
        }
    }
    for (const rank_outcome& outcome : run_each(local::group(3), [](local::communicator& world) {
             node_groups one(world, 3);
             node_groups three(world, 1);
         })) {
        CHECK(!outcome.thrown);
    }
}

TEST_CASE("ranks that give different nodes are told, and who did not see it does not wait")
{
    local::group ranks(4, {.timeout_ms = 20'000});
    const auto outcomes = run_each(ranks, [](local::communicator& world) {
        node_groups nodes(world, world.rank() == 0 ? 2 : 4);
        const host::stream on;
        nodes.within_node().barrier(on);
        on.synchronize(soon_ms);
    });
    CHECK(mentions(outcomes[0].failure(), "ranks_per_node is 2 here, and another on some ranks"));
    for (int rank = 1; rank < 4; ++rank) {
        const auto failure = outcomes[static_cast<std::size_t>(rank)].failure();
        REQUIRE(failure);
        CHECK(failure->code() == status::peer_failure);
    }
}

TEST_CASE("two communicators that exist do as well, and those of ranks that are no neighbours are refused")
{
    CHECK_NOTHROW(local_provider{6}.run([](local::communicator& world) {
        auto within = world.split(world.rank() / 3, world.rank());
        auto across = world.split(world.rank() % 3, world.rank());
        node_groups nodes(world, *within, *across);
        const auto require = [](bool condition) {
            if (!condition) throw std::runtime_error("another group");
        };
        require(nodes.nodes() == 2 && nodes.ranks_per_node() == 3);
        require(nodes.world_rank(nodes.node(), nodes.local_rank()) == world.rank());
        const host::stream on;
        std::vector<int> sum{world.rank()};
        nodes.within_node().all_reduce(view<const int>(sum), view<int>(sum), reduction::sum, on);
        on.synchronize(soon_ms);
        require(sum[0] == (world.rank() < 3 ? 3 : 12));
    }));
    const auto outcomes = run_each(local::group(6), [](local::communicator& world) {
        auto within = world.split(world.rank() % 2, world.rank());
        auto across = world.split(world.rank() / 2, world.rank());
        node_groups nodes(world, *within, *across);
    });
    for (const int rank : {1, 2, 3, 4}) {
        CHECK(mentions(outcomes[static_cast<std::size_t>(rank)].failure(), "neighbours share a node"));
    }
    CHECK(mentions(outcomes[1].failure(), "the rank is 0 of 3 within its node and 1 of 2 across the nodes"));
}

} // namespace collprobe::testing::node_groups_test
