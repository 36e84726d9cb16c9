// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <collprobe/core/record.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// How one rank's buffer differs from the reference, element by element. Bits are compared: -0 differs from +0, and NaN
/// with different payloads differ.
struct difference {
    int rank = -1;
    bool same_shape = true; ///< count and type equal the reference's; if not, no elements were compared
    std::uint64_t first = no_index; ///< first element that differs, followed by the last one
    std::uint64_t last = no_index;
    std::uint64_t elements = 0; ///< number of elements that differ
    std::uint64_t expected_bits = 0; ///< element `first` of the reference, in the low bits
    std::uint64_t actual_bits = 0; ///< element `first` of this rank
};

/// A buffer that differs between the ranks. Equal on every rank.
///
/// The reference is what the rank of `agreement_options::reference_rank` holds. Without one it is what more than half
/// of the ranks hold: a majority, which is not the truth, because most ranks may be wrong alike. Without a majority
/// (always if two of two differ) the lowest rank's bits serve as the reference, and no rank is blamed.
struct disagreement {
    /// A run of elements of a buffer, some of which differ.
    struct range {
        std::uint64_t first = 0;
        std::uint64_t count = 0;
    };

    int buffer = -1; ///< index in the list
    bool majority = false; ///< more than half of the ranks hold the same bits, be they the reference or not
    int reference_rank = -1; ///< the rank that the caller has named, or -1
    /// Whether the other ranks can be blamed, and repaired.
    bool has_reference() const noexcept { return majority || reference_rank >= 0; }
    int groups = 0; ///< number of different contents
    std::uint64_t count = 0; ///< elements of the reference
    std::vector<int> holders; ///< ranks that hold the reference, ascending
    std::vector<int> others; ///< ranks that hold something else, ascending
    std::vector<difference> differences; ///< one for each of `others`
    /// Ranges with differences on any rank: all differences, and little else (up to some 64 bytes around each). If more
    /// than about 2,000 places are hit, the ranges are longer.
    std::vector<range> ranges;
};

} // namespace collprobe
