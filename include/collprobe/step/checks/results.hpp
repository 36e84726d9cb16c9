// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/core/element.hpp>
#include <collprobe/core/widen.hpp>
#include <collprobe/detail/digest_index.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/metrics/direction.hpp>
#include <collprobe/metrics/dispersion.hpp>
#include <collprobe/step/checks/check_context.hpp>

/// The results of a step's calls: whether those agree that must, and whether a result can be that of its inputs.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// Half a unit of the last place, relative to the number, the smallest number and the largest one.
struct rounding_errors {
    double relative;
    double underflow;
    double largest;

    /// The factor by which so many roundings may make a sum larger: (1 + u)^k <= exp(k u) <= 1 / (1 - k u).
    double growth(double roundings) const noexcept
    {
        return roundings * relative < 0.5 ? 1 / (1 - roundings * relative) : exponential(roundings * relative);
    }
};

COLLPROBE_COLD_INLINE rounding_errors rounding_errors_of(element_type type) noexcept
{
    int digits = element_traits<double>::digits; // sums of integers are taken in double here
    int least = -1022;
    double largest = 0x1.fffffffffffffp1023;
    with_floating_type(type, [&]<class T>(T) {
        digits = element_traits<T>::digits;
        if (element_traits<T>::min_subnormal_exponent > least) least = element_traits<T>::min_subnormal_exponent;
        using bits = typename element_traits<T>::bits_type;
        largest = widen(bit_cast<T>(static_cast<bits>(element_traits<T>::smallest_nonfinite - 1)));
    });
    return {power_of_two(-digits), power_of_two(least), largest};
}

/// How far two sums of the same squares may be apart. In double the relative error is at most the longest chain of
/// additions, times 2^-53; elements of 8 and 16 bits are first added up in float, at most 32 in a row (scan/norm.hpp).
constexpr double squares_tolerance(element_type type) noexcept { return bytes_of(type) < 4 ? 0x1p-17 : 0x1p-32; }

/// What is known of the lengths of a call's inputs and results, over all ranks.
struct call_lengths {
    double norms = 0; ///< sum of the norms of the inputs
    double norms_error = 0; ///< of `norms`, at most
    double squares = 0; ///< of the inputs
    double result = not_a_number(); ///< squares of the one result that all have, or of all parts
};

/// Sets `call_record::excess`, and adds a finding if it is above 1. Precondition: all inputs are finite.
COLLPROBE_COLD_INLINE void judge_lengths(
    const call_lengths& of, const probed_call& call, int call_index, step_record& out)
{
    if (call.has_codes || call.has_leaves || call.has_unknown_scale) return;
    // What was sent is finite, and what came is not.
    const bool is_damaged = call.is_move() && out.calls[static_cast<std::size_t>(call_index)].result_nonfinite != 0;
    if (!is_damaged && !is_finite(of.result)) return;
    // Squares near the end of a double's range have lost digits; 0 is 0.
    if (!is_damaged && of.result > 0 && of.result < 0x1p-900) return;
    finding found{.call = call_index, .what = finding_kind::shard_differs, .by_length = true};
    double& excess = out.calls[static_cast<std::size_t>(call_index)].excess;
    if (call.is_move()) {
        const double larger = is_damaged || of.squares > of.result ? of.squares : of.result;
        if (!is_damaged && (!is_finite(of.squares) || (of.squares > 0 && of.squares < 0x1p-900))) return;
        found.statistic = is_damaged ? 1 : larger > 0 ? absolute(of.result - of.squares) / larger : 0;
        found.threshold = squares_tolerance(call.type);
    } else {
        // Each of n - 1 additions, a factor before and one behind them rounds, or falls below the normal range.
        const double roundings = out.ranks + 1;
        const double factor = call.operation == reduction::average ? out.ranks : 1;
        const rounding_errors by = rounding_errors_of(call.type);
        found.what = finding_kind::sum_differs;
        found.statistic = factor * square_root(of.result);
        found.threshold = (of.norms + of.norms_error) * by.growth(roundings) * (1 + squares_tolerance(call.type))
            + roundings * factor * by.underflow * square_root(static_cast<double>(call.count));
        if (!is_finite(found.threshold)) return;
    }
    excess = found.threshold > 0 ? found.statistic / found.threshold : found.statistic > 0 ? 0x1p1000 : 0;
    if (excess > 1 && !call.is_observed) out.add(std::move(found));
}

/// What is known of a call without the ranks' messages.
COLLPROBE_COLD_INLINE void describe_call(const probed_call& call, call_record& to) noexcept
{
    to.call = call.call;
    to.type = call.type;
    to.operation = call.operation;
    to.is_gradient = call.is_gradient();
    to.count = call.count;
    to.result_count = call.result_count;
    to.site = call.site;
    to.is_observed = call.is_observed;
}

/// The largest number of the type in units of the largest magnitude that a sum or average can have.
COLLPROBE_COLD_INLINE double headroom_of(const probed_call& call, const std::vector<statistics>& inputs) noexcept
{
    constexpr double down = 0x1p-64; // doubles do not overflow
    double sum = 0;
    for (const statistics& each : inputs) sum += each.absolute_maximum * down;
    if (call.operation == reduction::average) sum /= static_cast<double>(inputs.size());
    return sum > 0 ? rounding_errors_of(call.type).largest * down / sum : not_a_number();
}

/// Adds the finding of a reduction of finite inputs whose result has so many elements that are not finite, the first
/// one at `first`. `rank`: whose part it is; -1: all have it.
COLLPROBE_COLD_INLINE void judge_overflow(std::uint64_t elements, std::uint64_t first, int rank,
    const probed_call& call, int call_index, step_record& out)
{
    const double headroom = out.calls[static_cast<std::size_t>(call_index)].headroom;
    const double terms = call.operation == reduction::average ? out.ranks : 1; // the sum may come before the factor
    double room = is_finite(headroom) ? headroom / terms / rounding_errors_of(call.type).growth(out.ranks + 1) : 0;
    if (call.operation == reduction::min || call.operation == reduction::max) room = 0x1p1000;
    if (call.is_observed) room = 0; // the caller may have scaled the result
    out.add({.ranks = ranks_of(rank),
        .call = call_index,
        .what = finding_kind::overflow,
        .statistic = static_cast<double>(elements),
        .threshold = room > 1 ? room : 0,
        .index = first});
}

/// The result of a call, over all ranks.
struct common_result {
    /// The lowest rank with the result that most ranks received; -1 if there is no majority.
    int holder = -1;
    /// Of the result that all have, or of all parts. NaN if it was not read, or differs between the ranks without a
    /// majority, and if an element is not finite.
    double squares = not_a_number();
    double sum_factor = 1; ///< turns the result into the sum over the ranks

    double sum_norm_squared() const noexcept { return sum_factor * sum_factor * squares; }
};

class results_check {
public:
    explicit results_check(int ranks)
        : holders_(ranks), norms_(at_rank(ranks)), squares_(at_rank(ranks))
    {
    }

    /// Notes whether all agree.
    common_result find(const check_context& step, std::size_t call)
    {
        const int holder = find_holder(step, call);
        const double factor = step.calls[call].operation == reduction::average ? step.ranks() : 1;
        return {holder, squares_of(step, call, holder), factor};
    }

    /// Fills the record of the call. `common`: as found above.
    void describe(const check_context& step, std::size_t b, const common_result& common)
    {
        const probed_call& call = step.calls[b];
        call_record& described = step.out.calls[b];
        describe_call(call, described);
        describe_result(step, b, common);
        if (!call.has_input) return;
        described.inputs.reserve(at_rank(step.ranks()));
        for (int r = 0; r < step.ranks(); ++r) {
            const statistics& input = step.input(r, b);
            described.inputs.push_back(input);
            described.nonfinite += input.nonfinite();
            const bool has_none = has_no_input(call, input);
            described.without_input += has_none ? 1 : 0;
            norms_[at_rank(r)] = has_none ? not_a_number() : input.l2();
            squares_[at_rank(r)] = input.sum_of_squares;
        }
        described.gradient_norm = dispersion(norms_);
        if (!call.is_gradient()) return;
        if (!call.has_codes && described.nonfinite == 0) described.headroom = headroom_of(call, described.inputs);
        if (!call.has_result) return;
        align_from_sums(squares_, {}, common.sum_norm_squared(), direction_);
        described.pooled_cosine = direction_.pooled;
    }

    /// Reductions of finite inputs with results that are not. Of a described call, as all below.
    void judge_overflow(const check_context& step, std::size_t b, const common_result& common) const
    {
        const probed_call& call = step.calls[b];
        const bool overflows = step.out.calls[b].result_nonfinite != 0 && step.out.calls[b].nonfinite == 0;
        for (int r = 0; overflows && call.has_input && !call.is_move() && r < step.ranks(); ++r) {
            const result_record& result = step.result(r, b);
            if (result.nonfinite == 0 || (call.is_replicated() && r != common.holder)) continue;
            detail::judge_overflow(result.nonfinite, result.first_nonfinite, call.is_replicated() ? -1 : r, call,
                static_cast<int>(b), step.out);
        }
    }
    /// Results that differ: names the ranks whose result is not that of most ranks; none if no result has a majority.
    /// Precondition: `find` has found so, of this call last.
    COLLPROBE_COLD_INLINE void judge_replicas(const check_context& step, std::size_t b) const
    {
        const digest_index::group* const most = holders_.majority();
        finding found{.call = static_cast<int>(b), .what = finding_kind::result_differs};
        if (most == nullptr) {
            found.statistic = static_cast<double>(holders_.distinct());
            step.out.add(std::move(found));
            return;
        }
        found.statistic = 1;
        for (int r = 0; r < step.ranks(); ++r) {
            if (step.result(r, b).digest == most->digest || step.has_no_result(r, b)) continue;
            found.ranks = {r};
            step.out.add(found);
        }
    }
    void judge_lengths(const check_context& step, std::size_t b, const common_result& common) const
    {
        const probed_call& call = step.calls[b];
        const call_record& described = step.out.calls[b];
        if (!call.has_input || described.nonfinite != 0 || !(call.is_move() || call.is_gradient())) return;
        call_lengths of;
        std::uint64_t sent = 0;
        for (const statistics& each : described.inputs) {
            sent += each.count;
            of.squares += each.sum_of_squares;
        }
        of.norms = total(norms_);
        if (call.call == collective::broadcast && sent != call.count) return; // nobody read what the root sent
        of.result = common.squares;
        detail::judge_lengths(of, call, static_cast<int>(b), step.out);
    }

private:
    /// The lowest rank with the result that most ranks received; -1 if there is no majority.
    int find_holder(const check_context& step, std::size_t call)
    {
        int first = 0;
        while (first < step.ranks() && step.has_no_result(first, call)) ++first;
        if (first == step.ranks()) first = -1;
        bool& agree = step.out.calls[call].results_agree = true;
        const bool must_agree = step.calls[call].is_replicated() || step.is_of_totals;
        if (!step.calls[call].has_result || !must_agree || first < 0) return first;
        const std::uint64_t digest = step.result(first, call).digest;
        for (int r = first + 1; r < step.ranks(); ++r)
            agree = agree && (step.result(r, call).digest == digest || step.has_no_result(r, call));
        if (agree) return first;
        if (!step.calls[call].is_replicated()) return -1; // totals with parts: only the calls tell which rank differs
        holders_.clear();
        for (int r = 0; r < step.ranks(); ++r)
            if (!step.has_no_result(r, call)) holders_.add(step.result(r, call).digest, r);
        const digest_index::group* const most = holders_.majority();
        return most == nullptr ? -1 : most->first_rank;
    }
    static double squares_of(const check_context& step, std::size_t b, int holder)
    {
        const probed_call& call = step.calls[b];
        if (!call.has_result || holder < 0) return not_a_number();
        double squares = 0;
        for (int r = 0; r < step.ranks(); ++r) {
            const int from = call.is_replicated() ? holder : r;
            if (step.has_no_result(from, b) || step.result(from, b).nonfinite != 0) return not_a_number();
            squares += step.result(from, b).sum_of_squares;
            if (call.is_replicated()) break;
        }
        return squares;
    }
    static void describe_result(const check_context& step, std::size_t b, const common_result& common)
    {
        const probed_call& call = step.calls[b];
        call_record& described = step.out.calls[b];
        if (!call.has_result) return;
        described.has_result_digest = common.holder >= 0;
        for (int r = 0; call.is_observed && r < step.ranks(); ++r)
            described.without_result += step.has_no_result(r, b) ? 1 : 0;
        if (step.messages.layout().times) {
            described.intervals.reserve(at_rank(step.ranks()));
            for (int r = 0; r < step.ranks(); ++r)
                described.intervals.push_back({step.messages.times(r, b).entered, step.messages.times(r, b).left});
        }
        if (common.holder < 0) return;
        described.result_norm = square_root(common.squares);
        if (call.is_replicated()) {
            described.result_nonfinite = step.result(common.holder, b).nonfinite;
            described.result_digest = step.result(common.holder, b).digest;
            return;
        }
        for (int r = 0; r < step.ranks(); ++r) {
            described.result_nonfinite += step.result(r, b).nonfinite;
            described.result_digest
                = mix64(described.result_digest + 0x9e3779b97f4a7c15u) ^ step.result(r, b).digest;
        }
        described.result_digest = mix64(described.result_digest);
    }

    digest_index holders_; // of the results that differ, by digest
    std::vector<double> norms_;
    std::vector<double> squares_;
    direction direction_;
};

} // namespace collprobe::inline COLLPROBE_ABI::detail
