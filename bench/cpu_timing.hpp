// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What benchmarks of reads on one thread share: processor times, medians and data.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <random>
#include <vector>

#include <collprobe/core/element.hpp>

namespace collprobe::bench {

/// Of the calling thread: others' work on the machine costs cache and bandwidth, but not time slices.
inline double processor_seconds()
{
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <class Body>
double seconds(Body body)
{
    const double start = processor_seconds();
    body();
    return processor_seconds() - start;
}

inline double median(std::vector<double> values)
{
    if (values.empty()) return 0;
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

/// Something like a gradient: mean 0, no zeros, no NaN.
template <class T>
std::vector<T> gradient_like(std::size_t count)
{
    std::mt19937_64 random(1);
    std::vector<T> result(count);
    for (T& x : result) {
        const std::uint64_t bits = random();
        if constexpr (floating_element<T>) {
            double sum = -2.0;
            for (int shift = 0; shift < 64; shift += 16) sum += static_cast<double>((bits >> shift) & 0xffff) / 65536.0;
            x = T(sum * 0.01 + 1e-6);
        } else {
            x = static_cast<T>(bits);
        }
    }
    return result;
}

} // namespace collprobe::bench
