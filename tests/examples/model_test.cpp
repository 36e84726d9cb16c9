// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include "../../examples/studies/digits/model.hpp"
#include "../../examples/studies/digits/random.hpp"

namespace collprobe::testing::model_test {

using namespace trainer;

namespace {

constexpr std::size_t batch = 7;

/// Something to train on: no meaning, but zeros among the inputs.
struct batch_data {
    std::vector<double> inputs;
    std::vector<int> labels;
    std::vector<std::uint64_t> dropout_seeds;
};

batch_data random_batch(std::size_t samples, std::size_t width, int classes, std::uint64_t seed)
{
    trainer::random_stream random(seed);
    batch_data data;
    for (std::size_t i = 0; i < samples * width; ++i)
        data.inputs.push_back(i % 5 == 0 ? 0 : random.uniform());
    for (std::size_t i = 0; i < samples; ++i) {
        data.labels.push_back(static_cast<int>(random.below(static_cast<std::size_t>(classes))));
        data.dropout_seeds.push_back(random.next());
    }
    return data;
}

} // namespace

TEST_CASE("the backward pass equals finite differences of the loss, with dropout and without")
{
    for (const double dropout : {0.0, 0.3}) {
        mlp<double> model({6, 9, 8, 4}, 3, dropout);
        const batch_data data = random_batch(batch, 6, 4, 11);
        model.forward(data.inputs, data.labels, data.dropout_seeds);
        std::vector<std::size_t> order;
        model.backward([&](std::size_t layer) { order.push_back(layer); });
        CHECK(order == std::vector<std::size_t>{2, 1, 0});

        double largest = 0;
        for (std::size_t layer = 0; layer < model.layers(); ++layer) {
            const std::vector<double> gradient(model.gradient(layer).begin(), model.gradient(layer).end());
            REQUIRE(gradient.size() == model.parameters(layer).size());
            for (std::size_t i = 0; i < gradient.size(); ++i) {
                double& weight = model.parameters(layer)[i];
                const double kept = weight;
                const double step = 1e-6;
                weight = kept + step;
                const double above = model.forward(data.inputs, data.labels, data.dropout_seeds);
                weight = kept - step;
                const double below = model.forward(data.inputs, data.labels, data.dropout_seeds);
                weight = kept;
                largest = std::max(largest, std::abs((above - below) / (2 * step) - gradient[i]));
            }
        }
        // Central differences are good to step^2 and to the loss's rounding by step.
        CHECK(largest < 1e-8);
    }
}

} // namespace collprobe::testing::model_test
