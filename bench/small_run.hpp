// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// A run of all cases at small sizes, which shows that they work and times nothing: where a GPU is emulated, say. The
// environment variable COLLPROBE_BENCH_BYTES asks for it, and is the most that a buffer of a case may have.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <vector>

namespace collprobe::bench {

/// 0: no limit.
inline std::uint64_t most_bytes()
{
    static const std::uint64_t given = [] {
        const char* const text = std::getenv("COLLPROBE_BENCH_BYTES");
        return text == nullptr ? std::uint64_t{0} : std::strtoull(text, nullptr, 10);
    }();
    return given;
}

/// The size of a buffer that would have `bytes`.
inline std::uint64_t capped(std::uint64_t bytes) { return most_bytes() == 0 ? bytes : std::min(bytes, most_bytes()); }

/// Of `sizes`, in units of `unit` bytes, those within the limit; if none is, the limit itself.
inline std::vector<std::int64_t> capped(std::vector<std::int64_t> sizes, std::uint64_t unit)
{
    if (most_bytes() == 0) return sizes;
    const auto most = static_cast<std::int64_t>(std::max<std::uint64_t>(most_bytes() / unit, 1));
    std::erase_if(sizes, [&](std::int64_t size) { return size > most; });
    if (sizes.empty()) sizes.push_back(most);
    return sizes;
}

/// How often to measure what is measured `usual` times.
inline int rounds(int usual) { return most_bytes() == 0 ? usual : std::min(usual, 2); }

} // namespace collprobe::bench
