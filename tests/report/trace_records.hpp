// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/core/record.hpp>

/// Made-up records with times, for the tests of traces.
namespace testing {

inline constexpr std::uint64_t trace_begin = 1'790'857'026'000'000'000; ///< a quarter in PyTorch's count begins

inline collprobe::run_record traced_run(int ranks)
{
    collprobe::run_record run;
    run.name = "golden";
    run.host = "node7";
    run.device = "GPU-1234";
    run.ranks = ranks;
    run.started_ns = trace_begin + 1'000'000'000;
    run.library = "1.2.3";
    return run;
}

/// A call of a step; times are in ticks of 256 ns on each rank's own clock.
inline collprobe::call_record timed_call(std::vector<collprobe::call_interval> intervals, std::uint64_t count = 512)
{
    collprobe::call_record call;
    call.count = call.result_count = count;
    call.inputs.resize(intervals.size());
    call.intervals = std::move(intervals);
    return call;
}

inline collprobe::step_record step_of(std::uint64_t step, int ranks, std::vector<collprobe::call_record> calls)
{
    collprobe::step_record record;
    record.step = step;
    record.ranks = ranks;
    record.first_call = step * calls.size();
    record.calls = std::move(calls);
    return record;
}

} // namespace testing
