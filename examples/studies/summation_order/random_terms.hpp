// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include <collprobe/core/element.hpp>
#include <collprobe/detail/math.hpp>

/// Random terms of sums. A term depends on the seed, its rank and its element alone, so any part of a message can be
/// drawn at any time.
namespace summation {

using namespace collprobe;

enum class input_kind { normal, same_sign, heavy, wide, cancelling };

inline constexpr const char* input_names[] = {"normal", "same_sign", "heavy", "wide", "cancelling"};
inline const char* name(input_kind kind) { return input_names[static_cast<std::size_t>(kind)]; }

class random_terms {
public:
    random_terms(input_kind kind, std::uint64_t seed, int ranks) : kind_(kind), seed_(seed), ranks_(ranks) {}

    /// normal: N(0, 1). same_sign: its magnitude. heavy: Student's t with 2 degrees of freedom, whose variance is infinite.
    /// wide: N(0, 1) times 2^k with k drawn from -20 .. 20. cancelling: N(0, 1), and 1024 of another N(0, 1) that is the
    /// same for two neighbours but for the sign.
    double operator()(int rank, std::uint64_t element) const
    {
        const std::uint64_t own = bits(static_cast<std::uint64_t>(rank) + 1, element);
        switch (kind_) {
        case input_kind::normal: return normal(own);
        case input_kind::same_sign: return std::abs(normal(own));
        case input_kind::heavy: {
            const double u = uniform(own);
            return (2 * u - 1) / std::sqrt(2 * u * (1 - u));
        }
        case input_kind::wide: return std::ldexp(normal(own), static_cast<int>(detail::mix64(own + 2) % 41) - 20);
        case input_kind::cancelling: {
            if (rank == ranks_ - 1 && rank % 2 == 0) return normal(own); // has no neighbour
            const double common = 1024 * normal(bits(~(static_cast<std::uint64_t>(rank) / 2), element));
            return normal(own) + (rank % 2 == 0 ? common : -common);
        }
        }
        return 0;
    }

private:
    std::uint64_t bits(std::uint64_t stream, std::uint64_t element) const
    {
        return detail::mix64(detail::mix64(detail::mix64(seed_ + golden) ^ stream * golden) + element * golden);
    }
    /// Within (0, 1).
    static double uniform(std::uint64_t from) { return (static_cast<double>(from >> 12) + 0.5) * 0x1p-52; }
    /// Source: G. Box, M. Muller, "A note on the generation of random normal deviates" (1958).
    static double normal(std::uint64_t from)
    {
        constexpr double turn = 6.283185307179586;
        return std::sqrt(-2 * std::log(uniform(from))) * std::cos(turn * uniform(detail::mix64(from + 1)));
    }

    static constexpr std::uint64_t golden = 0x9e3779b97f4a7c15u;
    input_kind kind_;
    std::uint64_t seed_;
    int ranks_;
};

} // namespace summation
