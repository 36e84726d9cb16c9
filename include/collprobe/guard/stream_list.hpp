// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <initializer_list>

#include <collprobe/core/config.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// A list of streams, borrowed for the time of a call: `{}`, `{compute}`, `{compute, copies}`, or a vector of
/// references. A stream may be in it more than once.
template <class StreamRef>
class stream_list {
public:
    constexpr stream_list() noexcept = default;
    constexpr stream_list(std::initializer_list<StreamRef> streams) noexcept : size_(streams.size())
    {
        data_ = streams.begin(); // not in an initialiser, where g++ warns; the array lives as long as the call
    }
    /// From any container that holds stream references contiguously.
    template <class Range>
        requires requires(const Range& range) {
            static_cast<const StreamRef*>(range.data());
            static_cast<std::size_t>(range.size());
        }
    constexpr stream_list(const Range& range) noexcept : data_(range.data()), size_(range.size())
    {
    }

    constexpr const StreamRef* begin() const noexcept { return data_; }
    constexpr const StreamRef* end() const noexcept { return data_ + size_; }
    constexpr bool empty() const noexcept { return size_ == 0; }

private:
    const StreamRef* data_ = nullptr;
    std::size_t size_ = 0;
};

} // namespace collprobe
