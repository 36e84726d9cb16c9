// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/core/config.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/metrics/detail/rank_places.hpp>

/// Whether a rank is unlike the others, over a whole run and for any distribution of the numbers.
namespace collprobe::inline COLLPROBE_ABI {

namespace detail {

/// Of the words of a saved state: a word that is damaged, lost or moved makes another one.
std::uint64_t checksum_of(view<const std::uint64_t> words) noexcept;
/// The weight of a bet that begins in step t = 1, 2, ...: together with 1/2 for the first one they add up to 1.
double weight_of_start(std::uint64_t t) noexcept;

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
    double largest = 0;
    double smallest = 0;
    double farthest = 0;
    double nearest = 0;

    bool operator==(const side_shares&) const = default;
};

/// Watches numbers of the ranks (losses, norms, ...) for a rank that is unlike the others, step by step.
///
/// If ranks are alike, each order of them is equally probable in every step, given the past. So the place of a rank
/// in that order is uniform, whatever the distribution. The watch bets against that at fair odds; a rank whose bets
/// have won enough is named. By Ville's inequality the chance that this happens to any of alike ranks, ever, is at most
/// `false_alarms_per_run`. Equal numbers share their places. metrics/exchangeability.md has the proof, the bets, the
/// delays, and what a memory of the ranks' own does to the assumption.
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
        int ranks, exchangeability_options options = {}, const call_site& where = call_site::current());

    int ranks() const noexcept { return ranks_; }
    const exchangeability_options& options() const noexcept { return options_; }
    std::size_t metrics() const noexcept { return metrics_.size(); }

    /// Adds a number to watch, and returns its index. The shares of all numbers together must not exceed 1 for the
    /// stated error to hold; they are the caller's.
    std::size_t add(finding metric, const side_shares& shares);
    /// Forgets all of a number, which is another one from now on, with shares of its own. Precondition:
    /// metric < metrics().
    void replace(std::size_t metric, finding by, const side_shares& shares);

    /// Begins a step: forgets whom the last one named.
    void begin_step(std::uint64_t step) noexcept;

    /// Judges one number of the step. `values[r]` belongs to rank r; a rank without a finite one is left out. `margin`:
    /// a rank is at a side only if it is so by more than this, and by more than the `tolerance`.
    /// `call`: the index that the number's call has in this step, for the evidence to repeat.
    /// Errors: `status::invalid_argument` for an unknown number, or a view without one entry per rank.
    void judge(std::size_t metric, view<const double> values, double margin = 0, int call = -1,
        const call_site& where = call_site::current());

    /// The ranks that this step has named. Valid until the next `judge`.
    view<const named_rank> named() const noexcept { return {named_.data(), named_.size()}; }
    /// The numbers of this step that were not judged, because the ranks of a group keep their places in them.
    int silent() const noexcept { return silent_; }
    /// What a number is, and its shares. Precondition: metric < metrics().
    finding metric_of(std::size_t metric) const noexcept { return metrics_[metric].what; }
    const side_shares& shares_of(std::size_t metric) const noexcept { return metrics_[metric].shares; }
    /// The strongest evidence about a rank in this step. Precondition: 0 <= rank < ranks().
    const rank_evidence& of(int rank) const noexcept { return best_[static_cast<std::size_t>(rank)]; }

    /// All that the watch has learnt, to be saved with a checkpoint: 8-byte words, the same on every rank.
    std::vector<std::uint64_t> state() const;
    /// Goes on from a saved state. The odds then hold for the run from its beginning.
    /// Errors: `status::invalid_argument` for words that are no such state, or one of other ranks or groups; then
    /// nothing changes.
    void restore(view<const std::uint64_t> state, const call_site& where = call_site::current());

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
            for (int j = 0; j < 2 * bets; ++j) {
                const float most = j < bets ? wealth : recent;
                of[j] = of[j] < most ? of[j] : most;
            }
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
        finding what = finding::loss;
        int call = -1;
        side_shares shares;
        std::uint64_t judged = 0; // steps
        std::vector<persistence> memory; // by group
        std::vector<kept_place> kept; // by rank
        std::vector<process> processes; // by rank, then by side that is watched
        std::vector<std::uint8_t> named_side; // by rank: 1 + side by which it is named, 0 if it is not
    };
    /// What the bets pay to a rank.
    struct payout {
        float of[2 * bets]; // each twice, as in a process
        std::uint32_t is_extreme; // 1: the rank is in the first eighth
    };
    struct worth {
        double wealth = 0;
        double recent = 0;
    };

    std::size_t count() const noexcept { return static_cast<std::size_t>(ranks_); }
    static std::size_t watched(const side_shares& shares, int end_side = sides) noexcept
    {
        std::size_t result = 0;
        for (int side = 0; side < end_side; ++side) result += share_of(shares, side) > 0 ? 1 : 0;
        return result;
    }
    /// Null for a side that is not watched.
    static process* process_of(metric_state& of, int side, std::size_t rank) noexcept
    {
        if (share_of(of.shares, side) <= 0) return nullptr;
        return &of.processes[rank * watched(of.shares) + watched(of.shares, side)];
    }
    /// An eighth of the ranks of a group.
    std::size_t eighth_of(std::size_t group) const noexcept
    {
        const std::size_t members = first_member_[group + 1] - first_member_[group];
        return members < 8 ? 1 : members / 8;
    }
    static double share_of(const side_shares& shares, int side) noexcept
    {
        return side == 0 ? shares.largest
            : side == 1  ? shares.smallest
            : side == 2  ? shares.farthest
                         : shares.nearest;
    }
    /// Whether of the two ranks of a group one is named: where it is clear which side is wrong.
    bool names_of_two(const metric_state& of, std::size_t group) const noexcept
    {
        return first_member_[group + 1] - first_member_[group] == 2 && watched(of.shares) == 1;
    }
    metric_state new_metric(finding what, const side_shares& shares) const;
    void judge_group(metric_state& of, view<const double> values, std::size_t group, double margin);
    /// Whether the ranks keep their places.
    bool keep_places(persistence& memory, metric_state& of, std::size_t group) noexcept;
    void remember_places(metric_state& of, persistence& memory) noexcept;
    /// The widest margin that the tolerance asks for.
    double tolerated(persistence& memory) noexcept;
    /// For the sides `first_side` and the next one.
    void bet_on_order(metric_state& of, std::size_t group, int first_side, double margin);
    void bet_on_named(
        metric_state& of, std::size_t group, std::size_t rank, double value, int first_side, double margin) noexcept;
    /// `first` and `ties`: the places of this side that a rank shares, counted from 0, of `active`.
    payout payout_of(std::size_t first, std::size_t ties, std::size_t active, std::size_t eighth) const noexcept;
    worth play(process& at, const payout& pays) const noexcept;
    /// As the strongest evidence about the rank in this step.
    void offer(metric_state& of, int side, std::size_t rank, bool is_unlike) noexcept;
    rank_evidence evidence_of(metric_state& of, int side, std::size_t rank) const noexcept;
    /// In units of the limits.
    double strength(const rank_evidence& of) const noexcept;
    double share_for(const metric_state& of, int side) const noexcept
    {
        return share_of(of.shares, side) / (bets * static_cast<double>(ranks_));
    }
    void name_ranks(metric_state& of, std::size_t group);
    void name_one(metric_state& of, int side, std::size_t group, std::size_t rank);
    void start_again(metric_state& of, std::size_t rank) noexcept;

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
    std::vector<payout> pays_; // by place that is not shared; then those of shared ones
    std::size_t pays_for_ = 0; // ranks
    std::size_t pays_for_eighth_ = 0;
    std::vector<std::uint32_t> pay_; // by bucket: index in `pays_`; first for the one side, then for the other
    std::vector<double> work_; // by rank
    detail::rank_places places_;
    std::vector<std::size_t> order_; // ranks that are compared, as in `places_`
    int silent_ = 0;
    double strongest_ = 0; // of the group that is judged
};

} // namespace collprobe

#if COLLPROBE_DEFINITIONS
#include <collprobe/metrics/detail/exchangeability.ipp>
#endif
