// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include <collprobe/core/collective.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/record/finding.hpp>
#include <collprobe/core/record/lateness.hpp>
#include <collprobe/core/record/quantisation.hpp>
#include <collprobe/core/record/statistics.hpp>
#include <collprobe/core/record/weights.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/detail/names.hpp>

/// The record of a step: of its calls, of the values that ranks compare, and of the whole.
namespace collprobe::inline COLLPROBE_ABI {

namespace detail {

/// Makes a value as it was when new. Members that are named keep their memory; in a list of records each is as new.
template <class Of, class... Kept>
void start_over(Of& of, Kept Of::*... kept)
{
    const auto empty = [](auto& member) {
        if constexpr (requires { member.front().clear(); }) for (auto& each : member) each.clear();
        else if constexpr (requires { member.clear(); }) member.clear();
    };
    Of fresh;
    (empty(of.*kept), ...);
    (std::swap(fresh.*kept, of.*kept), ...);
    of = std::move(fresh);
}

} // namespace detail

/// The spread of one number per rank over the ranks. An undefined field is NaN by its bits (`is_nan` tells, also
/// under `-ffast-math`), for instance the sample deviation of one rank.
struct spread {
    double mean = detail::not_a_number(); ///< of the ranks with a finite number
    double std = detail::not_a_number(); ///< population form, divides by n: the published definition
    double std_sample = detail::not_a_number(); ///< divides by n - 1
    double range = detail::not_a_number(); ///< largest minus smallest
    double cv = detail::not_a_number(); ///< std / |mean|
    double minimum = detail::not_a_number(); ///< the smallest number
    double maximum = detail::not_a_number(); ///< the largest number
    int minimum_rank = -1; ///< lowest rank that holds the minimum
    int maximum_rank = -1; ///< lowest rank that holds the maximum
    int finite = 0; ///< number of ranks with a finite number; the fields above count only these
};

/// The directions of the ranks' gradients. Undefined values are NaN by their bits.
struct direction {
    double mean_pairwise = detail::not_a_number(); ///< mean of cos(g_i, g_j) over all pairs i < j
    double pooled = detail::not_a_number(); ///< the same, each pair weighted by its norms
    /// Gradient noise scale in units of one rank's batch: multiply by samples per rank for B_simple.
    double noise_scale = detail::not_a_number();
    double predicted_cosine = detail::not_a_number(); ///< 1 / (1 + noise_scale), smoothed over steps
    std::vector<double> leave_one_out = {}; ///< per rank: cosine with the sum of all other ranks
    /// Per rank: mean of its cosines with each other rank, whatever their norms; empty unless the direction is exact.
    std::vector<double> pairwise = {};
};

/// The dependence of a reduction on the order of its terms, measured on a sample of its elements: see `order_meter`.
struct order_sensitivity {
    std::uint64_t elements = 0; ///< in the sample; 0 if nothing was measured
    std::uint64_t nonfinite = 0; ///< sampled, but left out: exact sum, result or the sum of an order is not finite
    std::uint64_t orders = 0; ///< how many orders were compared
    std::uint64_t changed = 0; ///< elements whose bits are not the same in all orders
    std::uint64_t max_ulp_spread = 0; ///< largest distance of the sums of one element in two orders
    /// Error of the communicator's own result against the correctly rounded one, in units in the last place.
    double rms_ulp_error = 0;
    double max_ulp_error = 0;
};

/// The way in which the records of a step reach the ranks.
enum class report_mode : std::uint8_t {
    gather, ///< every rank has every rank's records: exact tables, up to about a thousand ranks
    /// Of calls only sums, extrema with their rank, and digest agreement: the same size for any n. Up to 16,384 ranks
    /// also the totals of each rank (losses, whole gradients, times), with all checks of these.
    summary,
    automatic, ///< one of them, by the size of a step; never that of a record
};

template <>
inline constexpr auto names_of<report_mode> = name_list<report_mode::automatic>{"gather", "summary", "automatic"};

/// The checks of a call's result by the part `audit`. Equal on every rank.
struct call_audit {
    bool checked = false; ///< the call was audited; if not, the fields below say nothing
    bool majority = true; ///< more than half of the ranks hold the same result
    bool sum_checked = false; ///< the sum was checked
    /// The sum is right on all ranks, or on some; then the other ranks are named. Also true if nothing is known of the
    /// sum, but not if finite inputs have a result with NaN or infinity.
    bool conserved = true;
    /// The largest distance, over the ranks, of a checksum of the result from that of the inputs, and the limit of
    /// that distance. Units: standard deviations of the rounding error. 0 if the sum was not checked. Of an observed
    /// result that is not the plain sum or mean (`is_other_sum`) they tell so: it is checked by its weights where
    /// `weight_probe` finds them, else not.
    double residual = 0;
    double residual_limit = 0;
    std::uint32_t bins = 0; ///< of the checksum of a floating-point sum: the fewer, the less damage it sees
    damage where = damage::none; ///< the place of the damage
    std::vector<int> culprits; ///< ranks that hold, or sent, damaged data; empty if none can be named

    /// Of an observed result: it is another sum of the inputs than the plain one, or none; no finding by itself.
    bool is_other_sum() const noexcept { return conserved && residual > residual_limit; }
};

/// The time of a rank in a call, by the clock of its device, in ticks of 256 ns modulo 2^32 (18 minutes). Times of two
/// ranks have nothing to do with each other.
struct call_interval {
    std::uint32_t entered = 0; ///< the rank's input was read
    std::uint32_t left = 0; ///< the read of the result began

    /// The time between the two in nanoseconds. Precondition: it is less than 9 minutes.
    double nanoseconds() const noexcept { return 256.0 * static_cast<std::int32_t>(left - entered); }
};

/// A rank whose whole gradient is zero in a step, while that of another rank is not.
struct rank_with_zeros {
    int rank = -1; ///< that sends zeros only
    bool has_no_weight = false; ///< it told so: its `step_observation::weight` is 0
    std::uint64_t since = 0; ///< the step in which it began
};

/// One probed collective of a step, over all ranks.
struct call_record {
    collective call = collective::all_reduce; ///< its kind
    element_type type = element_type::float32; ///< of its elements
    reduction operation = reduction::sum; ///< of a call that reduces
    bool is_gradient = false; ///< it sums one gradient of each rank, as far as is known, and their inputs were read
    std::uint64_t count = 0; ///< elements that each rank sent
    std::uint64_t result_count = 0; ///< elements that each rank got
    call_site site = {}; ///< its name, and the line that made it on this rank
    bool is_observed = false; ///< seen by `probed::observe`: its result may be scaled on purpose
    spread gradient_norm; ///< of the L2 norms of the buffers that the ranks sent
    double pooled_cosine = detail::not_a_number(); ///< for sums and averages, else undefined
    /// A sum is no longer than its terms together, and an all-gather, an all-to-all or a broadcast keeps the sum of all
    /// squares. In units of what rounding allows: above 1 the result is wrong, for certain (`sum_differs` or
    /// `shard_differs`, without a rank; of an observed call no finding, since results may be scaled on purpose). NaN by
    /// bits if it is not known, as of codes.
    double excess = detail::not_a_number();
    bool has_excess() const noexcept { return is_finite(excess) && excess > 1; }
    std::uint64_t nonfinite = 0; ///< summed over ranks
    /// Ranks that sent the bits of the last step that had this call. If these are more than half of those that send, it
    /// is the program's doing (the same data in each step, a frozen layer), and no finding; else they are one, shards
    /// of an all-gather in the first step that repeats them.
    int repeating_ranks = 0;
    bool is_repeated(int ranks) const noexcept { return 2 * repeating_ranks > ranks - without_input; }
    /// Whether every rank's result has the same bits; true if the collective does not promise that. With an audit, of
    /// an all-gather: whether every rank has the bits that the owner of each shard sent.
    bool results_agree = true;
    /// Of an observed call: the ranks that send nothing, and those that get nothing (`probed::observe_no_input`,
    /// `no_result`). The results of the others are compared.
    int without_input = 0;
    int without_result = 0;
    bool is_on_some_ranks() const noexcept { return without_input + without_result != 0; }
    /// The digest (scan/digest.hpp) of the result that most ranks have. A reduce-scatter gives each rank a result of
    /// its own: there it is a digest of the ranks' digests in their order, which depends on the number of ranks.
    std::uint64_t result_digest = 0;
    bool has_result_digest = false; ///< false: the result was not read, or no result has a majority
    /// The L2 norm of the result with that digest, or of the ranks' results together. NaN by bits if it is unknown, or
    /// if an element is not finite.
    double result_norm = detail::not_a_number();
    /// NaN and infinities of the result with that digest, or of the ranks' results together (of each up to 2^32 - 1).
    /// In `summary` mode known only if all inputs are finite, and of parts the largest number of a rank.
    std::uint64_t result_nonfinite = 0;
    /// Of sums and averages: the largest number of the type in units of the largest that the result can have, if the
    /// largest magnitudes of all ranks meet in one element. Inputs that are so many times larger may overflow. (An
    /// average adds values times 1 / n.) NaN by bits if it is not known: of integers, codes, several leaves, inputs
    /// that are not finite or zeros only, and in `summary` mode.
    double headroom = detail::not_a_number();
    /// With `probe_options::order_sample`, of sums and averages: the result at the sampled places.
    std::vector<double> result_sample;
    call_audit audit; ///< with the part `audit`
    call_quantisation quantisation; ///< with the part `quantisation_probe`
    call_weights weights; ///< of sums and averages, with the part `weight_probe`
    /// Who came last, if `probe_options::times`. Nothing is known of integers, broadcasts and empty calls. In `summary`
    /// mode only `present`, `last`, `spread` and `transport` are known.
    call_lateness lateness;
    std::vector<call_interval> intervals; ///< per rank; empty if `lateness` is not measured, and in `summary` mode
    order_sensitivity order; ///< of sums and averages, if measured
    std::vector<statistics> inputs; ///< per rank; empty in `summary` mode, and if no statistics were taken

    /// As new. The memory of lists is kept.
    void clear()
    {
        using of = call_weights;
        detail::start_over(audit, &call_audit::culprits);
        detail::start_over(weights, &of::weights, &of::bounds, &of::ranks, &of::holders);
        detail::start_over(*this, &call_record::audit, &call_record::weights, &call_record::result_sample,
            &call_record::intervals, &call_record::inputs);
    }
};

/// What `probed::expect_equal` and its sisters expect of a value.
enum class expectation : std::uint8_t {
    equal, ///< all ranks have the same
    distinct, ///< each rank has its own
    partition, ///< the ranks' sets of samples together are the whole, each sample as often as in it
};

template <>
inline constexpr auto names_of<expectation> = name_list<expectation::partition>{"equal", "distinct", "partition"};

/// What the ranks told of a value in one step. Equal on every rank.
struct expectation_record {
    call_site site = {}; ///< the name of the value, and the line that told it on this rank
    expectation what = expectation::equal; ///< of the ranks' values
    bool holds = true; ///< the ranks' values are as expected
    std::uint64_t since = 0; ///< the step from which on it has not held, each time that it was told; if not `holds`
    std::vector<int> groups; ///< per rank: the lowest rank with the same value; empty in `summary` mode
    /// Per rank: the number; of a buffer its L2 norm, NaN by bits if it is not finite; of a partition the samples. In
    /// `summary` mode the smallest and the largest, to 9 digits.
    std::vector<double> values;

    /// As new. The memory of lists is kept.
    void clear() { detail::start_over(*this, &expectation_record::groups, &expectation_record::values); }
};

/// What a part of the probe measured of each rank (`step_record::add_number`). No check of the library reads it.
struct number_record {
    call_site site = {}; ///< the name of the number, and the part's line
    int call = -1; ///< index of the call in its step, -1 for the whole step
    /// Per rank, NaN by bits where the part said nothing; or a single one of all ranks together.
    std::vector<double> by_rank;
};

/// All that the ranks agreed on about one step. Equal on every rank.
struct step_record {
    std::uint64_t step = 0; ///< the number that the caller gave it
    /// The calls of all steps before: call i of this step has the sequence number `first_call` + i, on every rank.
    std::uint64_t first_call = 0;
    int ranks = 0; ///< of the communicator
    report_mode mode = report_mode::gather; ///< of the exchange
    spread loss; ///< over the ranks
    /// Each rank weighted by its tokens; equals `loss` if the weights are equal. A rank without a finite weight above 0
    /// has no part in mean and deviation; the extremes and `finite` are those of `loss`, unless there is no weight at
    /// all.
    spread loss_weighted;
    spread gradient_norm; ///< of the whole gradient, all calls together
    direction cosine; ///< of the whole gradient
    std::vector<double> losses; ///< per rank, NaN if the rank gave none; empty without totals (`report_mode`)
    std::vector<double> gradient_norms; ///< per rank; empty without totals, and if no gradient was read
    /// The ranks without a gradient, ascending; empty where all ranks have none, and without totals. Such a rank's
    /// numbers are compared with no other's. `finding_kind::zeros` is told where it lasts and the rank has not told it.
    std::vector<rank_with_zeros> zero_ranks;
    /// The ranks whose losses, norms and directions are compared with no other's, ascending: with NaN, without data or
    /// gradient, with another call, with the data of a lower rank.
    std::vector<int> left_out;
    /// Per rank: NaN and infinities of all inputs; empty if none was read, and without totals.
    std::vector<std::uint64_t> nonfinite_by_rank;
    std::vector<call_record> calls; ///< in their order
    std::vector<expectation_record> expectations; ///< buffers, then numbers, each in the order of their calls
    std::vector<number_record> numbers; ///< what parts of the probe measured, in the order in which they added it
    /// The L2 norm of the results of all calls that sum or average gradients, together. NaN by bits if it is not known.
    double result_norm = detail::not_a_number();
    step_lateness lateness; ///< the calls whose lateness is known, together; nothing without totals
    std::vector<rank_lateness> lateness_by_rank; ///< over the last steps; empty if nothing is known of this step
    /// Over the run, by rank: the strongest evidence that it is unlike the others. Empty if nothing is known.
    std::vector<rank_evidence> evidence_by_rank;
    /// The numbers (loss, norm of a call, ...) of which no evidence is gathered now, because the order of the ranks in
    /// them stays the same from step to step: as if each had a memory of its own, or were of another kind
    /// (`probe_options::groups`).
    int silent_evidence = 0;
    /// The share of healthy steps, at most, in which losses, norms, magnitudes, directions and arrivals together name
    /// anybody. 0 without totals: then none of these checks is made. Sums, weights and codes have rates of their own.
    double false_alarms_per_step = 1e-4;
    /// Missing calls, exact findings (loss, then call by call), what the parts found, unusual numbers, then evidence;
    /// empty on a healthy step. Ranks of which a check says the same share a finding.
    std::vector<finding> findings;
    /// Calls that the step does not make and that one or two steps before it made, or steps whose calls still change.
    /// Such calls are told once and are no findings.
    std::vector<missing_call> missing_calls;
    /// A rank could not judge an earlier step, as after an error, so that it remembered other things than the others.
    /// From this step on all ranks remember nothing of earlier steps.
    bool forgot = false;
    bool places_agree = true; ///< `gather`: all ranks made the calls at the same places (`call_record::site`)
    bool repeats = true; ///< false: its calls were compared with none of earlier steps (`merged_step::repeats`)
    std::uint64_t unprobed_calls = 0; ///< calls for which the step had no room: forwarded, not measured
    /// Calls that nothing in this step reads: statistics are of floating point and may be taken each k-th step, and no
    /// part looked. Where steps without any record lie before this one, also the calls of those.
    std::uint64_t unread_calls = 0;

    /// Begins the record of a step: nothing of an earlier step or of another probe stays, but the memory of lists is
    /// kept. What a section of a call has is there only if its part writes it in this step.
    void begin(std::uint64_t of_step, int of_ranks, report_mode how, std::size_t of_calls, std::size_t of_values = 0)
    {
        using of = step_record;
        detail::start_over(cosine, &direction::leave_one_out, &direction::pairwise);
        detail::start_over(*this, &of::cosine, &of::losses, &of::gradient_norms, &of::zero_ranks, &of::left_out,
            &of::nonfinite_by_rank, &of::calls, &of::expectations, &of::numbers, &of::lateness_by_rank,
            &of::evidence_by_rank, &of::findings, &of::missing_calls);
        calls.resize(of_calls);
        expectations.resize(of_values);
        step = of_step;
        ranks = of_ranks;
        mode = how;
    }

    /// Compares a rank's numbers with no other's.
    void leave_out(int rank)
    {
        const auto place = std::lower_bound(left_out.begin(), left_out.end(), rank);
        if (place == left_out.end() || *place != rank) left_out.insert(place, rank);
    }
    /// Adds a finding: its ranks to those of the last finding that says the same, or as a new one.
    /// \throws error `invalid_argument` for a rank or call that a step does not have, once it has begun.
    void add(finding found, const call_site& where = call_site::current())
    {
        bool fits = found.call < static_cast<int>(calls.size());
        for (const int rank : found.ranks) fits = fits && rank >= 0 && rank < ranks;
        detail::require(fits || ranks == 0, "step_record::add", "it has no such rank or call", where);
        std::sort(found.ranks.begin(), found.ranks.end());
        found.ranks.erase(std::unique(found.ranks.begin(), found.ranks.end()), found.ranks.end());
        for (auto before = findings.rbegin(); found.is_named() && before != findings.rend(); ++before) {
            if (before->call != found.call || before->what != found.what) break;
            if (!before->is_named() || !detail::says_same(*before, found)) continue;
            for (const int rank : found.ranks) before->add(rank);
            return;
        }
        findings.push_back(std::move(found));
    }

    /// Adds what a part measured in a call or in the whole step (-1), of a rank or, as in a summary, of all ranks (-1):
    /// tables, JSON lines and pages show it by the name, whether or not anything is found. A second number of the same
    /// name, call and rank replaces the first. Cost in each step: a list for each name and call, and a search of them.
    /// \throws error `invalid_argument` without a name, and for a rank or call that the step does not have.
    void add_number(const call_site& what, int of_call, int rank, double value,
        const call_site& where = call_site::current())
    {
        const bool fits = rank >= -1 && rank < ranks && of_call >= -1 && of_call < static_cast<int>(calls.size());
        detail::require(fits, "step_record::add_number", "the step has no such rank or call", where);
        detail::require(what.name[0] != '\0', "step_record::add_number", "the number has no name", where);
        const auto count = static_cast<std::size_t>(rank < 0 ? 1 : ranks);
        auto at = std::find_if(numbers.rbegin(), numbers.rend(), [&](const number_record& of) {
            return of.call == of_call && of.by_rank.size() == count && std::string_view(of.site.name) == what.name;
        });
        if (at == numbers.rend()) {
            numbers.push_back({what, of_call, std::vector<double>(count, detail::not_a_number())});
            at = numbers.rbegin();
        }
        at->by_rank[static_cast<std::size_t>(rank < 0 ? 0 : rank)] = value;
    }

    /// Puts the findings in order, and completes them by what follows from their kinds, the audits and the calls.
    /// Behind all checks.
    void settle_findings()
    {
        const auto is_of_chance = [](const finding& each) { return is_of_rate(each.what); };
        const auto first = std::find_if(findings.begin(), findings.end(), is_of_chance); // these are together
        std::rotate(first, std::find_if_not(first, findings.end(), is_of_chance), findings.end());
        for (finding& each : findings) {
            const auto call = static_cast<std::size_t>(each.call);
            const call_record* const of = call < calls.size() ? &calls[call] : nullptr;
            if (of != nullptr && each.site.line == 0 && each.site.name[0] == '\0') each.site = of->site;
            each.step = step;
            each.settle(of != nullptr ? of->audit.where : damage::none);
        }
    }

    /// Calls in which more than half of the ranks that send sent the bits that they had sent last.
    std::size_t repeated_calls() const noexcept
    {
        std::size_t found = 0;
        for (const call_record& each : calls) found += each.is_repeated(ranks) ? 1 : 0;
        return found;
    }

    /// The samples of all calls together.
    order_sensitivity order() const noexcept
    {
        order_sensitivity all;
        double squares = 0;
        for (const call_record& call : calls) {
            const order_sensitivity& each = call.order;
            all.elements += each.elements;
            all.nonfinite += each.nonfinite;
            all.orders = detail::larger(all.orders, each.orders);
            all.changed += each.changed;
            all.max_ulp_spread = detail::larger(all.max_ulp_spread, each.max_ulp_spread);
            all.max_ulp_error = detail::larger(all.max_ulp_error, each.max_ulp_error);
            squares += static_cast<double>(each.elements) * each.rms_ulp_error * each.rms_ulp_error;
        }
        if (all.elements != 0) all.rms_ulp_error = detail::square_root(squares / static_cast<double>(all.elements));
        return all;
    }
};

} // namespace collprobe
