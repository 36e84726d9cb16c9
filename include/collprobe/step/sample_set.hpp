// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/detail/math.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// Sample ids, or other numbers, as a multiset of 16 bytes: for `probed::expect_partition`. Two that are not the same
/// are taken for the same with a probability of 2^-64.
struct sample_set {
    std::uint64_t count = 0;
    std::uint64_t digest = 0; ///< the sum of the ids' hashes, modulo 2^64

    void add(std::uint64_t id) noexcept
    {
        ++count;
        digest += detail::mix64(id + 0x9e3779b97f4a7c15u);
    }
    /// The ids 0 to `count` - 1, each once. Cost: about 1 ns an id.
    static sample_set first(std::uint64_t count) noexcept
    {
        sample_set all;
        for (std::uint64_t id = 0; id < count; ++id) all.add(id);
        return all;
    }
};

} // namespace collprobe
