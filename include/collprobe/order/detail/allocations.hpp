// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/order/detail/table.hpp>
#include <collprobe/order/stream.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// The live allocations of which the checker was told. Where another allocator hands on parts of one, the outer one is
/// the allocation, because work on all of it is legal.
class order_allocations {
public:
    /// The outermost allocation that holds the byte; of 0 bytes if there is none.
    memory_range holding(std::uintptr_t byte) const noexcept
    {
        const std::size_t at = behind(byte);
        if (at == 0 || byte >= outer_[at - 1].end()) return {};
        return outer_[at - 1];
    }
    /// The size of the last allocation that began at this address; 0 if there is none or it was released.
    std::uint64_t bytes_at(std::uintptr_t first) const noexcept
    {
        const memory_range outer = holding(first);
        const std::uint64_t of_outer = outer.first == first ? outer.bytes : 0;
        const std::uint64_t* const found = sizes_.find({first});
        if (found == nullptr) return of_outer;
        return of_outer != 0 && of_outer < *found ? of_outer : *found;
    }

    void add(memory_range range)
    {
        if (range.bytes == 0) return;
        sizes_[{range.first}] = range.bytes;
        if (within(range, holding(range.first))) return;
        // What overlaps it has ended without a word.
        outer_.insert(erase(range), range);
    }
    /// With `stays_unused` the rest of an allocation that `range` is a part of remains one. Without it the bytes may be
    /// used by others, so that no bounds of that allocation are known any more.
    void remove(memory_range range, bool stays_unused)
    {
        if (range.bytes == 0) return;
        const memory_range outer = holding(range.first);
        const std::uint64_t* const told = sizes_.find({range.first});
        const bool is_inner = told != nullptr && *told == range.bytes && outer.bytes != range.bytes;
        sizes_.erase({range.first});
        if (is_inner && within(range, outer)) return;
        const memory_range last = holding(range.end() - 1);
        const auto rest = erase(range);
        if (!stays_unused) return;
        // At most one allocation reaches beyond either end of the range.
        const bool keeps_end = last.bytes != 0 && last.end() > range.end();
        const bool keeps_begin = outer.bytes != 0 && outer.first < range.first;
        auto at = rest;
        if (keeps_end) at = outer_.insert(at, memory_range::between(range.end(), last.end()));
        if (keeps_begin) outer_.insert(at, memory_range::between(outer.first, range.first));
    }

private:
    static bool within(memory_range inner, memory_range outer) noexcept
    {
        return outer.bytes != 0 && inner.first >= outer.first && inner.bytes <= outer.end() - inner.first;
    }
    /// The index of the first allocation that begins behind `byte`.
    std::size_t behind(std::uintptr_t byte) const noexcept
    {
        std::size_t low = 0;
        for (std::size_t high = outer_.size(); low < high;) {
            const std::size_t middle = low + (high - low) / 2;
            if (outer_[middle].first <= byte) low = middle + 1;
            else high = middle;
        }
        return low;
    }
    /// Erases all that overlap `range`; returns the place of their successor.
    std::vector<memory_range>::iterator erase(memory_range range)
    {
        std::size_t first = behind(range.first);
        if (first > 0 && outer_[first - 1].end() > range.first) --first;
        std::size_t last = first;
        while (last < outer_.size() && outer_[last].first < range.end()) ++last;
        const auto at = [&](std::size_t index) { return outer_.begin() + static_cast<std::ptrdiff_t>(index); };
        return outer_.erase(at(first), at(last));
    }

    std::vector<memory_range> outer_; ///< ascending and disjoint
    order_table<std::uint64_t> sizes_; ///< by address
};

} // namespace collprobe::detail
