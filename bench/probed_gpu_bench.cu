// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What probing and auditing add to a trainer's calls and steps on a GPU, over NCCL with one rank and over ranks that
// share the GPU. Bare and probed forms run in turn; all numbers are medians.
//
// An all-reduce of one rank is a copy: the cheapest there can be, so the ratios here are the worst there can be. What a
// probe adds, two reads of what a bucket sends and one of what it receives, stays the same with more ranks (of an audit:
// one and two), while the all-reduce becomes many times slower.
#include "../examples/support/device_ranks.hpp"
#include "gpu_timing.cuh"

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include <benchmark/benchmark.h>

#include <collprobe/audit/audit.hpp>
#include <collprobe/collprobe.cuh>
#include <collprobe/comm/nccl/communicator.hpp>

#include "../tests/support/nccl_owner.hpp"

using namespace collprobe;
using bench::host_time;
using bench::median;
namespace cu = collprobe::cuda; // CUB has a namespace cuda, too

namespace {

/// As PyTorch has it by default.
const std::uint64_t bucket_bytes = bench::capped(std::uint64_t{25} << 20);
const std::uint64_t bucket_count = bucket_bytes / sizeof(float);

/// The buckets of a step. Not in place, so that one rank has something to do, and the probe everything.
struct step_data {
    std::vector<cu::buffer<float>> send, receive;
    cu::buffer<float> loss{1};

    step_data(int buckets, std::uint64_t count, int rank, cu::stream_ref stream)
    {
        for (int b = 0; b < buckets; ++b) {
            send.emplace_back(count);
            receive.emplace_back(count);
            const auto seed = static_cast<std::uint64_t>(rank * 1000 + b) << 32;
            cu::device::for_each(stream, count, bench::fill_like_gradient<float>{send.back().data(), seed});
        }
        cu::device::fill(stream, view<float>(loss), 1.0f);
    }
    template <class Comm>
    void reduce(Comm& comm, cu::stream_ref stream) const
    {
        for (std::size_t b = 0; b < send.size(); ++b)
            comm.all_reduce(view<const float>(send[b].data(), send[b].size()),
                view<float>(receive[b].data(), receive[b].size()), reduction::sum, stream);
    }
    /// The trainer's own calls.
    void reduce(ncclComm_t comm, cu::stream_ref stream) const
    {
        for (std::size_t b = 0; b < send.size(); ++b) {
            const ncclResult_t result = ncclAllReduce(
                send[b].data(), receive[b].data(), send[b].size(), ncclFloat, ncclSum, comm, stream.get());
            if (result != ncclSuccess) throw error(status::device_failure, ncclGetErrorString(result), {});
        }
    }
};

testing::nccl_owner only_rank()
{
    return testing::nccl_owner::create(testing::new_nccl_id(), 0, 1, 0, {.mode = nccl::blocking_mode::blocking});
}

struct destroy_graph {
    void operator()(cudaGraphExec_t made) const { (void)cudaGraphExecDestroy(made); }
};
using graph = std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, destroy_graph>;

/// What `record` enqueues on the stream.
template <class Record>
graph capture(cu::stream_ref stream, Record record)
{
    cudaGraph_t recorded = nullptr;
    cudaGraphExec_t made = nullptr;
    cu::check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    record();
    cu::check(cudaStreamEndCapture(stream.get(), &recorded), "cudaStreamEndCapture");
    cu::check(cudaGraphInstantiate(&made, recorded, 0), "cudaGraphInstantiate");
    (void)cudaGraphDestroy(recorded);
    return graph(made);
}
void launch(const graph& step, cu::stream_ref stream) { cu::check(cudaGraphLaunch(step.get(), stream.get()), "cudaGraphLaunch"); }

/// Reads the records of all steps that have ended.
template <class Probed>
void drain(Probed& comm)
{
    static thread_local step_record record;
    while (comm.pending_steps() != 0) (void)comm.poll(record);
}

/// Host time of a probed all-reduce against the bare ncclAllReduce: 16 calls in a row, on an idle stream.
///
/// host_synchronisations is 0 if 16 probed calls and their end_step return while the stream is kept busy in front of them,
/// for 0.2 s: had one waited for the device, it would not. (It is 1 if any did, however many.)
void host_cost_of_probed_all_reduce(benchmark::State& state)
{
    constexpr int calls = 16;
    bench::on_gpu(state, [&] {
        testing::nccl_owner world = only_rank();
        nccl::communicator_ref& plain = world;
        const cu::stream stream;
        const step_data data(calls, static_cast<std::uint64_t>(state.range(0)), 0, stream);
        probed<nccl::communicator_ref> comm(world);
        std::uint64_t step = 0;
        struct times {
            std::vector<double> real, processor; // microseconds a call
            double real_us() const { return median(real); }
            double processor_us() const { return median(processor); }
        } bare, wrapped, own, end;
        const auto timed = [&](times& of, auto&& work) {
            const host_time start = host_time::now();
            work();
            const host_time used = host_time::now().since(start);
            of.real.push_back(used.real / calls * 1e6);
            of.processor.push_back(used.processor / calls * 1e6);
            stream.synchronize();
        };
        const auto end_step = [&] {
            comm.end_step(step++, {.loss = 1}, stream);
            stream.synchronize();
            drain(comm);
        };
        for (int i = 0; i < 3; ++i) {
            data.reduce(world.native_handle(), stream);
            data.reduce(comm, stream);
            end_step();
        }
        for (auto _ : state) {
            timed(bare, [&] { data.reduce(world.native_handle(), stream); });
            timed(wrapped, [&] { data.reduce(plain, stream); });
            timed(own, [&] { data.reduce(comm, stream); });
            timed(end, [&] { comm.end_step(step++, {.loss = 1}, stream); });
            drain(comm);
            state.SetIterationTime(own.real.back() * 1e-6);
        }
        bench::keep_busy(stream, 200'000);
        cu::event busy;
        busy.record(stream);
        data.reduce(comm, stream);
        comm.end_step(step++, {.loss = 1}, stream);
        const bool has_waited = busy.query();
        drain(comm);
        state.counters["bare_us"] = bare.real_us();
        state.counters["bare_cpu_us"] = bare.processor_us();
        state.counters["unprobed_us"] = wrapped.real_us(); // nccl::communicator_ref alone
        state.counters["probed_us"] = own.real_us();
        state.counters["probed_cpu_us"] = own.processor_us();
        state.counters["added_us"] = own.real_us() - bare.real_us();
        state.counters["added_cpu_us"] = own.processor_us() - bare.processor_us();
        state.counters["end_step_us"] = end.real_us() * calls;
        state.counters["host_synchronisations"] = has_waited ? 1 : 0;
    });
}
BENCHMARK(host_cost_of_probed_all_reduce)->Apply([](benchmark::internal::Benchmark* cases) {
    bench::timed_by_hand(cases, 200)->ArgName("count")->ArgsProduct({bench::capped({1 << 10, 1 << 20}, sizeof(float))});
});

/// A step of buckets of 25 MiB over NCCL with one rank: bare and probed, each also as a graph. Times are the device's, with
/// the host ahead of it (host_ahead: in which share of the samples it was); the host's are those of enqueuing a whole step.
void nccl_step(benchmark::State& state)
{
    const int buckets = static_cast<int>(state.range(0));
    bench::on_gpu(state, [&] {
        const testing::nccl_owner world = only_rank();
        const cu::stream stream;
        const step_data data(buckets, bucket_count, 0, stream);
        const step_observation seen{.loss = data.loss.data()};
        probed<nccl::communicator_ref> comm(world);
        std::uint64_t step = 0;
        const auto bare_step = [&] { data.reduce(world.native_handle(), stream); };
        const auto probed_step = [&] {
            data.reduce(comm, stream);
            comm.end_step(step++, seen, stream);
        };
        for (int i = 0; i < 2; ++i) { // NCCL's and CUDA's lazy part
            bare_step();
            probed_step();
            stream.synchronize();
            drain(comm);
        }
        const graph bare_graph = capture(stream, bare_step);
        captured_step captured;
        const graph probed_graph = capture(stream, [&] {
            data.reduce(comm, stream);
            captured = comm.end_captured_step(seen, stream);
        });
        bench::device_timer timer;
        const int lead_us = 200 + 60 * buckets;
        const auto run = [&](int kind) {
            const auto sample = timer.measure(stream, lead_us, [&] {
                if (kind == 0) bare_step();
                else if (kind == 1) probed_step();
                else if (kind == 2) launch(bare_graph, stream);
                else comm.replay(captured, step++, stream, [&] { launch(probed_graph, stream); });
            });
            drain(comm);
            return sample;
        };
        for (int kind = 0; kind < 4; ++kind) (void)run(kind);
        bench::samples times[4];
        for (auto _ : state) {
            for (int kind = 0; kind < 4; ++kind) times[kind].add(run(kind));
            state.SetIterationTime(times[1].last());
        }
        const auto& [bare, with_probe, bare_replay, replay] = times;
        state.counters["bare_us"] = bare.device() * 1e6;
        state.counters["probed_us"] = with_probe.device() * 1e6;
        state.counters["bare_graph_us"] = bare_replay.device() * 1e6;
        state.counters["replay_us"] = replay.device() * 1e6;
        state.counters["probed_of_bare"] = with_probe.device() / bare.device();
        state.counters["replay_of_bare_graph"] = replay.device() / bare_replay.device();
        state.counters["replay_of_probed"] = replay.device() / with_probe.device();
        state.counters["host_bare_us"] = bare.host_real() * 1e6;
        state.counters["host_probed_us"] = with_probe.host_real() * 1e6;
        state.counters["host_replay_us"] = replay.host_real() * 1e6;
        state.counters["host_ahead"] = with_probe.share_ahead();
    });
}
BENCHMARK(nccl_step)->Apply([](benchmark::internal::Benchmark* cases) {
    bench::timed_by_hand(cases, 30)->ArgName("buckets")->Arg(1)->Arg(8)->Arg(32);
});

/// A step with an audit, over NCCL with one rank: with agreement of the results alone, and with the check of the sums.
void audited_step(benchmark::State& state)
{
    const int buckets = static_cast<int>(state.range(0));
    const auto count = static_cast<std::uint64_t>(state.range(1));
    bench::on_gpu(state, [&] {
        const testing::nccl_owner world = only_rank();
        const cu::stream stream;
        const step_data data(buckets, count, 0, stream);
        nccl::communicator_ref bare{world};
        probed agreement{nccl::communicator_ref(world), {.statistics = false}, audit({.sums = false})};
        probed all{nccl::communicator_ref(world), {.statistics = false}, audit()};
        std::uint64_t step = 0;
        const auto audited_by = [&](auto& comm) {
            data.reduce(comm, stream);
            comm.end_step(step++, stream);
        };
        bench::device_timer timer;
        const auto run = [&](int kind) {
            const auto sample = timer.measure(stream, 200 + 80 * buckets, [&] {
                if (kind == 0) data.reduce(bare, stream);
                else if (kind == 1) audited_by(agreement);
                else audited_by(all);
            });
            drain(agreement);
            drain(all);
            return sample;
        };
        for (int i = 0; i < 6; ++i) (void)run(i % 3); // NCCL's and CUDA's lazy part
        bench::samples times[3];
        for (auto _ : state) {
            for (int kind = 0; kind < 3; ++kind) times[kind].add(run(kind));
            state.SetIterationTime(times[2].last());
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
    });
}
BENCHMARK(audited_step)->Apply([](benchmark::internal::Benchmark* cases) {
    bench::timed_by_hand(cases, 30)
        ->ArgNames({"buckets", "count"})
        ->ArgsProduct({{1, 8, 32}, bench::capped({1 << 16, (25 << 20) / 4}, sizeof(float))});
});

/// A step of buckets of 25 MiB by ranks that share one GPU, seen from rank 0. The ranks' threads meet in
/// each call, so the host is in these times: the ratio is what counts, and less than for real ranks.
void local_step(benchmark::State& state)
{
    const int ranks = static_cast<int>(state.range(0));
    const int buckets = static_cast<int>(state.range(1));
    const int steps = bench::rounds(20);
    bench::on_gpu(state, [&] {
        for (auto _ : state) {
            bench::samples bare, with_probe;
            local::run_on<cu::device>(ranks, {}, [&](local::device_communicator<cu::device>& world) {
                const step_data data(buckets, bucket_count, world.rank(), cu::stream().get());
                const cu::stream stream;
                cu::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
                probed<local::device_communicator<cu::device>> comm(world);
                bench::device_timer timer;
                for (int i = -2; i < steps; ++i) { // the first two warm up
                    world.barrier(stream);
                    stream.synchronize();
                    const auto plain = timer.measure(stream, 1, [&] { data.reduce(world, stream); });
                    world.barrier(stream);
                    stream.synchronize();
                    const auto own = timer.measure(stream, 1, [&] {
                        data.reduce(comm, stream);
                        comm.end_step(static_cast<std::uint64_t>(i + 2), {.loss = 1}, stream);
                    });
                    drain(comm);
                    if (i < 0 || world.rank() != 0) continue;
                    bare.add(plain);
                    with_probe.add(own);
                }
            });
            state.SetIterationTime(with_probe.device());
            state.counters["bare_us"] = bare.device() * 1e6;
            state.counters["probed_us"] = with_probe.device() * 1e6;
            state.counters["probed_of_bare"] = with_probe.device() / bare.device();
            state.counters["host_probed_us"] = with_probe.host_real() * 1e6;
        }
    });
}
BENCHMARK(local_step)->Apply([](benchmark::internal::Benchmark* cases) {
    bench::timed_by_hand(cases, 1)->ArgNames({"ranks", "buckets"})->ArgsProduct({{2, 4, 8}, {1, 8}});
});

[[maybe_unused]] const bool nccl_is_named = [] {
    int version = 0;
    if (ncclGetVersion(&version) == ncclSuccess) {
        benchmark::AddCustomContext("nccl",
            std::to_string(version / 10000) + "." + std::to_string(version % 10000 / 100) + "."
                + std::to_string(version % 100));
    }
    return true;
}();

} // namespace
