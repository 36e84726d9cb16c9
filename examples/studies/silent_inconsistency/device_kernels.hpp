// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>

#include "../digits/random.hpp"

/// The bodies of the device trainer's loops: plain, one index for one number to compute, every sum in a
/// fixed order. What two indices share is only read.
namespace trainer::kernels {

/// A layer: weights as [input][output], then the biases.
struct shape {
    std::size_t inputs;
    std::size_t outputs;
};

/// Output `index` of a layer, as [sample][unit].
struct forward {
    shape layer;
    const float* input;
    const float* parameters;
    float* output;
    bool hidden; ///< ReLU and dropout follow
    double dropout;
    float kept_scale;
    const std::uint64_t* dropout_seeds; ///< one per sample; not read without dropout
    std::uint64_t number; ///< the layer's, for its random numbers

    COLLPROBE_HD void operator()(std::uint64_t index) const
    {
        const std::size_t sample = index / layer.outputs;
        const std::size_t unit = index % layer.outputs;
        float sum = parameters[layer.inputs * layer.outputs + unit];
        for (std::size_t i = 0; i < layer.inputs; ++i)
            sum += input[sample * layer.inputs + i] * parameters[i * layer.outputs + unit];
        if (hidden) {
            const bool kept
                = dropout <= 0 || uniform(derive(derive(dropout_seeds[sample], number), unit)) >= dropout;
            sum = kept && sum > 0 ? sum * kept_scale : 0;
        }
        output[index] = sum;
    }
};

/// Softmax cross-entropy of sample `index`, and its derivative by the scores, over `batch`.
struct loss {
    const float* scores; ///< [sample][class]
    const int* labels;
    float* delta; ///< as the scores
    double* losses; ///< per sample
    std::size_t classes;
    std::size_t batch;

    COLLPROBE_HD void operator()(std::uint64_t index) const
    {
        const float* const own = scores + index * classes;
        float highest = own[0];
        for (std::size_t c = 1; c < classes; ++c) highest = own[c] > highest ? own[c] : highest;
        const auto top = static_cast<double>(highest);
        double sum = 0;
        for (std::size_t c = 0; c < classes; ++c) sum += std::exp(static_cast<double>(own[c]) - top);
        const auto label = static_cast<std::size_t>(labels[index]);
        losses[index] = std::log(sum) + top - static_cast<double>(own[label]);
        for (std::size_t c = 0; c < classes; ++c) {
            const double p = std::exp(static_cast<double>(own[c]) - top) / sum;
            delta[index * classes + c]
                = static_cast<float>((p - (c == label ? 1 : 0)) / static_cast<double>(batch));
        }
    }
};

/// The mean of `count` numbers, by one index.
struct mean {
    const double* values;
    std::size_t count;
    double* result;

    COLLPROBE_HD void operator()(std::uint64_t) const
    {
        double total = 0;
        for (std::size_t i = 0; i < count; ++i) total += values[i];
        *result = total / static_cast<double>(count);
    }
};

/// Element `index` of a layer's gradient: a sum over the samples, of input times delta.
struct backward_parameters {
    shape layer;
    const float* input;
    const float* delta; ///< by the layer's output in front of ReLU
    float* gradient;
    std::size_t batch;

    COLLPROBE_HD void operator()(std::uint64_t index) const
    {
        const std::size_t i = index / layer.outputs;
        const std::size_t unit = index % layer.outputs;
        float sum = 0;
        for (std::size_t sample = 0; sample < batch; ++sample) {
            const float x = i < layer.inputs ? input[sample * layer.inputs + i] : 1.0f;
            sum += x * delta[sample * layer.outputs + unit];
        }
        gradient[index] = sum;
    }
};

/// Element `index` of the delta one layer below, as [sample][input].
struct backward_input {
    shape layer;
    const float* input;
    const float* parameters;
    const float* delta;
    float* below;
    float kept_scale;

    COLLPROBE_HD void operator()(std::uint64_t index) const
    {
        const std::size_t sample = index / layer.inputs;
        const std::size_t i = index % layer.inputs;
        const float* const weights = parameters + i * layer.outputs;
        const float* const above = delta + sample * layer.outputs;
        float sum = 0;
        for (std::size_t unit = 0; unit < layer.outputs; ++unit) sum += weights[unit] * above[unit];
        // A unit that ReLU or dropout set to zero passes nothing on, either way.
        below[index] = input[index] == 0 ? 0 : kept_scale * sum;
    }
};

/// From one precision to another.
template <class To>
struct convert {
    const float* from;
    To* to;

    COLLPROBE_HD void operator()(std::uint64_t index) const { to[index] = static_cast<To>(from[index]); }
};

/// Raises the flag if an element is not finite. Whoever writes it writes the same.
template <class Wire>
struct look_for_damage {
    const Wire* average;
    std::uint32_t* damaged;

    COLLPROBE_HD void operator()(std::uint64_t index) const
    {
        if (!collprobe::is_finite(average[index])) *damaged = 1;
    }
};

/// Stochastic gradient descent with momentum, unless the flag is up.
template <class Wire>
struct update {
    const Wire* average;
    float* velocity;
    float* parameters;
    float rate;
    float momentum;
    const std::uint32_t* damaged;

    COLLPROBE_HD void operator()(std::uint64_t index) const
    {
        if (*damaged != 0) return;
        velocity[index] = momentum * velocity[index] + static_cast<float>(average[index]);
        parameters[index] -= rate * velocity[index];
    }
};

/// Counts the flag and takes it down.
struct count_damage {
    std::uint32_t* damaged;
    std::uint64_t* skipped;

    COLLPROBE_HD void operator()(std::uint64_t) const
    {
        *skipped += *damaged;
        *damaged = 0;
    }
};

} // namespace trainer::kernels
