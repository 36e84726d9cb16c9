// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/detail/names.hpp>

/// The question to `inspect` and its answer about an all-reduce: plain data.
namespace collprobe::inline COLLPROBE_ABI {

/// The effort of `inspect`. Equal on all ranks.
struct inspect_options {
    int repeats = 5; ///< equal calls whose bits are compared
    int permutations = 4; ///< ways to deal the values to the ranks
    std::uint64_t samples = 4096; ///< elements whose sums are compared with the exact one
    int warm_ups = 2; ///< calls before those that are timed
    int timed = 10;
    std::uint64_t seed = 1; ///< of the random terms, and of the pairs of ranks that the search of the order probes
    /// The search of the order stops before it makes more calls than this. The default suffices for any order of 256
    /// ranks: n (n - 1) / 2 calls.
    std::uint64_t most_order_calls = 32768;
};

/// The name of the order in which an all-reduce adds the ranks' values, if it is one of sum/order.hpp. Where several
/// names fit, as for few ranks, the one that comes first here is given, but `rotated`, `reversed` and `chain` only
/// after the balanced ones.
enum class order_class : std::uint8_t {
    single, ///< one addition or none: up to 2 ranks there is only one order
    linear, ///< ((x0 + x1) + x2) + ... by rank, at every position
    ring, ///< one after the other around one ring of the ranks, from a start that depends on the position
    rotated, ///< by rank around the ring, from one start other than 0
    reversed, ///< one after the other from the last rank down to rank 0
    chain, ///< one after the other in another order
    tree, ///< the double binary tree, one tree or both
    recursive_halving, ///< the farthest first
    pairwise, ///< neighbours first, balanced: recursive doubling, and the binomial tree with the nearest child first
    /// The order of MPI libraries: with p the largest power of two up to n, the first 2 (n - p) ranks are added in
    /// pairs, then the p sums as in `pairwise`. If that is the same order as `pairwise`, it is called `pairwise`.
    recursive_doubling,
    exact, ///< an exact sum, which loses nothing wherever the large values are: it has no order
    fused, ///< all terms at once, aligned to the largest one, as in a fixed-point sum: it has no order
    multi_way, ///< a tree in which some additions add more than two partial sums at once, as tensor cores do
    call_limit, ///< not known: the search reached `inspect_options::most_order_calls`
    other, ///< none of these; or the order changed between calls, or has other names on other ranks
};

template <>
inline constexpr auto names_of<order_class> = name_list<order_class::other>{"single", "linear", "ring",
    "rotated", "reversed", "chain", "tree", "recursive_halving", "pairwise", "recursive_doubling", "exact",
    "fused", "multi_way", "call_limit", "other"};

/// The arithmetic and the speed of sums over one communicator, for one type and size. Every rank has the same.
/// "Stable" means that no difference was seen, among as many elements as the message has (but at least 64).
struct inspection {
    /// One of the orders of an all-reduce, and the elements that have it.
    struct order_of_elements {
        /// "((0+1)+2)+3", or "(0+1+2)+(3+4)" if several are added at once; empty if no tree explains the probes, if the
        /// same call gives other bits, and for more than 256 ranks.
        std::string brackets;
        std::uint64_t first = 0; ///< the first element that has this order
        std::uint64_t elements = 0; ///< the number of elements that have it
        std::vector<int> ranks = {}; ///< the ranks whose results have it; empty if all have
    };

    std::string communicator; ///< its name
    element_type element = element_type::float32; ///< type of the elements
    std::uint64_t count = 0; ///< elements of the message
    int ranks = 0; ///< of the communicator

    order_class order = order_class::other; ///< the name of the order
    std::vector<order_of_elements> orders; ///< by their first position, at most 64 of them on a rank
    std::uint64_t order_calls = 0; ///< the calls that the search of the order made
    /// The number of significant bits that a partial sum keeps: the type's own, or more. It is the least that was
    /// found. 0 if it is not defined: with fewer than 3 ranks, or if the order is unknown.
    int partial_sum_bits = 0;
    bool partial_sum_bits_or_more = false; ///< the type cannot show whether a partial sum keeps more
    /// How often a value is rounded to the element type (or less) on its way: n - 1 if each addition rounds; -1 if it
    /// is unknown. An addition of more than two partial sums at once counts as one.
    int roundings_per_element = -1;

    bool run_stable = true; ///< the same call gives the same bits
    bool size_stable = true; ///< the same values give the same bits at other places and in other message sizes
    bool permutation_stable = true; ///< other ways to deal the values to the ranks give the same bits
    bool ranks_agree = true; ///< all ranks got the same bits

    /// Error against the exact sum, in units in the last place of the exact sum, or of the largest term if that is
    /// larger. (If terms cancel, the unit of their sum says nothing about the arithmetic.) A correctly rounded sum is
    /// within 0.5.
    double max_ulp = 0;
    double rms_ulp = 0;
    /// The share of random sums that the order and accumulator found here reproduce bit for bit. If it is below 1,
    /// the order is not (only) the one that the probes showed. NaN if there is no order to reproduce the sums with.
    double reproduced = detail::not_a_number();

    /// Median over the timed calls, of the slowest rank. As nccl-tests defines them, in 1e9 bytes a second: algbw is
    /// bytes over time, busbw is algbw times 2 (n - 1) / n.
    double time_us = 0;
    double algbw_gbs = 0;
    double busbw_gbs = 0;

    std::uint64_t bytes() const noexcept { return count * static_cast<std::uint64_t>(bytes_of(element)); }
};

} // namespace collprobe
