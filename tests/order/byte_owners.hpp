// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <map>

/// The bounds of allocations by brute force: each byte has the number of its outermost allocation.
namespace collprobe::testing {

template <std::size_t all>
class byte_owners {
public:
    void allocate(std::size_t first, std::size_t count)
    {
        told_[first] = count;
        if (is_within_one(first, count)) return;
        forget_overlapped(first, count);
        ++last_;
        for (std::size_t i = first; i < first + count; ++i) owner_[i] = last_;
    }
    void release(std::size_t first, std::size_t count, bool stays_unused)
    {
        const bool is_inner = told_.contains(first) && told_[first] == count && is_within_one(first, count)
            && size_of_owner(first) != count;
        told_.erase(first);
        if (is_inner) return;
        if (!stays_unused) return forget_overlapped(first, count);
        // What is left behind the part is another allocation than what is left before it.
        const std::size_t end = first + count;
        const int behind = end < all ? owner_[end] : 0;
        const bool splits = behind != 0 && behind == owner_[end - 1];
        ++last_;
        for (std::size_t i = end; splits && i < all && owner_[i] == behind; ++i) owner_[i] = last_;
        for (std::size_t i = first; i < end; ++i) owner_[i] = 0;
    }
    /// How many of the bytes are behind the end of the allocation in which they begin.
    std::size_t beyond(std::size_t first, std::size_t count) const
    {
        if (owner_[first] == 0) return 0;
        std::size_t held = 0;
        while (held < count && owner_[first + held] == owner_[first]) ++held;
        return count - held;
    }
    std::size_t size_of_owner(std::size_t byte) const
    {
        std::size_t size = 0;
        for (const int each : owner_) size += each == owner_[byte] ? 1 : 0;
        return size;
    }

private:
    bool is_within_one(std::size_t first, std::size_t count) const
    {
        return owner_[first] != 0 && beyond(first, count) == 0;
    }
    void forget_overlapped(std::size_t first, std::size_t count)
    {
        for (std::size_t i = first; i < first + count; ++i) {
            const int ended = owner_[i];
            for (int& each : owner_) {
                if (each == ended) each = 0;
            }
        }
    }

    std::array<int, all> owner_{}; ///< 0: none
    int last_ = 0;
    std::map<std::size_t, std::size_t> told_; ///< by first byte, the bytes of the last allocation there
};

} // namespace collprobe::testing
