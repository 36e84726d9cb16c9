// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include <collprobe/detail/fixed_array.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// An upper bound on the probability that a key is struck in this step, and in at least strikes - 1 of the window - 1
/// steps before: C(window - 1, strikes - 1) p^strikes. Here p = `per_step` is the probability of a strike in a step,
/// independent of other steps. The verdicts must be independent; that the steps' data are so is not enough.
constexpr double strike_rate(double per_step, int strikes, int window) noexcept
{
    double rate = per_step;
    for (int i = 1; i < strikes; ++i) rate *= per_step * (window - i) / i;
    // An alarm takes a strike in this step, however the verdicts depend on each other.
    return rate < per_step ? rate : per_step;
}

/// Counts which check struck which rank in the last `window` judged steps (up to 64), and how often in the long run.
/// Rank -1 stands for an unknown rank. A step costs O(1), a strike too; no allocation after set-up.
class strike_book {
public:
    strike_book(int ranks, int checks, int window)
        : ranks_(ranks),
          recent_(window == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << window) - 1),
          keys_(static_cast<std::size_t>(checks) * (static_cast<std::size_t>(ranks) + 1)),
          totals_(static_cast<std::size_t>(checks))
    {
    }

    /// Begins to judge another step; if it is the same step again, nothing changes.
    void begin(std::uint64_t step) noexcept
    {
        if (steps_ > 0 && step == step_) return;
        step_ = step;
        ++steps_;
        if (++counted_ == forget_after) forget();
    }
    /// Adds a strike and returns the number of steps of the window that struck the key, including this one.
    int strike(int check, int rank) noexcept
    {
        key& at = key_of(check, rank);
        const std::uint64_t age = steps_ - at.last;
        at.struck = age < 64 ? at.struck << age : 0;
        at.last = steps_;
        if ((at.struck & 1) == 0 && rank >= 0) {
            ++at.events;
            ++totals_[static_cast<std::size_t>(check)];
        }
        at.struck |= 1;
        return __builtin_popcountll(at.struck & recent_);
    }
    /// The rate of strikes per step of one rank, measured on the other ranks. So a faulty rank cannot raise the limit
    /// for itself, and a metric with heavier tails than assumed is noticed. `expected`: the assumed rate. It counts as
    /// half a strike, observed at that rate.
    double rate_of_others(int check, int rank, double expected) const noexcept
    {
        if (ranks_ < 3 || rank < 0) return expected;
        const std::uint32_t own = key_of(check, rank).events;
        const double others = totals_[static_cast<std::size_t>(check)] - own;
        const double seen = static_cast<double>(counted_) * (ranks_ - 1);
        const double rate = (others + 0.5) / (seen + 0.5 / expected);
        return rate > expected ? rate : expected;
    }
    void clear() noexcept
    {
        for (key& each : keys_) each = {};
        for (std::uint32_t& each : totals_) each = 0;
        steps_ = 0;
        counted_ = 0;
    }

private:
    static constexpr std::uint32_t forget_after = 1 << 14;

    struct key {
        std::uint64_t last = 0; // value of `steps_` at the last strike, 0 for none
        std::uint64_t struck = 0; // bit i: a strike i steps before that
        std::uint32_t events = 0;
    };

    const key& key_of(int check, int rank) const noexcept
    {
        return keys_[static_cast<std::size_t>(check) * (static_cast<std::size_t>(ranks_) + 1)
            + static_cast<std::size_t>(rank + 1)];
    }
    key& key_of(int check, int rank) noexcept
    {
        return const_cast<key&>(static_cast<const strike_book&>(*this).key_of(check, rank));
    }

    /// Halves the counts of the past, so that rates follow the run.
    void forget() noexcept
    {
        counted_ /= 2;
        for (std::size_t check = 0; check < totals_.size(); ++check) {
            totals_[check] = 0;
            for (int rank = 0; rank < ranks_; ++rank) {
                totals_[check] += key_of(static_cast<int>(check), rank).events /= 2;
            }
        }
    }

    int ranks_;
    std::uint64_t recent_; // one bit for each step of the window
    fixed_array<key> keys_; // by check, then by rank + 1
    fixed_array<std::uint32_t> totals_; // events of all ranks, by check
    std::uint64_t step_ = 0;
    std::uint64_t steps_ = 0;
    std::uint32_t counted_ = 0; // steps that the events stand for
};

} // namespace collprobe::detail
