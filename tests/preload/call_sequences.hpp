// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "examples/preload/engine/call_period.hpp"

/// Sequences of calls, and those of PyTorch 2.9.1 programs.
namespace call_sequences {

struct call {
    std::uint64_t signature = 0;
    std::uint64_t bytes = 0;
};

inline call call_of(
    unsigned operation, std::uint64_t count, unsigned size = 4, unsigned reduction = 1, unsigned root = 0)
{
    return {collprobe_preload::call_signature(operation, size, count, reduction, root), count * size};
}

using calls = std::vector<call>;

inline void append(calls& to, const calls& more, std::size_t times = 1)
{
    for (std::size_t i = 0; i < times; ++i) to.insert(to.end(), more.begin(), more.end());
}
inline calls operator+(calls first, const calls& then)
{
    append(first, then);
    return first;
}
inline calls operator*(const calls& part, std::size_t times)
{
    calls whole;
    append(whole, part, times);
    return whole;
}

/// A program's calls, and where its steps really began.
struct program {
    calls made;
    std::vector<std::size_t> steps;

    void step(const calls& of_it)
    {
        steps.push_back(made.size());
        append(made, of_it);
    }
    void other(const calls& more) { append(made, more); }
};

/// The collective calls of a PyTorch 2.9.1 program on one communicator of 8 ranks (2 for pipelines), as a process group
/// that only records saw them. Send and recv are left out, as they are by who looks for steps.
struct recorded_program {
    std::string name;
    calls init; ///< before the steps
    std::vector<calls> first; ///< steps that differ from the others
    calls step;
    calls first_batch = {}, batch = {}; ///< of an evaluation; behind it the first call of a step is missing
};

inline std::vector<recorded_program> recorded_programs()
{
    constexpr unsigned sum = 1;
    constexpr unsigned average = 2;
    const auto reduced = [](std::uint64_t count, unsigned how = 1) { return calls{call_of(0, count, 4, how)}; };
    const auto scattered = [](std::uint64_t count, unsigned how = 1) { return calls{call_of(1, count, 4, how)}; };
    const auto gathered
        = [](std::uint64_t count, unsigned size = 4) { return calls{call_of(2, count, size, 0)}; };
    const auto sent = [](std::uint64_t count, unsigned size = 4, unsigned root = 0) {
        return calls{call_of(3, count, size, 0, root)};
    };
    std::vector<recorded_program> all;
    // DistributedDataParallel, 12 blocks, 101 M parameters; the same with 4 micro-batches and no_sync.
    {
        const calls step = reduced(15380000) + reduced(7084800) + reduced(7086336) * 11 + reduced(26880);
        all.push_back({"ddp", gathered(1, 8) + sent(348, 8) + sent(65573376) + sent(34868000),
            {reduced(100441376), sent(125) + sent(14) + step}, step});
    }
    // The same with BatchNorm: buffers are broadcast in each forward.
    {
        const calls numbers = sent(12, 8), buffers = sent(18432);
        const calls step = buffers + numbers + reduced(15380000) + reduced(7086336) + reduced(7087872) * 11 + reduced(26880);
        all.push_back({"ddp_batch_norm", gathered(1, 8) + sent(396, 8) + sent(65587200) + sent(34891040) + numbers,
            {buffers + numbers + reduced(100459808), sent(149) + sent(14) + step}, step});
    }
    // 24 blocks and the rest, clip_grad_norm_; `accumulates`: 4 micro-batches, `syncs`: gradients of each are reduced.
    const auto sharded = [&](const char* name, std::uint64_t rest, std::uint64_t block, unsigned size, unsigned how,
                             std::size_t norms, const calls& norm_of_batch, bool accumulates = false, bool syncs = false) {
        const calls A = gathered(rest, size), B = gathered(block, size);
        const calls C = scattered(block, how), D = scattered(rest, how);
        const calls last = A + B * 26 + (C + B) * 22 + C * 2 + D;
        const calls before = (syncs ? last : A + B * 48) * (accumulates ? 3 : 0);
        all.push_back({name, {}, {}, before + last + reduced(1) * norms, A + B * 24 + norm_of_batch, B * 24 + norm_of_batch});
    };
    sharded("fsdp1", 643556, 98656, 4, sum, 1, reduced(1)); // FullyShardedDataParallel
    sharded("fsdp2", 643556, 98656, 2, average, 2, reduced(1)); // fully_shard, bfloat16
    // On a 2 x 4 mesh: the communicator within a shard group; and that across replicas.
    sharded("hsdp_shard", 1287112, 197312, 2, average, 2, {});
    all.push_back({"hsdp_replicate", {}, {}, reduced(197312, average) * 24 + reduced(1287112, average)});
    // 4 micro-batches, set_requires_gradient_sync(False) but for the last; and with gradients reduced in each.
    sharded("fsdp2_accumulation", 643556, 98656, 2, average, 2, reduced(1), true);
    sharded("fsdp2_accumulation_with_sync", 643556, 98656, 2, average, 2, reduced(1), true, true);
    // ZeroRedundancyOptimizer over DistributedDataParallel.
    {
        calls parts;
        for (unsigned root = 0; root < 8; ++root) append(parts, sent(4722432, 4, root));
        const calls P = reduced(7084800), Q = reduced(7082496);
        const calls step = reduced(2360064) + (P + Q) * 2 + P + parts;
        all.push_back({"zero1", gathered(1, 8) + sent(96, 8) + sent(37779456),
            {reduced(37779456) + parts, sent(33) + sent(6) + step}, step});
    }
    // parallelize_module, 12 blocks, column and row; the same with activations sharded by sequence.
    const calls activations = reduced(32768), parts = scattered(4096) + gathered(4096);
    all.push_back({"tensor_parallel", {}, {}, activations * 24 + gathered(65536) + activations * 25 + reduced(1)});
    all.push_back({"sequence_parallel", {}, {}, parts * 25 + gathered(65536) + parts * 25 + reduced(1) + reduced(256) * 48});
    // Schedule1F1B, 8 micro-batches: the communicator of tensor parallelism in a stage.
    all.push_back({"pipeline_1f1b", {}, {}, reduced(131072) * 96 + reduced(1)});
    return all;
}

inline recorded_program recorded(const std::string& name)
{
    for (const recorded_program& each : recorded_programs()) {
        if (each.name == name) return each;
    }
    throw std::runtime_error("no recorded program " + name);
}

} // namespace call_sequences
