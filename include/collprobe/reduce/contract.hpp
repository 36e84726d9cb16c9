// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>

#include <collprobe/config.hpp>
#include <collprobe/element.hpp>
#include <collprobe/error.hpp>
#include <collprobe/sum/accumulation.hpp>

namespace collprobe {

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
        accumulation chosen = default_accumulation<T>(asked);
        ((chosen = in), ...);
        return chosen;
    }();

    /// Whether sums of T can be had so, for few enough terms.
    template <floating_element T>
    static constexpr bool possible = holds<T>(accumulator<T>) && strongest<T>(accumulator<T>, 1) >= asked;
};

/// Calls `use` with the contract for a level that is known at run time only, with its default accumulator.
template <class Use>
decltype(auto) with_contract(reproducibility level, Use&& use)
{
    switch (level) {
    case reproducibility::run_to_run: return std::forward<Use>(use)(contract<reproducibility::run_to_run>{});
    case reproducibility::size_invariant: return std::forward<Use>(use)(contract<reproducibility::size_invariant>{});
    case reproducibility::order_invariant:
        return std::forward<Use>(use)(contract<reproducibility::order_invariant>{});
    case reproducibility::correctly_rounded:
        return std::forward<Use>(use)(contract<reproducibility::correctly_rounded>{});
    case reproducibility::unspecified: break;
    }
    return std::forward<Use>(use)(contract<reproducibility::unspecified>{});
}

/// How a reduction is done.
enum class reduction_algorithm : std::uint8_t {
    automatic, ///< the cheapest one that keeps the contract
    native, ///< the communicator's own
    exchange, ///< all-to-all of slices, sum in the owner, all-gather
    one_shot, ///< all-gather, sum everywhere
    fixed_point, ///< agreement on exponents, the communicator's own all-reduce of int64
};

constexpr const char* name(reduction_algorithm how) noexcept
{
    switch (how) {
    case reduction_algorithm::automatic: return "automatic";
    case reduction_algorithm::native: return "native";
    case reduction_algorithm::exchange: return "exchange";
    case reduction_algorithm::one_shot: return "one_shot";
    case reduction_algorithm::fixed_point: return "fixed_point";
    }
    return "unknown";
}

/// What a reduction was, or will have been once its stream is past it.
struct reduction_outcome {
    reproducibility level = reproducibility::unspecified; ///< what its result keeps: at least what was asked
    reduction_algorithm algorithm = reduction_algorithm::native;
    accumulation in = accumulation::native;
    std::uint64_t terms = 0; ///< of each element: ranks times leaves
    /// How often a sum is rounded to the element type; roundings of a wider accumulator are not counted.
    std::uint64_t roundings_per_element = 0;
    /// Bytes of payload that this rank sends. Of a `native` reduction and of `fixed_point`, which leave it to
    /// the communicator: what a ring sends, the least there is.
    std::uint64_t bytes_sent = 0;
    std::uint64_t collectives = 0; ///< calls of the communicator
};

} // namespace collprobe
