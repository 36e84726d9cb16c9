// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// All-reduce on GPUs: the communicator's own and those under contracts, in turn within each round. Times are of the
// slowest rank, seen from its host, over the calls between two barriers; medians of the rounds (all_reduce.hpp):
//
//   native_us, <method>_us     a call
//   <method>_ratio             to native, of the same round
//   algbw_GBps, busbw_GBps     of native, as nccl-tests defines them
//
// `nccl` has a rank for each GPU of the machine. With one GPU its all-reduce is a copy, the cheapest there can be, and
// ratios mean little but what the library's own kernels cost. `local` has ranks that share the GPUs; their threads meet
// in each call, so the host is in the times of small buffers. sum_gpu_bench.cu has the owner's sum alone.
#include "../examples/support/device_ranks.hpp"
#include "all_reduce.hpp"
#include "gpu_timing.cuh"

#include <cstdint>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include <collprobe/collprobe.cuh>
#include <collprobe/comm/nccl/communicator.hpp>

#include "../tests/support/nccl_owner.hpp"

using namespace collprobe;
namespace cu = collprobe::cuda; // CUB has a namespace cuda, too

namespace {

constexpr bench::method methods[] = {bench::method::size_invariant, bench::method::float32,
    bench::method::correctly_rounded, bench::method::fixed_point, bench::method::upcast};

/// Calls `rank(communicator of local)` on a thread for each rank.
template <class Rank>
void on_ranks(int ranks, Rank rank)
{
    local::run_on<cu::device>(ranks, {.timeout_ms = 120'000}, rank);
}

/// One rank's part; rank 0 reports.
template <floating_element T, class Comm>
void time_calls(const Comm& comm, std::uint64_t bytes, benchmark::State& state)
{
    bench::all_reduce_bench<T, Comm> own(comm, bytes,
        {.seconds = bench::most_bytes() == 0 ? 0.5 : 0, .rounds = bench::rounds(5), .calls = bench::rounds(100)});
    own.add_native();
    for (const bench::method which : methods) own.add(which);
    const std::vector<bench::timed_call>& calls = own.measure(bytes);
    if (comm.rank() != 0) return;
    const auto n = static_cast<double>(comm.size());
    const double native = calls[0].seconds();
    const double algbw = static_cast<double>(bytes) / native * 1e-9;
    state.SetIterationTime(native);
    state.counters["ranks"] = n;
    state.counters["native_us"] = native * 1e6;
    state.counters["algbw_GBps"] = algbw;
    state.counters["busbw_GBps"] = algbw * 2 * (n - 1) / n;
    for (std::size_t i = 1; i < calls.size(); ++i) {
        state.counters[calls[i].name + "_us"] = calls[i].seconds() * 1e6;
        state.counters[calls[i].name + "_ratio"] = calls[i].ratio();
    }
}

template <class T>
void nccl_all_reduce(benchmark::State& state)
{
    const auto bytes = static_cast<std::uint64_t>(state.range(0)) << 10;
    bench::on_gpu(state, [&] {
        int gpus = 0;
        cu::check(cudaGetDeviceCount(&gpus), "cudaGetDeviceCount");
        for (auto _ : state) {
            const ncclUniqueId id = testing::new_nccl_id();
            on_ranks(gpus, [&](const local::device_communicator<cu::device>& place) {
                const cu::device_guard own(place.rank());
                const testing::nccl_owner comm
                    = testing::nccl_owner::create(id, place.rank(), place.size(), place.rank(), {.timeout_ms = 120'000});
                time_calls<T>(nccl::communicator_ref(comm), bytes, state);
            });
        }
    });
}

template <class T>
void local_all_reduce(benchmark::State& state)
{
    const auto bytes = static_cast<std::uint64_t>(state.range(1)) << 10;
    bench::on_gpu(state, [&] {
        for (auto _ : state) {
            on_ranks(static_cast<int>(state.range(0)), [&](const local::device_communicator<cu::device>& comm) {
                time_calls<T>(comm, bytes, state);
            });
        }
    });
}

/// 1 KiB to 256 MiB.
const std::vector<std::int64_t> sizes_KiB = bench::capped({1, 16, 256, 4 << 10, 64 << 10, 256 << 10}, 1 << 10);

template <floating_element T>
void add_cases()
{
    const std::string type = element_traits<T>::name;
    bench::timed_by_hand(benchmark::RegisterBenchmark(("nccl_all_reduce/" + type).c_str(), nccl_all_reduce<T>), 1)
        ->ArgName("KiB")->ArgsProduct({sizes_KiB});
    bench::timed_by_hand(benchmark::RegisterBenchmark(("local_all_reduce/" + type).c_str(), local_all_reduce<T>), 1)
        ->ArgNames({"ranks", "KiB"})->ArgsProduct({{2, 4, 8}, sizes_KiB});
}

[[maybe_unused]] const bool added = (add_cases<float>(), add_cases<bfloat16>(), true);

} // namespace
