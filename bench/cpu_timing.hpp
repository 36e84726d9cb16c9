// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What benchmarks share: clocks, medians and data.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <vector>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/detail/math.hpp>

namespace collprobe::bench {

/// Of the calling thread: others' work on the machine costs cache and bandwidth, but not time slices.
inline double processor_seconds()
{
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}
inline double real_seconds()
{
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// By the clock `now`.
template <class Body>
double seconds(Body body, double (*now)() = &processor_seconds)
{
    const double start = now();
    body();
    return now() - start;
}

template <class T>
T median(std::vector<T> values)
{
    if (values.empty()) return {};
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

/// Elements like those of a gradient: mean 0, no zeros, no NaN; integers take all values. A body for `for_each`.
template <element T>
struct fill_like_gradient {
    T* to;
    std::uint64_t seed = 0;
    COLLPROBE_HD void operator()(std::uint64_t index) const
    {
        const std::uint64_t bits = detail::mix64(seed + index + 1);
        if constexpr (floating_element<T>) {
            double sum = -2.0;
            for (int shift = 0; shift < 64; shift += 16) sum += static_cast<double>((bits >> shift) & 0xffff) / 65536.0;
            to[index] = T(sum * 0.01 + 1e-6);
        } else {
            to[index] = static_cast<T>(bits);
        }
    }
};

template <class T>
std::vector<T> gradient_like(std::size_t count, std::uint64_t seed = 1)
{
    std::vector<T> result(count);
    const fill_like_gradient<T> fill{result.data(), seed};
    for (std::size_t i = 0; i < count; ++i) fill(i);
    return result;
}

} // namespace collprobe::bench
