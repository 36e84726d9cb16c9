// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/comm/node_groups.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/quant/quantisation_probe.hpp>
#include <collprobe/quant/quantised.hpp>
#include <collprobe/step/probed.hpp>

#include "../digits/dataset.hpp"
#include "../digits/dump.hpp"
#include "../digits/rank_trainer.hpp"
#include "deepspeed_rules.hpp"
#include "options.hpp"

namespace quantised_training {

/// What one step tells.
struct step_figures {
    collprobe::call_quantisation said; ///< by the probe
    double exact_db = 0; ///< energy of the exact average over that of the error of the one that the ranks got
};

struct rank_result {
    std::vector<float> weights = {};
    double accuracy = 0;
    std::vector<std::pair<std::uint64_t, double>> curve = {}; ///< accuracy over steps, of rank 0
    std::vector<step_figures> steps = {}; ///< of rank 0
};

/// Where a run's NumPy files go.
inline std::filesystem::path dump_folder(const options& given, const run_plan& plan)
{
    std::string folder = plan.label();
    std::erase(folder, ',');
    std::replace(folder.begin(), folder.end(), ' ', '_');
    return std::filesystem::path(given.dump) / (folder + "_seed" + std::to_string(plan.seed));
}

/// 10 log10 of the energy of `exact` over that of `got` - `exact`, over the elements that are finite.
inline double decibels(const std::vector<double>& exact, collprobe::view<const float> got)
{
    double signal = 0;
    double noise = 0;
    for (std::size_t i = 0; i < exact.size(); ++i) {
        const double error = static_cast<double>(got[i]) - exact[i];
        if (!collprobe::is_finite(error)) continue;
        signal += exact[i] * exact[i];
        noise += error * error;
    }
    return noise > 0 ? 10 * std::log10(signal / noise) : std::numeric_limits<double>::infinity();
}

/// A whole run as one rank sees it, over `comm`. `plain` has the same ranks, and adds in double, which the averages are
/// compared with. `take` gets the record of each step; `advance()` is called after it.
template <class Comm, class Take, class Advance>
rank_result train_over(Comm comm, collprobe::local::communicator& plain, const options& given,
    const trainer::split_dataset& data, const run_plan& plan, const Take& take, const Advance& advance)
{
    using namespace collprobe;
    trainer::rank_trainer self(data.train, {trainer::pixels, given.hidden, given.hidden, trainer::classes}, plan.seed,
        plain.rank(), given.batch);
    const bool first = plain.rank() == 0;
    probed probe(std::move(comm), {}, quantisation_probe());
    rank_result result;
    std::vector<double> exact(self.gradient().count());
    const host::stream stream; // gone before what its work uses
    for (std::uint64_t step = 0; step < given.steps; ++step) {
        self.compute(step);
        if ((plan.defects & hidden_nan) != 0 && step == given.steps / 2 && plain.rank() == ranks - 1) {
            self.gradient()[0] = std::numeric_limits<float>::quiet_NaN();
        }
        std::copy(self.gradient().begin(), self.gradient().end(), exact.begin());
        plain.all_reduce(view<const double>(exact), view<double>(exact), reduction::average, stream);
        probe.all_reduce(view<const float>(self.gradient()), self.average(), reduction::average, stream,
            call_site::named("gradient"));
        probe.end_step(step, stream);
        stream.synchronize();
        if (!given.dump.empty() && std::count(given.dump_steps.begin(), given.dump_steps.end(), step) != 0) {
            const auto folder = dump_folder(given, plan);
            const std::string place = "_step" + std::to_string(step) + "_rank" + std::to_string(plain.rank()) + ".npy";
            trainer::write_npy(folder / ("grad" + place), "<f4", self.gradient().data(), exact.size(), 4);
            trainer::write_npy(folder / ("average" + place), "<f4", self.average().data(), exact.size(), 4);
        }
        step_record record;
        if (probe.wait(record)) take(record);
        if (first) {
            result.steps.push_back({record.calls.at(0).quantisation, decibels(exact, self.average())});
        }
        self.update(trainer::descent::first_rate * (1 - static_cast<double>(step) / static_cast<double>(given.steps)));
        const std::uint64_t interval = std::max<std::uint64_t>(given.steps / 20, 1);
        if (first && (step + 1) % interval == 0) result.curve.emplace_back(step + 1, self.accuracy(data.test));
        advance();
    }
    result.weights = self.all_weights();
    result.accuracy = self.accuracy(data.test);
    return result;
}

/// The same by the run's scheme.
template <class Take, class Advance>
rank_result train(const options& given, const trainer::split_dataset& data, const run_plan& plan,
    collprobe::local::communicator& world, const Take& take, const Advance& advance)
{
    using namespace collprobe;
    const auto over = [&](auto comm) { return train_over(std::move(comm), world, given, data, plan, take, advance); };
    if (plan.how == scheme::fp32) return over(world);
    if (plan.how == scheme::deepspeed) {
        return over(deepspeed_rules<local::communicator>(world, plan.block, plan.defects));
    }
    node_groups groups(world, ranks_per_node);
    return over(quantised(world, groups, plan.quantisation(false), plan.quantisation(true), {.least_bytes = 1}));
}

} // namespace quantised_training
