// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <collprobe/audit/conservation_bound.hpp>
#include <collprobe/audit/detail/conservation_check.hpp>
#include <collprobe/audit/detail/gather_check.hpp>
#include <collprobe/audit/detail/judge.hpp>
#include <collprobe/audit/detail/observed_sums.hpp>
#include <collprobe/audit/detail/step_audit.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/scan/statistics.hpp>
#include <collprobe/step/part.hpp>
#include <collprobe/step/step_sketches.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// What `audit` checks. Equal on all ranks.
struct audit_options {
    bool sums = true; ///< check sums and averages
    /// The audit looks at the first of so many steps, as with `probe_options::every`; with 0 at those that are asked
    /// for by `probed::request<audit>`. A captured step has it only with 1.
    int every = 1;
    conservation_options conservation = {};
};

namespace detail {

/// What a rank has to say about a call.
struct audit_entry {
    std::uint64_t digest = 0; ///< of what it received, unless the step has that digest or the call is judged by shards
    union {
        conservation_result sum = {}; ///< not `checked` if the call was no sum, or a value was not finite
        std::uint64_t shards[receiver_report::words]; ///< of an all-gather in the mode `gather`
    };
};

/// The summary of a call, to be reduced with max: O(1) bytes for any number of ranks.
struct audit_keys {
    std::uint64_t digest;
    std::uint64_t digest_complement;
    /// The bits of the largest residual / limit, plus 1; 0 if no rank could check the sum. For numbers >= 0 bits order
    /// as values.
    std::uint64_t residual;
    std::uint64_t unchecked; ///< 1 if any rank could not check the sum
};

} // namespace detail

/// A part of a step that checks results: whether all ranks hold the same bits, and whether a sum is the sum of the
/// inputs. Use: `probed comm(world, options, audit())`; its findings are in `call_record::audit` and in the suspects:
/// which call was damaged, where, and which ranks hold the damage. audit/README.md says what is seen and what is not.
/// Checked, for all element types: all-reduce (agreement; sums and averages of floating point by a checksum),
/// reduce-scatter (that sum, over all parts), all-gather (digests of the shards; agreement in a `summary` and of
/// codes), broadcast (agreement). Cost of a call, beyond the step's own: one read of the result if the step takes no
/// digest of it; for a sum arithmetic in the step's reads; for an all-gather a launch for all shards. Cost of a step:
/// an all-reduce of 16 bytes a bin for each sum (`conservation_options`; rows of at most 4 KiB), an all-gather of 8
/// bytes a rank for each all-gather, a launch for each call. 64 bytes a call and rank in the step's message; in a
/// `summary` 32 bytes.
class audit : public detail::wants_sketches {
public:
    using entry = detail::audit_entry;
    using summary = detail::audit_keys;

    audit() = default;
    /// \throws error `invalid_argument` for an option out of range.
    explicit audit(const audit_options& options, call_site where = call_site::current()) : options_(options)
    {
        detail::require(options.every >= 0, "audit", "every is below 0", where);
    }
    /// The digests of an all-gather's shards tell more than that of the whole.
    bool reads_result(collective call, report_mode mode) const noexcept { return is_by_shards(call, mode); }
    int every() const noexcept { return options_.every; }

    template <class Device>
    struct memory {
        memory(const audit& of, int ranks) : shards(ranks)
        {
            if (of.options_.sums) sums.emplace(of.options_.conservation, ranks);
        }
        void clear() noexcept
        {
            if (sums) sums->clear();
            shards.clear();
        }
        void forget(std::uint64_t first) noexcept
        {
            if (sums) sums->forget(first);
            shards.forget(first);
        }
        std::optional<detail::conservation_check<Device>> sums;
        detail::gather_check<Device> shards;
    };

    template <element T, class Call>
    detail::sketch_target before(Call& call, view<const T> input, entry*) const
    {
        call.memory().forget(call.index()); // a call that was not made in the end left its index to this one
        if (compares_shards(call)) {
            call.memory().shards.template before<T>(
                call.index(), input, call.has_input_digest(), call.stream(), call.workspace());
        } else if (checks_sum(call)) {
            const bool is_part = call.what() == collective::reduce_scatter;
            return call.memory().sums->template before<T>(
                {call.index(), call.count(), call.operation(), is_part}, call.lane());
        }
        return {};
    }
    template <element T, class Call>
    detail::sketch_target after(Call& call, view<const T> result, entry* to) const
    {
        if (compares_shards(call)) {
            call.memory().shards.template after<T>(call.index(), result, call.stream(), call.workspace());
        }
        else if (is_replicated(call.what()) && !call.has_result_digest()) {
            call.reduce(detail::digest_reducer<T>(result), result.count(), &to->digest);
        }
        if (!checks_sum(call)) return {};
        return call.memory().sums->template after<T>(call.index(), result.count(), call.ranks().rank(), call.lane());
    }
    template <class Step>
    void end_step(Step& step) const
    {
        if (step.memory().sums) {
            step.memory().sums->end(step.ranks(), step.calls(), step.stream(),
                [&](std::uint64_t call) { return &step.entry(call)->sum; }, step.where());
        }
        step.memory().shards.end(step.ranks(), step.calls(), step.stream(),
            [&](std::uint64_t call) { return step.input_digest(call); },
            [&](std::uint64_t call) { return step.entry(call)->shards; }, step.where());
    }

    void judge(const part_entries<entry>& entries, step_record& record);

    COLLPROBE_HD static summary summarize(const entry& of) noexcept
    {
        // For integers every distance above 0 is too large.
        const double exact = of.sum.residual > 0 ? detail::power_of_two(1000) : 0;
        const double ratio = of.sum.limit > 0 ? of.sum.residual / of.sum.limit : exact;
        const std::uint64_t checked = of.sum.checked ? 1 : 0;
        return {of.digest, ~of.digest, checked * (to_bits(ratio) + 1), 1 - checked};
    }
    void judge_summary(const part_summaries<summary>& summaries, step_record& record) const;

private:
    static bool is_by_shards(collective call, report_mode mode) noexcept
    {
        return call == collective::all_gather && mode == report_mode::gather;
    }
    static bool is_replicated(collective call) noexcept
    {
        return call == collective::all_reduce || call == collective::all_gather || call == collective::broadcast;
    }
    /// Elements that come out of codes are not those of the shard: of such a gather only agreement is checked. So it is
    /// with an observed one unless the step tells which ranks have the result.
    template <class Call>
    static bool compares_shards(const Call& call) noexcept
    {
        return is_by_shards(call.what(), call.mode()) && !call.is_quantised()
            && (!call.is_observed() || call.has_result_digest());
    }
    template <class Call>
    bool checks_sum(const Call& call) const noexcept
    {
        // Codes make a sum another one than that of the inputs: `quantisation_probe` looks at those.
        return options_.sums && !call.has_leaves() && !call.is_quantised()
            && (call.what() == collective::all_reduce || call.what() == collective::reduce_scatter)
            && (call.operation() == reduction::sum || call.operation() == reduction::average);
    }

    /// Bins of the checksum of a floating-point sum.
    std::uint32_t bins_of(const call_record& call) const noexcept
    {
        return detail::bins_for(call.count, call.type, options_.conservation);
    }

    audit_options options_;
    std::optional<detail::step_audit> judge_; ///< made for the first step
    std::vector<detail::audit_finding> findings_; ///< of all ranks about one call
    std::vector<detail::receiver_report> reports_;
};

COLLPROBE_COLD_INLINE void audit::judge(const part_entries<entry>& entries, step_record& record)
{
    const auto ranks = static_cast<std::size_t>(entries.ranks());
    if (!judge_) {
        judge_.emplace(entries.ranks());
        findings_.resize(ranks);
        reports_.resize(ranks);
    }
    judge_->begin(record);
    for (int c = 0; c < entries.calls(); ++c) {
        const call_record& call = record.calls[static_cast<std::size_t>(c)];
        if (!detail::is_audited(call)) continue;
        const bool by_shards = is_by_shards(call.call, record.mode) && entries(c, 0).digest == 0;
        const bool is_partial = call.is_on_some_ranks();
        // A gather with a digest was one of codes.
        if (by_shards && !is_partial) {
            for (std::size_t r = 0; r < ranks; ++r) reports_[r].word = entries(c, static_cast<int>(r)).shards;
            judge_->judge_shards(reports_, c, record);
            continue;
        }
        const bool known = entries.has_result_digest(c) && is_replicated(call.call);
        const bool has_sum = !is_partial || (call.call == collective::all_reduce && call.without_input == 0);
        int holder = -1; // a rank without a result stands for none: it is given that of another rank
        for (std::size_t r = 0; r < ranks; ++r) {
            const int rank = static_cast<int>(r);
            const entry& of = entries(c, rank);
            findings_[r] = {known ? entries.result_digest(c, rank) : of.digest, {}};
            if (has_sum) findings_[r].sum = of.sum;
            if (holder < 0 && findings_[r].digest != detail::digest_of_nothing) holder = rank;
        }
        for (detail::audit_finding& each : findings_) {
            if (call.result_count != 0 && holder >= 0 && each.digest == detail::digest_of_nothing)
                each = findings_[static_cast<std::size_t>(holder)];
        }
        judge_->judge_results(findings_, bins_of(call), c, record);
        detail::settle_observed(record.calls[static_cast<std::size_t>(c)]);
    }
    judge_->end(options_.conservation.sigmas, record);
}

COLLPROBE_COLD_INLINE void audit::judge_summary(const part_summaries<summary>& summaries, step_record& record) const
{
    const std::size_t first = record.suspects.size();
    for (std::size_t c = 0; c < record.calls.size(); ++c) {
        call_record& call = record.calls[c];
        if (!detail::is_audited(call)) continue;
        const summary& keys = summaries[static_cast<int>(c)];
        const bool agreed_before = call.results_agree;
        call_audit& out = detail::begin_audit(call);
        const int index = static_cast<int>(c);
        call.results_agree = agreed_before && keys.digest == ~keys.digest_complement;
        out.majority = call.results_agree;
        out.sum_checked = keys.residual != 0;
        out.residual = out.sum_checked ? detail::bit_cast<double>(keys.residual - 1) : 0;
        out.residual_limit = out.sum_checked ? 1 : 0;
        if (call.is_observed && out.residual > 1) out.sum_checked = false; // it may be weighted on purpose
        // A rank that could not check its sum while others could received a value that is not finite.
        const bool all_checked = keys.unchecked == 0;
        out.conserved = !out.sum_checked || (all_checked && out.residual <= 1);
        if (out.sum_checked && is_floating(call.type)) out.bins = bins_of(call);
        if (!call.results_agree) {
            out.where = damage::unknown;
            if (agreed_before) {
                record.suspects.push_back({.call = index, .what = finding::result_differs, .statistic = 2});
            }
        } else if (!out.conserved) {
            out.where = all_checked ? damage::reduce : damage::unknown;
        }
        if (!out.conserved) {
            record.suspects.push_back(
                {.call = index, .what = finding::sum_differs, .statistic = out.residual, .threshold = 1});
        }
        detail::leave_open(call);
        detail::note_overflow(call);
    }
    detail::state_certainty(first, options_.conservation.sigmas, record);
}

} // namespace collprobe
