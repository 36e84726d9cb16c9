// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <collprobe/core/collective.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/record/verdict.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// The findings in one audited collective of a step. Equal on every rank.
struct call_audit {
    collective call = collective::all_reduce;
    element_type type = element_type::float32;
    std::uint64_t count = 0; ///< elements that each rank sent
    bool agree = true; ///< every rank holds the right bits: of the result, or of every shard
    bool majority = true; ///< more than half of the ranks hold the same result
    bool sum_checked = false; ///< the sum was checked
    bool conserved = true; ///< the sum is right on all ranks, or on some; then the other ranks are named
    /// The largest distance, over the ranks, of a checksum of the result from that of the inputs, and the limit of
    /// that distance. Units: standard deviations of the rounding error; for integers the distance itself; in a
    /// `summary` units of the limit. 0 if the sum was not checked.
    double residual = 0;
    double residual_limit = 0;
    damage where = damage::none;
    std::vector<int> culprits; ///< ranks that hold, or sent, damaged data; empty if none can be named
};

/// The findings of the audit of a step.
struct step_audit {
    std::uint64_t step = 0;
    int ranks = 0;
    std::vector<call_audit> calls;
    std::vector<suspect> suspects; ///< call by call; empty on a healthy step
    std::uint64_t unaudited_calls = 0; ///< calls beyond `max_calls`: forwarded, not checked
};

} // namespace collprobe
