// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include <collprobe/detail/fixed_array.hpp>
#include <collprobe/record.hpp>

namespace collprobe::detail {

/// Records that nobody has read yet. When it is full the oldest goes. Records are swapped in and out,
/// so that their memory is used again.
class record_queue {
public:
    explicit record_queue(std::size_t room) : records_(room) {}

    /// The record to fill next; `push` then adds it.
    step_record& next() noexcept
    {
        if (size_ == records_.size()) {
            first_ = (first_ + 1) % records_.size();
            --size_;
            ++dropped_;
        }
        return records_[(first_ + size_) % records_.size()];
    }
    void push() noexcept { ++size_; }

    bool pop(step_record& out)
    {
        if (size_ == 0) return false;
        std::swap(out, records_[first_]);
        first_ = (first_ + 1) % records_.size();
        --size_;
        return true;
    }

    std::size_t size() const noexcept { return size_; }
    std::uint64_t dropped() const noexcept { return dropped_; }

private:
    fixed_array<step_record> records_;
    std::size_t first_ = 0;
    std::size_t size_ = 0;
    std::uint64_t dropped_ = 0;
};

} // namespace collprobe::detail
