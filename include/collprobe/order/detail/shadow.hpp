// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <collprobe/order/stream.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// One access of a line (a stream or a host thread). An epoch is used once; 0 means no access.
struct order_access {
    std::uint64_t epoch = 0;
    std::uint32_t line = 0;
    std::uint32_t what = 0; ///< the number of its name and call site
};

/// The last accesses to a run of bytes.
struct order_segment {
    order_access write;
    std::vector<order_access> reads; ///< since the write; at most one per line
    std::uint64_t generation = 0; ///< of the written content
    bool released = false; ///< the write is a release, and the bytes were not allocated since
};

/// An interval map from bytes to their last accesses. A run is split where an access begins or ends; runs that are
/// written together become one.
///
/// Cost: a binary search for an access to the same bytes as before; about a microsecond for a new run among 10^5. The
/// runs are in chunks of up to 128, so an insertion moves few of them.
class order_shadow {
public:
    order_shadow() = default;
    order_shadow(const order_shadow&) = delete;
    order_shadow& operator=(const order_shadow&) = delete;
    ~order_shadow()
    {
        for (chunk& each : chunks_) {
            for (const entry& run : each.runs) delete run.state;
        }
        for (order_segment* const free : free_) delete free;
    }

    std::size_t segments() const noexcept { return count_; }

    /// Calls `body(first, end, segment)` for the known part of each run in `range`; splits no runs.
    template <class Body>
    void look(memory_range range, Body body)
    {
        if (range.bytes == 0) return;
        for (place at = find(range.first); valid(at); step(at)) {
            const entry& run = get(at);
            if (run.first >= range.end()) return;
            body(run.first > range.first ? run.first : range.first, run.end < range.end() ? run.end : range.end(),
                *run.state);
        }
    }

    /// As `look`, for runs that together cover `range`: unknown bytes become known runs without accesses.
    template <class Body>
    void visit(memory_range range, Body body)
    {
        if (range.bytes == 0) return;
        place at = split(range);
        for (std::uintptr_t first = range.first; first < range.end(); step(at)) {
            if (!valid(at) || get(at).first > first) {
                const std::uintptr_t gap_end
                    = valid(at) && get(at).first < range.end() ? get(at).first : range.end();
                at = insert(at, {first, gap_end, take()});
            }
            const entry& run = get(at);
            body(run.first, run.end, *run.state);
            first = run.end;
        }
    }

    /// Calls `check(first, end, segment)` for the known runs of `range`, and makes `range` one run.
    template <class Check>
    order_segment& replace(memory_range range, Check check)
    {
        place at = split(range);
        const place first = at;
        std::size_t covered = 0;
        for (; valid(at) && get(at).first < range.end(); step(at), ++covered) {
            check(get(at).first, get(at).end, *get(at).state);
        }
        if (covered == 0) {
            const place made = insert(first, {range.first, range.end(), take()});
            return *get(made).state;
        }
        entry& run = get(first);
        run.first = range.first;
        run.end = range.end();
        if (first.index == 0) chunks_[first.chunk].first = range.first;
        order_segment& state = *run.state;
        if (covered > 1) {
            place second = first;
            step(second);
            erase(second, covered - 1);
        }
        return state;
    }

    /// Forgets the accesses to `range`.
    void forget(memory_range range)
    {
        if (range.bytes == 0) return;
        place at = split(range);
        const place first = at;
        std::size_t covered = 0;
        for (; valid(at) && get(at).first < range.end(); step(at)) ++covered;
        erase(first, covered);
    }

private:
    struct entry {
        std::uintptr_t first;
        std::uintptr_t end;
        order_segment* state;
    };
    struct chunk {
        std::uintptr_t first; ///< of its first run
        std::vector<entry> runs; ///< never empty
    };
    struct place {
        std::size_t chunk;
        std::size_t index;
    };
    static constexpr std::size_t most = 128;

    bool valid(place at) const noexcept { return at.chunk < chunks_.size(); }
    entry& get(place at) noexcept { return chunks_[at.chunk].runs[at.index]; }
    void step(place& at) const noexcept
    {
        if (++at.index < chunks_[at.chunk].runs.size()) return;
        at.index = 0;
        ++at.chunk;
    }

    /// The first run that ends after `byte`.
    place find(std::uintptr_t byte) const noexcept
    {
        std::size_t low = 0;
        for (std::size_t high = chunks_.size(); high - low > 1;) {
            const std::size_t middle = low + (high - low) / 2;
            (chunks_[middle].first <= byte ? low : high) = middle;
        }
        if (chunks_.empty()) return {0, 0};
        const std::vector<entry>& runs = chunks_[low].runs;
        std::size_t index = 0;
        for (std::size_t high = runs.size(); index < high;) {
            const std::size_t middle = index + (high - index) / 2;
            if (runs[middle].end <= byte) index = middle + 1;
            else high = middle;
        }
        return index < runs.size() ? place{low, index} : place{low + 1, 0};
    }

    /// Splits runs at the beginning and the end of `range`. Returns the first run in or after `range`.
    place split(memory_range range)
    {
        place at = find(range.first);
        if (valid(at) && get(at).first < range.first) at = cut(at, range.first);
        if (valid(at) && get(at).first >= range.first && get(at).end == range.end()) return at;
        const place last = find(range.end());
        if (valid(last) && get(last).first < range.end()) {
            cut(last, range.end());
            at = find(range.first); // the cut may have split a chunk
        }
        return at;
    }
    /// Cuts a run in two; returns the place of the second part.
    place cut(place at, std::uintptr_t border)
    {
        entry& run = get(at);
        order_segment* const copy = take();
        copy->write = run.state->write;
        copy->reads = run.state->reads;
        copy->generation = run.state->generation;
        copy->released = run.state->released;
        const entry behind{border, run.end, copy};
        run.end = border;
        ++at.index;
        return insert(at, behind);
    }

    place insert(place at, entry run)
    {
        if (chunks_.empty()) chunks_.push_back({run.first, {}});
        if (!valid(at)) at = {chunks_.size() - 1, chunks_.back().runs.size()};
        if (chunks_[at.chunk].runs.size() == most) {
            std::vector<entry>& full = chunks_[at.chunk].runs;
            chunk half{full[most / 2].first, {}};
            half.runs.reserve(most);
            half.runs.assign(full.begin() + most / 2, full.end());
            full.resize(most / 2);
            chunks_.insert(chunks_.begin() + static_cast<std::ptrdiff_t>(at.chunk) + 1, std::move(half));
            if (at.index > most / 2) at = {at.chunk + 1, at.index - most / 2};
        }
        chunk& here = chunks_[at.chunk];
        here.runs.insert(here.runs.begin() + static_cast<std::ptrdiff_t>(at.index), run);
        if (at.index == 0) here.first = run.first;
        ++count_;
        return at;
    }
    void erase(place at, std::size_t runs)
    {
        count_ -= runs;
        while (runs > 0) {
            chunk& here = chunks_[at.chunk];
            const std::size_t left = here.runs.size() - at.index;
            const std::size_t now = runs < left ? runs : left;
            const auto first = here.runs.begin() + static_cast<std::ptrdiff_t>(at.index);
            for (auto each = first; each != first + static_cast<std::ptrdiff_t>(now); ++each) give_back(each->state);
            here.runs.erase(first, first + static_cast<std::ptrdiff_t>(now));
            runs -= now;
            if (here.runs.empty()) {
                chunks_.erase(chunks_.begin() + static_cast<std::ptrdiff_t>(at.chunk));
            } else {
                here.first = here.runs.front().first;
                if (at.index == here.runs.size()) ++at.chunk;
            }
            if (runs > 0) at.index = 0;
        }
    }

    order_segment* take()
    {
        if (free_.empty()) return new order_segment;
        order_segment* const found = free_.back();
        free_.pop_back();
        return found;
    }
    /// Keeps a segment for reuse, with the memory of its reads.
    void give_back(order_segment* state)
    {
        state->write = {};
        state->reads.clear();
        state->generation = 0;
        state->released = false;
        free_.push_back(state);
    }

    std::vector<chunk> chunks_;
    std::vector<order_segment*> free_;
    std::size_t count_ = 0;
};

} // namespace collprobe::detail
