// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/detail/math.hpp>

namespace collprobe::testing {

// The definition, byte by byte, with keys made afresh: an oracle that shares only mix64.
inline std::uint64_t naive_digest(const std::vector<unsigned char>& data)
{
    using collprobe::detail::mix64;
    constexpr std::uint64_t golden = 0x9e3779b97f4a7c15u;
    std::uint64_t s1 = 0;
    std::uint64_t s2 = 0;
    for (std::size_t at = 0; at < data.size(); ++at) {
        const std::uint64_t i = at / 4;
        const std::uint64_t value = std::uint64_t{data[at]} << (8 * (at % 4));
        const std::uint64_t j = i % 2048;
        const std::uint64_t u = i / 2048;
        const std::uint64_t a = (mix64((j + 1) * golden) >> 32) | 1;
        const std::uint64_t m = mix64(0x13198a2e03707344u + (j / 2 % 4) * golden) | 1;
        const std::uint64_t n = mix64(0x13198a2e03707344u + (4 + j / 2 % 4) * golden) | 1;
        const std::uint64_t p = 2 * (j / 8 % 2) + j % 2;
        const std::uint64_t k = mix64(0x243f6a8885a308d3u + 2 * u * golden) | 1;
        const std::uint64_t l = mix64(0x243f6a8885a308d3u + (2 * u + 1) * golden) | 1;
        s1 += k * a * value;
        s2 += l * (m * (257 - 2 * (j / 16)) + 2 * n * (3 - p)) * a * value;
    }
    return mix64(s1 + mix64(s2 + (data.size() + 1) * 0xd1342543de82ef95u));
}

} // namespace collprobe::testing
