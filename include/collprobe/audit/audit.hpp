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
/// digest of it; for a sum arithmetic in the step's reads; for an all-gather a launch for each shard. Cost of a step:
/// an all-reduce of 16 bytes a bin for each sum (`conservation_options`; rows of at most 4 KiB), an all-gather of 8
/// bytes a rank for each all-gather, a launch for each call. 64 bytes a call and rank in the step's message; in a
/// `summary` 32 bytes.
class audit : public detail::reads_with_sketches {
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
    sketch before(Call& call, view<const T> input, entry*) const
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
    sketch after(Call& call, view<const T> result, entry* to) const
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

} // namespace collprobe

#if COLLPROBE_DEFINITIONS
#include <collprobe/audit/detail/audit.ipp>
#endif
