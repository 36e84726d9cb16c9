// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <collprobe/core/record.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// Elements of a buffer, some of which differ.
struct differing_range {
    std::uint64_t first = 0;
    std::uint64_t count = 0;
};

/// How one rank's buffer differs from the reference, element by element, by bits: -0 is not +0, and NaN are told apart
/// by their payloads.
struct difference {
    int rank = -1;
    bool same_shape = true; ///< count and type are the reference's; else no elements were compared
    std::uint64_t first = no_index; ///< first and last element that differ
    std::uint64_t last = no_index;
    std::uint64_t elements = 0; ///< how many differ
    std::uint64_t expected_bits = 0; ///< of element `first`: the reference's, in the low bits
    std::uint64_t actual_bits = 0; ///< and this rank's
};

/// A buffer that not all ranks hold alike. Equal on every rank.
///
/// With a majority the reference is what more than half of the ranks hold, and the others are to blame for their
/// differences. Without one (always so if two of two differ) it is what the lowest rank holds, to compare with: nobody
/// is blamed.
struct disagreement {
    int buffer = -1; ///< its place in the list
    bool majority = false;
    int groups = 0; ///< how many different contents there are
    std::uint64_t count = 0; ///< elements of the reference
    std::vector<int> holders; ///< ranks that hold the reference, ascending
    std::vector<int> others; ///< ranks that do not, ascending
    std::vector<difference> differences; ///< one for each of `others`
    /// Where differences are, on any rank: all of them and, up to some 64 bytes around each, little else. Where more
    /// than about 2,000 places are hit, ranges are longer.
    std::vector<differing_range> ranges;
};

/// What a comparison of buffers found.
struct agreement_verdict {
    bool agree = true;
    std::vector<disagreement> buffers; ///< those that differ
};

} // namespace collprobe
