// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/detail/math.hpp>

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

/// The random bits of one quantisation: a function of the seed, the step, the call, the phase of the call,
/// the rank and the element. So they do not depend on how a kernel is launched or a buffer is cut, and differ
/// between ranks and steps.
struct dither {
    std::uint64_t seed = 0;
    const std::uint64_t* step
        = nullptr; ///< in the device's memory, so that a captured graph reads a new one each time
    std::uint32_t rank = 0;
    std::uint32_t call = 0; ///< 8 times the call's number in its step, plus the phase

    COLLPROBE_HD std::uint64_t key() const noexcept
    {
        return mix64(seed ^ mix64((step == nullptr ? 0 : *step) + 0x9e3779b97f4a7c15u));
    }
    /// The bits of elements 8 * `eighth` to 8 * `eighth` + 7.
    COLLPROBE_HD philox of_eight(std::uint64_t key, std::uint64_t eighth) const noexcept
    {
        return philox::of(
            static_cast<std::uint32_t>(eighth), static_cast<std::uint32_t>(eighth >> 32), rank, call, key);
    }
};

} // namespace collprobe::inline COLLPROBE_ABI::detail
