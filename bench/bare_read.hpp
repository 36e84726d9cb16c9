// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The ceiling of what reads memory once: a plain read.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <collprobe/simd/vector.hpp>

namespace collprobe::bench {

#if COLLPROBE_VECTORS && defined(__x86_64__)
// Integer additions: no element type makes them slow, and they bound the read nowhere.
[[gnu::target("avx2"), gnu::noinline]] inline std::uint64_t sum_words_avx2(const unsigned char* data, std::size_t bytes)
{
    typedef std::uint64_t words __attribute__((vector_size(32), aligned(8), may_alias));
    words a{}, b{}, c{}, d{}, e{}, f{}, g{}, h{};
    for (std::size_t i = 0; i + 256 <= bytes; i += 256) {
        const auto* const from = reinterpret_cast<const words*>(data + i);
        a += from[0];
        b += from[1];
        c += from[2];
        d += from[3];
        e += from[4];
        f += from[5];
        g += from[6];
        h += from[7];
    }
    a += b + c + d + e + f + g + h;
    return a[0] + a[1] + a[2] + a[3];
}
#endif

/// Reads a buffer as fast as one core does; the result is for nothing but to be used.
inline std::uint64_t bare_read(const unsigned char* data, std::size_t bytes)
{
#if COLLPROBE_VECTORS && defined(__x86_64__)
    if (detail::supports(detail::isa::vectors)) return sum_words_avx2(data, bytes);
#endif
    std::uint64_t sums[8] = {};
    for (std::size_t i = 0; i + 64 <= bytes; i += 64) {
        std::uint64_t words[8];
        std::memcpy(words, data + i, sizeof words);
        for (int k = 0; k < 8; ++k) sums[k] += words[k];
    }
    std::uint64_t sum = 0;
    for (const std::uint64_t part : sums) sum += part;
    return sum;
}

} // namespace collprobe::bench
