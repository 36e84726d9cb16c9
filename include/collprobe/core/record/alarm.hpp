// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <collprobe/core/record/verdict.hpp>
#include <collprobe/detail/names.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// The action that an alarm advises.
enum class advice : std::uint8_t {
    none, ///< take note
    recheck, ///< repeat the step, or look closer: the evidence is statistical
    skip, ///< drop the step's update
    resync, ///< restore the ranks from another one
    quarantine, ///< take the rank out: it was at fault, or unlike the others, in many steps
};

constexpr const char* name(advice what) noexcept
{
    return detail::name_of<advice::quarantine>(what, {"none", "recheck", "skip", "resync", "quarantine"});
}

/// A finding that the user should know of, with its evidence. Equal on every rank.
struct alarm_record {
    std::uint64_t step = 0;
    int call = -1; ///< index of the call in the step, -1 for the whole step
    finding what = finding::non_finite;
    damage where = damage::unknown;
    std::vector<int> ranks; ///< the ranks that the alarm names, ascending; empty if it can name none
    double statistic = 0; ///< the largest statistic of the evidence, compared with `threshold`
    double threshold = 0; ///< 0 where equal bits are asked for
    /// At most so many on a healthy run; 0 for exact checks. Of `unlike` by its odds: the chance that a healthy run of
    /// any length has one.
    double false_alarms_per_step = 0;
    advice action = advice::none;
    int source = -1; ///< for `resync`: a rank that holds the right data
    call_site site = {}; ///< of the call: its name, and the line that made it
    rank_evidence evidence = {}; ///< of `unlike`: the strongest
    bool by_length = false; ///< as of the suspect
    unusual_number number = {}; ///< as of the suspect: the strongest
    call_form other = {}; ///< as of the suspect
};

} // namespace collprobe
