// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <collprobe/audit/conservation_bound.hpp>
#include <collprobe/audit/detail/conservation_check.hpp>
#include <collprobe/audit/detail/gather_check.hpp>
#include <collprobe/audit/detail/judge.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/scan/statistics.hpp>
#include <collprobe/step/part.hpp>

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

/// The summary of a call, to be reduced with max: O(1) bytes for any number of ranks.
struct audit_keys {
    std::uint64_t digest;
    std::uint64_t digest_complement;
    std::uint64_t residual; ///< bits of the largest, plus 1: as numbers >= 0 order; 0 if no rank could check the sum
    std::uint64_t unchecked; ///< 1 if any rank could not check the sum
};

} // namespace detail

/// A part of a step that checks results: whether all ranks hold the same bits, and whether a sum is the sum of the
/// inputs. Use: `probed comm(world, options, audit())`; it fills `call_record::audit` and adds findings: which call was
/// damaged, where, and which ranks hold the damage. audit/README.md says what is seen and what is not.
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
        detail::require_sketch_options(options.conservation.sketch, "audit", where);
    }
    /// The digests of an all-gather's shards tell more than that of the whole.
    bool reads_result(collective call, report_mode mode) const noexcept { return is_by_shards(call, mode); }
    int every() const noexcept { return options_.every; }

    template <class Device>
    struct memory {
        memory(const audit& of, int ranks) : sums(of.options_.conservation, ranks), shards(ranks) {}
        void clear() noexcept
        {
            sums.clear();
            shards.clear();
        }
        void forget(std::uint64_t first) noexcept
        {
            sums.forget(first);
            shards.forget(first);
        }
        detail::conservation_check<Device> sums;
        detail::gather_check<Device> shards;
    };

    template <element T, class Call>
    detail::sketch_target before(Call& call, view<const T> input, entry*) const
    {
        call.memory().shards.template before<T>(call, input);
        if (!options_.sums) return {};
        return call.memory().sums.template before<T>(call);
    }
    template <element T, class Call>
    detail::sketch_target after(Call& call, view<const T> result, entry* to) const
    {
        const bool by_shards = call.memory().shards.template after<T>(call, result);
        if (!by_shards && detail::is_replicated(call.what()) && !call.has_result_digest())
            call.reduce(detail::digest_reducer<T>(result), result.count(), &to->digest);
        return call.memory().sums.after(call, result.count());
    }
    template <class Step>
    void end_step(Step& step) const
    {
        step.memory().sums.end(step, [&](std::uint64_t call) { return &step.entry(call)->sum; });
        step.memory().shards.end(step, [&](std::uint64_t call) { return &step.entry(call)->shards; });
    }

    COLLPROBE_COLD_INLINE void judge(const part_entries<entry>& entries, step_record& record)
    {
        begin(entries.ranks(), record);
        for (int c = 0; c < entries.calls(); ++c) {
            call_record& call = record.calls[static_cast<std::size_t>(c)];
            if (call.call == collective::all_to_all) continue; // not audited
            const bool is_partial = call.is_on_some_ranks();
            const bool known = entries.has_result_digest(c) && detail::is_replicated(call.call);
            const bool has_sum = !is_partial || (call.call == collective::all_reduce && call.without_input == 0);
            // A gather with a digest was one of codes.
            const bool by_shards = is_by_shards(call.call, record.mode) && entries(c, 0).digest == 0 && !is_partial;
            const entry* holder = nullptr; // a rank without a result stands for none: it is given that of another rank
            for (int r = 0; r < entries.ranks(); ++r) {
                entry& of = of_ranks_[static_cast<std::size_t>(r)] = entries(c, r);
                if (by_shards) continue;
                if (known) of.digest = entries.result_digest(c, r);
                if (!has_sum) of.sum = {};
                if (holder == nullptr && of.digest != detail::digest_of_nothing) holder = &of;
            }
            if (by_shards) {
                judge_->judge_shards(of_ranks_, c, record);
                continue;
            }
            for (entry& of : of_ranks_) {
                if (call.result_count != 0 && holder != nullptr && of.digest == detail::digest_of_nothing) of = *holder;
            }
            judge_->judge_results(of_ranks_, c, record);
            detail::settle_observed(call);
        }
        judge_->end(record);
    }

    COLLPROBE_HD static summary summarize(const entry& of) noexcept
    {
        return {of.digest, ~of.digest, of.sum.checked ? to_bits(of.sum.residual) + 1 : 0, of.sum.checked ? 0u : 1u};
    }
    /// Judges the largest and the smallest of what the ranks say as if they were two ranks.
    COLLPROBE_COLD_INLINE void judge_summary(const part_summaries<summary>& summaries, step_record& record)
    {
        begin(2, record);
        for (int c = 0; c < static_cast<int>(record.calls.size()); ++c) {
            const call_record& call = record.calls[static_cast<std::size_t>(c)];
            if (call.call == collective::all_to_all) continue; // not audited
            const summary& keys = summaries[c];
            entry& one = of_ranks_[0] = {keys.digest, {}};
            entry& other = of_ranks_[1] = {~keys.digest_complement, {}};
            if (!call.results_agree && one.digest == other.digest) ++other.digest; // the step has the digests
            if (keys.residual != 0) {
                const auto residual = detail::bit_cast<double>(keys.residual - 1);
                one.sum = {residual, 0, detail::bins_for(call.count, call.type, options_.conservation), true,
                    residual <= detail::conservation_limit};
                // A rank that could not check its sum while others could received a value that is not finite. Of unlike
                // results nobody knows which one the checked sums are of.
                if (keys.unchecked == 0 || one.digest != other.digest) other.sum = one.sum;
            }
            judge_->judge_results(of_ranks_, c, record);
        }
        judge_->end(record);
    }

private:
    COLLPROBE_COLD_INLINE void begin(int ranks, step_record& record)
    {
        if (!judge_) judge_.emplace(ranks);
        of_ranks_.resize(static_cast<std::size_t>(ranks));
        judge_->begin(record);
    }
    static bool is_by_shards(collective call, report_mode mode) noexcept
    {
        return call == collective::all_gather && mode == report_mode::gather;
    }

    audit_options options_;
    std::optional<detail::audit_judge> judge_; ///< made for the first step
    std::vector<entry> of_ranks_; ///< about one call
};

} // namespace collprobe
