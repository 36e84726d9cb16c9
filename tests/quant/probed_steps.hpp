// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include <collprobe/collprobe.hpp>
#include <collprobe/quant/quantisation_probe.hpp>

#include "quant/quantised_ranks.hpp"

/// Steps with one quantised call, and what a probe says of them.
namespace collprobe::testing {

/// Gradients of ranks: a common signal, and noise of their own.
inline std::vector<float> gradient(int rank, std::uint64_t count, double signal, double noise)
{
    std::mt19937_64 common(1);
    std::mt19937_64 own(static_cast<unsigned>(rank) + 100);
    std::normal_distribution<double> shared; // a distribution keeps numbers of its generator
    std::normal_distribution<double> normal;
    std::vector<float> x(count);
    for (float& v : x) v = static_cast<float>(signal * shared(common) + noise * normal(own));
    return x;
}

struct probed_run {
    std::vector<step_record> records; ///< of rank 0, one for each step
    std::vector<std::vector<float>> results; ///< of each rank, of the last step

    const step_record& record() const { return records.at(records.size() - 1); }
    const call_quantisation& call() const { return record().calls.at(0).quantisation; }
};

/// What the steps are made of. `make(rank, step)` is a rank's gradient.
struct probed_steps {
    shape ranks = {0, 2};
    quantisation within = {};
    quantisation across = {};
    bool scatters = false;
    reduction operation = reduction::average;
    int steps = 1;
    quantisation_checks checks = {};
    quantised_options options = tiny;
    quantisation_limits limits = {};
};

/// Makes the steps of this rank on a quantised communicator.
template <class T, class Comm, class Make>
void make_steps(const probed_steps& of, Comm& comm, const Make& make, probed_run& out)
{
    host::stream stream;
    probed probe(std::move(comm), {}, quantisation_probe(of.limits, of.checks));
    const int rank = probe.rank();
    for (int step = 0; step < of.steps; ++step) {
        std::vector<T> input;
        for (const float each : make(rank, step)) input.push_back(T(each));
        const std::uint64_t count = input.size();
        std::vector<T> result(of.scatters ? count / static_cast<std::uint64_t>(of.ranks.ranks()) : count);
        if (of.scatters) probe.reduce_scatter(view<const T>(input), view<T>(result), of.operation, stream);
        else probe.all_reduce(view<const T>(input), view<T>(result), of.operation, stream);
        probe.end_step(static_cast<std::uint64_t>(step), stream);
        step_record record;
        require(probe.wait(record), "no record");
        stream.synchronize(soon_ms);
        std::vector<float>& kept = out.results[static_cast<std::size_t>(rank)];
        kept.clear();
        for (const T each : result) kept.push_back(static_cast<float>(each));
        if (rank == 0) out.records.push_back(record);
    }
}
template <class T = float, class Make>
probed_run run_steps(const probed_steps& of, const Make& make)
{
    probed_run out;
    out.results.resize(static_cast<std::size_t>(of.ranks.ranks()));
    on_ranks(of.ranks, of.within, of.across, of.options, [&](auto& comm) { make_steps<T>(of, comm, make, out); });
    return out;
}

/// One step with one call of each rank's gradient.
template <class Make>
probed_run one_step(shape of, const quantisation& within, const quantisation& across, bool scatters,
    reduction operation, const Make& make)
{
    return run_steps({of, within, across, scatters, operation}, [&](int rank, int) { return make(rank); });
}

/// Element i of the result, from the parts of a reduce-scatter.
inline double result_of(const probed_run& run, bool scatters, std::uint64_t i)
{
    const std::uint64_t part = run.results[0].size();
    return static_cast<double>(scatters ? run.results[i / part][i % part] : run.results[0][i]);
}

inline std::vector<finding> suspects_of(const step_record& record, finding_kind what)
{
    std::vector<finding> found;
    for (const finding& each : record.findings)
        if (each.what == what) found.push_back(each);
    return found;
}
inline std::vector<finding> quantisation_suspects(const step_record& record)
{
    return suspects_of(record, finding_kind::quantisation);
}

} // namespace collprobe::testing
