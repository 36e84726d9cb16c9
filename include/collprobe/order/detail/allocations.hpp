// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <iterator>
#include <map>

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
        const auto behind = outer_.upper_bound(byte);
        if (behind == outer_.begin() || std::prev(behind)->second <= byte) return {};
        return memory_range::between(std::prev(behind)->first, std::prev(behind)->second);
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
        erase(range); // what overlaps it has ended without a word
        outer_[range.first] = range.end();
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
        erase(range);
        if (!stays_unused) return;
        // At most one allocation reaches beyond either end of the range.
        if (last.bytes != 0 && last.end() > range.end()) outer_[range.end()] = last.end();
        if (outer.bytes != 0 && outer.first < range.first) outer_[outer.first] = range.first;
    }

private:
    static bool within(memory_range inner, memory_range outer) noexcept
    {
        return outer.bytes != 0 && inner.first >= outer.first && inner.bytes <= outer.end() - inner.first;
    }
    /// Erases all that overlap `range`.
    void erase(memory_range range)
    {
        auto first = outer_.upper_bound(range.first);
        if (first != outer_.begin() && std::prev(first)->second > range.first) --first;
        outer_.erase(first, outer_.lower_bound(range.end()));
    }

    std::map<std::uintptr_t, std::uintptr_t> outer_; ///< disjoint: from the first byte to the end
    order_table<std::uint64_t> sizes_; ///< by address
};

} // namespace collprobe::detail
