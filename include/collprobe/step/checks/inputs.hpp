// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <collprobe/detail/digest_index.hpp>
#include <collprobe/step/checks/check_context.hpp>

/// What is wrong with what a rank sends: NaN, a copy, a repeat, zeros.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// Ranks with NaN or infinity in a loss or an input.
class nonfinite_check {
public:
    explicit nonfinite_check(int ranks) : has_some_(at_rank(ranks)) {}

    void forget() noexcept { has_spread_ = false; }

    /// Names the ranks, and leaves them out.
    void judge_call(const check_context& step, std::size_t call) const
    {
        const bool counts = step.calls[call].has_input && step.calls[call].count != 0;
        if (counts) step.out.nonfinite_by_rank.resize(at_rank(step.ranks()));
        for (int r = 0; r < step.ranks(); ++r) {
            const statistics& input = step.input(r, call);
            if (input.nonfinite() == 0) continue;
            if (counts) step.out.nonfinite_by_rank[at_rank(r)] += input.nonfinite();
            step.out.leave_out(r);
            step.out.add({.ranks = {r},
                .call = static_cast<int>(call),
                .what = finding_kind::non_finite,
                .statistic = static_cast<double>(input.nonfinite()),
                .index = input.first_nonfinite});
        }
    }
    /// How many ranks the findings name for them.
    std::uint64_t having(const step_record& out)
    {
        has_some_.assign(has_some_.size(), 0);
        std::uint64_t count = 0;
        for (const finding& found : out.findings)
            for (const int rank : found.ranks)
                if (found.what == finding_kind::non_finite && std::exchange(has_some_[at_rank(rank)], 1) == 0) ++count;
        return count;
    }
    /// Behind all calls. Where most ranks, by `having`, have them in a step and had them in the one before, the weights
    /// have them, and one finding without a rank says so.
    COLLPROBE_COLD_INLINE void judge_spread(std::uint64_t having, step_record& out)
    {
        const bool had_spread = std::exchange(has_spread_, 2 * having > static_cast<std::uint64_t>(out.ranks));
        if (!had_spread) since_ = out.step;
        if (!had_spread || !has_spread_) return;
        std::erase_if(out.findings, [](const finding& found) { return found.what == finding_kind::non_finite; });
        out.findings.insert(out.findings.begin(), {.what = finding_kind::non_finite,
            .statistic = static_cast<double>(having), .number = {.is_new_level = true, .since = since_}});
    }

private:
    std::vector<char> has_some_; // by rank, in this step
    bool has_spread_ = false; // most ranks had them in the last step
    std::uint64_t since_ = 0;
};

/// Ranks that hold the bits of another rank, or of the step before.
class copies_check {
public:
    explicit copies_check(int ranks) : ranks_(ranks), holders_(ranks) {}

    void make_room(std::size_t slots) { previous_.resize(slots * at_rank(ranks_)); }
    /// Forgets the series that had this slot.
    void forget(std::size_t slot) noexcept
    {
        for (int r = 0; r < ranks_; ++r) previous_[slot * at_rank(ranks_) + at_rank(r)] = {};
    }
    void forget() { previous_.clear(); }

    /// Names every rank of a group with the same bits, because the bits do not tell which rank copied from which.
    void judge_copies(const check_context& step, std::size_t call)
    {
        holders_.clear();
        int telling = 0;
        for (int r = 0; r < ranks_; ++r) {
            if (!tells(step.input(r, call))) continue;
            holders_.add(step.input(r, call).digest, r);
            ++telling;
        }
        if (holders_.distinct() == telling) return;
        for (int r = 0; r < ranks_; ++r) {
            if (!tells(step.input(r, call))) continue;
            const digest_index::group& alike = holders_.find(step.input(r, call).digest);
            if (alike.ranks == 1) continue;
            if (alike.first_rank < r) step.out.leave_out(r);
            step.out.add({.ranks = {r},
                .other_rank = alike.first_rank,
                .call = static_cast<int>(call),
                .what = finding_kind::duplicate,
                .statistic = 1});
        }
    }

    /// Names the ranks whose gradient, or shard of an all-gather, is that of the last such call. What most ranks repeat
    /// is the program's doing: a frozen layer, or a benchmark with the same data in each step. A shard may be frozen on
    /// one rank alone, from the first step on or later: it is told in the first step that repeats what had changed.
    void judge_repeats(const check_context& step, std::size_t call)
    {
        named_.clear();
        call_record& described = step.out.calls[call];
        const bool is_shard = step.calls[call].call == collective::all_gather;
        held* const slot = previous_.data() + step.series[call].slot * at_rank(ranks_);
        for (int r = 0; r < ranks_; ++r) {
            const statistics& input = step.input(r, call);
            held now = tells(input) ? held{input.count & (~std::uint64_t{0} >> 1), 0, input.digest} : held{};
            const held last = slot[at_rank(r)];
            const bool repeats = now.count != 0 && last.count == now.count && last.digest == now.digest;
            now.is_new = repeats ? last.is_new : last.count != 0;
            slot[at_rank(r)] = now;
            if (!repeats) continue;
            ++described.repeating_ranks;
            if (!is_shard || last.is_new != 0) named_.push_back(r);
        }
        if (named_.empty() || described.is_repeated(ranks_)) return;
        for (const int r : named_) slot[at_rank(r)].is_new = 0;
        step.out.findings.push_back(
            {.ranks = named_, .call = static_cast<int>(call), .what = finding_kind::stale, .statistic = 1});
    }

private:
    struct held {
        std::uint64_t count : 63 = 0;
        std::uint64_t is_new : 1 = 0; // it is not what the rank held first, and not yet told to repeat
        std::uint64_t digest = 0;
    };

    /// Equal bits prove a copy only if there are enough data: buffers with fewer elements than this that are neither
    /// zero nor NaN nor infinite may agree by chance.
    static constexpr std::uint64_t telling_elements = 16;
    static bool tells(const statistics& input) noexcept { return input.finite() - input.zero >= telling_elements; }

    int ranks_;
    std::vector<int> named_; ///< ranks, of a call
    digest_index holders_;
    std::vector<held> previous_; // [slot][rank]
};

/// Ranks whose whole gradient, or input of a call, is zero while that of others is not.
class zeros_check {
public:
    explicit zeros_check(int ranks) : ranks_(ranks), is_zero_(at_rank(ranks)), sends_(at_rank(ranks)) {}

    void make_room(std::size_t slots) { runs_.resize((1 + slots) * at_rank(ranks_)); }
    /// Forgets the series that had this slot.
    void forget(std::size_t slot) noexcept
    {
        for (int r = 0; r < ranks_; ++r) runs_[(1 + slot) * at_rank(ranks_) + at_rank(r)] = {};
    }
    void forget()
    {
        runs_.clear();
        under_way_ = 0;
        longest_[0] = longest_[1] = 0;
    }
    /// What is saved: the steps of the longest runs that have ended, of the whole gradient and of calls.
    const std::uint64_t (&longest() const noexcept)[2] { return longest_; }
    void restore(std::uint64_t of_gradient, std::uint64_t of_call)
    {
        forget();
        longest_[0] = of_gradient;
        longest_[1] = of_call;
    }

    void begin_step()
    {
        is_zero_.assign(is_zero_.size(), true);
        sends_.assign(sends_.size(), false);
        has_zeros_ = false;
    }
    /// Takes in a gradient of the step.
    void add(const statistics& input, int rank) noexcept
    {
        const bool zero = detail::is_zero(input);
        has_zeros_ = has_zeros_ || zero;
        if (input.count == 0) return;
        sends_[at_rank(rank)] = true;
        is_zero_[at_rank(rank)] = is_zero_[at_rank(rank)] && zero;
    }
    /// Of a step whose gradients have elements: notes the ranks whose whole gradient is zero; then names those whose
    /// gradient, or input of one call, has been so for long. Ranks without data are left out.
    void judge(const check_context& step)
    {
        if (has_zeros_ || under_way_ != 0) judge_runs(step);
        for (int r = 0; r < ranks_; ++r)
            if (!sends_[at_rank(r)]) step.out.leave_out(r);
    }

private:
    /// Steps in a row in which a rank had zeros, and others not.
    struct run {
        static constexpr std::uint32_t least_told = 16;

        std::uint64_t since = 0;
        std::uint32_t steps = 0; // without those in which its weight was 0
        bool is_under_way = false;
        bool is_told = false;

        /// One more step. Whether it is to be told now.
        bool follow(std::uint64_t step, bool is_zero, bool is_excused, std::uint64_t& longest) noexcept
        {
            if (!is_zero) {
                longest = steps > longest ? steps : longest;
                *this = {};
                return false;
            }
            if (!is_under_way) since = step;
            is_under_way = true;
            if (is_excused) return false;
            ++steps;
            return !is_told && steps >= least_told && steps >= 2 * longest;
        }
    };

    COLLPROBE_COLD_INLINE void judge_runs(const check_context& step)
    {
        int having = 0;
        int sending = 0;
        for (int r = 0; r < ranks_; ++r) {
            is_zero_[at_rank(r)] = is_zero_[at_rank(r)] && sends_[at_rank(r)];
            having += is_zero_[at_rank(r)] ? 1 : 0;
            sending += sends_[at_rank(r)] ? 1 : 0;
        }
        if (having == sending) return; // as in a step without a backward pass
        for (int r = 0; r < ranks_; ++r) {
            const bool has_no_weight = step.messages.header(r).weight == 0;
            follow(step, r, 0, is_zero_[at_rank(r)], 2 * having > sending, -1);
            if (!is_zero_[at_rank(r)]) continue;
            step.out.leave_out(r);
            step.out.zero_ranks.push_back({r, has_no_weight, runs_[at_rank(r)].since});
        }
        for (std::size_t b = 0; b < step.calls.size(); ++b) {
            if (!step.calls[b].is_gradient() || step.calls[b].count == 0) continue;
            int zeros = 0;
            const int senders = ranks_ - step.out.calls[b].without_input;
            for (int r = 0; r < ranks_; ++r) zeros += detail::is_zero(step.input(r, b)) ? 1 : 0;
            if (zeros == senders) continue; // a frozen layer
            for (int r = 0; r < ranks_; ++r) {
                if (is_zero_[at_rank(r)]) continue; // said of the whole gradient
                follow(step, r, (1 + step.series[b].slot) * at_rank(ranks_), detail::is_zero(step.input(r, b)),
                    2 * zeros > senders, static_cast<int>(b));
            }
        }
    }
    /// `are_most`: what most ranks do is the program's doing.
    COLLPROBE_COLD_INLINE void follow(
        const check_context& step, int rank, std::size_t first, bool is_zero, bool are_most, int call)
    {
        const bool is_excused = step.messages.header(rank).weight == 0;
        run& of = runs_[first + at_rank(rank)];
        under_way_ -= of.is_under_way ? 1 : 0;
        const bool is_due = of.follow(step.out.step, is_zero, is_excused, longest_[call < 0 ? 0 : 1]);
        under_way_ += of.is_under_way ? 1 : 0;
        if (!is_due || are_most) return;
        of.is_told = true;
        step.out.add({.ranks = {rank},
            .call = call,
            .what = finding_kind::zeros,
            .statistic = static_cast<double>(of.steps),
            .threshold = run::least_told,
            .number = {.steps = of.steps, .since = of.since}});
    }

    int ranks_;
    std::vector<bool> is_zero_; // by rank: its whole gradient
    std::vector<bool> sends_; // by rank: elements of any gradient
    bool has_zeros_ = false;
    std::vector<run> runs_; // [0: the whole gradient, 1 + slot][rank]
    std::size_t under_way_ = 0;
    std::uint64_t longest_[2] = {0, 0};
};

} // namespace collprobe::inline COLLPROBE_ABI::detail
