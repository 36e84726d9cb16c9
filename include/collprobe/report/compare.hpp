// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <collprobe/core/record.hpp>
#include <collprobe/detail/names.hpp>
#include <collprobe/report/json.hpp>
#include <collprobe/report/metric.hpp>
#include <collprobe/report/run_log.hpp>

/// Two runs side by side: are they the same, and if not, where do they part?
namespace collprobe::inline COLLPROBE_ABI::report {

enum class comparison_outcome : std::uint8_t {
    identical,
    differ,
    nothing_to_compare, ///< nothing differs, but no result has a digest in both runs
};

constexpr const char* name(comparison_outcome outcome) noexcept
{
    return collprobe::detail::name_of<comparison_outcome::nothing_to_compare>(outcome,
        {"identical", "differ", "nothing_to_compare"});
}

/// A call of both runs, described as the first run has it.
struct compared_call {
    std::uint64_t step = 0;
    int bucket = -1; ///< index in the step; -1: the whole step
    std::uint64_t sequence = 0; ///< number over all steps
    std::string name;
    std::string line;
    collective call = collective::all_reduce;
    element_type type = element_type::float32;
    std::uint64_t count = 0;
    std::uint64_t digest_a = 0;
    std::uint64_t digest_b = 0;
};

/// What the numbers in a `step_difference` come from.
enum class difference_basis : std::uint8_t {
    none,
    norms, ///< the results' norms only: a lower bound of the distance
    samples, ///< the elements that `probe_options::order_sample` samples of each result
};

/// How far the results of one step are apart.
struct step_difference {
    std::uint64_t step = 0;
    std::uint64_t calls = 0; ///< with a digest in both runs
    std::uint64_t differing = 0;
    difference_basis basis = difference_basis::none;
    std::uint64_t elements = 0; ///< sampled elements, or norms, that are finite in both runs
    std::uint64_t nonfinite = 0; ///< that are not, and differ
    std::uint64_t max_ulp = 0; ///< of an element, in units of its call's type; 0 without samples
    int max_ulp_bucket = -1;
    double relative = collprobe::detail::not_a_number(); ///< |b - a| / |a| over the elements, Euclidean norms
    double cosine_distance = collprobe::detail::not_a_number(); ///< 1 - cosine of the elements; undefined for norms
    double relative_loss = collprobe::detail::not_a_number(); ///< |b - a| / |a| of the mean loss
};

enum class metric_verdict : std::uint8_t {
    equal, ///< the same bits in every step
    within_noise,
    moved, ///< its mean differs by more than the noise of the differences explains
    slow_noise, ///< the differences change too slowly for a test: the run is too short
    few_steps, ///< fewer than 40 steps with a difference
    one_sided, ///< only one of the runs has it
};

constexpr const char* name(metric_verdict verdict) noexcept
{
    return collprobe::detail::name_of<metric_verdict::one_sided>(verdict,
        {"equal", "within_noise", "moved", "slow_noise", "few_steps", "one_sided"});
}

/// A metric in the steps that both runs have, from the first in which it differs.
struct metric_difference {
    metric which = metric::loss_mean;
    metric_verdict verdict = metric_verdict::equal;
    std::uint64_t first_step = 0; ///< in which it differs
    std::uint64_t steps = 0; ///< in which it is finite in both runs
    std::uint64_t one_sided = 0; ///< steps in which it is finite in one run only
    double mean_a = collprobe::detail::not_a_number();
    double mean_b = collprobe::detail::not_a_number();
    double mean_difference = collprobe::detail::not_a_number(); ///< b - a
    double standard_error = collprobe::detail::not_a_number(); ///< of the mean difference, if there was a test
    double score = collprobe::detail::not_a_number(); ///< their quotient
};

struct run_comparison {
    std::string run_a;
    std::string run_b;
    std::string communicator;
    int ranks_a = 0;
    int ranks_b = 0;
    comparison_outcome outcome = comparison_outcome::nothing_to_compare;
    std::uint64_t steps = 0; ///< that both runs have
    std::uint64_t steps_only_a = 0;
    std::uint64_t steps_only_b = 0;
    std::uint64_t calls = 0; ///< that both runs have, with a digest in both
    std::uint64_t differing = 0; ///< of these
    std::uint64_t undecided = 0; ///< calls of both without digests that could be compared
    std::uint64_t one_sided = 0; ///< of the undecided: only one run has a digest
    bool results_differ = false;
    compared_call first_difference; ///< if `results_differ`
    bool structure_differs = false;
    compared_call first_structure; ///< if `structure_differs`: the first place with other calls, or a missing step
    std::string structure; ///< in words
    /// With equal numbers of ranks: steps that tell other numbers by rank, norms, non-finite elements or findings.
    std::uint64_t steps_with_other_facts = 0;
    std::uint64_t first_other_facts = 0; ///< step
    /// From the first step in which a result, a norm or the loss differs: 0, 1, 2, 4, ... steps later, and the last.
    std::vector<step_difference> growth;
    std::vector<metric_difference> metrics; ///< all of them
    std::vector<logged_alarm> new_alarms; ///< only the second run has them
    std::vector<logged_alarm> gone_alarms; ///< only the first run has them
    /// Steps of which the log of one run tells different things.
    std::uint64_t disagreements = 0;
};

/// The limit of `metric_difference::score`. The differences of a metric, step by step, are cut into 8 blocks of equal
/// length. If the runs do not differ in truth, the score of the blocks' means has Student's distribution with 7
/// degrees of freedom, and one of the 11 metrics exceeds the limit in one of 1000 comparisons. That needs blocks longer
/// than the memory of the noise. So no verdict is given on fewer than 40 steps, or on fewer than 30 for each integrated
/// autocorrelation time of the differences.
/// Simulated, 11 metrics, 40 to 2000 steps: AR(1) noise of any memory, random walks and noise that falls with the loss
/// exceed it in at most 2 of 1000 comparisons. White noise above an equal part that is remembered for n / 20 steps does
/// so in 5, for n / 4 steps in 180: in so few steps that is what a shift looks like. A shift by half the deviation of
/// white noise is found in 41 % of runs of 200 steps, in 83 % of 400 and in all of 1000.
inline constexpr double moved_limit = 8.0033;

/// Compares two runs of one communicator, step by step and call by call.
///
/// `identical`: both have the same steps and calls (kind, type, elements, name), every digest that one has the other
/// has too, and all are equal. With equal numbers of ranks all metrics, numbers by rank and norms are equal, bit for
/// bit, and so are all findings and alarms but `late`, which is of time. With other numbers of ranks the metrics by
/// rank are others by nature: results alone decide, and alarms about results. A reduce-scatter's digest depends on the
/// number of ranks, so it is undecided then.
/// Errors of a log (`run_log::disagreements`) make the runs differ.
/// Cost: linear in the calls; a metric that differs costs its steps times the memory of its noise.
run_comparison compare(const run_log& a, const run_log& b);

/// The outcome in one sentence: "identical: 20 steps, 80 calls with equal digests".
std::string verdict(const run_comparison& of);

/// The comparison as text for people: the verdict, then tables of what differs.
std::string describe(const run_comparison& of);

/// As a JSON line; `kind` is "comparison".
std::string json_line(const run_comparison& of);

} // namespace collprobe::report

#include <collprobe/report/detail/compare.hpp>
