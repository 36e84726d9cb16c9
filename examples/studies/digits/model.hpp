// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "random.hpp"

namespace trainer {

/// A multi-layer perceptron with ReLU, dropout behind every hidden layer and softmax cross-entropy.
/// The backward pass is written out; `Real` is float to train and double to check it.
///
/// Parameters and gradients of a layer are one run each: weights as [input][output], then the biases.
template <class Real>
class mlp {
public:
    /// `widths`: numbers of inputs, of units per hidden layer, of classes. The weights depend on the
    /// seed alone. `dropout` is the probability that a unit is dropped, below 1.
    mlp(const std::vector<std::size_t>& widths, std::uint64_t seed, double dropout) : dropout_(dropout)
    {
        for (std::size_t k = 0; k + 1 < widths.size(); ++k) {
            layer next{widths[k], widths[k + 1], {}, {}, {}, {}};
            next.parameters.assign((next.inputs + 1) * next.outputs, Real(0));
            next.gradient.assign(next.parameters.size(), Real(0));
            random_stream random(derive(seed, k));
            const double bound = std::sqrt(6 / static_cast<double>(next.inputs)); // He: right for ReLU
            for (std::size_t i = 0; i < next.inputs * next.outputs; ++i) {
                next.parameters[i] = static_cast<Real>(bound * (2 * random.uniform() - 1));
            }
            layers_.push_back(std::move(next));
        }
    }

    std::size_t layers() const { return layers_.size(); }
    std::span<Real> parameters(std::size_t index) { return layers_[index].parameters; }
    std::span<const Real> gradient(std::size_t index) const { return layers_[index].gradient; }
    /// The same of all layers, one after another.
    std::size_t count() const
    {
        std::size_t sum = 0;
        for (const layer& each : layers_) sum += each.parameters.size();
        return sum;
    }
    std::vector<Real> parameters() const
    {
        std::vector<Real> all;
        for (const layer& each : layers_) all.insert(all.end(), each.parameters.begin(), each.parameters.end());
        return all;
    }
    template <class Number>
    void append_gradient(std::vector<Number>& to) const
    {
        for (const layer& each : layers_) {
            for (const Real value : each.gradient) to.push_back(static_cast<Number>(value));
        }
    }

    /// The mean loss of a batch. `inputs` holds the samples one after another, `labels` their classes,
    /// `dropout_seeds` a seed each for the units that are dropped.
    double forward(std::span<const Real> inputs, std::span<const int> labels,
        std::span<const std::uint64_t> dropout_seeds)
    {
        run(inputs, labels.size(), dropout_, dropout_seeds);
        return loss(labels);
    }

    /// The gradient of the last `forward`'s loss, from the last layer to the first; calls `ready(layer)`
    /// as soon as a layer's is there, so that it can travel while the next is computed.
    template <class Ready>
    void backward(Ready ready)
    {
        for (std::size_t k = layers_.size(); k-- > 0;) {
            layer& here = layers_[k];
            std::span<const Real> input = k == 0 ? std::span<const Real>(inputs_) : layers_[k - 1].output;
            if (k > 0) layers_[k - 1].delta.assign(input.size(), Real(0));
            std::fill(here.gradient.begin(), here.gradient.end(), Real(0));
            for (std::size_t sample = 0; sample < batch_; ++sample) {
                const Real* const delta = here.delta.data() + sample * here.outputs;
                add(Real(1), delta, here.gradient.data() + here.inputs * here.outputs, here.outputs);
                for (std::size_t i = 0; i < here.inputs; ++i) {
                    // A unit that ReLU or dropout set to zero passes nothing on, either way.
                    const Real x = input[sample * here.inputs + i];
                    if (x == Real(0)) continue;
                    add(x, delta, here.gradient.data() + i * here.outputs, here.outputs);
                    if (k == 0) continue;
                    layers_[k - 1].delta[sample * here.inputs + i]
                        = kept_scale_ * dot(here.parameters.data() + i * here.outputs, delta, here.outputs);
                }
            }
            ready(k);
        }
    }

    /// The share of samples whose class comes out on top, without dropout.
    double accuracy(std::span<const Real> inputs, std::span<const int> labels)
    {
        run(inputs, labels.size(), 0, {});
        const layer& last = layers_.back();
        std::size_t right = 0;
        for (std::size_t sample = 0; sample < labels.size(); ++sample) {
            const Real* const scores = last.output.data() + sample * last.outputs;
            right += std::max_element(scores, scores + last.outputs) - scores == labels[sample] ? 1 : 0;
        }
        return static_cast<double>(right) / static_cast<double>(labels.size());
    }

private:
    struct layer {
        std::size_t inputs;
        std::size_t outputs;
        std::vector<Real> parameters;
        std::vector<Real> gradient;
        std::vector<Real> output; // [sample][unit], behind ReLU and dropout
        std::vector<Real> delta; // gradient by the output in front of ReLU
    };

    static void add(Real factor, const Real* from, Real* to, std::size_t count)
    {
        for (std::size_t i = 0; i < count; ++i) to[i] += factor * from[i];
    }
    static Real dot(const Real* a, const Real* b, std::size_t count)
    {
        // Four sums, since one would wait for itself at every addition.
        Real sum[4] = {0, 0, 0, 0};
        std::size_t i = 0;
        for (; i + 4 <= count; i += 4) {
            for (std::size_t lane = 0; lane < 4; ++lane) sum[lane] += a[i + lane] * b[i + lane];
        }
        for (; i < count; ++i) sum[0] += a[i] * b[i];
        return (sum[0] + sum[1]) + (sum[2] + sum[3]);
    }

    void run(std::span<const Real> inputs, std::size_t batch, double dropout,
        std::span<const std::uint64_t> dropout_seeds)
    {
        inputs_.assign(inputs.begin(), inputs.end());
        batch_ = batch;
        kept_scale_ = static_cast<Real>(1 / (1 - dropout));
        for (std::size_t k = 0; k < layers_.size(); ++k) {
            layer& here = layers_[k];
            const std::vector<Real>& input = k == 0 ? inputs_ : layers_[k - 1].output;
            here.output.resize(batch * here.outputs);
            const Real* const biases = here.parameters.data() + here.inputs * here.outputs;
            for (std::size_t sample = 0; sample < batch; ++sample) {
                Real* const output = here.output.data() + sample * here.outputs;
                std::copy(biases, biases + here.outputs, output);
                for (std::size_t i = 0; i < here.inputs; ++i) {
                    const Real x = input[sample * here.inputs + i];
                    if (x != Real(0)) add(x, here.parameters.data() + i * here.outputs, output, here.outputs);
                }
            }
            if (k + 1 == layers_.size()) break;
            for (std::size_t sample = 0; sample < batch; ++sample) {
                random_stream random(dropout > 0 ? derive(dropout_seeds[sample], k) : 0);
                for (std::size_t o = 0; o < here.outputs; ++o) {
                    Real& value = here.output[sample * here.outputs + o];
                    const bool kept = dropout <= 0 || random.uniform() >= dropout;
                    value = kept && value > Real(0) ? value * kept_scale_ : Real(0);
                }
            }
        }
    }

    /// The mean loss of the scores in the last layer, whose `delta` it sets.
    double loss(std::span<const int> labels)
    {
        layer& last = layers_.back();
        last.delta.resize(last.output.size());
        double total = 0;
        for (std::size_t sample = 0; sample < batch_; ++sample) {
            const Real* const scores = last.output.data() + sample * last.outputs;
            Real* const delta = last.delta.data() + sample * last.outputs;
            const double top = static_cast<double>(*std::max_element(scores, scores + last.outputs));
            double sum = 0;
            for (std::size_t c = 0; c < last.outputs; ++c)
                sum += std::exp(static_cast<double>(scores[c]) - top);
            const auto label = static_cast<std::size_t>(labels[sample]);
            total += std::log(sum) + top - static_cast<double>(scores[label]);
            for (std::size_t c = 0; c < last.outputs; ++c) {
                const double p = std::exp(static_cast<double>(scores[c]) - top) / sum;
                delta[c] = static_cast<Real>((p - (c == label ? 1 : 0)) / static_cast<double>(batch_));
            }
        }
        return total / static_cast<double>(batch_);
    }

    std::vector<layer> layers_;
    double dropout_;
    Real kept_scale_ = 1;
    std::size_t batch_ = 0;
    std::vector<Real> inputs_;
};

/// Stochastic gradient descent with momentum.
class descent {
public:
    static constexpr double momentum = 0.9;
    static constexpr double first_rate = 0.04; ///< in some studies it falls to 0 on a straight line

    explicit descent(std::size_t count) : velocity_(count) {}

    /// `gradient`: of all layers, one after another; a number of any type.
    template <class Gradient>
    void update(mlp<float>& model, const Gradient& gradient, double rate)
    {
        std::size_t i = 0;
        for (std::size_t layer = 0; layer < model.layers(); ++layer) {
            for (float& weight : model.parameters(layer)) {
                velocity_[i] = static_cast<float>(momentum) * velocity_[i] + static_cast<float>(gradient[i]);
                weight -= static_cast<float>(rate) * velocity_[i];
                ++i;
            }
        }
    }
    std::vector<float>& velocity() { return velocity_; }

private:
    std::vector<float> velocity_;
};

} // namespace trainer
