// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/simd/rounding.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// The rotation of a run of 2^k elements: random signs, then the Walsh-Hadamard matrix H in the order of its
/// Kronecker product, times a power of two, so that only the sums round. Sums of rotated buffers are rotated
/// sums.
struct rotation {
    std::uint32_t length; ///< 2^k
    std::uint64_t signs[2]; ///< bit i: the sign of element i

    COLLPROBE_HD static constexpr rotation of(std::uint32_t block, std::uint64_t seed) noexcept
    {
        constexpr std::uint64_t golden = 0x9e3779b97f4a7c15u;
        return {block < 128 ? block : 128, {mix64(seed + golden), mix64(seed + 2 * golden)}};
    }
    COLLPROBE_HD constexpr int log2() const noexcept
    {
        int k = 0;
        while (1u << k < length) ++k;
        return k;
    }
    /// The factor of the way there; that of the way back makes 2^-k of the two.
    COLLPROBE_HD constexpr float factor() const noexcept { return power(-(log2() + 1) / 2); }
    COLLPROBE_HD constexpr float factor_back() const noexcept { return power(-(log2() / 2)); }
    /// The sum of squares of a run over that of the rotated run.
    COLLPROBE_HD constexpr double energy() const noexcept { return log2() % 2 == 0 ? 1 : 2; }
    COLLPROBE_HD constexpr std::uint32_t sign_bit(std::uint32_t i) const noexcept
    {
        return static_cast<std::uint32_t>(signs[i / 64] >> i % 64 & 1) << 31;
    }
    COLLPROBE_HD float with_sign(float x, std::uint32_t i) const noexcept
    {
        return bit_cast<float>(bit_cast<std::uint32_t>(x) ^ sign_bit(i));
    }

    /// Rotates `length` elements in place, and back.
    COLLPROBE_HD void apply(float* x) const noexcept
    {
        for (std::uint32_t i = 0; i < length; ++i) x[i] = rounded_product(with_sign(x[i], i), factor());
        transform(x);
    }
    COLLPROBE_HD void undo(float* x) const noexcept
    {
        transform(x);
        for (std::uint32_t i = 0; i < length; ++i) x[i] = with_sign(rounded_product(x[i], factor_back()), i);
    }

private:
    COLLPROBE_HD static constexpr float power(int exponent) noexcept
    {
        return bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
    }
    COLLPROBE_HD void transform(float* x) const noexcept
    {
        for (std::uint32_t half = 1; half < length; half *= 2) {
            for (std::uint32_t at = 0; at < length; at += 2 * half) {
                for (std::uint32_t i = at; i < at + half; ++i) {
                    const float a = x[i];
                    const float b = x[i + half];
                    x[i] = rounded_sum(a, b);
                    x[i + half] = rounded_difference(a, b);
                }
            }
        }
    }
};

} // namespace collprobe::inline COLLPROBE_ABI::detail
