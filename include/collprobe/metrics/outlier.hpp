// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/core/config.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>

/// Finds ranks whose number in a step is unlike those of the other ranks. metrics/outlier.md has the derivation.
namespace collprobe::inline COLLPROBE_ABI {

/// The scale of numbers that are not negative, such as losses and norms: the logarithm. 0 counts as the least positive
/// number. A negative or non-finite number gives NaN by bits.
double logarithm_of(double number) noexcept;
/// The scale of cosines: Fisher's z, atanh(c). Limited to |c| = 1 - 2^-40, beyond which a cosine is rounding noise. A
/// non-finite cosine gives NaN by bits.
double fisher_z(double cosine) noexcept;

struct outlier_options {
    /// The probability that a step of healthy ranks has any outlier, over all numbers and ranks. In (0, 1).
    double false_alarms_per_step = 1e-4;
    int window = 384; ///< steps from which it is known how far ranks stray, 32 to 4096
};

/// A rank that is unlike the others, or the fact that ranks are. All lengths are on the scale of the numbers.
struct outlier {
    int rank = -1; ///< -1: one of two ranks, or more ranks than are named (a quarter, one at least, ten at most)
    int call = -1; ///< the call whose number is farthest off
    double distance = 0; ///< of the number from `expected`
    double expected = 0; ///< the median of the other ranks, each less its habit, and the habit of this one
    double limit = 0; ///< `distance` is larger than this
    double seen = 0; ///< the largest such distance in the window
    /// The least `false_alarms_per_step` with which this would be found. Below that of the options only if the distance
    /// is four times as far out as any before in the run: no tail that is usual makes such distances.
    double false_alarms_per_step = 0;
    std::uint32_t steps = 0; ///< in the window
    /// The rank has been named for so many steps in a row that it is not named any more while it stays where it is.
    bool is_new_level = false;
    std::uint64_t since = 0; ///< then: the first of these steps
};

/// Watches numbers of the ranks (loss, norm, cosine, ...), step by step, and names outliers at a stated rate.
///
/// Each rank's number, less its habit, has a distance from the median of the *other* ranks' such numbers. It is
/// compared with the largest distances of the last `window` steps. Over their upper quarter lies a generalised Pareto
/// tail; the limit is where a step exceeds it with the stated probability, but beyond all that was seen. No
/// distribution is assumed. The rate holds for tails up to exponential ones; on the logarithm's scale those are power
/// laws.
/// One number may have many series: the norms of the calls of a step are one number, that of the call that is farthest
/// off in units of its own tail, and have a series for each call.
/// Nothing is judged in a series' first 16 steps, and in a number's first 16 behind those. What is named does not teach
/// it, but for two cases: a rank that is named 8 times in a row has a new level, and what two ranks in turn are named
/// for within a window is usual here. Two ranks: their difference is judged, and none is named.
/// Preconditions: no concurrent use. Equal numbers in the same order give equal verdicts on every rank.
/// Cost: 4 bytes a rank and series, 40 a rank and number, 1.7 KB a number; O(ranks) a series and step.
class outlier_detector {
public:
    /// Errors: `status::invalid_argument` for fewer than 1 rank, or options out of range.
    outlier_detector(
        int ranks, int numbers, const outlier_options& options = {}, const call_site& where = call_site::current());

    const outlier_options& options() const noexcept { return options_; }
    std::size_t series() const noexcept { return series_.size(); }
    void resize(std::size_t series);
    /// The series is another one from now on. Precondition: series < series().
    void forget(std::size_t series) noexcept;
    void reset() noexcept;

    /// Begins a step, which is told by `outlier::since`.
    void begin_step(std::uint64_t step) noexcept { step_ = step; }
    /// Adds the step's values of one series: `values[r]` belongs to rank r, on its scale. A rank without a finite value
    /// is left out, and nothing is judged with fewer than 3 (of two ranks 2) left. `call`: for the verdict to repeat.
    /// Precondition: number and series are there; one value for each rank.
    void add(std::size_t number, std::size_t series, view<const double> values, int call = -1);
    /// Judges what has been added of a number in this step. Valid until the next call.
    view<const outlier> judge(std::size_t number);

    /// Appends all that it has learnt, as 8-byte words.
    void save(std::vector<std::uint64_t>& words) const;
    /// Goes on from such words. False, and nothing changes, for words of other ranks, numbers or windows.
    bool restore(view<const std::uint64_t> words);

private:
    struct series_state {
        float usual = 0; ///< mean |distance|
        float excess = 0; ///< mean of what exceeds twice that
        float exceeded = 0; ///< distances that `excess` is the mean of
        std::int32_t named = -1; ///< a rank that was named in the last step
        std::uint64_t steps = 0, named_steps = 0, since = 0; ///< in a row in which it was, and the first of these
    };
    struct number_state {
        double quantile = 0, scale = 0, shape = 0, seen = 0, limit = 1e300; ///< of the tail of the window
        double compared = 0, usually_compared = 0; ///< distances in this step; on average
        float farthest = 0; ///< of all that was learnt in the run
        float named_out = 0; ///< of the last steps with a named rank, that are not learnt yet
        std::int32_t named = -1, named_steps = 0; ///< a rank of these steps; their number
        std::uint64_t steps = 0, named_at = 0, learnt = 0; ///< `learnt`: steps that the window was written with
    };
    /// Of a rank and number in this step: the series in which it is farthest out, in units of the series' tail.
    struct candidate {
        double distance = 0, expected = 0;
        float out = -1e30f, usual = 0, excess = 0;
        int call = -1;
        std::uint64_t level_since = 0; ///< 1 more than the step; 0 if it is no new level
    };

    std::size_t filled(const number_state& of) const noexcept;
    double stated_chance(const number_state& of) const noexcept;
    void learn(std::size_t number, float out) noexcept;
    void learn_from_named(std::size_t number, int rank, float out) noexcept;
    void fit(std::size_t number);

    int ranks_;
    outlier_options options_;
    std::uint64_t step_ = 0;
    std::vector<series_state> series_;
    std::vector<float> habits_; ///< by series and rank: what a rank usually has more than the others
    std::vector<number_state> numbers_;
    std::vector<float> windows_; ///< by number and step: the largest `out`
    std::vector<candidate> candidates_; ///< by number and rank
    std::vector<double> without_habit_, work_; ///< by rank
    std::vector<float> sorted_;
    std::vector<outlier> found_;
};

} // namespace collprobe

#if COLLPROBE_DEFINITIONS
#include <collprobe/metrics/detail/outlier.ipp>
#endif
