// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include <collprobe/core/config.hpp>

/// Random numbers that are a function of their seed alone, on every machine and standard library.
namespace trainer {

/// A seed from another one and a number: independent streams for steps, ranks and layers.
COLLPROBE_HD inline std::uint64_t derive(std::uint64_t seed, std::uint64_t number)
{
    std::uint64_t value = seed + 0x9e3779b97f4a7c15u * (number + 1);
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
}

/// 64 random bits as a number in [0, 1).
COLLPROBE_HD inline double uniform(std::uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

/// Number k, from 0 on, has the bits `derive(seed, k)`: a device gets it without those before.
class random_stream {
public:
    explicit random_stream(std::uint64_t seed) : seed_(seed) {}

    std::uint64_t next() { return derive(seed_, count_++); }
    /// In [0, 1).
    double uniform() { return trainer::uniform(next()); }
    /// Below `limit`, which is above 0 and far below 2^64.
    std::size_t below(std::size_t limit) { return static_cast<std::size_t>(next() % limit); }
    /// Standard normal (Box and Muller).
    double normal()
    {
        const double radius = std::sqrt(-2 * std::log(1 - uniform()));
        return radius * std::cos(6.283185307179586 * uniform());
    }

private:
    std::uint64_t seed_;
    std::uint64_t count_ = 0;
};

/// 0, 1, ..., count - 1 in random order (Fisher and Yates).
inline std::vector<std::size_t> random_order(std::size_t count, std::uint64_t seed)
{
    std::vector<std::size_t> order(count);
    std::iota(order.begin(), order.end(), std::size_t{0});
    random_stream random(seed);
    for (std::size_t left = count; left > 1; --left) std::swap(order[left - 1], order[random.below(left)]);
    return order;
}

} // namespace trainer
