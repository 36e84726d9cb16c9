// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include <collprobe/collprobe.hpp>
#include <collprobe/quant/quantised.hpp>

#include "support/errors.hpp"

/// Ranks in this process with quantised communicators.
namespace collprobe::testing {

/// A world of `nodes` x `per_node` ranks, in one level if `nodes` is 0.
struct shape {
    int nodes;
    int per_node;
    int ranks() const { return nodes == 0 ? per_node : nodes * per_node; }
};

/// Calls `use(comm)` with a quantised communicator over `world`.
template <class World, class Use>
void with_codes(World& world, shape of, const quantisation& within, const quantisation& across,
    const quantised_options& options, const Use& use)
{
    if (of.nodes == 0) {
        quantised comm(world, within, options);
        use(comm);
    } else {
        node_groups nodes(world, of.per_node);
        quantised comm(world, nodes, within, across, options);
        use(comm);
    }
}
template <class Use>
void on_ranks(shape of, const quantisation& within, const quantisation& across, const quantised_options& options,
    const Use& use)
{
    local::run(of.ranks(), {.timeout_ms = soon_ms},
        [&](local::communicator& world) { with_codes(world, of, within, across, options, use); });
}

template <class T>
std::vector<T> random_elements(std::uint64_t count, unsigned seed, float size = 1)
{
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    std::vector<T> x(count);
    for (T& v : x) v = T(normal(random) * size);
    return x;
}

/// Small scratch memory, which cuts buffers into pieces.
constexpr quantised_options tiny{.least_bytes = 1, .scratch_bytes = 64 << 10};

} // namespace collprobe::testing
