// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include <collprobe/device/host.hpp>
#include <collprobe/element.hpp>
#include <collprobe/probe/digest.hpp>
#include <collprobe/probe/probed.hpp>
#include <collprobe/record.hpp>
#include <collprobe/view.hpp>

#include "dataset.hpp"
#include "dump.hpp"
#include "faults.hpp"
#include "model.hpp"
#include "options.hpp"
#include "sampler.hpp"

namespace trainer {

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
};

/// One rank of a data-parallel training run. `Wire` is the element type that gradients travel as.
///
/// A bucket is a layer, numbered in the order in which the backward pass finishes them: bucket 0 is
/// the output layer. Every all-reduce starts as soon as its layer is ready, out of place, so that the
/// probes see each rank's own gradient.
template <class Wire, class Communicator>
class rank_trainer {
public:
    rank_trainer(const job& work, Communicator comm)
        : job_(work),
          model_({pixels, work.given.hidden, work.given.hidden, classes}, derive(work.given.seed, 1000),
              work.given.dropout),
          comm_(std::move(comm), {.alignment = collprobe::alignment_mode::exact})
    {
        for (std::size_t bucket = 0; bucket < model_.layers(); ++bucket) {
            const std::size_t count = model_.parameters(layer_of(bucket)).size();
            send_.emplace_back(count);
            receive_.emplace_back(count);
            velocity_.emplace_back(count);
        }
    }

    /// One step of stochastic gradient descent: the same update on every rank.
    void step(std::uint64_t number)
    {
        const std::optional<fault>& injected = job_.given.injected;
        const bool duplicates
            = injected && injected->kind == fault_kind::duplicate && injected->hits(comm_.rank(), number, 0);
        const int as_rank = duplicates ? (comm_.rank() + 1) % comm_.size() : comm_.rank();
        const std::uint64_t seed = rank_seed(job_.seeds, job_.given.seed, as_rank);

        std::vector<std::size_t> samples
            = job_.samples.draw(derive(seed, 1), number, as_rank, job_.given.batch);
        load(samples, derive(derive(seed, 2), number));
        const double loss = model_.forward(inputs_, labels_, dropout_seeds_);
        model_.backward([&](std::size_t layer) { send(bucket_of(layer), number); });

        // The digest of the sorted ids: the same samples in another order are the same data.
        std::sort(samples.begin(), samples.end());
        const std::uint64_t ids = collprobe::digest(collprobe::view<const std::size_t>(samples));
        comm_.end_step(number, {.loss = loss, .sample_digest = ids}, stream_);
        dump(number);
        stream_.synchronize();
        update();
    }

    /// The next finished step as all ranks know it; false if there is none yet.
    bool poll(collprobe::step_record& out) { return comm_.poll(out); }

    double test_accuracy() { return model_.accuracy(job_.data.test.inputs, job_.data.test.labels); }
    /// Updates left out because an averaged gradient was not finite.
    std::uint64_t skipped_updates() const { return skipped_updates_; }
    /// Of all weights: equal on all ranks, or something is wrong.
    std::uint64_t weights_digest()
    {
        std::uint64_t combined = 0;
        for (std::size_t layer = 0; layer < model_.layers(); ++layer) {
            combined
                = derive(combined, collprobe::digest(collprobe::view<const float>(model_.parameters(layer))));
        }
        return combined;
    }

private:
    std::size_t layer_of(std::size_t bucket) const { return model_.layers() - 1 - bucket; }
    std::size_t bucket_of(std::size_t layer) const { return model_.layers() - 1 - layer; }

    /// The units to drop depend on seed, step and sample, not on the place in the batch: a run is the
    /// same however samples are dealt out. (By place, one seed would drop the same units for sample k
    /// of every rank, and so make gradients more alike than independent ones.)
    void load(const std::vector<std::size_t>& samples, std::uint64_t dropout_seed)
    {
        const dataset& train = job_.data.train;
        inputs_.clear();
        labels_.clear();
        dropout_seeds_.clear();
        for (const std::size_t sample : samples) {
            inputs_.insert(inputs_.end(), train.image(sample), train.image(sample) + pixels);
            labels_.push_back(train.labels[sample]);
            dropout_seeds_.push_back(derive(dropout_seed, sample));
        }
    }

    /// Hands a layer's gradient to the all-reduce, after what a fault makes of it.
    void send(std::size_t bucket, std::uint64_t step)
    {
        const std::optional<fault>& injected = job_.given.injected;
        const bool hit = injected && injected->hits(comm_.rank(), step, bucket);
        if (!hit || injected->kind != fault_kind::stale) { // a stale buffer is what nobody wrote to
            const auto gradient = model_.gradient(layer_of(bucket));
            staging_.assign(gradient.begin(), gradient.end());
            if (hit) damage(*injected, staging_, derive(derive(job_.given.seed, 2000), bucket));
            for (std::size_t i = 0; i < staging_.size(); ++i)
                send_[bucket][i] = static_cast<Wire>(staging_[i]);
        }
        comm_.all_reduce(collprobe::view<const Wire>(send_[bucket]), collprobe::view<Wire>(receive_[bucket]),
            collprobe::reduction::average, stream_);
    }

    void dump(std::uint64_t step)
    {
        if (!job_.dumps(step)) return;
        std::vector<Wire> whole;
        for (const auto& bucket : send_) whole.insert(whole.end(), bucket.begin(), bucket.end());
        write_gradient(gradient_file(job_.dump_folder, step, comm_.rank()), whole);
    }

    /// SGD with momentum. An average that is not finite is left out, as loss scaling does: all ranks
    /// received the same bits, so all of them leave it out.
    void update()
    {
        for (const auto& bucket : receive_) {
            for (const Wire value : bucket) {
                if (collprobe::is_finite(value)) continue;
                ++skipped_updates_;
                return;
            }
        }
        const auto rate = static_cast<float>(job_.given.learning_rate);
        const auto momentum = static_cast<float>(job_.given.momentum);
        for (std::size_t bucket = 0; bucket < receive_.size(); ++bucket) {
            const auto weights = model_.parameters(layer_of(bucket));
            for (std::size_t i = 0; i < weights.size(); ++i) {
                float& velocity = velocity_[bucket][i];
                velocity = momentum * velocity + static_cast<float>(receive_[bucket][i]);
                weights[i] -= rate * velocity;
            }
        }
    }

    const job& job_;
    mlp<float> model_;
    std::vector<float> inputs_;
    std::vector<int> labels_;
    std::vector<std::uint64_t> dropout_seeds_;
    std::vector<float> staging_;
    std::vector<std::vector<Wire>> send_; // [bucket][element], as the next two
    std::vector<std::vector<Wire>> receive_;
    std::vector<std::vector<float>> velocity_;
    std::uint64_t skipped_updates_ = 0;
    // Behind the buffers, so that it is gone before they are; the probes wait for it in turn.
    collprobe::host::stream stream_;
    collprobe::probed<Communicator> comm_;
};

} // namespace trainer
