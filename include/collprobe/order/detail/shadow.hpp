// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <vector>

#include <collprobe/order/stream.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// One access of an actor (a stream or a host thread). An epoch is used once; 0 means no access.
struct order_access {
    std::uint64_t epoch = 0;
    std::uint32_t actor = 0;
    std::uint32_t what = 0; ///< the number of its name and call site
};

/// The last accesses to a run of bytes.
struct order_segment {
    order_access write;
    std::vector<order_access> reads; ///< since the write; at most one per actor
    bool released = false; ///< the write is a release, and the bytes were not allocated since
};

/// An interval map from bytes to their last accesses. A run is split where an access begins or ends; runs that are
/// written together become one. An access to the same bytes as before allocates nothing.
class order_shadow {
public:
    /// Calls `body(bytes, segment)` for the known part of each run in `range`; splits no runs.
    template <class Body>
    void look(memory_range range, Body body)
    {
        if (range.bytes == 0) return;
        auto at = runs_.upper_bound(range.first);
        if (at != runs_.begin() && std::prev(at)->second.end > range.first) --at;
        for (; at != runs_.end() && at->first < range.end(); ++at) {
            const std::uintptr_t first = at->first > range.first ? at->first : range.first;
            const std::uintptr_t end = at->second.end < range.end() ? at->second.end : range.end();
            body(memory_range::between(first, end), at->second.state);
        }
    }

    /// As `look`, for runs that together cover `range`: unknown bytes become known runs without accesses.
    template <class Body>
    void visit(memory_range range, Body body)
    {
        if (range.bytes == 0) return;
        auto at = split(range);
        for (std::uintptr_t first = range.first; first < range.end(); ++at) {
            if (at == runs_.end() || at->first > first) {
                const bool has_next = at != runs_.end() && at->first < range.end();
                at = runs_.emplace_hint(at, first, run{has_next ? at->first : range.end(), {}});
            }
            body(memory_range::between(first, at->second.end), at->second.state);
            first = at->second.end;
        }
    }

    /// Calls `check(bytes, segment)` for the known runs of `range`, which is not empty, and makes it one run.
    /// Returns its segment, which may have the accesses of the first of those runs.
    template <class Check>
    order_segment& replace(memory_range range, Check check)
    {
        const auto first = split(range);
        auto last = first;
        for (; last != runs_.end() && last->first < range.end(); ++last)
            check(memory_range::between(last->first, last->second.end), last->second.state);
        if (first == last || first->first != range.first)
            return runs_.emplace_hint(runs_.erase(first, last), range.first, run{range.end(), {}})->second.state;
        first->second.end = range.end();
        runs_.erase(std::next(first), last);
        return first->second.state;
    }

    /// Forgets the accesses to `range`.
    void forget(memory_range range)
    {
        if (range.bytes == 0) return;
        const auto first = split(range);
        runs_.erase(first, runs_.lower_bound(range.end()));
    }

private:
    struct run {
        std::uintptr_t end;
        order_segment state;
    };
    using run_map = std::map<std::uintptr_t, run>; ///< by first byte

    /// Splits runs at the beginning and the end of `range`. Returns the first run in or after `range`.
    run_map::iterator split(memory_range range)
    {
        if (const auto at = runs_.find(range.first); at != runs_.end() && at->second.end == range.end()) return at;
        (void)cut(range.end());
        return cut(range.first);
    }
    /// Splits the run that holds the bytes on both sides of `border`, if one does. Returns the first run from there on.
    run_map::iterator cut(std::uintptr_t border)
    {
        const auto at = runs_.lower_bound(border);
        if (at == runs_.begin() || std::prev(at)->second.end <= border) return at;
        run& before = std::prev(at)->second;
        const run behind = before;
        before.end = border;
        return runs_.emplace_hint(at, border, behind);
    }

    run_map runs_;
};

} // namespace collprobe::detail
