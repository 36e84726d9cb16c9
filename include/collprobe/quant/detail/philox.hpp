// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// Philox 4x32 with 10 rounds: 128 random bits as a pure function of a counter and a key.
/// Source: J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011).
struct philox {
    std::uint32_t word[4];

    COLLPROBE_HD static constexpr philox of(
        std::uint32_t c0, std::uint32_t c1, std::uint32_t c2, std::uint32_t c3, std::uint64_t key) noexcept
    {
        auto k0 = static_cast<std::uint32_t>(key);
        auto k1 = static_cast<std::uint32_t>(key >> 32);
        for (int round = 0; round < 10; ++round) {
            const std::uint64_t a = std::uint64_t{0xd2511f53u} * c0;
            const std::uint64_t b = std::uint64_t{0xcd9e8d57u} * c2;
            c0 = static_cast<std::uint32_t>(b >> 32) ^ c1 ^ k0;
            c1 = static_cast<std::uint32_t>(b);
            c2 = static_cast<std::uint32_t>(a >> 32) ^ c3 ^ k1;
            c3 = static_cast<std::uint32_t>(a);
            k0 += 0x9e3779b9u;
            k1 += 0xbb67ae85u;
        }
        return {{c0, c1, c2, c3}};
    }

    /// Number `lane` of eight, of 16 bits.
    COLLPROBE_HD constexpr std::uint32_t bits16(unsigned lane) const noexcept
    {
        return word[lane / 2] >> (16 * (lane % 2)) & 0xffffu;
    }
};

} // namespace collprobe::inline COLLPROBE_ABI::detail
