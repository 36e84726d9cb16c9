// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include <collprobe/core/collective.hpp>
#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/record/statistics.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/detail/names.hpp>

/// What a quantised collective did, and what that did to the numbers.
namespace collprobe::inline COLLPROBE_ABI {

/// What an element is on the wire: an integer, or an 8-bit floating-point number as OCP defines it.
enum class code_format : std::uint8_t { int8, int4, e4m3 };

template <>
inline constexpr auto names_of<code_format> = name_list<code_format::e4m3>{"int8", "int4", "e4m3"};

/// Why a call was made with the elements as they are, by the wrapped communicator.
enum class unquantised_reason : std::uint8_t {
    none, ///< the call was quantised
    small, ///< fewer bytes than `least_bytes`
    type, ///< integers, double, and the 8-bit floating-point types
    operation, ///< neither sum nor average
    one_rank, ///< there is nobody to send to
};
inline constexpr int unquantised_reasons = 5;

template <>
inline constexpr auto names_of<unquantised_reason> = name_list<unquantised_reason::one_rank>{"quantised",
    "small", "type", "operation", "one rank"};

/// What became of the error that the last call with the same place in a step had left.
enum class feedback_state : std::uint8_t {
    none, ///< no error is kept
    fresh, ///< the first call: there was none
    continued,
    dropped, ///< the call has another kind, type or count than the last one in its place
};

template <>
inline constexpr auto names_of<feedback_state> = name_list<feedback_state::dropped>{"none", "fresh",
    "continued", "dropped"};

/// What a quantised collective did, known when the call returns.
struct quantised_outcome {
    unquantised_reason why_not = unquantised_reason::none; ///< the reason for which the call was not quantised
    code_format within = code_format::int8; ///< the format of the first exchange: the only one, or that in the node
    code_format across = code_format::int8; ///< the format between nodes, and of the result
    std::uint32_t block = 0; ///< with one scale
    std::uint32_t levels = 1; ///< 2: exchanges in the node and between nodes
    std::uint32_t ranks_per_node = 0; ///< with two levels
    std::uint32_t roundings_per_element = 0; ///< to codes, in series
    bool average = false; ///< a reduction divides by the number of ranks
    bool inputs_fed_back = false; ///< errors of the ranks' elements are kept, and added to the next ones
    bool sums_fed_back = false; ///< so are those of sums
    feedback_state feedback = feedback_state::none; ///< of the errors that the last such call left
    std::uint64_t bytes_sent = 0; ///< by this rank, of codes and scales; of a forwarded call what a ring sends
    std::uint64_t bytes_across = 0; ///< of these, to other nodes; 0 without node groups
    std::uint64_t bytes_plain = 0; ///< what a ring would send of the elements
    std::uint64_t collectives = 0; ///< calls of the communicators

    bool quantised() const noexcept { return why_not == unquantised_reason::none; }
};

/// What one quantisation of a buffer did to its numbers. Sums are over the elements that are finite, `error`
/// being the decoded element minus the element. With a rotation the elements are the rotated ones.
struct quantisation_errors {
    std::uint64_t count = 0; ///< elements, the non-finite ones included; with a rotation also those that fill a block
    std::uint64_t nonfinite = 0;
    std::uint64_t zeros = 0; ///< elements that were zero
    std::uint64_t zeroed = 0; ///< elements that decode to zero, and were not
    std::uint64_t saturated = 0; ///< elements that were clipped: by other implementations, as these codes clip none
    std::uint64_t blocks = 0;
    std::uint64_t zero_blocks = 0; ///< of zeros, or of no finite elements
    double squares = 0; ///< sum of squares of the elements
    double error_squares = 0;
    double error_sum = 0;
    double crest_sum = 0; ///< over the blocks that are not zero: largest magnitude over root mean square
    double scale_sum = 0; ///< over the same blocks: scale over root mean square
    double worst_ratio = 0; ///< of the worst block: its error's sum of squares over its elements'
    std::uint64_t worst_block = no_index; ///< index of its first element
};

/// What the owner of a slice learns when it adds the ranks' terms: the errors of its own rounding, and how
/// far the terms differ. The sums leave out blocks with terms that are not finite.
struct combined_errors {
    quantisation_errors errors; ///< of the sum's rounding; of no elements if it was not rounded to codes
    double term_squares = 0; ///< sum over elements and ranks of the squares of the terms
    double sum_squares = 0; ///< sum over elements of the squares of their sums
};

/// What a quantised collective did to the numbers of one rank.
struct quantised_errors {
    quantisation_errors input; ///< this rank's elements
    combined_errors node; ///< the sums of this rank's node; of no elements without node groups
    combined_errors owned; ///< the sums that this rank owns
    std::uint64_t nonfinite_results = 0; ///< decoded elements that are not finite
};

static_assert(sizeof(quantisation_errors) % 8 == 0 && std::is_trivially_copyable_v<quantised_errors>);

/// What a quantised communicator and the part of a step that looks at it tell each other.
struct quantised_calls {
    /// The next quantised call writes what it did to the numbers there, in memory of the device, in stream
    /// order. Null: calls do not look, as from the start.
    quantised_errors* errors_to = nullptr;
    /// Where the next quantised call leaves the digests of its messages, in memory of the device; null where nobody
    /// wants them. For each rank that of what was sent to it, on two streams, which are added; then of what came from
    /// it.
    std::uint64_t* digests_to = nullptr;
    quantised_outcome last; ///< of the last call
    std::uint64_t counts[unquantised_reasons] = {}; ///< calls, by `unquantised_reason`
    std::uint64_t feedback_dropped = 0; ///< calls whose kept errors were dropped
    std::uint64_t least_bytes = 0; ///< below which calls are forwarded
    int ranks = 1;

    /// Why a call is not quantised. `bytes`: of the buffer that is reduced, or gathered from all ranks.
    unquantised_reason reason(
        collective call, element_type type, reduction operation, std::uint64_t bytes) const noexcept
    {
        const bool has_codes = type == element_type::float32 || type == element_type::float16
            || type == element_type::bfloat16;
        if (!has_codes) return unquantised_reason::type;
        if (call != collective::all_gather && operation != reduction::sum && operation != reduction::average)
            return unquantised_reason::operation;
        if (ranks == 1) return unquantised_reason::one_rank;
        return bytes == 0 || bytes < least_bytes ? unquantised_reason::small : unquantised_reason::none;
    }
};

/// How much quantisation costs a call. In this order, the first that holds.
enum class quantisation_verdict : std::uint8_t {
    unknown, ///< the call was not quantised
    corrupt, ///< codes were damaged on their way, or ranks hold different results: not an error of quantisation
    non_finite_hidden, ///< an input was not finite, and the result is
    biased, ///< the errors have a mean, so they add up over the steps; or codes were clipped that need not be
    harmful, ///< the error costs more than a tenth of the batch; of a gather, more than a hundredth of the energy
    degenerate_blocks, ///< far more elements became zero than Gaussian ones would
    visible, ///< the error costs more than a hundredth of the batch; of a gather, more than 10^-4 of the energy
    negligible,
};

template <>
inline constexpr auto names_of<quantisation_verdict> = name_list<quantisation_verdict::negligible>{"unknown",
    "corrupt", "non_finite_hidden", "biased", "harmful", "degenerate_blocks", "visible", "negligible"};

/// What quantisation did to a call, over all ranks. Undefined numbers are NaN by their bits.
struct call_quantisation {
    bool seen = false; ///< a quantised communicator made or forwarded the call, and a part looked
    quantised_outcome outcome;
    quantisation_verdict verdict = quantisation_verdict::unknown; ///< what the numbers below amount to
    double sqnr_db = detail::not_a_number(); ///< of the ranks' inputs: energy over that of the errors
    int worst_rank = -1; ///< the rank with the lowest one
    std::uint64_t worst_block = no_index; ///< of that rank: index of its first element
    /// The energy of all roundings in the mean over that of the gradient's own noise in it: quantisation
    /// costs as much as a batch smaller by the factor 1 / (1 + noise_ratio).
    double noise_ratio = detail::not_a_number();
    double zeroed = detail::not_a_number(); ///< share of the elements that became zero
    double zeroed_expected = detail::not_a_number(); ///< the same of Gaussian elements with these scales
    double crest = detail::not_a_number(); ///< largest magnitude of a block over its root mean square: the mean
    /// The largest sum of errors, of a rank's elements or of the mean, in units of its standard deviation if
    /// the errors are independent.
    double bias = detail::not_a_number();
    int bias_rank = -1; ///< -1: of the mean
    double mean_error = detail::not_a_number(); ///< of the same errors, over the root mean square of the elements
    /// Of a sum or average: the energy of the mean of the inputs over that of the error of the result, which is what an
    /// optimiser gets. An estimate by sketches; the energies have a relative standard deviation of sqrt(2 / bins).
    double aggregate_sqnr_db = detail::not_a_number();
    /// The energy of the result's error over the sum of those of all roundings in it: 1 if they are independent; as
    /// many as there are ranks if the ranks' roundings are alike, and the owner's does not add. With feedback those of
    /// the step before are among them, which must have been reported. Infinite if the result has numbers that are not
    /// finite, and neither inputs nor codes have.
    double coherence = detail::not_a_number();
    double drift = detail::not_a_number(); ///< cosine of the result's error with that of the step before
    int drifting_steps = 0; ///< steps in a row, up to this one, whose drift was above `quantisation_limits::drift`
    std::uint32_t bins = 0; ///< of the sketches; 0: none, or inputs that are not finite
    bool messages_checked = false; ///< whether messages of codes were compared with what was sent
    std::uint64_t damaged_pairs = 0; ///< of ranks: messages from one came to the other otherwise than they were sent
    int damaged_sender = -1; ///< of the pair with the lowest receiver, and of its the lowest sender
    int damaged_receiver = -1; ///< of the same pair
    std::uint64_t saturated = 0; ///< elements that were clipped
    std::uint64_t nonfinite = 0; ///< elements of the inputs that were not finite
    std::uint64_t nonfinite_results = 0; ///< of one rank: the largest number
};

} // namespace collprobe::inline COLLPROBE_ABI
