// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/detail/middle.hpp>
#include <collprobe/detail/words.hpp>
#include <collprobe/metrics/detail/rank_places.hpp>

/// Whether a rank is unlike the others, over a whole run and for any distribution of the numbers.
namespace collprobe::inline COLLPROBE_ABI {

namespace detail {

/// The weight of a bet that begins in step t = 1, 2, ...: together with 1/2 for the first one they add up to 1.
inline double weight_of_start(std::uint64_t t) noexcept
{
    const int octave = static_cast<int>(std::bit_width(t)) - 1;
    return 0.5 * power_of_two(-octave) / ((octave + 1.0) * (octave + 2.0));
}

/// A bet on place k of n pays in proportion to k to the power of minus one of these.
inline constexpr double bet_exponents[] = {1.5, 0.6, 0.25};
inline constexpr float most_wealth = 0x1p100f;
/// Pay-outs are less by so much: more than the roundings of a step can add to the wealth.
inline constexpr double rounded_off = 0x1p-22;
inline constexpr double memory_steps = 1024; ///< over which the memory of ranks is averaged
/// What bets on a named rank may be worth at most, by exponent. The flatter a bet, the longer it takes to lose.
inline constexpr float most_of_named[] = {0x1p40f, 0x1p27f, 0x1p16f};
inline constexpr float most_of_named_of_two[] = {0x1p40f, 0x1p12f, 0x1p4f};
/// A named rank is compared again when its bets are worth less than this, on the mean of the exponents.
inline constexpr double least_of_named = 16;
/// A finding without a rank is told again after so many steps at the earliest.
inline constexpr std::uint64_t steps_to_tell_again = 1000;
inline constexpr std::uint64_t evidence_state_format = 0x636f6c6c65760004; // "collev", 4

} // namespace detail

/// The rules by which an `exchangeability_watch` decides. Equal on all ranks.
struct exchangeability_options {
    /// The probability that a run of any length, in which all ranks are alike, names any rank by its `odds`. In (0, 1).
    double false_alarms_per_run = 0.01;
    /// The steps between two false alarms by `recurrence`, on average, in such a run. At least 1.
    double steps_between_alarms = 1e7;
    /// Differences that do not count, in robust standard deviations over the ranks (1.4826 times the median distance
    /// from the median, averaged over 64 steps): a rank is at a side only if it is so by more than this. 0: in long
    /// runs the smallest lasting difference is named, such as that of the data in two shards; and a rank whose numbers
    /// scatter less makes the others look extreme.
    double tolerance = 0;
    /// By rank: ranks with the same number are compared with each other only. Empty: all ranks are alike. For known
    /// differences, as of batch size or data source. A group of one rank is not watched; for two, see there.
    std::vector<int> groups = {};
};

/// The shares of the error that a number's sides get; 0: that side is not watched.
struct side_shares {
    double largest = 0, smallest = 0, farthest = 0, nearest = 0;

    double of(int side) const noexcept
    {
        return side == 0 ? largest : side == 1 ? smallest : side == 2 ? farthest : nearest;
    }
    bool operator==(const side_shares&) const = default;
};

/// Watches numbers of the ranks (losses, norms, ...) for a rank that is unlike the others, step by step.
///
/// The watch bets, at fair odds, against each order of the ranks being equally probable; a rank whose bets have won
/// enough is named. The chance that this happens to any of alike ranks, ever, is at most `false_alarms_per_run`. Equal
/// numbers share their places. metrics/exchangeability.md has the proof, the bets, the delays, and what a memory of the
/// ranks' own does to the assumption.
/// Names: fewer than half of the ranks of a group. A named rank is no longer compared with; the others go on. Of two
/// ranks a number with one watched side, such as lateness, names the one at that side; other numbers are not watched,
/// because nothing tells which of the two is unlike the other.
/// Silent: a number in which the ranks keep their places, as if each had a memory of its own, is not judged.
/// Preconditions: no concurrent use. Equal numbers in the same order give equal answers on every rank.
/// Cost: 32 bytes a rank, number and watched side, and 9 more a rank and number. A step costs O(n) a number; fewer than
/// 32 ranks are sorted. `judge` allocates only if it names a rank.
/// Source: G. Shafer, A. Shen, N. Vereshchagin, V. Vovk, "Test martingales, Bayes factors and p-values" (2011).
class exchangeability_watch {
public:
    /// A rank that has been named in this step; rank -1 if the watch cannot tell which.
    struct named_rank {
        int rank = -1;
        rank_evidence evidence;
    };

    /// Errors: `status::invalid_argument` for fewer than 1 rank, or options out of range.
    explicit exchangeability_watch(
        int ranks, exchangeability_options options = {}, const call_site& where = call_site::current())
        : ranks_(ranks), options_(std::move(options)), places_(ranks < 1 ? 0 : static_cast<std::size_t>(ranks))
    {
        const auto check = [&where](bool condition, const char* what) {
            if (!condition) detail::refuse("exchangeability_watch", what, where);
        };
        check(ranks >= 1, "cannot watch less than 1 rank");
        check(detail::is_rate(options_.false_alarms_per_run), "false_alarms_per_run must lie between 0 and 1");
        const double steps = options_.steps_between_alarms;
        check(is_finite(steps) && steps >= 1, "steps_between_alarms must be at least 1");
        const std::size_t n = count();
        check(is_finite(options_.tolerance) && options_.tolerance >= 0, "tolerance must not be negative");
        check(options_.groups.empty() || options_.groups.size() == n, "groups must have an entry for each rank");

        group_of_ = std::vector<std::size_t>(n, n);
        for (std::size_t first = 0; first < n; ++first) {
            if (group_of_[first] < n) continue;
            first_member_.push_back(members_.size());
            for (std::size_t r = first; r < n; ++r) {
                if (!options_.groups.empty() && options_.groups[r] != options_.groups[first]) continue;
                group_of_[r] = first_member_.size() - 1;
                members_.push_back(r);
            }
        }
        first_member_.push_back(n);
        sums_.resize(bets * (n + 1));
        for (std::size_t k = 1; k <= n; ++k) {
            for (std::size_t j = 0; j < bets; ++j) {
                sums_[k * bets + j] = sums_[(k - 1) * bets + j]
                    + detail::exponential(-detail::bet_exponents[j] * detail::natural_log(static_cast<double>(k)));
            }
        }
        best_ = std::vector<rank_evidence>(n);
        best_strength_ = work_ = std::vector<double>(n);
        pays_ = std::vector<payout>(n);
        pay_ = std::vector<payout>(2 * detail::rank_places::most_buckets(n));
        order_.reserve(n);
    }

    int ranks() const noexcept { return ranks_; }
    const exchangeability_options& options() const noexcept { return options_; }
    std::size_t metrics() const noexcept { return metrics_.size(); }

    /// Adds a number to watch, and returns its index. The shares of all numbers together must not exceed 1 for the
    /// stated error to hold; they are the caller's.
    COLLPROBE_COLD_INLINE std::size_t add(finding_kind metric, const side_shares& shares)
    {
        metrics_.emplace_back();
        replace(metrics_.size() - 1, metric, shares);
        return metrics_.size() - 1;
    }

    /// Forgets all of a number, which is another one from now on, with shares of its own. Precondition:
    /// metric < metrics().
    COLLPROBE_COLD_INLINE void replace(std::size_t metric, finding_kind by, const side_shares& shares)
    {
        metric_state& of = metrics_[metric] = {};
        of.what = by;
        of.shares = shares;
        of.processes = std::vector<process>(watched(shares) * count());
        for (process& each : of.processes) std::fill_n(each.of, bets, 0.5f);
        of.memory = std::vector<persistence>(first_member_.size() - 1);
        of.kept = std::vector<kept_place>(count());
        of.named_side = std::vector<std::uint8_t>(count());
    }

    /// Begins a step: forgets whom the last one named.
    COLLPROBE_COLD_INLINE void begin_step(std::uint64_t step) noexcept
    {
        step_ = step;
        silent_ = 0;
        named_.clear();
        best_.assign(best_.size(), {});
        best_strength_.assign(best_.size(), -1);
    }

    /// Judges one number of the step. `values[r]` belongs to rank r; a rank without a finite one is left out. `margin`:
    /// a rank is at a side only if it is so by more than this, and by more than the `tolerance`.
    /// `call`: the index that the number's call has in this step, for the evidence to repeat.
    /// Errors: `status::invalid_argument` for an unknown number, or a view without one entry per rank.
    void judge(std::size_t metric, view<const double> values, double margin = 0, int call = -1,
        const call_site& where = call_site::current())
    {
        if (metric >= metrics_.size() || values.size() != count()) {
            detail::refuse(
                "exchangeability_watch::judge", "the number is not watched, or has no value for each rank", where);
        }
        metric_state& of = metrics_[metric];
        of.call = call;
        ++of.judged;
        const auto weight = static_cast<float>(detail::weight_of_start(of.judged));
        for (const std::size_t l : {0u, 1u, 2u, 4u}) starts_[l] = weight;
        bool is_silent = false;
        for (std::size_t group = 0; group + 1 < first_member_.size(); ++group) {
            judge_group(of, values, group, margin);
            is_silent = is_silent || of.memory[group].is_silent != 0;
        }
        silent_ += is_silent ? 1 : 0;
    }

    /// The ranks that this step has named. Valid until the next `judge`.
    view<const named_rank> named() const noexcept { return {named_.data(), named_.size()}; }
    /// The numbers of this step that were not judged, because the ranks of a group keep their places in them.
    int silent() const noexcept { return silent_; }
    /// By rank: the strongest evidence about it in this step.
    view<const rank_evidence> by_rank() const noexcept { return {best_.data(), best_.size()}; }

    /// All that the watch has learnt, to be saved with a checkpoint: 8-byte words, the same on every rank.
    COLLPROBE_COLD_INLINE std::vector<std::uint64_t> state() const
    {
        std::vector<std::uint64_t> words{detail::evidence_state_format, count(), metrics_.size()};
        for (const std::size_t group : group_of_) words.push_back(group);
        for (const metric_state& each : metrics_) {
            const std::vector<saved> head{{static_cast<std::uint64_t>(each.what), each.shares, each.judged}};
            detail::append_words(words, head, each.memory, each.kept, each.processes, each.named_side);
        }
        words.push_back(detail::checksum_of({words.data(), words.size()}));
        return words;
    }
    /// Goes on from a saved state. The odds then hold for the run from its beginning.
    /// Errors: `status::invalid_argument` for words that are no such state, or one of other ranks, groups or numbers,
    /// of which those that are watched come first; then nothing changes.
    COLLPROBE_COLD_INLINE void restore(view<const std::uint64_t> state, const call_site& where = call_site::current())
    {
        const auto check = [&where](bool condition, const char* what) {
            if (!condition) detail::refuse("exchangeability_watch::restore", what, where);
        };
        const std::size_t n = count();
        check(state.size() > 3 + n && state[0] == detail::evidence_state_format, "the words are no such state");
        check(detail::checksum_of(state.part(0, state.size() - 1)) == state[state.size() - 1], "the state is damaged");
        check(state[1] == n, "the state is of another number of ranks");
        for (std::size_t r = 0; r < n; ++r) check(state[3 + r] == group_of_[r], "the state is of other groups");

        exchangeability_watch restored(ranks_, options_, where);
        view<const std::uint64_t> rest = state.part(3 + n, state.size() - 4 - n); // without the checksum
        for (std::uint64_t m = 0; m < state[2]; ++m) {
            std::vector<saved> head(1);
            const bool has_head = detail::take_words(rest, head);
            check(has_head, "the state has an end too early");
            restored.add(static_cast<finding_kind>(head[0].what), head[0].shares);
            metric_state& of = restored.metrics_.back();
            of.judged = head[0].judged;
            const bool has_lists = detail::take_words(rest, of.memory, of.kept, of.processes, of.named_side);
            check(has_lists, "the state has an end too early");
        }
        check(rest.size() == 0, "the state is longer than its numbers");
        for (std::size_t m = 0; m < metrics_.size(); ++m) {
            const bool is_there = m < restored.metrics_.size() && restored.metrics_[m].what == metrics_[m].what;
            check(is_there && restored.metrics_[m].shares == metrics_[m].shares, "the state is of other numbers");
        }
        metrics_ = std::move(restored.metrics_);
        named_.clear();
    }

    /// Forgets all evidence, as for a new run.
    void reset() noexcept { metrics_.clear(), named_.clear(); }

private:
    static constexpr int bets = 3;
    static constexpr int sides = 4;

    /// Bets that a rank is at one side of the order. Two sides fill a line of a cache.
    struct alignas(32) process {
        /// For each bet: the wealth of bets that begin in all steps, with weights that add up to 1; then, for each bet:
        /// the wealth of one that begins again when it has lost.
        float of[2 * bets] = {};
        std::uint32_t since = 0; // step, modulo 2^32, in which the recent bets were last worth next to nothing
        std::uint32_t extreme = 0; // steps since then in which the rank was in the first eighth

        /// What bets have won may be no evidence. What they lost counts.
        void keep_below(float wealth, float recent) noexcept
        {
            for (int j = 0; j < 2 * bets; ++j) of[j] = std::min(of[j], j < bets ? wealth : recent);
        }
    };
    /// How long the ranks of a group keep their places.
    struct persistence {
        double correlation = 0; // of the places in a step with those in the one before, without the steadiest ranks
        double steps = 0; // that `correlation` is the mean of
        double width = 0; // half the median distance from the median, averaged over steps
        double widths = 0; // that `width` is the mean of
        double steadiest = 0; // the least steadiness of those that are left out
        std::uint64_t is_silent = 0; // 1: nothing is bet
        std::uint64_t told = 0; // when a finding without a rank was told, in judged steps; 0: never
    };
    struct kept_place {
        float place = -1; // in the step before, counted from the largest; -1 if unknown
        float steadiness = 0; // mean product of the distances from the middle place, step by step
    };
    struct metric_state {
        finding_kind what = finding_kind::loss;
        int call = -1;
        side_shares shares;
        std::uint64_t judged = 0; // steps
        std::vector<persistence> memory; // by group
        std::vector<kept_place> kept; // by rank
        std::vector<process> processes; // by rank, then by side that is watched
        std::vector<std::uint8_t> named_side; // by rank: 1 + side by which it is named, 0 if it is not
    };
    /// Of a number, before its lists.
    struct saved {
        std::uint64_t what = 0;
        side_shares shares;
        std::uint64_t judged = 0;
    };
    /// What the bets pay to a rank.
    struct payout {
        float of[2 * bets]; // each twice, as in a process
        std::uint32_t is_extreme; // 1: the rank is in the first eighth
    };
    struct worth {
        double wealth = 0, recent = 0;
    };

    std::size_t count() const noexcept { return static_cast<std::size_t>(ranks_); }
    static std::size_t watched(const side_shares& shares, int end_side = sides) noexcept
    {
        std::size_t result = 0;
        for (int side = 0; side < end_side; ++side) result += shares.of(side) > 0 ? 1 : 0;
        return result;
    }
    /// Null for a side that is not watched.
    static process* process_of(metric_state& of, int side, std::size_t rank) noexcept
    {
        if (of.shares.of(side) <= 0) return nullptr;
        return &of.processes[rank * watched(of.shares) + watched(of.shares, side)];
    }
    /// Of a rank: one for each side that is watched.
    static view<process> processes_of(metric_state& of, std::size_t rank) noexcept
    {
        return view<process>(of.processes).part(rank * watched(of.shares), watched(of.shares));
    }
    /// An eighth of the ranks of a group.
    std::size_t eighth_of(std::size_t group) const noexcept
    {
        const std::size_t members = first_member_[group + 1] - first_member_[group];
        return members < 8 ? 1 : members / 8;
    }
    /// Whether of the two ranks of a group one is named: where it is clear which side is wrong.
    bool names_of_two(const metric_state& of, std::size_t group) const noexcept
    {
        return first_member_[group + 1] - first_member_[group] == 2 && watched(of.shares) == 1;
    }
    void judge_group(metric_state& of, view<const double> values, std::size_t group, double margin)
    {
        const std::size_t begin = first_member_[group];
        const std::size_t end = first_member_[group + 1];
        order_.clear();
        places_.clear();
        bool has_named = false;
        for (std::size_t i = begin; i < end; ++i) {
            const std::size_t r = members_[i];
            if (!is_finite(values[r]) || of.named_side[r] != 0) {
                of.kept[r].place = -1;
                has_named = has_named || is_finite(values[r]);
                continue;
            }
            order_.push_back(r);
            places_.add(0.5 * values[r]); // because the difference of two huge numbers must stay finite
        }
        const std::size_t active = order_.size();
        const bool is_pair = names_of_two(of, group);
        if (active < (is_pair ? 1u : 3u)) return;
        places_.order();
        persistence& memory = of.memory[group];
        const double limit = std::max(tolerated(memory), 0.5 * margin);
        if (!is_pair) { // of which nothing tells a memory from what is sought
            const bool is_silent = keep_places(memory, of, group);
            remember_places(of, memory);
            if (is_silent) return;
        }
        const auto beside = [&, this](int first_side, double by, const auto& value_of) {
            bet_on_order(of, group, first_side, by);
            for (std::size_t i = begin; has_named && i < end; ++i) {
                const std::size_t r = members_[i];
                if (of.named_side[r] == 0 || !is_finite(values[r])) continue;
                bet_on_named(of, group, r, value_of(0.5 * values[r]), first_side, by);
            }
        };
        strongest_ = 0;
        beside(0, limit, [](double value) { return value; });
        if (of.shares.farthest > 0 || of.shares.nearest > 0) {
            const detail::middle_values middle = detail::middle_of(places_.copy_in(work_));
            const auto distance = [](double value, double from) { return detail::absolute(0.5 * value - 0.5 * from); };
            for (std::size_t i = 0; i < active; ++i)
                places_[i] = distance(places_[i], detail::median_without(places_[i], middle, active));
            places_.order();
            const double median = detail::median_of(middle, active);
            beside(2, 0.5 * limit, [&](double value) { return distance(value, median); });
        }
        if (strongest_ >= 1) name_ranks(of, group);
    }
    /// Whether the ranks keep their places.
    COLLPROBE_COLD_INLINE bool keep_places(persistence& memory, metric_state& of, std::size_t group) noexcept
    {
        if (memory.steps < 2) return false;
        const double deviation = 1 / detail::square_root(memory.steps * static_cast<double>(order_.size() - 2));
        // Lasting differences as large as the tolerance make such a correlation.
        const double excess = memory.correlation - options_.tolerance * options_.tolerance;
        if (memory.is_silent == 0 && excess > 2 * deviation) {
            memory.is_silent = 1;
            // What bets have won so far, they may have won by memory.
            for (std::size_t i = first_member_[group]; i < first_member_[group + 1]; ++i) {
                if (of.named_side[members_[i]] != 0) continue;
                for (process& each : processes_of(of, members_[i])) each.keep_below(0.5f, 1);
            }
        } else if (memory.is_silent == 1 && excess < deviation) {
            memory.is_silent = 0;
        }
        return memory.is_silent != 0;
    }

    void remember_places(metric_state& of, persistence& memory) noexcept
    {
        // Ranks that are unlike the others keep their places for that reason. So the steadiest quarter is left out.
        const std::size_t active = order_.size();
        const std::size_t left_out = active < 8 ? 1 : active / 4;
        if (memory.steps < 64 || of.judged % 8 == 0) { // later it changes slowly
            for (std::size_t i = 0; i < active; ++i) work_[i] = static_cast<double>(of.kept[order_[i]].steadiness);
            std::nth_element(work_.data(), work_.data() + active - left_out, work_.data() + active);
            const double next = *std::max_element(work_.data(), work_.data() + active - left_out);
            memory.steadiest = 0.5 * (work_[active - left_out] + next);
        }
        const double middle = 0.5 * static_cast<double>(active - 1);
        const double steps = memory.steps < detail::memory_steps ? memory.steps + 1 : memory.steps;
        double n = 0, sum_now = 0, sum_before = 0, product = 0, square_now = 0, square_before = 0;
        for (std::size_t i = 0; i < active; ++i) {
            kept_place& kept = of.kept[order_[i]];
            const std::size_t b = places_.bucket(i);
            const double now = static_cast<double>(places_.before(b) + places_.before(b + 1) - 1) * 0.5 - middle;
            const double before = static_cast<double>(kept.place) - middle;
            const bool is_known = kept.place >= 0;
            const bool is_steady = static_cast<double>(kept.steadiness) > memory.steadiest;
            kept.place = static_cast<float>(now + middle);
            if (!is_known) continue;
            kept.steadiness += static_cast<float>((now * before - static_cast<double>(kept.steadiness)) / steps);
            if (is_steady) continue;
            ++n;
            sum_now += now;
            sum_before += before;
            product += now * before;
            square_now += now * now;
            square_before += before * before;
        }
        if (n < 2) return;
        product -= sum_now * sum_before / n;
        square_now -= sum_now * sum_now / n;
        square_before -= sum_before * sum_before / n;
        if (!(square_now > 0) || !(square_before > 0)) return;
        memory.steps = steps;
        const double correlation = product / detail::square_root(square_now * square_before);
        memory.correlation += (correlation - memory.correlation) / memory.steps;
    }

    /// The widest margin that the tolerance asks for.
    double tolerated(persistence& memory) noexcept
    {
        if (!(options_.tolerance > 0)) return 0;
        const double distance = places_.median_distance();
        if (memory.widths < 64) ++memory.widths;
        // One wild step must not make the tolerance wide.
        const double most = memory.widths > 8 ? 4 * memory.width : distance;
        memory.width += (std::min(distance, most) - memory.width) / memory.widths;
        return options_.tolerance * 1.4826 * memory.width;
    }

    /// For the sides `first_side` and the next one.
    void bet_on_order(metric_state& of, std::size_t group, int first_side, double margin)
    {
        const std::size_t active = order_.size();
        const std::size_t eighth = eighth_of(group);
        if (pays_for_ != active || pays_for_eighth_ != eighth) {
            pays_for_ = active;
            pays_for_eighth_ = eighth;
            for (std::size_t k = 0; k < active; ++k) pays_[k] = payout_of(k, 1, active, eighth);
        }
        const std::size_t buckets = places_.buckets();
        std::size_t last = 0;
        std::size_t first = 1;
        for (std::size_t b = 0; b < buckets; ++b) {
            const std::size_t ties = places_.in(b);
            if (ties == 0) continue;
            std::size_t above = places_.before(b);
            std::size_t below = active - places_.before(b + 1);
            if (margin > 0) {
                last = places_.last_within(b, margin, last);
                first = places_.first_within(b, margin, first);
                above = places_.before(last + 1) - 1;
                below = active - places_.before(first) - 1;
            }
            const bool is_own = ties == 1 || margin > 0;
            pay_[b] = is_own ? pays_[above] : payout_of(above, ties, active, eighth);
            pay_[buckets + b] = is_own ? pays_[below] : payout_of(below, ties, active, eighth);
        }
        const std::size_t stride = watched(of.shares);
        process* processes = of.processes.data() + watched(of.shares, first_side);
        for (int side = first_side; side < first_side + 2; ++side) {
            if (of.shares.of(side) <= 0) continue;
            const payout* const pay = pay_.data() + (side == first_side ? 0 : buckets);
            const double of_run = share_for(of, side) * options_.false_alarms_per_run;
            const double of_late = share_for(of, side) / options_.steps_between_alarms;
            double strongest = 0;
            for (std::size_t i = 0; i < active; ++i) {
                const std::size_t r = order_[i];
                process& at = processes[r * stride];
                const worth now = play(at, pay[places_.bucket(i)]);
                const double found = std::max(now.wealth * of_run, now.recent * of_late);
                if (found > best_strength_[r]) offer(of, side, r, at, false);
                strongest = std::max(strongest, found);
            }
            strongest_ = std::max(strongest_, strongest);
            ++processes;
        }
    }
    COLLPROBE_COLD_INLINE void bet_on_named(
        metric_state& of, std::size_t group, std::size_t rank, double value, int first_side, double margin) noexcept
    {
        const std::size_t active = order_.size() + 1; // beside the others, and behind those that are equal
        for (int side = first_side; side < first_side + 2; ++side) {
            process* const at = process_of(of, side, rank);
            if (at == nullptr) continue;
            const std::size_t first = side == first_side
                ? places_.before(places_.bucket_of(value - margin) + 1)
                : active - 1 - places_.before(places_.bucket_of(value + margin));
            const worth now = play(*at, payout_of(first, 1, active, eighth_of(group)));
            if (of.named_side[rank] != side + 1) continue;
            const float* const most = names_of_two(of, group) ? detail::most_of_named_of_two : detail::most_of_named;
            for (std::size_t j = 0; j < bets; ++j) at->of[bets + j] = std::min(at->of[bets + j], most[j]);
            if (now.recent >= bets * detail::least_of_named) {
                offer(of, side, rank, *at, true);
                continue;
            }
            for (process& each : processes_of(of, rank)) each = {};
            of.named_side[rank] = 0;
            of.memory[group].told = 0; // there may be a majority again
            return;
        }
    }
    /// `first` and `ties`: the places of this side that a rank shares, counted from 0, of `active`.
    payout payout_of(std::size_t first, std::size_t ties, std::size_t active, std::size_t eighth) const noexcept
    {
        const double* const sums = sums_.data() + first * bets;
        const double* const all = sums_.data() + active * bets;
        const double share = (1 - detail::rounded_off) * static_cast<double>(active) / static_cast<double>(ties);
        payout result;
        for (std::size_t j = 0; j < bets; ++j)
            result.of[j] = result.of[bets + j]
                = static_cast<float>(share * (sums[ties * bets + j] - sums[j]) / all[j]);
        result.is_extreme = first < eighth && ties <= 2 * eighth ? 1 : 0; // the two middle ranks are equally near
        return result;
    }
    [[gnu::always_inline]] worth play(process& at, const payout& pays) const noexcept
    {
        // Without branches, which would be mispredicted. Four numbers at once: the fours overlap in the middle.
        const std::uint32_t lasts = at.of[bets] > 1 || at.of[bets + 1] > 2 ? ~std::uint32_t{0} : 0;
        static constexpr float least[] = {0, 0, 0, 1, 0, 1, 1, 1};
        float now[8];
        const auto four = [&, this](std::size_t first, std::size_t to) {
            for (std::size_t l = 0; l < 4; ++l) {
                const float own = at.of[first + l];
                now[to + l] = ((own > least[to + l] ? own : least[to + l]) + starts_[to + l]) * pays.of[first + l];
            }
        };
        four(0, 0), four(2, 4);
        for (std::size_t l = 0; l < 4; ++l) at.of[l] = now[l];
        for (std::size_t l = 0; l < 4; ++l) at.of[2 + l] = now[4 + l];
        at.since = (at.since & lasts) | (static_cast<std::uint32_t>(step_) & ~lasts);
        at.extreme = (at.extreme & lasts) + pays.is_extreme;
        const float wealth = now[0] + now[1] + now[2];
        const float recent = now[5] + now[6] + now[7];
        if (wealth + recent > detail::most_wealth) at.keep_below(detail::most_wealth, detail::most_wealth);
        return {static_cast<double>(wealth), static_cast<double>(recent)};
    }

    /// As the strongest evidence about the rank in this step.
    void offer(const metric_state& of, int side, std::size_t rank, const process& at, bool is_unlike) noexcept
    {
        const rank_evidence evidence = evidence_of(of, side, rank, at);
        const double found = is_unlike ? 0x1p200 * (1 + strength(evidence)) : strength(evidence);
        if (found <= best_strength_[rank]) return;
        best_strength_[rank] = found;
        best_[rank] = evidence;
        best_[rank].unlike = is_unlike;
    }

    rank_evidence evidence_of(const metric_state& of, int side, std::size_t rank, const process& at) const noexcept
    {
        const double share = share_for(of, side);
        rank_evidence result;
        result.metric = of.what;
        result.call = of.call;
        result.side = static_cast<rank_side>(side);
        for (std::size_t j = 0; j < bets; ++j) {
            result.odds += static_cast<double>(at.of[j]) * share;
            result.recurrence += static_cast<double>(at.of[bets + j]) * share;
        }
        result.since = step_ - (static_cast<std::uint32_t>(step_) - at.since);
        result.extreme = at.extreme;
        result.among = static_cast<std::uint32_t>(eighth_of(group_of_[rank]));
        return result;
    }

    /// In units of the limits.
    double strength(const rank_evidence& of) const noexcept
    {
        return std::max(of.odds * options_.false_alarms_per_run, of.recurrence / options_.steps_between_alarms);
    }

    double share_for(const metric_state& of, int side) const noexcept
    {
        return of.shares.of(side) / (bets * static_cast<double>(ranks_));
    }

    COLLPROBE_COLD_INLINE void name_ranks(metric_state& of, std::size_t group)
    {
        // The strongest evidence first: it may explain that of the others.
        for (double strongest = 1; strongest >= 1;) {
            strongest = 0;
            std::size_t rank = 0;
            int at = 0;
            for (int side = 0; side < sides; ++side) {
                for (std::size_t i = 0; i < order_.size() && of.shares.of(side) > 0; ++i) {
                    if (of.named_side[order_[i]] != 0) continue;
                    const double found = strength(evidence_of(of, side, order_[i], *process_of(of, side, order_[i])));
                    if (found <= strongest) continue;
                    strongest = found;
                    rank = order_[i];
                    at = side;
                }
            }
            if (strongest >= 1) name_one(of, at, group, rank);
        }
    }

    COLLPROBE_COLD_INLINE void name_one(metric_state& of, int side, std::size_t group, std::size_t rank)
    {
        const std::size_t begin = first_member_[group];
        const std::size_t end = first_member_[group + 1];
        std::size_t named = 1;
        for (std::size_t i = begin; i < end; ++i) named += of.named_side[members_[i]] != 0 ? 1 : 0;
        rank_evidence evidence = evidence_of(of, side, rank, *process_of(of, side, rank));
        // Without a majority that it could be unlike nobody is named.
        if (2 * named >= end - begin && !(named == 1 && names_of_two(of, group))) {
            for (process& each : processes_of(of, rank)) each = {};
            std::uint64_t& told = of.memory[group].told;
            if (told != 0 && of.judged - told < detail::steps_to_tell_again) return;
            told = of.judged;
            named_.push_back({-1, evidence});
            return;
        }
        evidence.unlike = true;
        of.named_side[rank] = static_cast<std::uint8_t>(side + 1);
        offer(of, side, rank, *process_of(of, side, rank), true);
        named_.push_back({static_cast<int>(rank), evidence});
        // A rank that was the largest has made the others the smallest, and so on.
        for (std::size_t i = begin; i < end; ++i) {
            if (members_[i] == rank || of.named_side[members_[i]] != 0) continue;
            if (process* const at = process_of(of, side ^ 1, members_[i])) at->keep_below(0.5f, 1);
        }
    }

    int ranks_;
    exchangeability_options options_;
    std::vector<std::size_t> group_of_; // by rank
    std::vector<std::size_t> members_; // ranks, by group
    std::vector<std::size_t> first_member_; // of each group, and the end
    std::vector<double> sums_; // by k = 0 .. n, then by bet: of the powers of 1 .. k
    std::uint64_t step_ = 0;
    std::vector<metric_state> metrics_;
    std::vector<named_rank> named_;
    std::vector<rank_evidence> best_; // by rank
    std::vector<double> best_strength_; // by rank; of ranks that are unlike the others above all others
    float starts_[8] = {}; // weight of the bets that begin in the step that is judged, where `play` needs it
    std::vector<payout> pays_; // by place that is not shared
    std::size_t pays_for_ = 0; // ranks
    std::size_t pays_for_eighth_ = 0;
    std::vector<payout> pay_; // by bucket; first for the one side, then for the other
    std::vector<double> work_; // by rank
    detail::rank_places places_;
    std::vector<std::size_t> order_; // ranks that are compared, as in `places_`
    int silent_ = 0;
    double strongest_ = 0; // of the group that is judged
};

} // namespace collprobe
