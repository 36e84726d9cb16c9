// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <type_traits>
#include <utility>
#include <vector>

#include <collprobe/fault/faulty.hpp>
#include <collprobe/quant/quantisation_probe.hpp>

#include "quant/quantised_ranks.hpp"

/// Steps with one quantised call, whose messages and results may be damaged, and what a probe says of them.
namespace collprobe::testing {

/// Gradients of ranks: a common signal, and noise of their own.
inline std::vector<float> gradient(int rank, std::uint64_t count, double signal, double noise)
{
    std::mt19937_64 common(1), own(static_cast<unsigned>(rank) + 100);
    std::normal_distribution<double> shared, normal; // a distribution keeps numbers of its generator
    std::vector<float> x(count);
    for (float& v : x) v = static_cast<float>(signal * shared(common) + noise * normal(own));
    return x;
}

/// Bits of a byte that a rank receives in one of its calls with bytes.
struct flip {
    int rank = 0;
    collective call = collective::all_to_all;
    int number = 0; ///< of the rank's calls of that kind
    std::uint64_t byte = 0;
    unsigned mask = 1;
};
/// Of one rank, over its communicators.
struct flips_of_rank {
    std::vector<flip> flips;
    int rank = 0;
    int exchanges = 0;
    int gathers = 0;
};

/// Damages messages of codes, in the groups of nodes, too.
template <communicator Comm>
class flipping : public adaptor<flipping<Comm>, Comm> {
    using base_type = adaptor<flipping, Comm>;
    using base_type::comm_;

public:
    using typename base_type::stream_ref;

    flipping(Comm comm, flips_of_rank& flips) : base_type(std::move(comm)), flips_(&flips) {}

    template <element T>
    void make(const collective_call& call, stream_ref stream)
    {
        comm_.template make<T>(call, stream);
        if constexpr (std::is_same_v<T, std::uint8_t>) {
            if (call.what == collective::all_to_all) damage(call.what, flips_->exchanges++, call.received<T>(), stream);
            if (call.what == collective::all_gather) damage(call.what, flips_->gathers++, call.received<T>(), stream);
        }
    }
    auto split(int color, int key, call_site where = call_site::current())
    {
        auto part = comm_.split(color, key, where);
        using part_type = std::remove_cvref_t<decltype(*part)>;
        std::optional<flipping<part_type>> made;
        if (part) made.emplace(std::move(*part), *flips_);
        return made;
    }

private:
    void damage(collective call, int number, view<std::uint8_t> received, stream_ref stream)
    {
        for (const flip& each : flips_->flips) {
            if (each.rank != flips_->rank || each.call != call || each.number != number) continue;
            stream.enqueue([received, each] {
                received.data()[each.byte] = static_cast<std::uint8_t>(received[each.byte] ^ each.mask);
            });
        }
    }

    flips_of_rank* flips_;
};

struct probed_run {
    std::vector<step_record> records; ///< of rank 0, one for each step
    std::vector<std::vector<float>> results; ///< of each rank, of the last step

    const step_record& record() const { return records.at(records.size() - 1); }
    const call_quantisation& call() const { return record().calls.at(0).quantisation; }
    /// Element i of the result, from the parts of a reduce-scatter.
    double result(bool scatters, std::uint64_t i) const
    {
        const std::uint64_t part = results[0].size();
        return static_cast<double>(scatters ? results[i / part][i % part] : results[0][i]);
    }
};

/// What the steps are made of.
struct probed_steps {
    shape ranks = {0, 2};
    quantisation within = {};
    quantisation across = {};
    bool scatters = false;
    reduction operation = reduction::average;
    int steps = 1;
    quantisation_checks checks = {};
    quantised_options options = tiny;
    std::vector<flip> flips = {}; ///< of messages
    std::vector<fault> faults = {}; ///< of results
};

/// Calls `use(probe, stream)` on each rank. One type of probe for all tests: it is what takes long to compile.
template <class Use>
void on_probes(const probed_steps& of, const Use& use)
{
    local::run(of.ranks.ranks(), {.timeout_ms = soon_ms}, [&](local::communicator& bare) {
        flips_of_rank mine{of.flips, bare.rank()};
        flipping<local::communicator> world(bare, mine);
        with_codes(world, of.ranks, of.within, of.across, of.options, [&](auto& comm) {
            const host::stream stream;
            probed probe(faulty(std::move(comm), of.faults), {}, quantisation_probe({}, of.checks));
            use(probe, stream);
            stream.synchronize(soon_ms);
        });
    });
}
template <class Probe>
step_record end_step(Probe& probe, std::uint64_t step, host::stream_ref stream)
{
    step_record record;
    probe.end_step(step, stream);
    require(probe.wait(record), "no record");
    return record;
}

/// The gradient of a rank in a step.
using gradients = std::function<std::vector<float>(int rank, int step)>;

template <class T = float>
probed_run run_steps(const probed_steps& of, const gradients& make)
{
    probed_run out;
    const auto n = static_cast<std::size_t>(of.ranks.ranks());
    out.results.resize(n);
    on_probes(of, [&](auto& probe, const host::stream& stream) {
        for (int step = 0; step < of.steps; ++step) {
            std::vector<T> input;
            for (const float each : make(probe.rank(), step)) input.push_back(T(each));
            std::vector<T> result(of.scatters ? input.size() / n : input.size());
            if (of.scatters) probe.reduce_scatter(view<const T>(input), view<T>(result), of.operation, stream);
            else probe.all_reduce(view<const T>(input), view<T>(result), of.operation, stream);
            const step_record record = end_step(probe, static_cast<std::uint64_t>(step), stream);
            stream.synchronize(soon_ms);
            std::vector<float>& kept = out.results[static_cast<std::size_t>(probe.rank())];
            kept.clear();
            for (const T each : result) kept.push_back(static_cast<float>(each));
            if (probe.rank() == 0) out.records.push_back(record);
        }
    });
    return out;
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
