// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include <collprobe/alarm/alarms.hpp>
#include <collprobe/audit/merge_ranks.hpp>
#include <collprobe/report.hpp>
#include <collprobe/step/rank_call.hpp>

#include "call_facts.hpp"
#include "live_channel.hpp"
#include "settings.hpp"

namespace collprobe_preload {

/// Judges the steps of a communicator from the messages of all its ranks, as they come: alarms to the
/// standard error, records to the sinks of COLLPROBE_SINKS.
class live_view {
public:
    live_view(const settings& options, const collprobe::run_record& run, int ranks);

    /// `messages`: of all ranks, `stride` bytes each. `own` and `calls`: what this rank says of them.
    void judge(const unsigned char* messages, std::uint64_t stride, const collprobe::rank_call_layout& layout,
        const live_header& own, const std::vector<call_facts>& calls, std::uint64_t unread);
    /// So many steps came faster than they could be judged, by now: that is said once, and their number in the end.
    void leave_out(std::uint64_t steps);
    void close();

private:
    const char* kept(const std::string& text) { return texts_.insert(text).first->c_str(); }

    const settings& options_;
    collprobe::run_record run_;
    int ranks_;
    collprobe::merge_ranks merge_;
    collprobe::alarms alarms_;
    collprobe::report::sinks<collprobe::report::json_lines, collprobe::report::prometheus> sinks_;
    std::unordered_set<std::string> texts_; ///< names of calls
    std::vector<collprobe::merged_call> calls_;
    std::vector<collprobe::rank_block> blocks_;
    collprobe::step_record record_;
    std::uint64_t next_call_ = 0; ///< behind the last judged step
    std::uint64_t left_out_ = 0; ///< steps
    bool told_mismatch_ = false;
};

} // namespace collprobe_preload
