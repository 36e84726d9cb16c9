// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <collprobe/core/config.hpp>

namespace collprobe::inline COLLPROBE_ABI::bootstrap::detail {

using hash = std::array<std::uint8_t, 32>;

/// SHA-256 (FIPS 180-4) of what `add` was given.
class sha256 {
public:
    void add(const void* data, std::size_t bytes) noexcept
    {
        const auto* from = static_cast<const std::uint8_t*>(data);
        total_bytes_ += bytes;
        for (std::size_t i = 0; i < bytes; ++i) {
            block_[filled_++] = from[i];
            if (filled_ == block_.size()) take_block();
        }
    }

    hash finish() noexcept
    {
        const std::uint64_t bits = total_bytes_ * 8;
        block_[filled_++] = 0x80;
        if (filled_ > 56) {
            while (filled_ < 64) block_[filled_++] = 0;
            take_block();
        }
        while (filled_ < 56) block_[filled_++] = 0;
        for (int shift = 56; shift >= 0; shift -= 8) {
            block_[filled_++] = static_cast<std::uint8_t>(bits >> shift);
        }
        take_block();
        hash result;
        for (std::size_t i = 0; i < result.size(); ++i) {
            result[i] = static_cast<std::uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
        }
        return result;
    }

private:
    void take_block() noexcept
    {
        // The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
        static constexpr std::uint32_t k[64] = {0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b,
            0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74,
            0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
            0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3,
            0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354,
            0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819,
            0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3,
            0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa,
            0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
        std::uint32_t w[64];
        for (std::size_t i = 0; i < 16; ++i) {
            w[i] = std::uint32_t{block_[4 * i]} << 24 | std::uint32_t{block_[4 * i + 1]} << 16
                | std::uint32_t{block_[4 * i + 2]} << 8 | std::uint32_t{block_[4 * i + 3]};
        }
        for (std::size_t i = 16; i < 64; ++i) {
            const std::uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
            const std::uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
            w[i] = w[i - 16] + s0 + w[i - 7] + s1;
        }
        auto [a, b, c, d, e, f, g, h] = state_;
        for (std::size_t i = 0; i < 64; ++i) {
            const std::uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
            const std::uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + k[i] + w[i];
            const std::uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
            const std::uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
            h = g;
            g = f;
            f = e;
            e = d + t1;
            d = c;
            c = b;
            b = a;
            a = t1 + t2;
        }
        const std::uint32_t change[8] = {a, b, c, d, e, f, g, h};
        for (std::size_t i = 0; i < 8; ++i) state_[i] += change[i];
        filled_ = 0;
    }

    std::array<std::uint32_t, 8> state_
        = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    std::array<std::uint8_t, 64> block_{};
    std::size_t filled_ = 0;
    std::uint64_t total_bytes_ = 0;
};

/// HMAC-SHA-256 (RFC 2104): what only a holder of `key` can compute of a message.
class hmac {
public:
    explicit hmac(std::string_view key) noexcept
    {
        std::array<std::uint8_t, 64> padded{};
        if (key.size() > padded.size()) {
            sha256 long_key;
            long_key.add(key.data(), key.size());
            const hash shorter = long_key.finish();
            for (std::size_t i = 0; i < shorter.size(); ++i) padded[i] = shorter[i];
        } else {
            for (std::size_t i = 0; i < key.size(); ++i) padded[i] = static_cast<std::uint8_t>(key[i]);
        }
        for (std::uint8_t& byte : padded) byte ^= 0x36;
        inner_.add(padded.data(), padded.size());
        for (std::uint8_t& byte : padded) byte ^= 0x36 ^ 0x5c;
        outer_.add(padded.data(), padded.size());
    }

    void add(const void* data, std::size_t bytes) noexcept { inner_.add(data, bytes); }

    hash finish() noexcept
    {
        const hash inside = inner_.finish();
        outer_.add(inside.data(), inside.size());
        return outer_.finish();
    }

private:
    sha256 inner_;
    sha256 outer_;
};

/// Compares in a time that does not tell how many bytes are right.
inline bool equal_in_constant_time(const hash& a, const hash& b) noexcept
{
    volatile std::uint8_t different = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        different = static_cast<std::uint8_t>(different | (a[i] ^ b[i]));
    }
    return different == 0;
}

} // namespace collprobe::bootstrap::detail
