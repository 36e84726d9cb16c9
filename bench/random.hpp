// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>

#include <collprobe/detail/math.hpp>

/// Random numbers that are the same with every standard library, for tables that are committed with their seed.
class random_numbers {
public:
    explicit random_numbers(std::uint64_t seed)
    {
        for (std::uint64_t& word : state_) word = collprobe::detail::mix64(seed += 0x9e3779b97f4a7c15u);
    }
    /// xoshiro256++ (Blackman and Vigna, public domain).
    std::uint64_t bits()
    {
        const std::uint64_t result = rotate(state_[0] + state_[3], 23) + state_[0];
        const std::uint64_t kept = state_[1] << 17;
        state_[2] ^= state_[0];
        state_[3] ^= state_[1];
        state_[1] ^= state_[2];
        state_[0] ^= state_[3];
        state_[2] ^= kept;
        state_[3] = rotate(state_[3], 45);
        return result;
    }
    double uniform() { return (static_cast<double>(bits() >> 11) + 0.5) * 0x1p-53; }
    /// Marsaglia's polar method.
    double normal()
    {
        if (has_spare_) {
            has_spare_ = false;
            return spare_;
        }
        double x = 0;
        double y = 0;
        double square = 2;
        while (!(square < 1)) {
            x = 2 * uniform() - 1;
            y = 2 * uniform() - 1;
            square = x * x + y * y;
        }
        const double scale = std::sqrt(-2 * std::log(square) / square);
        spare_ = y * scale;
        has_spare_ = true;
        return x * scale;
    }
    /// Mean 1, variance 1 / shape; shape >= 1. Marsaglia and Tsang's method.
    double gamma(double shape)
    {
        const double d = shape - 1.0 / 3;
        const double c = 1 / std::sqrt(9 * d);
        for (;;) {
            const double x = normal();
            const double root = 1 + c * x;
            if (root <= 0) continue;
            const double v = root * root * root;
            if (std::log(uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v / shape;
        }
    }
    /// Student's t of so many degrees.
    double student(double degrees) { return normal() / std::sqrt(gamma(degrees / 2)); }

private:
    static std::uint64_t rotate(std::uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }

    std::uint64_t state_[4];
    double spare_ = 0;
    bool has_spare_ = false;
};
