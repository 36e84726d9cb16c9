// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/core/collective.hpp>
#include <collprobe/core/config.hpp>
#include <collprobe/detail/math.hpp>

/// Who came late to the collectives: metrics/lateness.hpp says how it is found. All times are in nanoseconds.
namespace collprobe::inline COLLPROBE_ABI {

/// Whether no rank can end the call before all ranks have entered it, if it moves data. The times of other calls say
/// nothing about arrivals: the root of a broadcast may leave before the others come.
constexpr bool waits_for_all(collective call) noexcept
{
    return call != collective::broadcast && call != collective::split;
}

/// The arrivals of the ranks at one call; t_r is the time that rank r spent in it. Undefined numbers are NaN by bits.
struct call_lateness {
    int present = 0; ///< ranks whose time is known
    int last = -1; ///< the rank with the least t_r; -1 if fewer than 2 are present
    int next = -1; ///< the rank with the least t_r but for `last`
    double spread = detail::not_a_number(); ///< from the first arrival to the last: max t - min t
    double transport = detail::not_a_number(); ///< min t: the time in the call after all ranks have come
    /// What the call would gain if `last` came with `next`: t_next - t_last. The others' waiting is no measure of that.
    double gain = detail::not_a_number();
    /// The part of `gain` that arose before the call: the time of `last` between its calls less that of `next`, limited
    /// to 0 .. gain. The rest arose inside calls: `last` left the previous call later than `next`.
    double gain_before = detail::not_a_number();
};

/// One step. A rank's time is that of all calls together: T_r = sum of t_r. Undefined numbers are NaN by bits.
struct step_lateness {
    int calls = 0; ///< whose times are known
    int present = 0; ///< ranks whose times are known in each call
    int last = -1; ///< the rank with the least T_r; -1 if fewer than 2 are present
    double behind = detail::not_a_number(); ///< arrival of `last` after the median of the others: median T_s - T_r
    double behind_before = detail::not_a_number(); ///< its time between the calls less the median of the others
    double noise = detail::not_a_number(); ///< robust deviation of an arrival; undefined in the first 17 steps
    double floor = detail::not_a_number(); ///< differences up to this do not count; undefined as `noise`
    bool stands_out = false; ///< `behind` exceeds `floor` and three times `noise`
};

/// One rank over the last `window` judged steps. Undefined numbers are NaN by bits.
struct rank_lateness {
    int steps = 0; ///< steps of the window in which the rank was present; the other numbers count only these
    double latest = detail::not_a_number(); ///< in the last judged step: its arrival after the median of the others
    double behind = detail::not_a_number(); ///< median over the steps: its arrival after the median of the others
    double behind_before = detail::not_a_number(); ///< the same of its time between the calls
    double share_last = detail::not_a_number(); ///< share of the steps in which it was `last`
    /// Mean per step of `call_lateness::gain` over the calls where it came last: what a step would gain if it were as
    /// quick as the next; followed by the part that arose before the calls.
    double gain = detail::not_a_number();
    double gain_before = detail::not_a_number();
};

} // namespace collprobe
