// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// A borrowed run of elements: a pointer and a count of *elements* (never bytes). The caller owns the memory, which
/// may be a device's. Copy the view freely; it owns nothing. Memory of a foreign type (`foreign_element`) has the
/// element type of its layout: `view(pointer, count)` of a `__nv_bfloat16*` is a `view<bfloat16>`.
/// Shapes: counts are 64 bits. A null pointer is legal with a count of 0; functions that take a view refuse it with
/// any other count.
/// Preconditions: `data` is aligned for T, a multiple of `alignof(T)`. The memory of any container is aligned; a
/// place within a run of bytes may not be. An access to a misaligned element is undefined behaviour, and ends a
/// kernel on a GPU. Communicators and probes refuse such a view by the name of the argument
/// (`status::invalid_argument`): copy the elements to an aligned buffer first. (A digest reads bytes and takes any
/// address.)
template <class T>
class view {
    static_assert(std::is_same_v<detail::element_for<T>, T>,
        "a view has the library's own element types: write view(pointer, count) without the type in <>");

    template <class Same>
    static constexpr bool is_seen_as_mine
        = std::is_same_v<std::remove_const_t<detail::element_for<Same>>, std::remove_const_t<T>>
        && std::is_convertible_v<detail::element_for<Same>*, T*>;

public:
    using element_type = T;
    using value_type = std::remove_cv_t<T>;

    constexpr view() = default;
    COLLPROBE_HD constexpr view(T* data, std::uint64_t count) noexcept : data_(data), count_(count) {}
    template <class Foreign>
        requires(!std::is_same_v<detail::element_for<Foreign>, Foreign> && is_seen_as_mine<Foreign>)
    COLLPROBE_HD view(Foreign* data, std::uint64_t count) noexcept : data_(reinterpret_cast<T*>(data)), count_(count)
    {
    }

    /// A view of constants from one of variables.
    template <class Variable>
        requires(std::is_same_v<const Variable, T> && !std::is_const_v<Variable>)
    COLLPROBE_HD constexpr view(const view<Variable>& other) noexcept
        : data_(other.data()), count_(other.count())
    {
    }

    /// From any object that holds its elements in one run: `std::vector`, `std::array`, `std::span`, a buffer of this
    /// library. Host only.
    template <class Range>
        requires(!std::is_same_v<std::remove_cvref_t<Range>, view<T>>
            && !std::is_same_v<std::remove_cvref_t<Range>, view<std::remove_const_t<T>>>
            && requires(Range&& range) {
                   { range.size() } -> std::convertible_to<std::size_t>;
                   requires is_seen_as_mine<std::remove_pointer_t<decltype(range.data())>>;
               })
    constexpr view(Range&& range) noexcept : view(range.data(), static_cast<std::uint64_t>(range.size()))
    {
    }

    COLLPROBE_HD constexpr T* data() const noexcept { return data_; }
    COLLPROBE_HD constexpr std::uint64_t count() const noexcept { return count_; }
    /// The same as `count()`, for code that expects a container.
    COLLPROBE_HD constexpr std::size_t size() const noexcept { return static_cast<std::size_t>(count_); }
    COLLPROBE_HD constexpr std::uint64_t size_bytes() const noexcept { return count_ * sizeof(T); }
    COLLPROBE_HD constexpr bool empty() const noexcept { return count_ == 0; }

    /// Whether the elements are aligned for T; true if there are none.
    COLLPROBE_HD bool aligned() const noexcept
    {
        return count_ == 0 || reinterpret_cast<std::uintptr_t>(data_) % alignof(T) == 0;
    }

    COLLPROBE_HD constexpr T* begin() const noexcept { return data_; }
    COLLPROBE_HD constexpr T* end() const noexcept { return data_ + count_; }
    COLLPROBE_HD constexpr T& operator[](std::uint64_t index) const noexcept { return data_[index]; }

    /// The `count` elements from `first` on. Precondition: `first + count <= this->count()`.
    COLLPROBE_HD constexpr view part(std::uint64_t first, std::uint64_t count) const noexcept
    {
        return count == 0 ? view(data_, 0) : view(data_ + first, count);
    }

private:
    T* data_ = nullptr;
    std::uint64_t count_ = 0;
};

template <class Range>
view(Range&&) -> view<detail::element_for<std::remove_pointer_t<decltype(std::declval<Range&>().data())>>>;
template <class T>
view(T*, std::uint64_t) -> view<detail::element_for<T>>;

} // namespace collprobe
