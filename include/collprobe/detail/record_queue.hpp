// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <collprobe/core/config.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// Records that have not been read yet. A record that is added to a full queue replaces the oldest one. Records are
/// swapped in and out, so that their memory is used again: by as many as have ever waited together, and one more.
template <class Record>
class record_queue {
public:
    explicit record_queue(std::size_t room) : records_(room + 1) {}

    /// The record to fill next. If filling fails, the queue is unchanged; else `push` adds the record.
    Record& next() noexcept { return records_[(first_ + size_) % records_.size()]; }
    void push() noexcept
    {
        if (++size_ < records_.size()) return;
        remove_first();
        ++dropped_;
    }

    bool pop(Record& out)
    {
        if (size_ == 0) return false;
        std::swap(out, records_[first_]);
        remove_first();
        return true;
    }

    std::size_t size() const noexcept { return size_; }
    std::uint64_t dropped() const noexcept { return dropped_; }

private:
    void remove_first() noexcept
    {
        first_ = --size_ == 0 ? 0 : (first_ + 1) % records_.size();
    }

    std::vector<Record> records_; ///< the kept records, and the next one
    std::size_t first_ = 0;
    std::size_t size_ = 0;
    std::uint64_t dropped_ = 0;
};

} // namespace collprobe::detail
