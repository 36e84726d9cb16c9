// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/comm/reduction_extras.hpp>
#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/sum/accumulation.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// What a caller asks of a floating-point reduction: how reproducible it must be and, if that matters,
/// in what the terms are added. A combination that cannot be had does not compile.
///
///     contract<reproducibility::correctly_rounded>{}
///     contract<reproducibility::size_invariant, accumulation::float32>{}
template <reproducibility asked, accumulation... in>
struct contract {
    static_assert(sizeof...(in) <= 1, "a contract names at most one accumulator");

    static constexpr reproducibility level = asked;

    /// The accumulator of sums of T.
    template <floating_element T>
    static constexpr accumulation accumulator = [] {
        accumulation chosen = detail::default_accumulation<T>(asked);
        ((chosen = in), ...);
        return chosen;
    }();

    /// Whether sums of T can be had so, for few enough terms.
    template <floating_element T>
    static constexpr bool possible = holds<T>(accumulator<T>) && detail::strongest<T>(accumulator<T>, 1) >= asked;
};

} // namespace collprobe
