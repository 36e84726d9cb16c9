// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/fault/faulty.hpp>
#include <collprobe/replica/dynamic_averaging.hpp>
#include <collprobe/replica/periodic_averaging.hpp>
#include <collprobe/replica/replica.hpp>

#include "../digits/dataset.hpp"
#include "../digits/model.hpp"
#include "../digits/random.hpp"
#include "options.hpp"
#include "repair.hpp"

namespace aggregation_faults {

/// Falls to 0 on a straight line.
inline constexpr double first_learning_rate = 0.04;
inline constexpr double momentum = 0.9;

/// One run of the program's list.
struct run_plan {
    method how = method::clean;
    double sigma2 = 0;
    int ranks = 0;
    std::uint64_t interval = 0; ///< of periodic
    std::uint64_t seed = 1;
};

/// What the ranks of a run ended with.
struct rank_result {
    std::vector<float> weights = {};
    std::vector<float> velocity = {};
    double accuracy = 0;
    double seconds = 0;
    std::uint64_t rounds = 0; ///< averages or repairs
    std::uint64_t bytes = 0; ///< that the repair handed to collectives
    std::uint64_t faults = 0; ///< that hit this rank
    bool without_majority = false; ///< whether majority gave up
};

/// One rank's model, optimiser and data.
class rank_trainer {
public:
    rank_trainer(const trainer::dataset& train, std::uint64_t seed, int rank, std::size_t batch)
        : train_(train), seed_(seed), rank_(static_cast<std::uint64_t>(rank)), batch_(batch),
          model_({trainer::pixels, 64, 64, trainer::classes}, trainer::derive(seed, 1000), 0)
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
        trainer::random_stream random(trainer::derive(trainer::derive(seed_, step), rank_));
        inputs_.clear();
        labels_.clear();
        for (std::size_t i = 0; i < batch_; ++i) {
            const std::size_t sample = random.below(train_.size());
            inputs_.insert(inputs_.end(), train_.image(sample), train_.image(sample) + trainer::pixels);
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
    collprobe::view<const float> gradient() const { return gradient_; }
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
        for (std::size_t layer = 0; layer < model_.layers(); ++layer) all.push_back(collprobe::view(model_.parameters(layer)));
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
    double accuracy(const trainer::dataset& test) { return model_.accuracy(test.inputs, test.labels); }

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

    const trainer::dataset& train_;
    std::uint64_t seed_;
    std::uint64_t rank_;
    std::size_t batch_;
    trainer::mlp<float> model_;
    std::vector<float> inputs_;
    std::vector<int> labels_;
    std::vector<float> gradient_;
    std::vector<float> average_;
    std::vector<float> velocity_;
};

/// The faults of a run; the same in all of its methods but clean.
inline std::vector<collprobe::fault> faults_of(const options& given, const run_plan& plan)
{
    using namespace collprobe;
    if (plan.how == method::clean) return {};
    if (given.fault == fault_model::gaussian) {
        return paft_noise(plan.sigma2, trainer::derive(plan.seed, 7), given.burst, given.burst > 0 ? burst_period : 0);
    }
    // One flipped exponent bit, a few bits of one element, and a warp's stores: each on a rank that is drawn anew.
    const std::uint64_t seed = trainer::derive(plan.seed, 8);
    return {{.kind = fault_kind::bit_flips, .rank = fault::random_rank, .probability = 0.004, .mask = 1u << 30, .seed = seed},
        {.kind = fault_kind::bit_flips, .rank = fault::random_rank, .probability = 0.004, .bits = 3, .seed = seed},
        {.kind = fault_kind::bit_flips, .rank = fault::random_rank, .probability = 0.004, .elements = 32, .stride = 8,
            .alignment = 32, .bits = 2, .seed = seed}};
}

/// A whole run as one rank sees it. `advance()` is called after each step.
template <class Advance>
rank_result train(const options& given, const trainer::split_dataset& data, const run_plan& plan,
    collprobe::local::communicator& world, Advance advance)
{
    using namespace collprobe;
    rank_trainer self(data.train, plan.seed, world.rank(), given.batch_of(world.size()));
    faulty comm(world, faults_of(given, plan), {.max_bytes = 0});
    std::vector<replica> averaged = self.weights();
    std::vector<replica> all = averaged;
    all.push_back(self.state());
    if (given.state) averaged = all;

    // Averages travel by the communicator beneath the faults: PAFT's assumption.
    std::optional<periodic_averaging<local::communicator>> periodic;
    std::optional<dynamic_averaging<local::communicator>> dynamic;
    std::optional<majority_or_average> majority;
    if (plan.how == method::majority) majority.emplace(world, all);
    if (plan.how == method::periodic) periodic.emplace(world, averaged, periodic_options{.interval = plan.interval});
    if (plan.how == method::dynamic || plan.how == method::dynamic_corrected) {
        dynamic.emplace(world, self.weights(), given.state ? std::vector<replica>{self.state()} : std::vector<replica>{},
            dynamic_options{
                .rule = plan.how == method::dynamic ? interval_rule::literal : interval_rule::corrected,
                .momentum = momentum});
    }
    const host::stream stream; // gone before what its work uses
    const auto begin = std::chrono::steady_clock::now();
    for (std::uint64_t step = 0; step < given.steps; ++step) {
        if (dynamic) dynamic->begin_step(stream);
        const double rate = first_learning_rate * (1 - static_cast<double>(step) / static_cast<double>(given.steps));
        self.compute(step);
        comm.all_reduce(self.gradient(), self.average(), reduction::average, stream);
        if (dynamic) dynamic->before_update(self.averages(), rate, stream);
        stream.synchronize();
        self.update(rate);
        if (periodic) (void)periodic->step(stream);
        if (majority) majority->step(stream);
        stream.synchronize();
        advance();
    }
    // What is handed out at the end is one model.
    if (periodic && given.steps % plan.interval != 0) periodic->average(stream);
    if (dynamic) dynamic->finish(stream);
    if (majority) majority->finish(stream);
    stream.synchronize();
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;

    rank_result result{.weights = self.all_weights(), .velocity = self.velocity(), .accuracy = self.accuracy(data.test),
        .seconds = passed.count()};
    result.faults = comm.injected_total();
    const auto count = [&](const auto& repair) {
        if (!repair) return;
        result.rounds = repair->rounds();
        result.bytes = repair->bytes();
    };
    count(periodic);
    count(dynamic);
    count(majority);
    result.without_majority = majority && majority->fell_back();
    return result;
}

} // namespace aggregation_faults
