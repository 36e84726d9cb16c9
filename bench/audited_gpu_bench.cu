// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What an audit adds to a step on a GPU, over NCCL with one rank: agreement of the results alone, and with the check of
// the sums. Bare and audited forms run in turn; all numbers are medians.
//
// An all-reduce of one rank is a copy: the cheapest there can be, so the ratios here are the worst there can be. What an
// audit adds, a read of what a bucket sends and two of what it receives, stays the same with more ranks.
#include "gpu_timing.cuh"
#include "gradient_like.hpp"

#include <cstdint>
#include <vector>

#include <benchmark/benchmark.h>

#include <collprobe/audit/audit.hpp>
#include <collprobe/step/probed.hpp>
#include <collprobe/collprobe.cuh>
#include <collprobe/comm/nccl/communicator.hpp>
#include <collprobe/replica.hpp>

#include "../tests/support/nccl_owner.hpp"

using namespace collprobe;
namespace cu = collprobe::cuda; // CUB has a namespace cuda, too

namespace {

void audited_step(benchmark::State& state)
{
    if (bench::skipped_without_gpu(state)) return;
    const int buckets = static_cast<int>(state.range(0));
    const auto count = static_cast<std::uint64_t>(state.range(1));
    try {
        const testing::nccl_owner world
            = testing::nccl_owner::create(testing::new_nccl_id(), 0, 1, 0, {.mode = nccl::blocking_mode::blocking});
        const cu::stream stream;
        std::vector<cu::buffer<float>> send, receive;
        for (int b = 0; b < buckets; ++b) {
            send.emplace_back(count);
            receive.emplace_back(count);
            cu::device::for_each(
                stream, count, bench::fill_like_gradient<float>{send.back().data(), static_cast<std::uint64_t>(b) << 32});
        }
        nccl::communicator_ref bare{world};
        probed agreement{nccl::communicator_ref(world), {.statistics = false}, audit({.sums = false})};
        probed all{nccl::communicator_ref(world), {.statistics = false}, audit()};
        std::uint64_t step = 0;
        const auto reduce = [&](auto& comm) {
            for (std::size_t b = 0; b < send.size(); ++b) {
                comm.all_reduce(view<const float>(send[b].data(), count), view<float>(receive[b].data(), count),
                    reduction::sum, stream);
            }
        };
        const auto audited_by = [&](auto& comm) {
            reduce(comm);
            comm.end_step(step++, stream);
        };
        step_record record;
        bench::device_timer timer;
        const auto run = [&](int kind) {
            const auto sample = timer.measure(stream, 200 + 80 * buckets, [&] {
                if (kind == 0) reduce(bare);
                else if (kind == 1) audited_by(agreement);
                else audited_by(all);
            });
            while (agreement.pending_steps() != 0) (void)agreement.poll(record);
            while (all.pending_steps() != 0) (void)all.poll(record);
            return sample;
        };
        for (int i = 0; i < 6; ++i) (void)run(i % 3); // NCCL's and CUDA's lazy part
        bench::samples times[3];
        for (auto _ : state) {
            for (int kind = 0; kind < 3; ++kind) {
                const auto sample = run(kind);
                times[kind].add(sample);
                if (kind == 2) state.SetIterationTime(sample.device);
            }
        }
        const auto& [plain, same, both] = times;
        const double bytes = static_cast<double>(buckets) * static_cast<double>(count) * sizeof(float);
        state.counters["bare_us"] = plain.device() * 1e6;
        state.counters["agreement_us"] = same.device() * 1e6;
        state.counters["audited_us"] = both.device() * 1e6;
        state.counters["agreement_of_bare"] = same.device() / plain.device();
        state.counters["audited_of_bare"] = both.device() / plain.device();
        // Of the three reads that an audit adds.
        state.counters["added_read_GBps"] = 3 * bytes / (both.device() - plain.device()) * 1e-9;
        state.counters["host_audited_us"] = both.host_real() * 1e6;
        state.counters["host_ahead"] = both.share_ahead();
    } catch (const error& failed) {
        state.SkipWithError(failed.what());
    }
}
BENCHMARK(audited_step)
    ->ArgNames({"buckets", "count"})
    ->ArgsProduct({{1, 8, 32}, bench::capped({1 << 16, (25 << 20) / 4}, sizeof(float))})
    ->UseManualTime()
    ->Iterations(bench::rounds(30))
    ->Unit(benchmark::kMicrosecond);

} // namespace
