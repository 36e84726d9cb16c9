// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/sum/accumulation.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// The caller's requirement for a floating-point reduction: how reproducible the result must be and, optionally, in
/// which accumulator the terms are added. An impossible combination does not compile.
///
///     contract<reproducibility::correctly_rounded>{}
///     contract<reproducibility::size_invariant, accumulation::float32>{}
template <reproducibility asked, accumulation... in>
struct contract {
    static_assert(sizeof...(in) <= 1, "a contract names at most one accumulator");

    static constexpr reproducibility level = asked;

    /// The accumulator for sums of T.
    template <floating_element T>
    static constexpr accumulation accumulator = [] {
        accumulation chosen = detail::default_accumulation<T>(asked);
        ((chosen = in), ...);
        return chosen;
    }();

    /// Whether sums of T can keep the contract, if the terms are few enough.
    template <floating_element T>
    static constexpr bool possible = holds<T>(accumulator<T>) && detail::strongest<T>(accumulator<T>, 1) >= asked;
};

} // namespace collprobe
