// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <vector>

#include "../digits/dataset.hpp"

/// A small model that tells how hard each sample is, before the real training starts.
namespace trainer {

/// The loss of every sample under a softmax regression trained on all of them: 40 steps of gradient
/// descent from zero, so it depends on nothing but the data.
inline std::vector<double> pilot_losses(const dataset& data)
{
    constexpr std::size_t inputs = pixels + 1; // the last is a constant 1: the bias
    std::vector<double> weights(inputs * classes, 0);
    std::vector<double> losses(data.size());
    const auto gradient_step = [&](double rate) {
        std::vector<double> gradient(weights.size(), 0);
        for (std::size_t sample = 0; sample < data.size(); ++sample) {
            const float* const image = data.image(sample);
            std::array<double, classes> p{};
            for (std::size_t i = 0; i < inputs; ++i) {
                const double x = i < pixels ? static_cast<double>(image[i]) : 1;
                if (x == 0) continue;
                for (std::size_t c = 0; c < classes; ++c) p[c] += x * weights[i * classes + c];
            }
            const double top = *std::max_element(p.begin(), p.end());
            double total = 0;
            for (double& value : p) total += value = std::exp(value - top);
            for (double& value : p) value /= total;
            const auto label = static_cast<std::size_t>(data.labels[sample]);
            losses[sample] = -std::log(std::max(p[label], 1e-300));
            p[label] -= 1;
            for (std::size_t i = 0; i < inputs; ++i) {
                const double x = i < pixels ? static_cast<double>(image[i]) : 1;
                if (x == 0) continue;
                for (std::size_t c = 0; c < classes; ++c) gradient[i * classes + c] += x * p[c];
            }
        }
        for (std::size_t k = 0; k < weights.size(); ++k) {
            weights[k] -= rate * gradient[k] / static_cast<double>(data.size());
        }
    };
    for (int step = 0; step < 40; ++step) gradient_step(0.5);
    gradient_step(0); // the losses of the final weights
    return losses;
}

/// The samples by difficulty: `count` buckets of nearly equal size, easiest first.
inline std::vector<std::vector<std::size_t>> difficulty_buckets(
    const std::vector<double>& losses, std::size_t count)
{
    std::vector<std::size_t> order(losses.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(),
        [&](std::size_t a, std::size_t b) { return losses[a] < losses[b] || (losses[a] == losses[b] && a < b); });
    std::vector<std::vector<std::size_t>> buckets(count);
    for (std::size_t i = 0; i < order.size(); ++i) buckets[i * count / order.size()].push_back(order[i]);
    return buckets;
}

} // namespace trainer
