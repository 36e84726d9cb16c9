// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/device/host/device.hpp>
#include <collprobe/guard/copy_then_all_gather.hpp>
#include <collprobe/order/stream_order.hpp>
#include <collprobe/scan/digest.hpp>
#include <collprobe/step/probed.hpp>

#include "../digits/dataset.hpp"
#include "options.hpp"
#include "sharded_model.hpp"

namespace guarded_all_gather {

/// What became of a run.
struct run_result {
    mode how = mode::unguarded;
    std::vector<double> losses = {}; ///< of each step, the mean over the ranks
    std::uint64_t digest = 0; ///< of these
    std::uint64_t hazards = 0; ///< operations that nothing orders behind others which they must follow
    std::string first_hazard = {}; ///< in words
    double seconds_per_step = 0;
};

/// One rank's part in a run; returns the seconds that the steps took. `checker` hears of copies and collectives by
/// itself, and here of the kernels. `take` gets the record of each step.
template <class Take, class Advance>
double train_rank(sharded_model& model, std::uint64_t steps, mode how, collprobe::local::communicator& world,
    collprobe::stream_order& checker, Take take, Advance advance)
{
    using namespace collprobe;
    const std::uint64_t slot = model.slot();
    const std::uint64_t all = slot * static_cast<std::uint64_t>(world.size());
    host::buffer<float> own(slot), gathered(all), computed(all);
    const view<float> slice(own), parameters(gathered), gradient(computed);
    guarded<host::device, float> shard(slot);
    model.initialise(slice);
    for (float& value : shard.memory()) value = std::numeric_limits<float>::quiet_NaN(); // fresh memory may hold anything
    // Gradients travel by a communicator of their own: collectives of one wait for each other.
    probed gradients(*world.split(0, world.rank()));
    step_record record;

    const host::stream compute, copies, traffic; // gone before the memory that their work uses
    const auto known = [](const host::stream& stream) {
        return order_stream{.number = stream.get().id(), .space = stream_space::of_host()};
    };
    const std::string of_rank = " of rank " + std::to_string(world.rank());
    checker.name(known(compute), "compute" + of_rank);
    checker.name(known(copies), "copies" + of_rank);
    checker.name(known(traffic), "traffic" + of_rank);

    host::event updated, arrived, used;
    used.record(compute);
    world.barrier(compute);
    compute.synchronize();
    const auto begin = std::chrono::steady_clock::now();
    for (std::uint64_t step = 0; step < steps; ++step) {
        const view<const float> average = model.own(view<const float>(gradient));
        checker.launch(known(compute), {average}, {slice}, "update");
        model.update(compute, step, average, slice);

        if (how == mode::guarded) {
            copy_then_all_gather(slice, parameters, world, traffic, {compute}, {compute}, {.shard = &shard});
        } else {
            updated.record(compute);
            copies.wait(updated);
            host::device::copy<float>(copies, slice, shard.memory());
            if (how == mode::synchronised) copies.synchronize();
            // Unguarded, `traffic` waits for the last use of what it overwrites, but not for `copies`.
            traffic.wait(used);
            world.all_gather(shard.memory(), parameters, traffic);
            arrived.record(traffic);
            compute.wait(arrived);
        }

        checker.launch(known(compute), {parameters}, {gradient}, "forward and backward");
        model.forward_and_backward(compute, step, parameters, gradient);
        used.record(compute);
        gradients.all_reduce(gradient, gradient, reduction::average, compute, call_site::named("gradient"));
        gradients.end_step(step, compute);
        while (gradients.poll(record)) take(record);
        advance();
    }
    while (gradients.wait(record)) take(record);
    compute.synchronize();
    copies.synchronize();
    traffic.synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// A whole run. Rank 0 calls `take` with the record of each step, and `advance()` after each step that it has enqueued.
template <class Take, class Advance>
run_result train(const options& given, const trainer::dataset& data, mode how, Take take, Advance advance)
{
    const auto ranks = static_cast<std::size_t>(given.ranks);
    std::vector<std::vector<double>> losses(ranks);
    collprobe::stream_order checker;
    checker.install();
    double seconds = 0;
    collprobe::local::run(given.ranks, [&](collprobe::local::communicator& world) {
        sharded_model model(given, data, world.rank(), world.size());
        const auto of_rank_0 = [&](const collprobe::step_record& record) {
            if (world.rank() == 0) take(record);
        };
        const double spent = train_rank(model, given.steps, how, world, checker, of_rank_0, [&] {
            if (world.rank() == 0) advance();
        });
        if (world.rank() == 0) seconds = spent;
        losses[static_cast<std::size_t>(world.rank())] = model.losses();
    });

    run_result result{.how = how};
    for (std::size_t step = 0; step < given.steps; ++step) {
        double sum = 0;
        for (const std::vector<double>& of_rank : losses) sum += of_rank[step];
        result.losses.push_back(sum / static_cast<double>(ranks));
    }
    result.digest = collprobe::digest(collprobe::view<const double>(result.losses));
    result.hazards = checker.hazard_count();
    if (result.hazards != 0) result.first_hazard = checker.hazards().front().message();
    result.seconds_per_step = seconds / static_cast<double>(given.steps);
    return result;
}

} // namespace guarded_all_gather
