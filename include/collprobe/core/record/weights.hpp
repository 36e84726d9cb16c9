// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <collprobe/core/config.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/detail/names.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// The form of the weights with which the ranks' inputs are in a result.
enum class averaging : std::uint8_t {
    unknown, ///< no form can be named: `call_weights::why_not` has the reason
    mean, ///< 1 / n for each of the n ranks
    sum, ///< 1 for each rank
    divided_twice, ///< 1 / n of the mean, or of the token-weighted mean
    token_weighted, ///< each rank by its share of the tokens
    rank_lost, ///< one of these forms, but some ranks have weight 0
    rank_doubled, ///< one of these forms, but some ranks have twice their weight
    other,
};

template <>
inline constexpr auto names_of<averaging> = name_list<averaging::other>{"unknown", "mean", "sum",
    "divided_twice", "token_weighted", "rank_lost", "rank_doubled", "other"};

/// Why the form of the weights is unknown.
enum class weights_refusal : std::uint8_t {
    none,
    many_ranks, ///< more ranks than the weights are computed for
    few_elements, ///< too few elements that are not zero, for so many ranks
    not_finite, ///< NaN, an infinity, or squares beyond a double in an input or the result
    zero_result, ///< the result is zero, the inputs are not
    collinear, ///< an input is a combination of the others: many weights fit
    imprecise, ///< the weights are known too roughly to tell the forms apart
    results_differ, ///< the ranks hold too many different results, or different ones of a call that was made
    scales_differ, ///< the ranks were told different scales
    unexplained, ///< more of the result is no combination of the inputs than rounding explains
    ambiguous, ///< several forms fit, such as a mean and equal tokens with a small difference
};

template <>
inline constexpr auto names_of<weights_refusal> = name_list<weights_refusal::ambiguous>{"none", "many_ranks",
    "few_elements", "not_finite", "zero_result", "collinear", "imprecise", "results_differ", "scales_differ",
    "unexplained", "ambiguous"};

/// The weights with which the ranks' inputs are in the result of a call. Equal on every rank. Where ranks observe
/// different results, up to four, each has its own: `others`.
struct call_weights {
    bool seen = false; ///< the weights were looked for; if not, the fields below say nothing
    averaging how = averaging::unknown; ///< the form of the weights
    weights_refusal why_not = weights_refusal::none; ///< the reason for which the form is unknown
    bool expected = true; ///< `how` is among the forms that the user expects, or unknown
    /// Per rank; empty if they could not be computed. NaN by bits of a rank that sent zeros only: any weight fits.
    std::vector<double> weights;
    std::vector<double> bounds; ///< per rank: the weight is within this distance
    std::vector<int> ranks; ///< those that are lost or doubled, ascending
    /// The weight of the ranks whose weight is that of the form; NaN by bits if these are unequal.
    double common = detail::not_a_number();
    double scale = 1; ///< the factor that was told: the mean's weights are `scale` / n
    /// The part of the result that is no combination of the inputs, as a share of its norm; and the largest share that
    /// rounding to the element type explains. With more no form is named.
    double residual = 0;
    double residual_limit = 0;
    std::uint32_t bins = 0; ///< of the sketches: four times as many halve what is random in the bounds
    std::vector<int> holders; ///< the ranks with the result that this is about, ascending; empty: all ranks
    std::vector<call_weights> others; ///< of the results of the other ranks, by the lowest rank; these have no others
};

} // namespace collprobe
