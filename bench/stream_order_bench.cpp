// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What a call costs the host thread with the checker of stream order: directly, for some numbers of buffers and
// streams. Each round is a launch, a record and a wait, as a pipeline makes them; "per_call" is a third of it. Off,
// there is nothing to measure: optimised code has nothing of the hooks (tests/order/off).

#include <cstddef>
#include <cstdint>
#include <vector>

#include <benchmark/benchmark.h>

#include <collprobe/order/stream_order.hpp>

using namespace collprobe;

namespace {

class pipeline {
public:
    /// `are_told`: each buffer is an allocation that the checker was told of, so that it looks for the end of it.
    pipeline(std::int64_t buffers, std::int64_t streams, bool are_told = false)
        : memory_(static_cast<std::size_t>(buffers) * bytes), events_(static_cast<std::size_t>(streams)),
          buffers_(static_cast<std::size_t>(buffers)), streams_(static_cast<std::size_t>(streams))
    {
        for (std::size_t each = 0; are_told && each < buffers_; ++each) checker_.allocate(buffer(each));
        for (std::size_t step = 0; step < 4 * (buffers_ + streams_); ++step) round();
    }

    /// The next stream takes over what the one before had.
    void round()
    {
        const std::size_t at = step_ % streams_;
        const std::size_t next = (step_ + 1) % streams_;
        const order_stream on{.number = 1 + at};
        const order_stream behind{.number = 1 + next};
        checker_.launch(on, {buffer(step_)}, {buffer(step_ + 1)}, "kernel", here_);
        checker_.record(events_[at], on);
        checker_.wait(behind, events_[at], here_);
        ++step_;
    }
    void launch()
    {
        checker_.launch({.number = 1}, {buffer(step_)}, {buffer(step_ + 1)}, "kernel", here_);
        ++step_;
    }
    void record() { checker_.record(events_[0], {.number = 1}); }
    void wait() { checker_.wait({.number = 2}, events_[0], here_); }
    std::uint64_t hazards() const { return checker_.hazard_count(); }

private:
    static constexpr std::size_t bytes = 4096;
    memory_range buffer(std::size_t number) const { return {memory_.data() + number % buffers_ * bytes, bytes}; }

    std::vector<unsigned char> memory_;
    std::vector<order_point> events_;
    std::size_t buffers_;
    std::size_t streams_;
    std::size_t step_ = 0;
    call_site here_ = call_site::current();
    stream_order checker_;
};

/// Times `work(pipeline)`, which makes so many calls.
template <class Work>
void measure(benchmark::State& state, pipeline own, double calls, Work work)
{
    for (auto _ : state) work(own);
    if (own.hazards() != 0) state.SkipWithError("the pipeline is not clean");
    state.counters["per_call"] = benchmark::Counter(
        calls * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void launch_record_wait(benchmark::State& state)
{
    measure(state, {state.range(0), state.range(1)}, 3, [](pipeline& own) { own.round(); });
}
void launch(benchmark::State& state)
{
    measure(state, {state.range(0), 1}, 1, [](pipeline& own) { own.launch(); });
}
void launch_on_allocations(benchmark::State& state)
{
    measure(state, {state.range(0), 1, true}, 1, [](pipeline& own) { own.launch(); });
}
void record(benchmark::State& state)
{
    measure(state, {64, state.range(0)}, 1, [](pipeline& own) { own.record(); });
}
void wait(benchmark::State& state)
{
    measure(state, {64, state.range(0)}, 1, [](pipeline& own) { own.wait(); });
}

} // namespace

BENCHMARK(launch_record_wait)->ArgNames({"buffers", "streams"})->ArgsProduct({{8, 64, 512}, {8, 64}});
BENCHMARK(launch)->ArgName("buffers")->Arg(8)->Arg(64)->Arg(512);
BENCHMARK(launch_on_allocations)->ArgName("buffers")->Arg(8)->Arg(64)->Arg(512);
BENCHMARK(record)->ArgName("streams")->Arg(8)->Arg(64);
BENCHMARK(wait)->ArgName("streams")->Arg(8)->Arg(64);
