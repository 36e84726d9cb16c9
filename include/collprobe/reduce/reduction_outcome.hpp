// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/detail/names.hpp>
#include <collprobe/sum/accumulation.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// How a reduction is done.
enum class reduction_algorithm : std::uint8_t {
    automatic, ///< the cheapest one that keeps the contract
    native, ///< the communicator's own reduction, which keeps no contract
    exchange, ///< all-to-all of slices, sum in the owner, all-gather
    one_shot, ///< all-gather, sum everywhere
    fixed_point, ///< agreement on exponents, the communicator's own all-reduce of int64
};

template <>
inline constexpr auto names_of<reduction_algorithm> = name_list<reduction_algorithm::fixed_point>{"automatic",
    "native", "exchange", "one_shot", "fixed_point"};

/// The properties of a reduction, valid once its stream is past it.
struct reduction_outcome {
    reproducibility level = reproducibility::unspecified; ///< the level of the result: at least the requested one
    reduction_algorithm algorithm = reduction_algorithm::native;
    accumulation in = accumulation::native;
    std::uint64_t terms = 0; ///< terms of each element: ranks times leaves
    /// How often the values of an element are rounded to the element type: its partial sums and, in a `native`
    /// average, each value times 1/n. Roundings of a wider accumulator are not counted.
    std::uint64_t roundings_per_element = 0;
    /// Bytes of payload that this rank sends. For `native` and `fixed_point`, where the communicator chooses the
    /// algorithm: the bytes that a ring sends, which is the least possible.
    std::uint64_t bytes_sent = 0;
    std::uint64_t collectives = 0; ///< calls of the communicator
};

} // namespace collprobe
