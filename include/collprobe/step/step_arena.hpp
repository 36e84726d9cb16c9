// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/core/view.hpp>
#include <collprobe/detail/overlap.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// Device memory for the calls of a step: `take` gives out runs of elements, `clear` takes all back. A run stays where
/// it is. What a step took is in few pieces, each twice as large as the one before; they are allocated once and kept.
/// If no run is larger than `least`, where a run lies depends on the runs before it alone, so all ranks have the same.
template <class Device, class T>
class step_arena {
public:
    /// `least`: size of the first piece, in elements.
    explicit step_arena(std::uint64_t least) : next_size_(least) {}

    T* take(std::uint64_t count)
    {
        std::size_t at = 0;
        while (at < pieces_.size() && pieces_[at].memory.size() - pieces_[at].used < count) ++at;
        if (at == pieces_.size()) {
            while (next_size_ < count) next_size_ *= 2;
            pieces_.push_back({typename Device::template buffer<T>(next_size_), 0});
            next_size_ *= 2;
        }
        piece& from = pieces_[at];
        from.used += count;
        return from.memory.data() + (from.used - count);
    }
    /// Takes back a run, the last of those that are out. Does nothing with memory from elsewhere.
    void take_back(const void* run) noexcept
    {
        for (piece& each : pieces_) {
            if (overlap(each.memory.data(), each.used * sizeof(T), run, 1))
                each.used = static_cast<std::uint64_t>(static_cast<const T*>(run) - each.memory.data());
        }
    }
    void clear() noexcept { for (piece& each : pieces_) each.used = 0; }
    /// Calls `use(view)` for what was taken of each piece.
    void for_each_used(const auto& use) const
    {
        for (const piece& each : pieces_)
            if (each.used != 0) use(view<T>(each.memory.data(), each.used));
    }

private:
    struct piece {
        typename Device::template buffer<T> memory;
        std::uint64_t used = 0;
    };
    std::vector<piece> pieces_;
    std::uint64_t next_size_;
};

} // namespace collprobe::detail
