// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// An input shown to the C entry in host memory, which is read on the calling thread, against two peers that run in turn
// with it inside each iteration: a bare read of the same bytes, and the read by the thread of a stream, for which the
// caller waits. One rank. Times are those of the clock on the wall, medians over the iterations:
//
//   ns                 of collprobeObserveInput
//   stream_ns          of probed::observe on a host::stream, and of its synchronize
//   read_ns            of the bare read
//   ratio_to_read      ns / read_ns
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include <benchmark/benchmark.h>

#include <collprobe/c/collprobe.h>
#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/comm/local/run.hpp>
#include <collprobe/step/probed.hpp>

#include "bare_read.hpp"
#include "cpu_timing.hpp"

namespace {

using namespace collprobe;

template <class Work>
double ns_of(const Work& work)
{
    return 1e9 * bench::seconds(work, &bench::real_seconds);
}

void input_of_host(benchmark::State& state)
{
    const auto bytes = static_cast<std::size_t>(state.range(0));
    const std::vector<float> data(bytes / sizeof(float), 1.5f);
    collprobeOptions_t options = COLLPROBE_OPTIONS_INIT;
    options.allGather = [](void*, const void* send, void* receive, std::size_t size) {
        std::memcpy(receive, send, size);
        return 0;
    };
    collprobeProbe_t probe = nullptr;
    if (collprobeCreate(&probe, 0, 1, &options) != collprobeSuccess) state.SkipWithError(collprobeGetLastError());
    std::vector<double> own_times, stream_times, read_times;
    local::run(1, [&](local::communicator& world) {
        probed peer{world};
        const host::stream stream;
        step_record record;
        std::uint64_t step = 0;
        for (auto _ : state) {
            std::uint64_t token = 0;
            std::optional<decltype(peer)::observed_call> observed;
            own_times.push_back(ns_of([&] {
                (void)collprobeObserveInput(probe, collprobeAllReduceCall, collprobeFloat32, collprobeSum, data.data(),
                    data.size(), "wte", nullptr, &token);
            }));
            stream_times.push_back(ns_of([&] {
                observed.emplace(peer.observe(view<const float>(data), stream));
                stream.synchronize();
            }));
            read_times.push_back(ns_of([&] {
                benchmark::DoNotOptimize(bench::bare_read(reinterpret_cast<const unsigned char*>(data.data()), bytes));
            }));
            (void)collprobeObserveResult(probe, token, COLLPROBE_NO_BUFFER, 0, nullptr);
            (void)collprobeEndStep(probe, step, nullptr, nullptr);
            (void)collprobePoll(probe, 1);
            observed->no_result(stream);
            peer.end_step(step++, stream);
            peer.wait(record);
        }
    });
    (void)collprobeDestroy(probe);
    state.counters["ns"] = bench::median(own_times);
    state.counters["stream_ns"] = bench::median(stream_times);
    state.counters["read_ns"] = bench::median(read_times);
    state.counters["ratio_to_read"] = bench::median(own_times) / bench::median(read_times);
}
BENCHMARK(input_of_host)->Arg(1 << 10)->Arg(1 << 20)->Arg(25 << 20);

} // namespace
