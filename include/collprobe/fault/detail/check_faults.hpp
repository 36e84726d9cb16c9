// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/fault/types.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// The reason why a fault is impossible with `size` ranks; empty if it is possible.
inline std::string what_is_wrong(const fault& each, int size)
{
    const auto no_rank = [size](const char* member, int value, const char* or_else) {
        return std::string(member) + " is " + std::to_string(value) + ": expected 0 <= " + member + " < "
            + std::to_string(size) + ", or " + or_else;
    };
    const bool is_duplicate = each.kind == fault_kind::duplicate_shard;
    if (each.kind > fault_kind::infinity) return "kind is no fault_kind";
    if (each.phase > fault_phase::after) return "phase is no fault_phase";
    if (each.rank < fault::random_rank || each.rank >= size) {
        return no_rank("rank", each.rank, "every_rank or random_rank");
    }
    // Test the bits first: comparisons with NaN are meaningless under -ffast-math.
    if (!is_finite(each.probability) || each.probability < 0 || each.probability > 1) {
        return "probability is not between 0 and 1";
    }
    if (each.stride == 0) return "stride is 0";
    if (each.alignment == 0) return "alignment is 0";
    if (each.bits < 1 || each.bits > 64) return "bits is not between 1 and 64";
    if (!is_finite(each.magnitude)) return "magnitude is not finite";
    if (each.kind == fault_kind::gaussian && each.magnitude < 0) return "magnitude is a variance, and negative";
    if (each.kind == fault_kind::untouched_tail && each.phase != fault_phase::after) {
        return "an untouched tail is one of the result: phase must be after";
    }
    if (each.kind == fault_kind::untouched_tail && each.elements > 4096) return "more than 4096 elements of a tail";
    if (each.kind == fault_kind::swap && each.elements % 2 != 0) return "an odd number of elements to swap";
    if (each.kind == fault_kind::stale && (each.lag == 0 || each.lag > 4096)) return "lag is not between 1 and 4096";
    if (is_duplicate && (each.source < -1 || each.source >= size)) return no_rank("source", each.source, "-1");
    if (is_duplicate && each.phase != fault_phase::after && each.source >= 0 && each.source == each.rank) {
        return "source is the rank itself";
    }
    return {};
}

inline void check_faults(const std::vector<fault>& faults, const error_origin& origin)
{
    for (std::size_t index = 0; index < faults.size(); ++index) {
        if (const std::string wrong = what_is_wrong(faults[index], origin.size); !wrong.empty()) {
            throw error(status::invalid_argument, "fault " + std::to_string(index) + ": " + wrong, origin);
        }
    }
}

} // namespace collprobe::detail
