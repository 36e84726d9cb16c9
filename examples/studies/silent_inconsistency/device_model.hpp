// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <collprobe/core/view.hpp>

#include "../digits/model.hpp"
#include "device_kernels.hpp"
#include "device_memory.hpp"

namespace trainer {

/// `mlp<float>` in the memory of a device: the same weights and the same dropped units from the same
/// seeds, and the same numbers to rounding (a GPU fuses multiplications and additions).
///
/// Everything is enqueued on the stream given, and nothing waits, unless it says so. The same calls give
/// the same bits.
template <class Device>
class device_mlp {
public:
    using stream_ref = typename Device::stream_ref;

    /// As `mlp`, for batches of at most `capacity` samples. Blocks until the weights are there.
    device_mlp(
        const std::vector<std::size_t>& widths, std::uint64_t seed, double dropout, std::size_t capacity)
        : dropout_(dropout),
          capacity_(capacity),
          inputs_(capacity * widths.front()),
          labels_(capacity),
          dropout_seeds_(capacity),
          losses_(capacity),
          loss_(1)
    {
        mlp<float> initial(widths, seed, dropout);
        const typename Device::stream set_up;
        for (std::size_t k = 0; k < initial.layers(); ++k) {
            layers_.emplace_back(kernels::shape{widths[k], widths[k + 1]}, capacity);
            upload<Device, float>(initial.parameters(k), parameters(k), set_up);
        }
    }

    std::size_t layers() const { return layers_.size(); }
    collprobe::view<float> parameters(std::size_t index) { return layers_[index].parameters; }
    collprobe::view<const float> gradient(std::size_t index) const { return layers_[index].gradient; }

    /// The mean loss of a batch, in device memory until the next `forward`. The host's arrays may be
    /// changed at once, but the next call of any kind that takes some must wait for the stream.
    const double* forward(std::span<const float> inputs, std::span<const int> labels,
        std::span<const std::uint64_t> dropout_seeds, stream_ref on)
    {
        labels_.write(labels, on);
        if (dropout_ > 0) dropout_seeds_.write(dropout_seeds, on);
        run(inputs, labels.size(), dropout_, on);
        layer& last = layers_.back();
        Device::for_each(on, batch_,
            kernels::loss{last.output.data(), labels_.data(), last.delta.data(), losses_.data(),
                last.form.outputs, batch_});
        Device::for_each(on, 1, kernels::mean{losses_.data(), batch_, loss_.data()});
        return loss_.data();
    }

    /// The gradient of the last `forward`'s loss, from the last layer to the first; calls `ready(layer)`
    /// as soon as a layer's is enqueued, so that it can travel while the next is computed.
    template <class Ready>
    void backward(stream_ref on, Ready ready)
    {
        for (std::size_t k = layers_.size(); k-- > 0;) {
            layer& here = layers_[k];
            Device::for_each(on, here.gradient.size(),
                kernels::backward_parameters{
                    here.form, input_of(k), here.delta.data(), here.gradient.data(), batch_});
            if (k > 0) {
                Device::for_each(on, batch_ * here.form.inputs,
                    kernels::backward_input{here.form, input_of(k), here.parameters.data(), here.delta.data(),
                        layers_[k - 1].delta.data(), kept_scale_});
            }
            ready(k);
        }
    }

    /// The share of samples whose class comes out on top, without dropout. Blocks.
    double accuracy(std::span<const float> inputs, std::span<const int> labels, stream_ref on)
    {
        const std::size_t width = layers_.front().form.inputs;
        const std::size_t outputs = layers_.back().form.outputs;
        std::size_t right = 0;
        for (std::size_t first = 0; first < labels.size(); first += capacity_) {
            const std::size_t count = std::min(capacity_, labels.size() - first);
            run(inputs.subspan(first * width, count * width), count, 0, on);
            const std::vector<float> scores = download<Device>(
                collprobe::view<const float>(layers_.back().output.data(), count * outputs), on);
            for (std::size_t sample = 0; sample < count; ++sample) {
                const float* const own = scores.data() + sample * outputs;
                right += std::max_element(own, own + outputs) - own == labels[first + sample] ? 1 : 0;
            }
        }
        return static_cast<double>(right) / static_cast<double>(labels.size());
    }

private:
    template <class T>
    using buffer = typename Device::template buffer<T>;

    struct layer {
        layer(kernels::shape of, std::size_t capacity)
            : form(of),
              parameters((of.inputs + 1) * of.outputs),
              gradient(parameters.size()),
              output(capacity * of.outputs),
              delta(capacity * of.outputs)
        {
        }
        kernels::shape form;
        buffer<float> parameters;
        buffer<float> gradient;
        buffer<float> output; // [sample][unit], behind ReLU and dropout
        buffer<float> delta; // gradient by the output in front of ReLU
    };

    const float* input_of(std::size_t k) const
    {
        return k == 0 ? inputs_.data() : layers_[k - 1].output.data();
    }

    void run(std::span<const float> inputs, std::size_t batch, double dropout, stream_ref on)
    {
        inputs_.write(inputs, on);
        batch_ = batch;
        kept_scale_ = static_cast<float>(1 / (1 - dropout));
        for (std::size_t k = 0; k < layers_.size(); ++k) {
            layer& here = layers_[k];
            Device::for_each(on, batch * here.form.outputs,
                kernels::forward{here.form, input_of(k), here.parameters.data(), here.output.data(),
                    k + 1 < layers_.size(), dropout, kept_scale_, dropout_seeds_.data(), k});
        }
    }

    std::vector<layer> layers_;
    double dropout_;
    std::size_t capacity_;
    float kept_scale_ = 1;
    std::size_t batch_ = 0;
    uploaded<Device, float> inputs_;
    uploaded<Device, int> labels_;
    uploaded<Device, std::uint64_t> dropout_seeds_;
    buffer<double> losses_;
    buffer<double> loss_;
};

} // namespace trainer
