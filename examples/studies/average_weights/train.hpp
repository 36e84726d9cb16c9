// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/audit/weight_probe.hpp>
#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/device/host/stream.hpp>
#include <collprobe/step/probed.hpp>

#include "../../report_files.hpp"
#include "../digits/dataset.hpp"
#include "../digits/model.hpp"
#include "../digits/random.hpp"

namespace average_weights {

inline constexpr int ranks = 8;
inline constexpr int odd_rank = 3;

/// What is wrong with the average of a run.
enum class mistake { none, equal_ranks, divided_twice, rank_lost, rank_doubled, not_divided };

inline constexpr mistake all_mistakes[] = {mistake::none, mistake::equal_ranks, mistake::divided_twice,
    mistake::rank_lost, mistake::rank_doubled, mistake::not_divided};

constexpr const char* name(mistake what)
{
    switch (what) {
    case mistake::none: return "none: by tokens";
    case mistake::equal_ranks: return "ranks count alike";
    case mistake::divided_twice: return "divided twice";
    case mistake::rank_lost: return "rank 3 lost";
    case mistake::rank_doubled: return "rank 3 twice";
    case mistake::not_divided: return "not divided";
    }
    return "unknown";
}

/// The form that the weights of such an average have.
constexpr collprobe::averaging form_of(mistake what)
{
    using collprobe::averaging;
    switch (what) {
    case mistake::none: return averaging::token_weighted;
    case mistake::equal_ranks: return averaging::mean;
    case mistake::divided_twice: return averaging::divided_twice;
    case mistake::rank_lost: return averaging::rank_lost;
    case mistake::rank_doubled: return averaging::rank_doubled;
    case mistake::not_divided: return averaging::sum;
    }
    return averaging::other;
}

struct options {
    std::uint64_t steps = 300;
    std::vector<std::uint64_t> seeds = {1, 2, 3};
    int every = 20; ///< the probe looks at each step of so many
    std::string data = trainer::default_digits;
    report_files files;
};

/// The samples of a rank in a step. One rank, another in each step, has a long batch of the digits 5 to 9; each other
/// one a short batch of the digits 0 to 4. All ranks together have as many of the one kind as of the other.
inline constexpr std::size_t short_batch = 4;
inline constexpr std::size_t long_batch = (ranks - 1) * short_batch;
inline constexpr double samples_of_all = 2.0 * long_batch;

inline bool has_long_batch(int rank, std::uint64_t step)
{
    return trainer::derive(step, 77) % ranks == static_cast<std::uint64_t>(rank);
}

/// What the trainer does to a rank's gradient, the mean over the rank's samples, and to the sum over the ranks.
struct factors {
    double before;
    double behind = 1;
};
inline factors factors_of(mistake what, int rank, double samples)
{
    const double share = samples / samples_of_all;
    switch (what) {
    case mistake::none: return {share};
    case mistake::equal_ranks: return {1.0 / ranks};
    case mistake::divided_twice: return {share, 1.0 / ranks}; // a sum was meant, an average was called
    case mistake::rank_lost: return {rank == odd_rank ? 0 : share};
    case mistake::rank_doubled: return {rank == odd_rank ? 2 * share : share};
    case mistake::not_divided: return {1};
    }
    return {share};
}

/// Indices of the samples whose digit is below 5, and of the others.
struct kinds {
    std::vector<std::size_t> of_short, of_long;

    explicit kinds(const trainer::dataset& all)
    {
        for (std::size_t i = 0; i < all.size(); ++i) (all.labels[i] < 5 ? of_short : of_long).push_back(i);
    }
};

/// One rank's model and optimiser: stochastic gradient descent with momentum.
class rank_trainer {
public:
    rank_trainer(const trainer::dataset& train, const kinds& samples, std::uint64_t seed, int rank)
        : train_(train), samples_(samples), seed_(seed), rank_(rank),
          model_({trainer::pixels, 64, 64, trainer::classes}, trainer::derive(seed, 1000), 0), gradient_(model_.count()),
          sum_(model_.count()), descent_(model_.count())
    {
    }

    /// Computes the mean gradient of the rank's batch; returns its loss and the number of its samples.
    std::pair<double, double> compute(std::uint64_t step)
    {
        const bool is_long = has_long_batch(rank_, step);
        const std::vector<std::size_t>& from = is_long ? samples_.of_long : samples_.of_short;
        trainer::random_stream random(trainer::derive(trainer::derive(seed_, step), static_cast<std::uint64_t>(rank_)));
        trainer::dataset batch;
        for (std::size_t i = 0; i < (is_long ? long_batch : short_batch); ++i) batch.add(train_, from[random.below(from.size())]);
        const double loss = model_.forward(batch.inputs, batch.labels, {});
        model_.backward([](std::size_t) {});
        gradient_.clear();
        model_.append_gradient(gradient_);
        return {loss, static_cast<double>(batch.size())};
    }
    std::vector<float>& gradient() { return gradient_; }
    std::vector<float>& sum() { return sum_; }

    void update() { descent_.update(model_, sum_, trainer::descent::first_rate); }
    double loss(const trainer::dataset& test) { return model_.forward(test.inputs, test.labels, {}); }
    double accuracy(const trainer::dataset& test) { return model_.accuracy(test.inputs, test.labels); }

private:
    const trainer::dataset& train_;
    const kinds& samples_;
    std::uint64_t seed_;
    int rank_;
    trainer::mlp<float> model_;
    std::vector<float> gradient_, sum_;
    trainer::descent descent_;
};

/// What became of a run.
struct run_result {
    double loss = 0; ///< of the test data
    double accuracy = 0;
    std::vector<collprobe::call_weights> found; ///< of the steps that the probe looked at
};

/// A whole run as one rank sees it. `take` gets the records of the steps; `advance()` is called after each.
template <class Take, class Advance>
run_result train(const options& given, const trainer::split_dataset& data, const kinds& samples, mistake what,
    std::uint64_t seed, const collprobe::local::communicator& world, Take take, Advance advance)
{
    using collprobe::averaging;
    using collprobe::view;
    rank_trainer self(data.train, samples, seed, world.rank());
    collprobe::probed comm(world, {},
        collprobe::weight_probe({.every = given.every, .expected = {averaging::token_weighted}}));
    collprobe::host::stream stream;
    collprobe::step_record record;
    run_result result;
    const auto note = [&] {
        take(record);
        if (record.calls.at(0).weights.seen) result.found.push_back(record.calls[0].weights);
    };
    for (std::uint64_t step = 0; step < given.steps; ++step) {
        const auto [loss, count] = self.compute(step);
        const factors by = factors_of(what, world.rank(), count);
        const auto token = comm.observe(view<const float>(self.gradient()), stream, collprobe::collective::all_reduce,
            collprobe::reduction::sum, collprobe::call_site::named("gradient"));
        stream.synchronize();
        for (float& each : self.gradient()) each *= static_cast<float>(by.before);
        comm.base().all_reduce(view<const float>(self.gradient()), view<float>(self.sum()), collprobe::reduction::sum, stream);
        stream.synchronize();
        for (float& each : self.sum()) each *= static_cast<float>(by.behind);
        token.result(view<const float>(self.sum()), stream); // what the optimiser gets
        comm.end_step(step, {.loss = loss, .weight = count}, stream);
        stream.synchronize();
        self.update();
        while (comm.poll(record)) note();
        advance();
    }
    while (comm.wait(record)) note();
    if (world.rank() == 0) {
        result.loss = self.loss(data.test);
        result.accuracy = self.accuracy(data.test);
    }
    return result;
}

} // namespace average_weights
