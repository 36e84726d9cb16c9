// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// The bodies of the device's kernels, run on the CPU as a device.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include <collprobe/device/host/device.hpp>

#include "../../examples/studies/silent_inconsistency/device_model.hpp"
#include "random_batch.hpp"

using namespace trainer;
using device = collprobe::host::device;

namespace {

constexpr std::size_t batch = 7;
const std::vector<std::size_t> widths = {6, 9, 8, 4};

struct outcome {
    double loss = 0;
    std::vector<std::vector<float>> gradient; // [layer][element]
    std::vector<std::size_t> order; // of the layers
};

outcome run(device_mlp<device>& model, const batch_data& data)
{
    const std::vector<float> inputs(data.inputs.begin(), data.inputs.end());
    const collprobe::host::stream stream;
    outcome result;
    const double* const loss = model.forward(inputs, data.labels, data.dropout_seeds, stream);
    model.backward(stream, [&](std::size_t layer) { result.order.push_back(layer); });
    stream.synchronize();
    result.loss = *loss;
    for (std::size_t layer = 0; layer < model.layers(); ++layer) {
        result.gradient.push_back(download<device>(model.gradient(layer), stream));
    }
    return result;
}

} // namespace

TEST_CASE("loss and gradient on a device are those of the host's models, with dropout and without")
{
    for (const double dropout : {0.0, 0.3}) {
        for (const std::size_t samples :
            {batch, std::size_t{3}}) { // a batch may be smaller than the capacity
            const batch_data data = random_batch(samples, 6, 4, 11);
            const std::vector<float> inputs(data.inputs.begin(), data.inputs.end());
            device_mlp<device> model(widths, 3, dropout, batch);
            mlp<float> narrow(widths, 3, dropout);
            mlp<double> wide(widths, 3, dropout);
            const outcome got = run(model, data);
            CHECK(got.order == std::vector<std::size_t>{2, 1, 0});
            CHECK(got.loss
                == doctest::Approx(narrow.forward(inputs, data.labels, data.dropout_seeds)).epsilon(1e-6));
            CHECK(got.loss
                == doctest::Approx(wide.forward(data.inputs, data.labels, data.dropout_seeds)).epsilon(1e-6));
            narrow.backward([](std::size_t) {});
            wide.backward([](std::size_t) {});
            for (std::size_t layer = 0; layer < widths.size() - 1; ++layer) {
                REQUIRE(got.gradient[layer].size() == wide.gradient(layer).size());
                for (std::size_t i = 0; i < got.gradient[layer].size(); ++i) {
                    const auto value = static_cast<double>(got.gradient[layer][i]);
                    REQUIRE(std::abs(value - static_cast<double>(narrow.gradient(layer)[i])) < 2e-7);
                    REQUIRE(std::abs(value - wide.gradient(layer)[i]) < 1e-6);
                }
            }
        }
    }
}

TEST_CASE("the same seeds and samples give the same bits, other seeds others")
{
    device_mlp<device> model(widths, 3, 0.3, batch);
    batch_data data = random_batch(batch, 6, 4, 5);
    const outcome first = run(model, data);
    const outcome again = run(model, data);
    CHECK(first.loss == again.loss);
    CHECK(first.gradient == again.gradient);
    data.dropout_seeds[0] += 1;
    CHECK(run(model, data).gradient != first.gradient);
}

TEST_CASE("accuracy is the host model's, for more samples than fit and however they are cut")
{
    const batch_data data = random_batch(40, 6, 4, 8);
    const std::vector<float> inputs(data.inputs.begin(), data.inputs.end());
    mlp<float> narrow(widths, 3, 0.3);
    const double expected = narrow.accuracy(inputs, data.labels);
    CHECK(expected > 0);
    const collprobe::host::stream stream;
    for (const std::size_t capacity : {std::size_t{1}, batch, std::size_t{40}, std::size_t{64}}) {
        device_mlp<device> model(widths, 3, 0.3, capacity);
        CHECK(model.accuracy(inputs, data.labels, stream) == expected);
    }
}
