// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/device/host/device.hpp>
#include <collprobe/reduce/reproducible.hpp>
#include <collprobe/scan/digest.hpp>
#include <collprobe/step/probed.hpp>

#include "../digits/dataset.hpp"
#include "../digits/model.hpp"
#include "../digits/random.hpp"
#include "options.hpp"

namespace world_size {

/// What became of a run: of rank 0, whose bits all ranks have (or `ranks_agree` says no).
struct run_result {
    averaging reduction = averaging::native;
    int ranks = 0;
    int leaves = 0; ///< micro-batches of each rank
    std::vector<float> weights = {};
    std::uint64_t digest = 0; ///< of the weights
    double test_accuracy = 0;
    bool ranks_agree = false;
};

/// Elements of the averages that the reports of two runs are compared by.
inline constexpr int sampled_elements = 64;

/// The gradients of a rank's micro-batches ("leaves"), one behind the other, become the average over all ranks.
/// Natively: the rank adds its own in the element type, as gradient accumulation does, and the communicator adds
/// those sums.
template <class Wire, class Comm>
class native_average {
public:
    explicit native_average(Comm comm) : comm_(std::move(comm), {.order_sample = sampled_elements}) {}
    auto& probe() { return comm_; }

    void operator()(const std::vector<Wire>& leaves, std::vector<Wire>& average, collprobe::host::stream& on)
    {
        const std::size_t count = average.size();
        sum_.assign(leaves.begin(), leaves.begin() + static_cast<std::ptrdiff_t>(count));
        for (std::size_t i = count; i < leaves.size(); ++i) {
            Wire& sum = sum_[i % count];
            sum = static_cast<Wire>(static_cast<float>(sum) + static_cast<float>(leaves[i]));
        }
        comm_.all_reduce(collprobe::view<const Wire>(sum_), collprobe::view<Wire>(average),
            collprobe::reduction::sum, on, collprobe::call_site::named("gradient"));
        on.synchronize();
        const auto terms = static_cast<float>(leaves.size() / count * static_cast<std::size_t>(comm_.size()));
        for (Wire& value : average) value = static_cast<Wire>(static_cast<float>(value) / terms);
    }

private:
    collprobe::probed<Comm> comm_;
    std::vector<Wire> sum_;
};

/// The same under a contract: one call, which rounds once.
template <class Wire, class Comm, class Contract>
class contract_average {
public:
    contract_average(Comm comm, Contract promised, collprobe::reduction_algorithm how)
        : comm_(collprobe::reproducible<Comm, Contract>(std::move(comm), promised, {.algorithm = how}))
    {
    }
    auto& probe() { return comm_; }

    void operator()(const std::vector<Wire>& leaves, std::vector<Wire>& average, collprobe::host::stream& on)
    {
        comm_.all_reduce(collprobe::view<const Wire>(leaves), collprobe::view<Wire>(average),
            collprobe::reduction::average, on, {.leaves = leaves.size() / average.size()},
            collprobe::call_site::named("gradient"));
        on.synchronize();
    }

private:
    collprobe::probed<collprobe::reproducible<Comm, Contract>> comm_;
};

/// One rank's part in a run: stochastic gradient descent with momentum. Micro-batch b of a step is a function of
/// the seed, the step and b, and so are the bits of its gradient: whoever computes it.
template <class Wire>
class rank_trainer {
public:
    rank_trainer(const options& given, const trainer::dataset& train, int rank, int ranks)
        : given_(given), train_(train),
          model_({trainer::pixels, 64, 64, trainer::classes}, trainer::derive(given.seed, 1000), 0),
          leaves_(static_cast<std::uint64_t>(given.micro_batches / ranks)),
          first_leaf_(static_cast<std::uint64_t>(rank) * leaves_), average_(model_.count()), descent_(model_.count())
    {
    }

    /// Returns the mean loss of the rank's micro-batches.
    template <class Average>
    double step(std::uint64_t number, Average& average, collprobe::host::stream& on)
    {
        double loss = 0;
        gradients_.clear();
        for (std::uint64_t leaf = 0; leaf < leaves_; ++leaf) {
            load(trainer::derive(trainer::derive(given_.seed, number), first_leaf_ + leaf));
            loss += model_.forward(inputs_, labels_, {});
            model_.backward([](std::size_t) {});
            model_.append_gradient(gradients_);
        }
        average(gradients_, average_, on);
        descent_.update(model_, average_, trainer::descent::first_rate);
        return loss / static_cast<double>(leaves_);
    }

    std::vector<float> weights() const { return model_.parameters(); }
    double accuracy(const trainer::dataset& test) { return model_.accuracy(test.inputs, test.labels); }

private:
    void load(std::uint64_t seed)
    {
        trainer::random_stream random(seed);
        inputs_.clear();
        labels_.clear();
        for (std::size_t i = 0; i < given_.batch; ++i) {
            const std::size_t sample = random.below(train_.size());
            inputs_.insert(inputs_.end(), train_.image(sample), train_.image(sample) + trainer::pixels);
            labels_.push_back(train_.labels[sample]);
        }
    }

    const options& given_;
    const trainer::dataset& train_;
    trainer::mlp<float> model_;
    std::uint64_t leaves_;
    std::uint64_t first_leaf_;
    std::vector<float> inputs_;
    std::vector<int> labels_;
    std::vector<Wire> gradients_; // leaf after leaf
    std::vector<Wire> average_;
    trainer::descent descent_;
};

/// A whole run as one rank sees it. `take` gets the records of the steps; `advance()` is called after each step.
template <class Wire, class Comm, class Average, class Take, class Advance>
run_result train_rank(const options& given, const trainer::split_dataset& data, averaging how, Comm comm,
    Average& average, Take take, Advance advance)
{
    rank_trainer<Wire> self(given, data.train, comm.rank(), comm.size());
    collprobe::host::stream stream; // gone before what its work uses
    collprobe::step_record record;
    for (std::uint64_t step = 0; step < given.steps; ++step) {
        const double loss = self.step(step, average, stream);
        average.probe().end_step(step, {.loss = loss}, stream);
        while (average.probe().poll(record)) take(record);
        advance();
    }
    while (average.probe().wait(record)) take(record);
    run_result result{.reduction = how, .ranks = comm.size(), .leaves = given.micro_batches / comm.size()};
    result.weights = self.weights();
    result.digest = collprobe::digest(collprobe::view<const float>(result.weights));
    if (comm.rank() == 0) result.test_accuracy = self.accuracy(data.test);
    std::vector<std::uint64_t> digests(static_cast<std::size_t>(comm.size()));
    comm.all_gather(collprobe::view<const std::uint64_t>(&result.digest, 1), collprobe::view<std::uint64_t>(digests),
        stream);
    stream.synchronize();
    result.ranks_agree = std::count(digests.begin(), digests.end(), result.digest) == comm.size();
    return result;
}

/// The same with the averaging that is asked for.
template <class Comm, class Take, class Advance>
run_result train(const options& given, const trainer::split_dataset& data, averaging how, const Comm& comm, Take take,
    Advance advance)
{
    using namespace collprobe;
    return trainer::with_wire_type(given.element, [&]<class Wire>(Wire) {
        const auto with = [&](auto&& average) { return train_rank<Wire>(given, data, how, comm, average, take, advance); };
        using order_invariant = contract<reproducibility::order_invariant>;
        using correctly_rounded = contract<reproducibility::correctly_rounded>;
        switch (how) {
        case averaging::order_invariant:
            return with(contract_average<Wire, Comm, order_invariant>(comm, {}, reduction_algorithm::fixed_point));
        case averaging::correctly_rounded:
            return with(contract_average<Wire, Comm, correctly_rounded>(comm, {}, reduction_algorithm::exchange));
        case averaging::native: break;
        }
        return with(native_average<Wire, Comm>(comm));
    });
}

} // namespace world_size
