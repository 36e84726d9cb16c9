// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/comm/node_groups.hpp>

#include "support/checks.hpp"
#include "support/run_ranks.hpp"

using namespace collprobe;
using namespace collprobe::testing;

namespace {

bool says(const std::optional<error>& failure, const std::string& text)
{
    return failure && std::string(failure->what()).find(text) != std::string::npos;
}

} // namespace

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
            CHECK(says(outcome.failure(),
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
    CHECK(says(outcomes[0].failure(), "ranks_per_node is 2 here, and another on some ranks"));
    for (int rank = 1; rank < 4; ++rank) {
        const auto failure = outcomes[static_cast<std::size_t>(rank)].failure();
        REQUIRE(failure);
        CHECK(failure->code() == status::peer_failure);
    }
}

TEST_CASE("ranks of a node need not be neighbours: nodes by their lowest ranks, ranks within them in order")
{
    // Of six ranks: the node of each, and the ranks of each node, in the order of the nodes.
    struct placement {
        std::vector<int> node_of;
        std::vector<std::vector<int>> ranks;
    };
    const placement placements[] = {
        {{0, 1, 0, 1, 0, 1}, {{0, 2, 4}, {1, 3, 5}}},
        {{7, -1, 3, 3, -1, 7}, {{0, 5}, {1, 4}, {2, 3}}},
        {{1, 1, 1, 0, 0, 0}, {{0, 1, 2}, {3, 4, 5}}},
        {{5, 4, 3, 2, 1, 0}, {{0}, {1}, {2}, {3}, {4}, {5}}},
        {{2, 2, 2, 2, 2, 2}, {{0, 1, 2, 3, 4, 5}}},
    };
    for (const placement& at : placements) {
        CHECK_NOTHROW(local_provider{6}.run([&](local::communicator& world) {
            node_groups groups(world, at.node_of);
            const auto require = [](bool condition) {
                if (!condition) throw std::runtime_error("another group");
            };
            require(groups.nodes() == static_cast<int>(at.ranks.size()));
            require(groups.ranks_per_node() == static_cast<int>(at.ranks[0].size()));
            require(groups.world_rank(groups.node(), groups.local_rank()) == world.rank());
            const host::stream on;
            const std::vector<int> own{world.rank()};
            std::vector<int> across(at.ranks.size()), within(at.ranks[0].size());
            groups.across_nodes().all_gather(view<const int>(own), view<int>(across), on);
            groups.within_node().all_gather(view<const int>(own), view<int>(within), on);
            on.synchronize(soon_ms);
            const auto node = static_cast<std::size_t>(groups.node());
            const auto local = static_cast<std::size_t>(groups.local_rank());
            require(within == at.ranks[node]);
            for (std::size_t k = 0; k < at.ranks.size(); ++k) {
                require(across[k] == at.ranks[k][local]);
                for (std::size_t l = 0; l < within.size(); ++l) {
                    require(groups.world_rank(static_cast<int>(k), static_cast<int>(l)) == at.ranks[k][l]);
                }
            }
        }));
    }
}

TEST_CASE("nodes of different sizes, or for other ranks, are refused on all ranks")
{
    const auto refused_with = [](const std::vector<int>& node_of, const std::string& text) {
        for (const rank_outcome& outcome : run_each(
                 local::group(4), [&](local::communicator& world) { node_groups nodes(world, node_of); })) {
            CHECK(says(outcome.failure(), text));
        }
    };
    refused_with({0, 0, 0, 5}, "node 5 has 1 ranks, and node 0 has 3");
    refused_with({0, 0, 1}, "node_of has 3 nodes for 4 ranks");
    refused_with({}, "node_of has 0 nodes for 4 ranks");
}
