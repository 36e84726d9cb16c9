// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <vector>

#include <collprobe/core/view.hpp>
#include <collprobe/scan/digest.hpp>

#include "../digits/dataset.hpp"
#include "../digits/random.hpp"
#include "faults.hpp"
#include "options.hpp"
#include "sampler.hpp"

namespace trainer {

/// What a rank trains on in a step.
struct step_batch {
    std::vector<float> inputs; ///< 64 numbers per sample
    std::vector<int> labels;
    std::vector<std::uint64_t> dropout_seeds; ///< one per sample
    /// Of the sorted indices: the same samples in another order are the same data.
    std::uint64_t sample_digest = 0;
};

/// What all ranks of a run read and none changes.
struct job {
    const options& given;
    const split_dataset& data;
    const sampler& samples;
    setting seeds;
    std::filesystem::path dump_folder; ///< empty: no dump

    bool dumps(std::uint64_t step) const
    {
        const auto& steps = given.dump_steps;
        return !dump_folder.empty() && std::find(steps.begin(), steps.end(), step) != steps.end();
    }

    /// The fault that strikes a bucket on its way out of `rank`; null if none does.
    const fault* fault_in(int rank, std::uint64_t step, std::size_t bucket) const
    {
        return given.injected && given.injected->hits(rank, step, bucket) ? &*given.injected : nullptr;
    }
    /// What the noise of a fault is drawn from.
    std::uint64_t fault_seed(std::size_t bucket) const { return derive(derive(given.seed, 2000), bucket); }
    std::uint64_t weights_seed() const { return derive(given.seed, 1000); }
    std::vector<std::size_t> widths() const { return {pixels, given.hidden, given.hidden, classes}; }

    /// Fills `batch` with what `rank` trains on in a step; its memory is used again.
    ///
    /// The units to drop depend on seed, step and sample, not on the place in the batch: a run is the
    /// same however samples are dealt out. (By place, one seed would drop the same units for sample k
    /// of every rank, and so make gradients more alike than independent ones.)
    void load(int rank, int ranks, std::uint64_t step, step_batch& batch) const
    {
        const fault* const hit = fault_in(rank, step, 0);
        const int as_rank = hit != nullptr && hit->kind == fault_kind::duplicate ? (rank + 1) % ranks : rank;
        const std::uint64_t seed = rank_seed(seeds, given.seed, as_rank);
        std::vector<std::size_t> drawn = samples.draw(derive(seed, 1), step, as_rank, given.batch);
        const std::uint64_t dropout_seed = derive(derive(seed, 2), step);
        batch.inputs.clear();
        batch.labels.clear();
        batch.dropout_seeds.clear();
        for (const std::size_t sample : drawn) {
            batch.inputs.insert(
                batch.inputs.end(), data.train.image(sample), data.train.image(sample) + pixels);
            batch.labels.push_back(data.train.labels[sample]);
            batch.dropout_seeds.push_back(derive(dropout_seed, sample));
        }
        std::sort(drawn.begin(), drawn.end());
        batch.sample_digest = collprobe::digest(collprobe::view<const std::size_t>(drawn));
    }
};

/// A bucket is a layer, numbered in the order in which the backward pass finishes them: bucket 0 is the
/// output layer. The same turns a bucket into its layer.
constexpr std::size_t bucket_of(std::size_t layer) { return layer_count - 1 - layer; }
constexpr std::size_t layer_of(std::size_t bucket) { return layer_count - 1 - bucket; }

} // namespace trainer
