// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/sum/accumulation.hpp>
#include <collprobe/sum/detail/add.hpp>
#include <collprobe/sum/detail/column_sum.hpp>
#include <collprobe/sum/detail/error_free.hpp>
#include <collprobe/sum/exact_sum.hpp>

/// The sum of a part of the terms, for each accumulator. Partial sums can be added to each other, so any order can be
/// followed.
namespace collprobe::inline COLLPROBE_ABI::detail {

template <accumulation in, floating_element T>
class partial_sum {
    // float32 and float64; a native sum is kept in T.
    using wide = std::conditional_t<in == accumulation::native, T,
        std::conditional_t<in == accumulation::float32, float, double>>;

public:
    void start(T value) noexcept
    {
        if constexpr (in == accumulation::native) sum_ = value;
        else sum_ = widened_to<wide>(value);
    }
    void add(const partial_sum& other) noexcept { sum_ = detail::add(sum_, other.sum_); }
    T round() const noexcept
    {
        if constexpr (in == accumulation::native) return sum_;
        else return narrowed<T>(sum_);
    }

private:
    wide sum_{};
};

template <floating_element T>
class partial_sum<accumulation::compensated, T> {
    using wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

public:
    void start(T value) noexcept
    {
        sum_ = widened_to<wide>(value);
        lost_ = 0;
    }
    void add(const partial_sum& other) noexcept
    {
        const detail::two_terms<wide> next = detail::two_sum(sum_, other.sum_);
        sum_ = next.high;
        lost_ = rounded_sum(rounded_sum(lost_, other.lost_), next.low);
    }
    T round() const noexcept { return narrowed<T>(compensated(sum_, lost_)); }

private:
    wide sum_ = 0;
    wide lost_ = 0;
};

template <floating_element T>
class partial_sum<accumulation::exact, T> {
public:
    void start(T value) noexcept
    {
        sum_ = {};
        sum_.add(value);
    }
    void add(const partial_sum& other) noexcept { sum_.add(other.sum_); }
    T round() const noexcept { return sum_.round(); }

private:
    exact_sum<T> sum_;
};

} // namespace collprobe::detail
