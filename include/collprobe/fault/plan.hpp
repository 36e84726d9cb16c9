// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/fault/detail/plan_fault.hpp>
#include <collprobe/fault/types.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// The effect of each fault of a list on rank `rank` in its call number `call`, in the order of the list. A pure
/// function, so every rank can compute it for every other. (For `stale` it assumes that the call `lag` calls earlier
/// had as many elements.)
/// Precondition: `faulty` accepts the list.
inline std::vector<injection> planned(
    const std::vector<fault>& faults, std::uint64_t call, int rank, const fault_target& target)
{
    std::vector<injection> all;
    for (std::size_t which = 0; which < faults.size(); ++which) {
        injection one;
        if (detail::plan_fault(faults[which], static_cast<std::uint32_t>(which), call, rank, target, one)) {
            all.push_back(one);
        }
    }
    return all;
}

/// PAFT's model of aggregation errors. Every rank receives the result with its own N(0, sigma2) on every element of
/// every call. As in PAFT's burst test, N(0, burst_sigma2) is added every `burst_period` calls.
/// Source: definition 2.1 and the burst test of "PAFT" (OpenReview cPZepCZlFW).
inline std::vector<fault> paft_noise(
    double sigma2, std::uint64_t seed, double burst_sigma2 = 0, std::uint64_t burst_period = 0)
{
    std::vector<fault> all{{.kind = fault_kind::gaussian, .magnitude = sigma2, .seed = seed}};
    if (burst_period != 0) {
        all.push_back({.kind = fault_kind::gaussian, .call = burst_period - 1, .period = burst_period,
            .magnitude = burst_sigma2, .seed = seed});
    }
    return all;
}

} // namespace collprobe
