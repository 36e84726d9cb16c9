// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// An update of a parameter and its gathers (forward, backward, ...): by secondary shards, by all-gathers over the
// world, and by two levels with slices in the order of the ranks, which must be copied to their places. Bytes are those
// of one rank in one step. Ranks are threads: between "nodes" the network is as fast as within one, so the times show
// what the work costs beside it, and the bytes what a slow network would add.
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdint>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/guard/shard.hpp>

using namespace collprobe;

namespace {

using device = host::device;
using clock_type = std::chrono::steady_clock;

/// Seconds of rank 0, and the bytes that its shard says.
struct measured {
    double two_level = 0;
    double flat = 0;
    double copied = 0;
    shard_volume bytes;
    shard_volume flat_bytes;
};

class trainer {
public:
    trainer(local::communicator& world, int ranks_per_node, std::uint64_t count, int gathers)
        : world_(world),
          nodes_(world, ranks_per_node),
          shard_(nodes_, count),
          parameter_(shard_.padded_count()),
          permuted_(shard_.padded_count()),
          slot_(shard_.layout().slot()),
          gathers_(gathers)
    {
    }

    void two_level()
    {
        shard_.write_primary(on_, [&](view<float> slice) { device::fill(on_, slice, 1.0f); });
        shard_.regenerate(on_, {}, {on_});
        for (int i = 0; i < gathers_; ++i) shard_.gather(parameter_, on_, {}, {on_});
    }
    void flat()
    {
        const view<float> whole(parameter_);
        const view<float> slice = whole.part(static_cast<std::uint64_t>(world_.rank()) * slot_, slot_);
        device::fill(on_, slice, 1.0f);
        for (int i = 0; i < gathers_; ++i) copy_then_all_gather(slice, whole, world_, on_, {}, {on_});
    }
    void copied()
    {
        const shard_layout& at = shard_.layout();
        const view<float> kept = shard_.secondary().memory(), permuted(permuted_), whole(parameter_);
        const view<float> slice = kept.part(at.node * slot_, slot_);
        device::fill(on_, slice, 1.0f);
        copy_then_all_gather(slice, kept, nodes_.across_nodes(), on_, {}, {on_});
        for (int i = 0; i < gathers_; ++i) {
            copy_then_all_gather(kept, permuted, nodes_.within_node(), on_, {}, {on_});
            for (std::uint64_t k = 0; k < at.nodes; ++k) {
                for (std::uint64_t l = 0; l < at.ranks_per_node; ++l) {
                    device::copy(on_, view<const float>(permuted.part((l * at.nodes + k) * slot_, slot_)),
                        whole.part((k * at.ranks_per_node + l) * slot_, slot_));
                }
            }
        }
    }
    template <class Step>
    double seconds_of(Step step)
    {
        world_.barrier(on_);
        on_.synchronize();
        const auto start = clock_type::now();
        step();
        on_.synchronize();
        return std::chrono::duration<double>(clock_type::now() - start).count();
    }
    /// Takes the three in turn.
    void measure(int steps, measured& result)
    {
        for (int i = -2; i < steps; ++i) {
            const double first = seconds_of([&] { two_level(); });
            const double second = seconds_of([&] { flat(); });
            const double third = seconds_of([&] { copied(); });
            if (i < 0 || world_.rank() != 0) continue; // the first two warm the buffers
            result.two_level += first;
            result.flat += second;
            result.copied += third;
        }
        if (world_.rank() != 0) return;
        result.bytes = shard_.regenerate_bytes() + static_cast<std::uint64_t>(gathers_) * shard_.gather_bytes();
        result.flat_bytes = static_cast<std::uint64_t>(gathers_) * shard_.flat_bytes();
    }

private:
    local::communicator& world_;
    node_groups<local::communicator> nodes_;
    host::stream on_; // outlives the buffers, which wait for its work
    secondary_shard<local::communicator, float> shard_;
    std::vector<float> parameter_, permuted_;
    std::uint64_t slot_;
    int gathers_;
};

void two_level_gather(benchmark::State& state)
{
    const int nodes = static_cast<int>(state.range(0)), ranks_per_node = static_cast<int>(state.range(1));
    const auto count = static_cast<std::uint64_t>(state.range(2));
    const int gathers = static_cast<int>(state.range(3));
    constexpr int steps = 10;
    measured sum;
    for (auto _ : state) {
        const double before = sum.two_level;
        local::run(nodes * ranks_per_node, [&](local::communicator& world) {
            trainer(world, ranks_per_node, count, gathers).measure(steps, sum);
        });
        state.SetIterationTime((sum.two_level - before) / steps);
    }
    state.counters["ratio_to_flat"] = sum.two_level / sum.flat;
    state.counters["copied_to_flat"] = sum.copied / sum.flat;
    state.counters["inter_node_KiB"] = static_cast<double>(sum.bytes.inter_node) / 1024;
    state.counters["intra_node_KiB"] = static_cast<double>(sum.bytes.intra_node) / 1024;
    state.counters["flat_inter_node_KiB"] = static_cast<double>(sum.flat_bytes.inter_node) / 1024;
}
BENCHMARK(two_level_gather)
    ->ArgNames({"nodes", "ranks_per_node", "count", "gathers"})
    ->ArgsProduct({{2}, {2, 4}, {1 << 10, 1 << 16, 1 << 20}, {1, 2}})
    ->Iterations(20) // of ten steps each
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

} // namespace
