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

#include <collprobe/core/element.hpp>

#include "gradient_like.hpp"

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

template <class T>
std::vector<T> gradient_like(std::size_t count, std::uint64_t seed = 1)
{
    std::vector<T> result(count);
    const fill_like_gradient<T> fill{result.data(), seed};
    for (std::size_t i = 0; i < count; ++i) fill(i);
    return result;
}

} // namespace collprobe::bench
