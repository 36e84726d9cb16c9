// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include <collprobe/core/view.hpp>
#include <collprobe/device/host/device.hpp>

#include "../digits/dataset.hpp"
#include "../digits/model.hpp"
#include "../digits/random.hpp"
#include "options.hpp"

namespace guarded_all_gather {

/// What a rank computes, as kernels on a stream would: work on memory that the caller gives and orders. All ranks'
/// parameters are one run, cut into equal slots, a rank's each; the end of the last is padding.
class sharded_model {
public:
    sharded_model(const options& given, const trainer::dataset& train, int rank, int ranks)
        : given_(given), train_(train), rank_(static_cast<std::uint64_t>(rank)),
          model_({trainer::pixels, 32, trainer::classes}, trainer::derive(given.seed, 1000), 0), losses_(given.steps)
    {
        std::uint64_t count = 0;
        for (std::size_t layer = 0; layer < model_.layers(); ++layer) count += model_.parameters(layer).size();
        slot_ = (count + static_cast<std::uint64_t>(ranks) - 1) / static_cast<std::uint64_t>(ranks);
        velocity_.resize(slot_);
    }

    std::uint64_t slot() const { return slot_; }
    /// The part of a run over all ranks that is this rank's.
    template <class T>
    collprobe::view<T> own(collprobe::view<T> all) const
    {
        return all.part(rank_ * slot_, slot_);
    }
    /// What this rank's slice begins with.
    void initialise(collprobe::view<float> slice)
    {
        std::vector<float> all;
        for (std::size_t layer = 0; layer < model_.layers(); ++layer) {
            const auto of_layer = model_.parameters(layer);
            all.insert(all.end(), of_layer.begin(), of_layer.end());
        }
        for (std::uint64_t i = 0; i < slot_; ++i) {
            const std::uint64_t at = rank_ * slot_ + i;
            slice[i] = at < all.size() ? all[at] : 0.0F;
        }
    }

    /// Stochastic gradient descent with momentum; late, in about half of the steps of a rank.
    void update(collprobe::host::stream_ref on, std::uint64_t step, collprobe::view<const float> gradient,
        collprobe::view<float> slice)
    {
        on.enqueue([this, step, gradient, slice] {
            std::this_thread::sleep_for(delay(step));
            if (step == 0) return;
            for (std::uint64_t i = 0; i < slot_; ++i) {
                velocity_[i] = 0.9F * velocity_[i] + gradient[i];
                slice[i] -= 0.04F * velocity_[i];
            }
        });
    }

    /// The gradient of a batch of the rank's own, by the parameters given; keeps the loss.
    void forward_and_backward(collprobe::host::stream_ref on, std::uint64_t step,
        collprobe::view<const float> parameters, collprobe::view<float> gradient)
    {
        on.enqueue([this, step, parameters, gradient] {
            const float* from = parameters.begin();
            for (std::size_t layer = 0; layer < model_.layers(); ++layer) {
                const auto to = model_.parameters(layer);
                std::copy_n(from, to.size(), to.begin());
                from += to.size();
            }
            load(step);
            losses_[step] = model_.forward(inputs_, labels_, {});
            model_.backward([](std::size_t) {});
            float* to = gradient.begin();
            for (std::size_t layer = 0; layer < model_.layers(); ++layer) {
                const auto of_layer = model_.gradient(layer);
                to = std::copy(of_layer.begin(), of_layer.end(), to);
            }
            std::fill(to, gradient.end(), 0.0F);
        });
    }

    /// Of each step, once the stream is done.
    const std::vector<double>& losses() const { return losses_; }

private:
    std::chrono::microseconds delay(std::uint64_t step) const
    {
        trainer::random_stream random(trainer::derive(trainer::derive(given_.delay_seed, rank_), step));
        const bool late = random.uniform() < 0.5;
        return std::chrono::microseconds(late ? 200 + random.below(400) : 0);
    }
    void load(std::uint64_t step)
    {
        trainer::random_stream random(trainer::derive(trainer::derive(given_.seed, step), rank_));
        inputs_.clear();
        labels_.clear();
        for (int i = 0; i < 8; ++i) {
            const std::size_t sample = random.below(train_.size());
            inputs_.insert(inputs_.end(), train_.image(sample), train_.image(sample) + trainer::pixels);
            labels_.push_back(train_.labels[sample]);
        }
    }

    const options& given_;
    const trainer::dataset& train_;
    std::uint64_t rank_;
    trainer::mlp<float> model_;
    std::vector<double> losses_;
    std::uint64_t slot_ = 0;
    std::vector<float> velocity_;
    std::vector<float> inputs_;
    std::vector<int> labels_;
};

} // namespace guarded_all_gather
