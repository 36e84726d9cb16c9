// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/core/view.hpp>
#include <collprobe/replica/replica.hpp>

#include "dataset.hpp"
#include "model.hpp"
#include "random.hpp"

namespace trainer {

/// One rank's model, optimiser and data.
class rank_trainer {
public:
    /// `widths`: those of `mlp`. `batch`: samples of this rank in a step.
    rank_trainer(const dataset& train, const std::vector<std::size_t>& widths, std::uint64_t seed, int rank,
        std::size_t batch)
        : train_(train), seed_(seed), rank_(static_cast<std::uint64_t>(rank)), batch_(batch),
          model_(widths, derive(seed, 1000), 0), gradient_(model_.count()), average_(model_.count()),
          descent_(model_.count())
    {
    }

    /// The gradient of this rank's batch of a step.
    void compute(std::uint64_t step)
    {
        random_stream random(derive(derive(seed_, step), rank_));
        inputs_.clear();
        labels_.clear();
        for (std::size_t i = 0; i < batch_; ++i) {
            const std::size_t sample = random.below(train_.size());
            inputs_.insert(inputs_.end(), train_.image(sample), train_.image(sample) + pixels);
            labels_.push_back(train_.labels[sample]);
        }
        model_.forward(inputs_, labels_, {});
        model_.backward([](std::size_t) {});
        gradient_.clear();
        model_.append_gradient(gradient_);
    }
    collprobe::view<float> gradient() { return gradient_; }
    collprobe::view<float> average() { return average_; }

    void update(double rate) { descent_.update(model_, average_, rate); }

    /// A buffer for each layer.
    std::vector<collprobe::replica> weights()
    {
        std::vector<collprobe::replica> all;
        for (std::size_t layer = 0; layer < model_.layers(); ++layer) {
            all.push_back(collprobe::view(model_.parameters(layer)));
        }
        return all;
    }
    std::vector<collprobe::replica> averages() { return in_layers(average_); }
    collprobe::replica state() { return collprobe::view(descent_.velocity()); }

    std::vector<float> all_weights() const { return model_.parameters(); }
    const std::vector<float>& velocity() { return descent_.velocity(); }
    double accuracy(const dataset& test) { return model_.accuracy(test.inputs, test.labels); }

private:
    std::vector<collprobe::replica> in_layers(std::vector<float>& flat)
    {
        std::vector<collprobe::replica> all;
        std::size_t first = 0;
        for (std::size_t layer = 0; layer < model_.layers(); ++layer) {
            const std::size_t count = model_.parameters(layer).size();
            all.push_back(collprobe::view<float>(flat.data() + first, count));
            first += count;
        }
        return all;
    }

    const dataset& train_;
    std::uint64_t seed_;
    std::uint64_t rank_;
    std::size_t batch_;
    mlp<float> model_;
    std::vector<float> inputs_;
    std::vector<int> labels_;
    std::vector<float> gradient_;
    std::vector<float> average_;
    descent descent_;
};

} // namespace trainer
