// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "../digits/random.hpp"

namespace trainer {

/// Which samples a rank sees in a step.
///
/// Per step, the seed picks one of the pools and an order of its samples; rank r takes the positions
/// from r * batch on. Ranks with the same seed so get disjoint parts of the same pool: the
/// sampler is right only if all seeds agree, which nothing in a training script enforces. Where a
/// pool is smaller than ranks × batch, positions go on in another order of the same pool.
///
/// With one pool of all samples this is plain i.i.d. sampling; with pools by difficulty a curriculum,
/// of the kind that groups sequences by length in language models.
class sampler {
public:
    explicit sampler(std::vector<std::vector<std::size_t>> pools) : pools_(std::move(pools))
    {
        for (const auto& pool : pools_) {
            if (pool.empty()) throw std::invalid_argument("a pool of the sampler is empty");
        }
    }

    /// `batch` sample indices. Cost: an order of the pool, once or more.
    std::vector<std::size_t> draw(std::uint64_t seed, std::uint64_t step, int rank, std::size_t batch) const
    {
        random_stream random(derive(seed, step));
        const std::vector<std::size_t>& pool = pools_[random.below(pools_.size())];
        const std::uint64_t order_seed = random.next();
        std::vector<std::size_t> samples;
        samples.reserve(batch);
        std::vector<std::size_t> order;
        const std::size_t first = static_cast<std::size_t>(rank) * batch;
        for (std::size_t position = first; position < first + batch; ++position) {
            if (position == first || position % pool.size() == 0) {
                order = random_order(pool.size(), derive(order_seed, position / pool.size()));
            }
            samples.push_back(pool[order[position % pool.size()]]);
        }
        return samples;
    }

private:
    std::vector<std::vector<std::size_t>> pools_;
};

/// How the seeds of the ranks relate: the three settings of arXiv 2602.14462.
enum class setting { strict, mild, significant };

constexpr const char* name(setting which)
{
    switch (which) {
    case setting::strict: return "strict";
    case setting::mild: return "mild";
    case setting::significant: return "significant";
    }
    return "unknown";
}

/// The seed of a rank's sampler and dropout: one for all ranks (strict), another for rank 0 (mild), one
/// for each (significant).
inline std::uint64_t rank_seed(setting which, std::uint64_t seed, int rank)
{
    const bool own = which == setting::significant || (which == setting::mild && rank == 0);
    return derive(seed, own ? 1 + static_cast<std::uint64_t>(rank) : 0);
}

} // namespace trainer
