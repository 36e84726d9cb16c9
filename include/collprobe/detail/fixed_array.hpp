// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>

#include <collprobe/core/config.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// An array whose length is chosen once. Its elements are value-initialised and need be neither copyable nor movable.
/// Other than in `std::vector`, a `bool` is an element like others, and a const array's elements can be written.
template <class T>
class fixed_array {
public:
    fixed_array() = default;
    explicit fixed_array(std::size_t count) : data_(new T[count]{}), count_(count) {}
    fixed_array(fixed_array&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), count_(std::exchange(other.count_, std::size_t{0}))
    {
    }
    fixed_array& operator=(fixed_array&& other) noexcept
    {
        std::swap(data_, other.data_);
        std::swap(count_, other.count_);
        return *this;
    }
    ~fixed_array() { delete[] data_; }

    T* data() const noexcept { return data_; }
    std::size_t size() const noexcept { return count_; }
    T* begin() const noexcept { return data_; }
    T* end() const noexcept { return data_ + count_; }
    T& operator[](std::size_t index) const noexcept { return data_[index]; }

private:
    T* data_ = nullptr;
    std::size_t count_ = 0;
};

} // namespace collprobe::detail
