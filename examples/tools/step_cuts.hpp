// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "read_rank_log.hpp"

namespace tools {

/// The calls of a step that was found by its period, by which calls around it are cut into steps: where their order
/// goes back, a step begins. A step may lack calls, and have others besides.
class step_cuts {
public:
    void clear() { calls_.clear(); }
    bool empty() const noexcept { return calls_.empty(); }
    /// `calls`: a step's, without extra ones. `span`: of all calls of a step, written or not.
    void learn(std::vector<call_form> calls, std::uint64_t span)
    {
        calls_ = std::move(calls);
        span_ = span;
    }
    /// The step begins with another one of its calls.
    void begin_with(std::int64_t index)
    {
        std::rotate(calls_.begin(), calls_.begin() + index, calls_.end());
        for (std::size_t i = 0; i < calls_.size(); ++i) calls_[i].bucket = i;
    }
    /// Calls of a step that no rank wrote.
    std::uint64_t unwritten() const noexcept { return span_ < calls_.size() ? 0 : span_ - calls_.size(); }

    /// Index of the first such call behind `last`; -1: there is none.
    std::int64_t find(const call_form& form, std::int64_t last = -1) const
    {
        for (auto i = static_cast<std::size_t>(last + 1); i < calls_.size(); ++i) {
            if (is_alike(calls_[i], form)) return static_cast<std::int64_t>(i);
        }
        return -1;
    }
    bool begins_with(const call_form& form) const { return !calls_.empty() && is_alike(calls_[0], form); }
    std::uint64_t bucket(std::int64_t index) const { return calls_[static_cast<std::size_t>(index)].bucket; }

    /// Whether the calls can be cut: most are calls of the step, and as many of them were written.
    bool fit(const std::vector<call_form>& calls, std::uint64_t span) const
    {
        std::size_t known = 0;
        for (const call_form& each : calls) known += find(each) >= 0 ? 1 : 0;
        return known > 0 && 4 * known >= 3 * calls.size() && 4 * calls.size() * span_ >= 3 * calls_.size() * span;
    }
    /// Whether all are calls of the step in its order, from any of them on, and at least half of them.
    bool is_part(const std::vector<call_form>& calls) const
    {
        if (calls.size() > calls_.size() || 2 * calls.size() < calls_.size()) return false;
        std::int64_t last = -1;
        int turns = 0;
        std::int64_t first = -1;
        for (const call_form& each : calls) {
            std::int64_t at = find(each, last);
            if (at < 0) {
                at = find(each);
                ++turns;
            }
            if (at < 0 || turns > 1 || (turns == 1 && at >= first)) return false;
            if (first < 0) first = at;
            last = at;
        }
        return true;
    }
    bool is_whole(std::size_t calls) const noexcept { return calls == calls_.size(); }

private:
    static bool is_alike(call_form a, const call_form& b)
    {
        a.bucket = b.bucket;
        return a == b;
    }

    std::vector<call_form> calls_;
    std::uint64_t span_ = 0;
};

} // namespace tools
