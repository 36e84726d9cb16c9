// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include <collprobe/core/config.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/ref.hpp>

/// The types in which the device and communicator layers report to the checker of stream order
/// (order/stream_order.hpp), and the point that an event carries for it.
namespace collprobe::inline COLLPROBE_ABI {

/// The order of a stream with other streams, without events.
enum class stream_kind : std::uint8_t {
    independent, ///< no order
    blocking, ///< ordered with CUDA's legacy default stream
    legacy, ///< the legacy default stream itself: ordered with all blocking streams of its `space`
};

/// The source of a stream's number: the caller, or a device.
struct stream_space {
    std::uint32_t number = 0;

    static constexpr stream_space of_host() noexcept { return {1}; }
    static constexpr stream_space of_cuda(int device) noexcept { return {2 + static_cast<std::uint32_t>(device)}; }
    friend bool operator==(stream_space, stream_space) = default;
};

/// A stream as the checker knows it. `number`, `space` and `thread` together identify one stream for ever. A handle
/// would not, because handles are reused.
struct order_stream {
    std::uint64_t number = 0;
    stream_space space{};
    std::uint64_t thread = 0; ///< the owner of a stream that belongs to a thread; else 0
    std::uint64_t capture = 0; ///< the number of the capture under way on the stream; 0 if none
    stream_kind kind = stream_kind::independent;
};

/// A run of bytes.
struct memory_range {
    std::uintptr_t first = 0;
    std::uint64_t bytes = 0;

    memory_range() = default;
    /// A range that would wrap around ends at the end of the addresses.
    memory_range(const void* data, std::uint64_t size) noexcept
        : first(reinterpret_cast<std::uintptr_t>(data)), bytes(size < UINTPTR_MAX - first ? size : UINTPTR_MAX - first)
    {
    }
    template <class T>
    memory_range(view<T> elements) noexcept : memory_range(elements.data(), elements.size_bytes())
    {
    }
    static memory_range between(std::uintptr_t begin, std::uintptr_t end) noexcept
    {
        memory_range range;
        range.first = begin;
        range.bytes = end - begin;
        return range;
    }
    std::uintptr_t end() const noexcept { return first + bytes; }
};

/// `count` runs of `bytes` bytes whose beginnings are `stride` bytes apart: the rows of a matrix with a pitch, or each
/// n-th element.
struct strided_range {
    const void* data = nullptr;
    std::uint64_t bytes = 0;
    std::uint64_t stride = 0;
    std::uint64_t count = 1;

    /// From the first byte to the last one, with the gaps.
    memory_range whole() const noexcept
    {
        return {data, count == 0 || bytes == 0 ? 0 : (count - 1) * stride + bytes};
    }
};

/// The bytes that an operation reads, or writes: a list of ranges in braces, a `std::vector` or span of ranges, or a
/// `strided_range`. For parameters: it borrows a list for the time of a call.
class memory_ranges {
public:
    memory_ranges() noexcept = default;
    memory_ranges(std::initializer_list<memory_range> list) noexcept : memory_ranges(list.begin(), list.size()) {}
    memory_ranges(const memory_range* first, std::size_t count) noexcept : first_(first), count_(count) {}
    template <class List>
        requires requires(const List& list) {
            static_cast<const memory_range*>(list.data());
            list.size();
        }
    memory_ranges(const List& list) noexcept : first_(list.data()), count_(list.size())
    {
    }
    memory_ranges(const strided_range& rows) : whole_(rows.whole())
    {
        if (whole_.bytes == 0) return;
        if (rows.stride == rows.bytes) rows_.push_back(whole_);
        const auto* const data = static_cast<const unsigned char*>(rows.data);
        for (std::uint64_t row = 0; row < rows.count && rows.stride != rows.bytes; ++row)
            rows_.push_back({data + row * rows.stride, rows.bytes});
        first_ = rows_.data();
        count_ = rows_.size();
    }
    memory_ranges(const memory_ranges&) = delete;
    memory_ranges& operator=(const memory_ranges&) = delete;

    const memory_range* begin() const noexcept { return first_; }
    const memory_range* end() const noexcept { return first_ + count_; }
    /// Of a `strided_range`, which must lie within one allocation as a whole; else empty.
    const memory_range& whole() const noexcept { return whole_; }

private:
    const memory_range* first_ = nullptr;
    std::size_t count_ = 0;
    std::vector<memory_range> rows_;
    memory_range whole_;
};

namespace detail {

/// The work that a stream or a host thread knows to be done: for each actor (stream or host thread) its last operation.
class order_clock {
public:
    bool knows(std::size_t actor, std::uint64_t epoch) const noexcept
    {
        return (actor < epochs_.size() ? epochs_[actor] : 0) >= epoch;
    }
    void join(const order_clock& other)
    {
        if (epochs_.size() < other.epochs_.size()) epochs_.resize(other.epochs_.size());
        std::uint64_t* const own = epochs_.data();
        for (std::size_t actor = 0; actor < other.epochs_.size(); ++actor)
            own[actor] = own[actor] < other.epochs_[actor] ? other.epochs_[actor] : own[actor];
    }
    void advance(std::size_t actor, std::uint64_t epoch)
    {
        if (epochs_.size() <= actor) epochs_.resize(actor + 1);
        epochs_[actor] = epoch;
    }
    void clear() noexcept { epochs_.clear(); }

private:
    std::vector<std::uint64_t> epochs_;
};

} // namespace detail

/// A point in a stream or a host thread, as marked by an event: the work known to be done there. A copy is the same
/// point; recording the original again does not change its copies. One thread at a time may use a point; copies are
/// independent of each other.
class order_point {
public:
    bool recorded() const noexcept { return static_cast<bool>(node_); }
    std::uint64_t capture() const noexcept { return node_->capture; }
    const detail::order_clock& clock() const noexcept { return node_->clock; }
    /// Whether the checker with this number recorded the point: another checker numbers actors differently.
    bool is_of(std::uint64_t checker) const noexcept { return node_ && node_->checker == checker; }

    /// Replaces the earlier point. Allocates only at the first record and while there are copies.
    void record(std::uint64_t checker, std::uint64_t capture, const detail::order_clock& now)
    {
        if (!node_.is_sole()) node_ = detail::make_ref<node>();
        node_->checker = checker;
        node_->capture = capture;
        node_->clock = now;
    }

private:
    struct node : detail::ref_counted {
        std::uint64_t checker = 0;
        std::uint64_t capture = 0;
        detail::order_clock clock;
    };
    detail::ref<node> node_;
};

} // namespace collprobe
