// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include <collprobe/core/config.hpp>
#include <collprobe/device/clock.hpp>
#include <collprobe/step/detail/message.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// What one rank measures of one call, without the other ranks. Ranks that cannot exchange messages write these down,
/// and `merge_ranks` judges those of all ranks later. Plain bytes: the device writes it, files hold it.
struct rank_measurement {
    detail::call_entry entry; ///< of input and result; zero where they were not read
    clock_stamp input_begun = 0; ///< the read of the input began, by the clock of the rank's device
    clock_stamp input_done = 0; ///< the rank entered the collective
    clock_stamp result_begun = 0; ///< the rank left the collective
    clock_stamp result_done = 0;
};

static_assert(std::is_trivially_copyable_v<rank_measurement> && sizeof(rank_measurement) == 128);

/// The places in a rank's block of a call: the measurement; then two count-sketches (scan/sketch.hpp), of the input
/// and of the result (of a reduce-scatter: of the rank's part of the result), a sketch being `bins` sums and `bins`
/// energies, as doubles; then, of an all-gather, the digest of each shard that the rank received.
struct rank_call_layout {
    std::uint64_t bins = 0; ///< of a sketch; 0: there are none
    std::uint64_t shards = 0; ///< of an all-gather: one of each rank; 0: there are none

    COLLPROBE_HD constexpr std::uint64_t sketch_numbers() const noexcept { return 2 * bins; }
    COLLPROBE_HD constexpr std::uint64_t bytes() const noexcept
    {
        return sizeof(rank_measurement) + 2 * sketch_numbers() * sizeof(double) + shards * sizeof(std::uint64_t);
    }
    static auto& measurement(auto* block) noexcept { return *detail::object_at<rank_measurement>(block); }
    /// Precondition: `bins` is not 0.
    static auto* input_sketch(auto* block) noexcept
    {
        return detail::object_at<double>(block + sizeof(rank_measurement));
    }
    auto* result_sketch(auto* block) const noexcept { return input_sketch(block) + sketch_numbers(); }
    auto* shard_digests(auto* block) const noexcept
    {
        return detail::object_at<std::uint64_t>(block + bytes()) - shards;
    }
};

} // namespace collprobe
