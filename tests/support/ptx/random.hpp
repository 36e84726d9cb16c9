// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace ptx {

/// SplitMix64: the same numbers for the same seed.
class random_numbers {
public:
    explicit random_numbers(std::uint64_t seed = 0) : state_(seed) {}

    std::uint64_t operator()()
    {
        std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        return z ^ z >> 31;
    }
    /// One of 0 to n - 1.
    std::uint64_t below(std::uint64_t n) { return (*this)() % n; }
    bool one_in(std::uint64_t n) { return below(n) == 0; }

private:
    std::uint64_t state_;
};

} // namespace ptx
