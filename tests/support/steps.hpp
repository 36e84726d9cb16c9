// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/comm/local/run.hpp>
#include <collprobe/step/probed.hpp>

#include "difference.hpp"
#include "errors.hpp"

/// Steps of ranks in one process, and the records of them.
namespace collprobe::testing {

inline constexpr report_mode both_modes[] = {report_mode::gather, report_mode::summary};

inline double norm_of(const std::vector<float>& values)
{
    double squares = 0;
    for (const float value : values) squares += double(value) * double(value);
    return std::sqrt(squares);
}

struct job {
    int ranks = 4;
    int steps = 1;
    probe_options options = {};
    local::reduction_order order = local::reduction_order::linear;
    bool has_own_names = false; ///< a rank has other names of calls and values, so its records have
};

/// The records of a job's steps as the last rank has them; they are the same on all ranks. `wrap(world)` is what a rank probes, with copies of
/// `parts`. `step(comm, stream, number, seen)` makes the calls of a step, and says what the rank tells of it; buffers
/// stay until the stream is through with them.
template <class Wrap, class Step, class... Parts>
std::vector<step_record> records_over(const job& of, const Wrap& wrap, const Step& step, const Parts&... parts)
{
    std::vector<std::vector<step_record>> seen(static_cast<std::size_t>(of.ranks));
    local::run(of.ranks, {.timeout_ms = 60'000, .order = of.order}, [&](local::communicator& world) {
        host::stream stream;
        probed comm{wrap(world), of.options, parts...};
        step_record record;
        for (int number = 0; number < of.steps; ++number) {
            step_observation told;
            step(comm, stream, number, told);
            comm.end_step(static_cast<std::uint64_t>(number), told, stream);
            REQUIRE(comm.wait(record));
            seen[static_cast<std::size_t>(comm.rank())].push_back(record);
        }
        stream.synchronize(60'000);
    });
    for (const std::vector<step_record>& own : seen) {
        for (std::size_t s = 0; s < own.size(); ++s) {
            REQUIRE(own[s].step == s);
            REQUIRE(own[s].findings.size() == seen[0][s].findings.size());
            if (!of.has_own_names) REQUIRE(difference(own[s], seen[0][s]) == "");
        }
    }
    return std::move(seen.back());
}

template <class Step, class... Parts>
std::vector<step_record> records_of(const job& of, const Step& step, const Parts&... parts)
{
    return records_over(of, [](local::communicator& world) { return world; }, step, parts...);
}

/// Those of a kind.
inline std::vector<finding> findings_of(const step_record& record, finding_kind what)
{
    std::vector<finding> found;
    for (const finding& each : record.findings)
        if (each.what == what) found.push_back(each);
    return found;
}

/// All findings of a record in short, as "duplicate 1,3 in 0; sum_differs in 2; loss? 4": kind, ranks, call; with ? what
/// is no certainty.
inline std::string told(const step_record& record)
{
    std::string text;
    for (const finding& each : record.findings) {
        text += (text.empty() ? "" : "; ") + std::string(name(each.what)) + (each.exact ? "" : "?");
        for (std::size_t i = 0; i < each.ranks.size(); ++i) text += (i == 0 ? " " : ",") + std::to_string(each.ranks[i]);
        if (each.call >= 0) text += " in " + std::to_string(each.call);
    }
    return text;
}

} // namespace collprobe::testing
