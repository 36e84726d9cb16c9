// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <collprobe/core/error.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/detail/function_ref.hpp>
#include <collprobe/detail/math.hpp>

/// What a probe is asked to do: its options, their ranges, and how the mode is settled.
namespace collprobe::inline COLLPROBE_ABI {

/// How gradient directions are compared.
enum class direction_mode : std::uint8_t {
    pooled, ///< from norms; leave-one-out too if the input survives its all-reduce. No further message
    exact, ///< from the Gram matrix of the gradients: one more gradient-sized message a step
};

/// What `probed` measures, and how many steps it holds. Equal on all ranks.
struct probe_options {
    /// `automatic` is settled once, for all steps: `summary` where ranks times `calls` are above 20,000 and all that
    /// is asked for can be had in it (parts, `order_sample`, and `groups` above 16,384 ranks), else `gather`. It does
    /// not know of `expect_distinct`, `expect_partition` and calls on some ranks, which need `gather`.
    report_mode mode = report_mode::automatic;
    direction_mode direction = direction_mode::pooled;
    /// Calls of a step that there is room for from the start. A step with more allocates until it is as large as the
    /// largest before. A captured step cannot: its further calls are forwarded and counted.
    int calls = 64;
    /// Calls of the largest step, at most 2^20. The next call throws `invalid_argument`, once, and is not made: the
    /// program has probably no `end_step`. Those behind it are made and counted, and not looked at. A few times the
    /// calls of a step tell sooner.
    int largest_step = 1 << 16;
    /// Elements sampled from each sum or average (0: none); `gather` and `results` only. Every rank sends its terms of
    /// these elements with the step's message; from them `call_record::order` tells how much the summation order
    /// matters. Cost: two launches a call, 16 bytes an element and rank in the message, and the host's time of
    /// `order_meter` when the step is judged (in `poll`, or in a call that waits for the oldest step): about
    /// 0.3 to 1 us an element with 8 ranks, 10 to 30 us with 256.
    int order_sample = 0;
    bool statistics = true; ///< read floating-point inputs and results; off: only parts look at calls
    /// The statistics are taken at the first of so many steps; with 0 at those that are asked for by `probed::request`.
    /// Counted are calls of `end_step` and `replay`, not the caller's numbers. A captured step has them only with 1.
    int every = 1;
    bool results = true; ///< read results too; agreement, pooled and leave-one-out cosine need it
    /// Tell who came late (`step_record::lateness`), if inputs and results are read: their kernels note the clock, and
    /// 8 bytes a call travel. Not known: of integers, broadcasts and empty calls. Not seen: work between a step's last
    /// call and its end.
    bool times = true;
    /// So much, over all calls of a step, is not late. 0: 50 us; but if ranks on CPUs outnumber the processors of any
    /// of their machines, none is named for it, because the scheduler makes one of them late for many steps.
    double lateness_floor_ns = 0;
    int steps_in_flight = 4; ///< steps whose records may be under way, 2 to 250
    int unread_steps = 64; ///< finished steps kept for `poll`; then the oldest is dropped
    int expectations = 32; ///< values of `expect_equal` and `expect_distinct` that a step has room for, at most 65536
    int streams = 4; ///< streams that a step's calls may use without an allocation; a captured step may use no more
    int captured_steps = 1; ///< captured steps held at a time; no cost on a device without graphs
    /// The share of healthy steps that name anybody by a number: loss, norm, largest magnitude, direction, arrival, all
    /// ranks and calls together. What is usual is learnt from the run, for 32 steps at least: metrics/outlier.md. Sums,
    /// weights and codes have rates of their own: those of their parts.
    double false_alarms_per_step = 1e-4;
    /// The probability that the evidence over the run (`step_record::evidence_by_rank`) ever names a rank if all ranks
    /// are alike, whatever the distribution of their numbers. 0: no such evidence is gathered. Cost, on the host: 40 to
    /// 60 ns and 73 bytes a rank and call; up to four times as many bytes where steps have other calls each time.
    double false_alarms_per_run = 0.01;
    /// Differences between ranks that are no evidence, in robust standard deviations over the ranks: as
    /// `exchangeability_options::tolerance`.
    double tolerance = 0.25;
    /// By rank: ranks with the same number should be alike; for known differences, as of batch size or data source.
    /// Empty: all ranks should be alike. Only the evidence over the run takes notice of it.
    std::vector<int> groups = {};
    std::uint64_t scratch_bytes = std::uint64_t{4} << 20; ///< for `exact`, in device memory
};

namespace detail {

inline constexpr int most_calls = 1 << 20;
inline constexpr std::int64_t most_gathered_entries = 20'000; ///< of a step, in the mode `automatic`
inline constexpr int most_total_ranks = 16'384; ///< whose totals a summary has
inline constexpr double usual_lateness_floor_ns = 50'000; ///< what 0 stands for
inline double lateness_floor_of(const probe_options& options) noexcept
{
    return options.lateness_floor_ns > 0 ? options.lateness_floor_ns : usual_lateness_floor_ns;
}
inline constexpr int rank_bits = 20; ///< in a key of a summary
inline constexpr int most_summary_ranks = 1 << rank_bits;

/// Refuses options by which steps are judged that are out of range: calls `require(condition, message)`.
COLLPROBE_COLD_INLINE void check_judging(
    const probe_options& options, int ranks, function_ref<void(bool, const char*)> require)
{
    require(is_rate(options.false_alarms_per_step), "false_alarms_per_step must lie between 0 and 1");
    const double rate = options.false_alarms_per_run;
    require(is_finite(rate) && rate >= 0 && rate < 1, "false_alarms_per_run must be 0, or lie between 0 and 1");
    require(is_finite(options.tolerance) && options.tolerance >= 0, "tolerance must not be negative");
    require(options.groups.empty() || options.groups.size() == static_cast<std::size_t>(ranks),
        "groups must have an entry for each rank, or none");
    const double floor = options.lateness_floor_ns;
    require(is_finite(floor) && floor >= 0 && floor < 0x1p53, "lateness_floor_ns must be 0 to 2^53");
}

/// The ranks, if such options can judge them. \throws error `invalid_argument`
COLLPROBE_COLD_INLINE int checked_to_judge(
    int ranks, const probe_options& options, const char* call, const call_site& where)
{
    const auto check = [&](bool is_met, const char* message) { require(is_met, call, message, where); };
    check(ranks >= 1, "a communicator has at least 1 rank");
    check_judging(options, ranks, check);
    return ranks;
}

/// Options whose mode is settled, for a communicator that can do so. `has_summaries`: all parts have a summary.
/// \throws error `invalid_argument` for an option out of range; `unsupported` for one that the communicator cannot do.
COLLPROBE_COLD_INLINE probe_options checked(
    probe_options options, const error_origin& origin, bool can_reduce, bool can_exchange, bool has_summaries)
{
    const int ranks = origin.size;
    if (options.mode == report_mode::automatic) {
        const bool is_large = static_cast<std::int64_t>(ranks) * options.calls > most_gathered_entries;
        const bool can_sum = can_reduce && has_summaries && options.order_sample == 0
            && (options.groups.empty() || ranks <= most_total_ranks);
        options.mode = is_large && can_sum ? report_mode::summary : report_mode::gather;
    }
    const bool is_gathered = options.mode == report_mode::gather;
    const auto need = [&](bool is_met, const std::string& message, status code = status::invalid_argument) {
        if (!is_met) throw error(code, message, origin);
    };
    const auto range = [&](const char* option, int value, int least, int most = std::numeric_limits<int>::max()) {
        const int nearest = value < least ? least : most;
        need(value >= least && value <= most, std::string(option) + " is " + std::to_string(value)
                + ", but must be at " + (value < least ? "least " : "most ") + std::to_string(nearest));
    };
    const bool is_pooled = options.direction == direction_mode::pooled;
    need(is_gathered || can_reduce, "the mode summary needs a communicator with all_reduce", status::unsupported);
    need(is_pooled || (can_reduce && can_exchange),
        "exact direction needs a communicator with all_reduce and all_to_all", status::unsupported);
    range("largest_step", options.largest_step, 1, most_calls);
    range("calls", options.calls, 1, options.largest_step);
    range("steps_in_flight", options.steps_in_flight, 2, 250); // `step_header::last_lost` tells of 255
    range("unread_steps", options.unread_steps, 1);
    range("every", options.every, 0);
    range("expectations", options.expectations, 0, 65536);
    range("streams", options.streams, 1);
    range("captured_steps", options.captured_steps, 0);
    range("order_sample", options.order_sample, 0);
    need(options.order_sample == 0 || (is_gathered && options.statistics && options.results),
        "order_sample needs the mode gather, statistics and results");
    need(is_pooled || options.statistics, "exact direction needs statistics");
    need(is_gathered || has_summaries, "the mode summary needs parts that have a summary");
    check_judging(options, ranks, [&](bool is_met, const char* message) { need(is_met, message); });
    need(is_gathered || ranks <= most_summary_ranks, "summary mode is made for at most 1,048,576 ranks");
    return options;
}

} // namespace detail
} // namespace collprobe
