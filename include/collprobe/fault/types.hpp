// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <collprobe/core/element.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/detail/names.hpp>

/// Faults as data: kind, time and place. `faulty` (fault/faulty.hpp) applies them.
namespace collprobe::inline COLLPROBE_ABI {

/// The effect of a fault on the elements that it hits. In brackets: how many it hits if `fault::elements` is 0.
enum class fault_kind : std::uint8_t {
    bit_flips, ///< inverts bits, the same ones in each element [1]
    gaussian, ///< adds to each element a draw from N(0, magnitude), rounded once to the type [all]
    scale, ///< multiplies by `magnitude`, rounded once; integers truncate and saturate [all]
    zero_slice, ///< sets to zero [64]
    untouched_tail, ///< the last elements of the result keep what was in `receive` before the call [8]
    stale, ///< takes the data of the call `lag` calls earlier [all]
    swap, ///< exchanges neighbours in an even number of elements: the first with the second, and so on [2]
    duplicate_shard, ///< sends another rank's data; `after`: one rank's part is in the result twice [all]
    nan, ///< sets to a quiet NaN [1]
    infinity, ///< sets to infinity, of a random sign [1]
};

template <>
inline constexpr auto names_of<fault_kind> = name_list<fault_kind::infinity>{"bit_flips", "gaussian", "scale",
    "zero_slice", "untouched_tail", "stale", "swap", "duplicate_shard", "nan", "infinity"};

/// The data that a fault hits.
enum class fault_phase : std::uint8_t {
    before, ///< the rank's send buffer itself, like memory that goes bad
    during, ///< a copy of the data, which is sent. The send buffer stays, unless the result is put there
    after, ///< the data that the rank received
};

template <>
inline constexpr auto names_of<fault_phase> = name_list<fault_phase::after>{"before", "during", "after"};

/// One fault. It strikes in the calls that `call` and `period` choose, in each with `probability`. It hits the elements
/// first, first + stride, ... of the data of its `phase`. All draws are functions of `seed`, the fault's index in the
/// list, the call, the rank and the element; there is no state.
///
///     {.kind = fault_kind::bit_flips, .rank = 2, .call = 7}                    // one bit, once
///     {.kind = fault_kind::bit_flips, .elements = 32, .stride = 8, .alignment = 32, .bits = 3}   // a warp's stores
///     {.kind = fault_kind::gaussian, .magnitude = 1e-2}                        // see paft_noise
///
/// Elements beyond the end of the buffer are left out. The fault does not happen if no element is left; for `nan`,
/// `infinity` and `gaussian` in integers; for `stale` before call `lag`; and if there is no other rank to duplicate.
/// Nothing differs if the new bits (of swapped, stale, zeroed ... elements) equal the old ones. If several ranks
/// send another rank's data, they are handled in ascending order, and each sends what its source would send then.
struct fault {
    static constexpr int every_rank = -1; ///< each rank independently, with its own draws
    static constexpr int random_rank = -2; ///< one rank, drawn anew for each call
    static constexpr std::uint64_t every_call = ~std::uint64_t{0};
    static constexpr std::uint64_t random_place = ~std::uint64_t{0};

    fault_kind kind = fault_kind::bit_flips;
    fault_phase phase = fault_phase::after;
    int rank = every_rank;
    std::uint64_t call = every_call; ///< the first call that it may strike, counted from 0; `every_call`: all
    std::uint64_t period = 0; ///< after that, every `period` calls; 0: no further call
    double probability = 1; ///< of striking in each such call
    std::uint64_t first = random_place;
    std::uint64_t elements = 0; ///< number of elements; 0: the default of the kind
    std::uint64_t stride = 1; ///< distance between elements that are hit
    std::uint64_t alignment = 1; ///< a randomly drawn first element is a multiple of this
    int bits = 1; ///< `bit_flips`: number of bits, if `mask` is 0
    std::uint64_t mask = 0; ///< `bit_flips`: the bits to invert; 0: drawn
    double magnitude = 0; ///< `gaussian`: the variance sigma^2; `scale`: the factor
    int source = -1; ///< `duplicate_shard`: the rank (`after`: the part) whose data appear twice; -1: the next rank
    std::uint64_t lag = 1; ///< `stale`: age of the data in calls; with b calls a step, b is the previous step
    std::uint64_t seed = 1;
};

/// A fault that was applied to `elements` elements at `first`, `first + stride`, ...
struct injection {
    std::uint64_t call = 0;
    int rank = 0;
    fault_kind kind = fault_kind::bit_flips;
    std::uint64_t first = 0;
    std::uint64_t elements = 0;
    std::uint64_t stride = 1;
    std::uint64_t mask = 0; ///< of `bit_flips`
    fault_phase phase = fault_phase::after;
    collective where = collective::all_reduce;
    int source = -1; ///< of `duplicate_shard`
    std::uint32_t fault = 0; ///< index in the list of faults
    std::uint64_t key = 0; ///< key of the draws for the elements

    friend bool operator==(const injection&, const injection&) = default;
};

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
