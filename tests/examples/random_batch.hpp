// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "../../examples/studies/digits/random.hpp"

/// Something to train on: no meaning, but zeros among the inputs.
struct batch_data {
    std::vector<double> inputs;
    std::vector<int> labels;
    std::vector<std::uint64_t> dropout_seeds;
};

inline batch_data random_batch(std::size_t samples, std::size_t width, int classes, std::uint64_t seed)
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
