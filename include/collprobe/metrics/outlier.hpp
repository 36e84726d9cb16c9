// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/record/finding.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/detail/middle.hpp>
#include <collprobe/detail/words.hpp>

/// Finds ranks whose number in a step is unlike those of the other ranks. metrics/outlier.md has the derivation.
namespace collprobe::inline COLLPROBE_ABI {

/// The scale of numbers that are not negative, such as losses and norms: the logarithm. 0 counts as the least positive
/// number. A negative or non-finite number gives NaN by bits.
COLLPROBE_COLD_INLINE double logarithm_of(double number) noexcept
{
    if (!is_finite(number) || number < 0) return detail::not_a_number();
    return number > 0x1p-1022 ? detail::natural_log(number) : -745;
}

/// The scale of cosines: Fisher's z, atanh(c). Limited to |c| = 1 - 2^-40, beyond which a cosine is rounding noise. A
/// non-finite cosine gives NaN by bits.
COLLPROBE_COLD_INLINE double fisher_z(double cosine) noexcept
{
    if (!is_finite(cosine)) return detail::not_a_number();
    constexpr double limit = 1 - 0x1p-40;
    cosine = std::clamp(cosine, -limit, limit);
    return 0.5 * detail::natural_log((1 + cosine) / (1 - cosine));
}

namespace detail {

inline constexpr std::uint64_t outlier_window = 384; ///< steps from which it is known how far ranks stray
inline constexpr std::uint64_t steps_to_settle = 16; ///< of a series, and of a number
inline constexpr std::uint64_t habit_steps = 64; ///< that a rank's usual distance is the mean of
inline constexpr std::uint64_t steps_to_new_level = 8;
inline constexpr double least_limit = 4; ///< in units of the tail
inline constexpr double least_margin = 0.7; ///< beyond all numbers of a run: twice as large
inline constexpr double share_of_margin = 0.25; ///< of the stated rate; the limit has the rest
inline constexpr double not_compared = -1e30;

/// How far out is the value that `chance` of the values exceed which exceed 0, from `count` excesses with mean 1 / (1 -
/// shape): of a generalised Pareto tail; exact on the average over the samples if it is exponential.
COLLPROBE_COLD_INLINE double tail_quantile(double chance, int count, double shape) noexcept
{
    const double exponential_quantile = count * (exponential(-natural_log(chance) / count) - 1);
    return shape > 0 ? (exponential(shape * exponential_quantile) - 1) / shape : exponential_quantile;
}

/// The inverse.
COLLPROBE_COLD_INLINE double tail_chance(double quantile, int count, double shape) noexcept
{
    if (shape > 0) quantile = natural_log(1 + shape * quantile) / shape;
    return exponential(-count * natural_log(1 + quantile / count));
}

} // namespace detail

/// Where a number far beyond all of a run is named: above if its variance is finite, below if that of its inverse is.
enum class beyond_all : std::uint8_t { none, above, both };

/// A rank that is unlike the others, or the fact that ranks are. All lengths are on the scale of the numbers.
struct outlier {
    int rank = -1; ///< -1: one of two ranks, or more ranks than are named (a quarter, one at least, ten at most)
    int call = -1; ///< the call whose number is farthest off
    double distance = 0; ///< of the number from `expected`
    double expected = 0; ///< the median of the other ranks, each less its habit, and the habit of this one
    double limit = 0; ///< `distance` is larger than this
    double seen = 0; ///< the largest such distance in the window, or the distance of the farthest number of the run
    /// The least rate with which this would be found. Below the one asked for only if the distance is four times as far
    /// out as any before in the run: no tail that is usual makes such distances.
    double false_alarms_per_step = 0;
    std::uint32_t steps = 0; ///< in which that was seen
    /// The rank has been named for so many steps in a row that it is not named any more while it stays where it is.
    bool is_new_level = false;
    std::uint64_t since = 0; ///< then: the first of these steps
};

/// Watches numbers of the ranks (loss, norm, cosine, ...), step by step, and names outliers at a stated rate.
///
/// Each rank's number, less its habit, has a distance from the median of the *other* ranks' such numbers. It is
/// compared with the largest distances of the last 384 steps, of whatever distribution; the stated rate holds for tails
/// up to exponential ones, on the logarithm's scale power laws. Whatever the tail is, a number is named that lies far
/// beyond all numbers of any rank in the run: outlier.md.
/// One number may have many series: the norms of the calls of a step are one number, that of the call that is farthest
/// off in units of its own tail, and have a series for each call.
/// Nothing is judged in a series' first 16 steps; the limit needs 16 more of its number. What is named does not teach
/// it, but for two cases: a rank that is named 8 times in a row has a new level, and what two ranks in turn are named
/// for within a window is usual here. Two ranks: their difference is judged, and none is named.
/// Preconditions: no concurrent use. Equal numbers in the same order give equal verdicts on every rank.
/// Cost: 4 bytes a rank and series, 72 a rank and number, 1.7 KB a number; O(ranks) a series and step.
class outlier_detector {
public:
    /// `false_alarms_per_step`: the probability that a step of healthy ranks has any outlier, over all numbers and
    /// ranks.
    /// Errors: `status::invalid_argument` for fewer than 1 rank, or a rate that is not between 0 and 1.
    outlier_detector(int ranks, int numbers, double false_alarms_per_step = 1e-4,
        const call_site& where = call_site::current())
        : ranks_(ranks), stated_(false_alarms_per_step)
    {
        const auto check = [&where](bool condition, const char* what) {
            if (!condition) detail::refuse("outlier_detector", what, where);
        };
        check(ranks >= 1 && numbers >= 1, "at least one rank and one number are watched");
        check(detail::is_rate(false_alarms_per_step), "false_alarms_per_step must lie between 0 and 1");
        work_ = without_habit_ = distances_ = std::vector<double>(static_cast<std::size_t>(ranks));
        numbers_ = std::vector<number_state>(static_cast<std::size_t>(numbers));
        candidates_ = std::vector<candidate>(numbers_.size() * work_.size());
        sorted_ = std::vector<float>(detail::outlier_window);
        found_ = std::vector<outlier>(work_.size());
    }

    double false_alarms_per_step() const noexcept { return stated_; }
    std::size_t series() const noexcept { return series_.size(); }

    COLLPROBE_COLD_INLINE void resize(std::size_t series)
    {
        series_.resize(series);
        habits_.resize(series * work_.size());
    }

    /// The series is another one from now on. Precondition: series < series().
    COLLPROBE_COLD_INLINE void forget(std::size_t series) noexcept
    {
        series_[series] = {};
        std::fill_n(habits_.data() + series * work_.size(), work_.size(), 0.0F);
    }

    COLLPROBE_COLD_INLINE void reset() noexcept
    {
        for (std::size_t s = 0; s < series_.size(); ++s) forget(s);
        for (number_state& each : numbers_) each = {};
        for (candidate& each : candidates_) each = {};
    }

    /// Begins a step, which is told by `outlier::since`.
    void begin_step(std::uint64_t step) noexcept { step_ = step; }
    /// Adds the step's values of one series: `values[r]` belongs to rank r, on its scale. A rank without a finite value
    /// is left out, and nothing is judged with fewer than 3 (of two ranks 2) left. `call`: for the verdict to repeat.
    /// `sides`: of what the values are logarithms of. Precondition: number and series are there; one value a rank.
    void add(std::size_t number, std::size_t series, view<const double> values, int call = -1,
        beyond_all sides = beyond_all::both)
    {
        series_state& of = series_[series];
        number_state& of_number = numbers_[number];
        ++of_number.added;
        const std::size_t n = work_.size();
        const bool is_pair = n == 2;
        float* const habits = habits_.data() + series * n;
        std::size_t finite = 0;
        for (std::size_t r = 0; r < n; ++r) {
            without_habit_[r] = values[r] - habits[r];
            if (is_finite(values[r])) work_[finite++] = without_habit_[r];
        }
        if (finite < 3 && !(is_pair && finite == 2)) return;
        const detail::middle_values middle = detail::middle_of(view<double>(work_.data(), finite));

        const double least = 0x1p-22 * std::max(1.0, detail::absolute(middle.at)); // less is rounding
        const double usual = std::max<double>(of.usual, least);
        // An exponential tail would exceed twice the mean by the mean. As if that had been seen 8 times.
        const double excess = std::max((of.exceeded * of.excess + 8 * usual) / (of.exceeded + 8), least);
        const bool is_settled = of.steps >= detail::steps_to_settle;
        const double to_name = is_settled ? 2 * usual + of_number.limit * excess : 1e300;
        const double margin = is_settled && sides != beyond_all::none ? margin_after(of.steps, of_number) : 1e300;
        const double weight = 1.0 / static_cast<double>(detail::lesser(++of.steps, detail::habit_steps));
        for (std::size_t r = 0; r < n; ++r) {
            distances_[r] = detail::not_a_number();
            if (!is_finite(values[r])) continue;
            distances_[r] = without_habit_[r] - detail::median_without(without_habit_[r], middle, finite);
        }
        const double lowest = sides == beyond_all::both ? of.smallest : -1e300;
        const auto beyond_run = [&, this, largest = of.largest](std::size_t r) { // and the others
            const auto past = [&, this](std::size_t i) {
                return distances_[i] > 0 ? values[i] - largest : lowest - values[i];
            };
            return std::min(detail::absolute(distances_[r]), is_pair ? std::max(past(0), past(1)) : past(r));
        };
        const auto beyond_limit = [&, this](std::size_t r) {
            return std::max(margin, of_number.beyond[distances_[r] > 0]);
        };

        double sum = 0, excesses = 0;
        float exceeding = 0;
        std::size_t named = n; // the rank that was named before, if it is again, else the first one
        candidate* const candidates = candidates_.data() + number * n;
        for (std::size_t r = 0; r < (is_pair ? 1 : n); ++r) {
            if (!is_finite(values[r])) continue;
            const double length = detail::absolute(distances_[r]);
            const double past = beyond_run(r), beyond = past - beyond_limit(r);
            if (length > to_name || beyond > 0) {
                sum += length > to_name ? to_name : usual;
                if (named == n || static_cast<std::int32_t>(r) == of.named) named = r;
            } else {
                sum += length;
                habits[r] += static_cast<float>(weight * distances_[r]);
                if (length > 2 * usual) {
                    excesses += length - 2 * usual;
                    ++exceeding;
                }
                for (const double value : {values[r], values[is_pair ? 1 : r]}) {
                    of.smallest = std::min(of.smallest, value);
                    of.largest = std::max(of.largest, value);
                }
                double& known = of_number.beyond[distances_[r] > 0];
                if (margin < 1e300) known = std::max(known, past);
            }
            if (!is_settled) continue;
            candidate& one = candidates[r];
            const double out = (length - 2 * usual) / excess;
            const bool is_over_limit = std::max(one.out, out) > of_number.limit;
            if (!is_over_limit && std::max(one.beyond, beyond) > 0 ? beyond > one.beyond : out > one.out) {
                one = {distances_[r], values[r] - distances_[r], length - past, one.out, one.beyond, usual,
                    excess, static_cast<std::uint32_t>(of.steps - 1), call, 0};
            }
            one.out = std::max(one.out, out);
            one.beyond = std::max(one.beyond, beyond);
        }
        const double compared = is_pair ? 1 : static_cast<double>(finite);
        of.usual += static_cast<float>(weight * (sum / compared - of.usual));
        if (is_settled) {
            of_number.compared += compared;
            const float all = of.exceeded + exceeding;
            of.exceeded = all < 128 ? all : exceeding < 128 ? 128 : exceeding;
            if (exceeding > 0) of.excess += (static_cast<float>(excesses) - exceeding * of.excess) / of.exceeded;
        }
        if (named == n) {
            of.named = -1;
            return;
        }
        if (static_cast<std::int32_t>(named) != of.named) {
            of.named = static_cast<std::int32_t>(named);
            of.named_steps = 0;
            of.since = step_;
        }
        if (++of.named_steps < detail::steps_to_new_level) return;
        of.named = -1;
        for (std::size_t r = 0; r < (is_pair ? 1 : n); ++r) {
            const bool is_out = detail::absolute(distances_[r]) > to_name || beyond_run(r) > beyond_limit(r);
            if (!is_finite(values[r]) || !is_out) continue;
            habits[r] += static_cast<float>(distances_[r]);
            if (candidates[r].call == call) candidates[r].level_since = of.since + 1;
        }
    }
    /// Judges what has been added of a number in this step. Valid until the next call.
    view<const outlier> judge(std::size_t number)
    {
        number_state& of = numbers_[number];
        of.series = std::max(of.series, std::exchange(of.added, 0u));
        if (!(of.compared > 0)) return {};
        std::size_t found = 0;
        ++of.steps;
        const double usually = of.usually_compared;
        const int excesses = static_cast<int>(filled(of) / 4);
        // Of more numbers than usual the largest is larger.
        const double more = usually > 0 && of.compared > usually ? of.compared / usually : 1;
        const double limit = of.limit + of.scale * detail::natural_log(more);
        double largest = detail::not_compared; // of those that are not named
        double largest_named = detail::not_compared;
        double beyond[2] = {}; // as the number's, of those that are named
        std::size_t strongest = 0;
        int present = 0;
        for (std::size_t r = 0; r < work_.size(); ++r) {
            candidate& one = candidates_[number * work_.size() + r];
            if (!(one.out > detail::not_compared)) continue;
            ++present;
            const bool is_out = one.out > limit;
            if (is_out || one.beyond > 0) {
                const double in_tail = detail::tail_chance((one.out - of.quantile) / of.scale, excesses, of.shape);
                const double rate = stated_ * in_tail * more / stated_chance(of);
                const bool is_beyond = is_out && one.out >= 4 * of.farthest && rate < stated_;
                const double seen = is_out ? 2 * one.usual + of.seen * one.excess : one.seen;
                const bool is_new_level = one.level_since != 0;
                found_[found] = {static_cast<int>(r), one.call, one.distance, one.expected,
                    is_out ? 2 * one.usual + limit * one.excess : detail::absolute(one.distance) - one.beyond,
                    seen > 0 ? seen : 0, is_beyond ? rate : stated_,
                    is_out ? static_cast<std::uint32_t>(filled(of)) : one.steps, is_new_level,
                    is_new_level ? one.level_since - 1 : 0};
                double& past = beyond[one.distance > 0];
                if (one.beyond > 0) past = std::max(past, detail::absolute(one.distance) - one.seen);
                if (!(is_beyond && rate < 1e-3 * stated_)) of.farthest = std::max(of.farthest, one.out);
                if (one.out > largest_named) {
                    largest_named = one.out;
                    strongest = found;
                }
                ++found;
            } else if (one.out > largest) {
                largest = one.out;
            }
            one.out = one.beyond = detail::not_compared;
        }
        if (found > 0) {
            const bool are_many = static_cast<int>(found) > detail::blame_limit(present);
            if (are_many) {
                found_[0] = found_[strongest];
                found = 1;
            }
            if (of.named.is_usual(found_[0].rank, of.steps, ranks_ == 2)) {
                learn(of, of.named.out);
                learn(of, largest_named);
                for (const int side : {0, 1}) of.beyond[side] = std::max(of.beyond[side], beyond[side]);
            }
            of.named.out = largest_named;
            // Of three ranks, one that is far off draws the other two towards it by half, and is named.
            if (ranks_ == 2 || (are_many && present > 3)) found_[0].rank = -1;
        }
        if (largest > detail::not_compared) {
            learn(of, largest);
            of.usually_compared += (of.compared - usually) / static_cast<double>(filled(of));
        }
        of.compared = 0;
        fit(of);
        return {found_.data(), found};
    }

    /// Appends all that it has learnt, as 8-byte words.
    COLLPROBE_COLD_INLINE void save(std::vector<std::uint64_t>& words) const
    {
        for (const std::size_t size : {work_.size(), numbers_.size(), series_.size()}) words.push_back(size);
        detail::append_words(words, series_, habits_, numbers_);
    }

    /// Goes on from such words. False, and nothing changes, for words of other ranks or numbers.
    COLLPROBE_COLD_INLINE bool restore(view<const std::uint64_t> words)
    {
        if (words.size() < 3 || words[0] != work_.size() || words[1] != numbers_.size() || words[2] > words.size())
            return false;
        outlier_detector restored(ranks_, static_cast<int>(words[1]), stated_);
        restored.resize(static_cast<std::size_t>(words[2]));
        view<const std::uint64_t> rest = words.part(3, words.size() - 3);
        const bool fits = detail::take_words(rest, restored.series_, restored.habits_, restored.numbers_)
            && rest.size() == 0;
        if (fits) *this = std::move(restored);
        return fits;
    }

private:
    struct last_finding { ///< that is not learnt yet
        double out = 0;
        std::int32_t rank = -1;
        std::uint32_t count = 0; ///< with those of the same rank before it
        std::uint64_t at = 0; ///< step

        /// Adds the next one. Whether such findings are usual: of two ranks within a window; of a pair, of which
        /// nothing tells which rank it is, the third one.
        bool is_usual(std::int32_t next, std::uint64_t now, bool is_pair) noexcept
        {
            const bool again = rank >= 0 && now - at <= detail::outlier_window;
            count = again ? count + 1 : 1;
            const bool usual = again && (next != rank || (is_pair && count == 3));
            rank = usual ? -1 : next;
            at = now;
            return usual;
        }
    };
    struct series_state {
        float usual = 0; ///< mean |distance|
        float excess = 0; ///< mean of what exceeds twice that
        float exceeded = 0; ///< distances that `excess` is the mean of
        std::int32_t named = -1; ///< a rank that was named in the last step
        std::uint64_t steps = 0, named_steps = 0, since = 0; ///< in a row in which it was, and the first of these
        double smallest = 1e300, largest = -1e300; ///< of all values that were not named
    };
    struct number_state {
        double quantile = 0, scale = 0, shape = 0, seen = 0, limit = 1e300; ///< of the tail of the window
        double compared = 0, usually_compared = 0; ///< distances in this step; on average
        std::uint32_t added = 0, series = 1; ///< in this step; at most in a step before
        double farthest = 0; ///< of all that was learnt in the run
        double beyond[2] = {}; ///< by which a learnt value was below, or above, all before it and the others
        last_finding named;
        std::uint64_t steps = 0, learnt = 0; ///< `learnt`: steps that the window was written with
        float window[detail::outlier_window] = {}; ///< by step: the largest `out`
    };
    /// Of a rank and number in this step: the series in which it is farthest beyond all numbers of the run, or out, in
    /// units of the series' tail.
    struct candidate {
        double distance = 0, expected = 0, seen = 0;
        double out = detail::not_compared, beyond = detail::not_compared; ///< the largest
        double usual = 0, excess = 0;
        std::uint32_t steps = 0; ///< of the series, before this one
        int call = -1;
        std::uint64_t level_since = 0; ///< 1 more than the step; 0 if it is no new level
    };

    static std::size_t filled(const number_state& of) noexcept
    {
        return static_cast<std::size_t>(detail::lesser(of.learnt, detail::outlier_window));
    }

    /// Of a value that exceeds the quantile: that it is named.
    COLLPROBE_COLD_INLINE double stated_chance(const number_state& of) const noexcept
    {
        const double steps = static_cast<double>(filled(of));
        const double exceeding = (static_cast<double>(filled(of) / 4) + 1) / (steps + 1);
        return (1 - detail::share_of_margin) * stated_ / static_cast<double>(numbers_.size()) / exceeding;
    }
    /// By how much the next number is beyond `steps` steps of healthy ones, if they have a finite variance: with chance
    /// 1 / (steps + 1) it exceeds all, and e^m times with e^-2m of that.
    COLLPROBE_COLD_INLINE double margin_after(std::uint64_t steps, const number_state& of) const noexcept
    {
        const double chance = detail::share_of_margin * stated_ / static_cast<double>(numbers_.size()) / of.series;
        return std::max(detail::least_margin, -0.5 * detail::natural_log(chance * static_cast<double>(steps + 1)));
    }

    static void learn(number_state& of, double out) noexcept
    {
        of.window[of.learnt++ % detail::outlier_window] = static_cast<float>(out);
        of.farthest = std::max(of.farthest, out);
    }

    void fit(number_state& of)
    {
        const std::size_t steps = filled(of);
        if (steps < detail::steps_to_settle) return;
        for (std::size_t i = 0; i < steps; ++i) sorted_[i] = of.window[i];
        const std::size_t count = steps / 4;
        std::nth_element(sorted_.data(), sorted_.data() + steps - count - 1, sorted_.data() + steps);
        of.quantile = of.seen = sorted_[steps - count - 1];
        double mean = 0, squares = 0;
        for (std::size_t i = steps - count; i < steps; ++i) {
            const double excess = sorted_[i] - of.quantile;
            mean += excess / static_cast<double>(count);
            squares += excess * excess / static_cast<double>(count);
            of.seen = std::max<double>(of.seen, sorted_[i]);
        }
        // By moments, less half of the deviation of such a shape.
        const double variance = squares - mean * mean;
        const double shape = variance > 0
            ? 0.5 * (1 - mean * mean / variance) - 0.5 / detail::square_root(static_cast<double>(count)) : 0;
        of.shape = std::clamp(shape, 0.0, 0.5);
        of.scale = mean * (1 - of.shape) + 1e-6;
        of.limit = of.quantile + of.scale * detail::tail_quantile(stated_chance(of), static_cast<int>(count), of.shape);
        of.limit = std::max({of.limit, of.seen, detail::least_limit});
    }

    int ranks_;
    double stated_; ///< rate
    std::uint64_t step_ = 0;
    std::vector<series_state> series_;
    std::vector<float> habits_; ///< by series and rank: what a rank usually has more than the others
    std::vector<number_state> numbers_;
    std::vector<candidate> candidates_; ///< by number and rank
    std::vector<double> without_habit_, distances_, work_; ///< by rank
    std::vector<float> sorted_;
    std::vector<outlier> found_;
};

} // namespace collprobe
