// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/detail/math.hpp>
#include <collprobe/fault/detail/plan_fault.hpp>
#include <collprobe/fault/types.hpp>

namespace collprobe::testing {

/// A fault of the shape that is seen on GPUs, drawn by `seed`; on one random rank in every call, which the caller
/// narrows down. Published (arXiv 2605.04213): NaN or infinity are about 1 % of silent corruptions, single-bit flips
/// less than 40 % of the flips, and corrupted addresses are periodic and aligned to warps. Chosen here, within that:
/// 0.5 % NaN, 0.5 % infinity, 37 % one bit, 31 % two to eight bits of one element, 31 % one to four bits of 32
/// elements that begin at a multiple of 32 and are 1, 2, 4, ... or 128 apart.
inline fault realistic_fault(std::uint64_t seed, fault_phase phase = fault_phase::after)
{
    const auto draw = [seed](std::uint64_t number) { return detail::fault_draw(detail::mix64(seed ^ 0x5dc), number); };
    fault one{.phase = phase, .rank = fault::random_rank, .seed = seed};
    const std::uint64_t share = draw(0) % 1000;
    if (share < 10) {
        one.kind = share < 5 ? fault_kind::nan : fault_kind::infinity;
    } else if (share < 380) {
        one.bits = 1;
    } else if (share < 690) {
        one.bits = static_cast<int>(2 + draw(1) % 7);
    } else {
        one.bits = static_cast<int>(1 + draw(1) % 4);
        one.elements = 32;
        one.stride = std::uint64_t{1} << (draw(2) % 8);
        one.alignment = 32;
    }
    return one;
}

} // namespace collprobe::testing
