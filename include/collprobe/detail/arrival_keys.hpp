// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// Two words that a max over the ranks combines. Afterwards they tell whether the first and the last rank took part,
/// in the report with the same serial number. Before, no rank's own words do, unless it is the only one.
struct arrival_keys {
    std::uint64_t last_rank;
    std::uint64_t first_rank; ///< with the ranks in reverse order

    COLLPROBE_HD static arrival_keys of(std::uint32_t serial, int rank, int ranks) noexcept
    {
        return {key(serial, rank), key(serial, ranks - 1 - rank)};
    }
    bool complete(std::uint32_t serial, int ranks) const noexcept
    {
        return last_rank == key(serial, ranks - 1) && first_rank == key(serial, ranks - 1);
    }

private:
    COLLPROBE_HD static std::uint64_t key(std::uint32_t serial, int place) noexcept
    {
        return static_cast<std::uint64_t>(serial) << 31 | static_cast<std::uint64_t>(place);
    }
};

} // namespace collprobe::detail
