// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/core/view.hpp>
#include <collprobe/replica/replica.hpp>

#include "dataset.hpp"
#include "model.hpp"
#include "random.hpp"

namespace trainer {

/// Falls to 0 on a straight line.
inline constexpr double first_learning_rate = 0.04;
inline constexpr double momentum = 0.9;

/// One rank's model, optimiser and data.
class rank_trainer {
public:
    /// `widths`: those of `mlp`. `batch`: samples of this rank in a step.
    rank_trainer(const dataset& train, const std::vector<std::size_t>& widths, std::uint64_t seed, int rank,
        std::size_t batch)
        : train_(train), seed_(seed), rank_(static_cast<std::uint64_t>(rank)), batch_(batch),
          model_(widths, derive(seed, 1000), 0)
    {
        std::size_t count = 0;
        for (std::size_t layer = 0; layer < model_.layers(); ++layer) count += model_.parameters(layer).size();
        gradient_.resize(count);
        average_.resize(count);
        velocity_.resize(count);
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
        auto to = gradient_.begin();
        for (std::size_t layer = 0; layer < model_.layers(); ++layer) {
            const auto of_layer = model_.gradient(layer);
            to = std::copy(of_layer.begin(), of_layer.end(), to);
        }
    }
    collprobe::view<float> gradient() { return gradient_; }
    collprobe::view<float> average() { return average_; }

    void update(double rate)
    {
        std::size_t i = 0;
        for (std::size_t layer = 0; layer < model_.layers(); ++layer) {
            for (float& weight : model_.parameters(layer)) {
                velocity_[i] = static_cast<float>(momentum) * velocity_[i] + average_[i];
                weight -= static_cast<float>(rate) * velocity_[i];
                ++i;
            }
        }
    }

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
    collprobe::replica state() { return collprobe::view(velocity_); }

    std::vector<float> all_weights()
    {
        std::vector<float> all;
        for (std::size_t layer = 0; layer < model_.layers(); ++layer) {
            const auto of_layer = model_.parameters(layer);
            all.insert(all.end(), of_layer.begin(), of_layer.end());
        }
        return all;
    }
    const std::vector<float>& velocity() const { return velocity_; }
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
    std::vector<float> velocity_;
};

} // namespace trainer
