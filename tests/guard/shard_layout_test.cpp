// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include <collprobe/guard/shard_layout.hpp>

using namespace collprobe;

using std::uint64_t;

TEST_CASE("the slices of all ranks are the parameter, each element once, and its secondary shards are in order")
{
    for (const uint64_t nodes : {1u, 2u, 3u, 5u}) {
        for (const uint64_t ranks_per_node : {1u, 2u, 4u, 8u}) {
            for (const uint64_t count : {0u, 1u, 7u, 40u, 41u, 1000u}) {
                std::vector<int> owners(count, 0);
                for (uint64_t node = 0; node < nodes; ++node) {
                    for (uint64_t local = 0; local < ranks_per_node; ++local) {
                        const shard_layout layout{count, nodes, ranks_per_node, node, local};
                        const shard_layout::range own = layout.primary(), kept = layout.secondary();
                        REQUIRE(own.first + own.count <= count);
                        for (uint64_t i = 0; i < own.count; ++i) ++owners[own.first + i];
                        REQUIRE(kept.first == std::min(count, local * layout.secondary_count()));
                        REQUIRE((own.count == 0 || own.first == kept.first + node * layout.slot()));
                        REQUIRE(own.first + own.count <= kept.first + kept.count);
                    }
                }
                REQUIRE(std::all_of(owners.begin(), owners.end(), [](int times) { return times == 1; }));
            }
        }
    }
}

TEST_CASE("a secondary shard takes fewer bytes between the nodes than flat gathers")
{
    const shard_layout layout{1000, 2, 4, 0, 0};
    CHECK(layout.regenerate_volume() == shard_volume{125, 0});
    CHECK(layout.gather_volume() == shard_volume{0, 3 * 250});
    CHECK(layout.flat_volume() == shard_volume{4 * 125, 3 * 125});
}
