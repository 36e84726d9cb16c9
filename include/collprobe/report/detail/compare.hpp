// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <utility>

#include <collprobe/core/element.hpp>
#include <collprobe/core/ulp.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/report/compare.hpp>
#include <collprobe/report/table.hpp>
#include <collprobe/report/words.hpp>

namespace collprobe::inline COLLPROBE_ABI::report {

namespace detail {

using collprobe::detail::absolute;

using collprobe::detail::infinity;

using collprobe::detail::square_root;

/// Two runs, and the steps that both have.
struct run_pair {
    const run_log& a;
    const run_log& b;
    std::vector<std::pair<std::size_t, std::size_t>> steps; ///< indices in a and in b

    const logged_step& of_a(std::size_t i) const noexcept { return a.steps()[steps[i].first]; }
    const logged_step& of_b(std::size_t i) const noexcept { return b.steps()[steps[i].second]; }
};

inline compared_call place_of(const run_log& log, const logged_step& step, std::size_t bucket)
{
    compared_call place;
    place.step = step.step;
    place.bucket = static_cast<int>(bucket);
    place.sequence = step.first_call + bucket;
    if (bucket >= step.calls) return place;
    const logged_call& of = log.calls(step)[bucket];
    place.name = log.text(of.name);
    place.line = log.text(of.line);
    place.call = of.call;
    place.type = of.type;
    place.count = of.count;
    return place;
}

/// "all_reduce of 1000 float"
inline std::string kind_in_words(const logged_call& of)
{
    return std::string(name(of.call)) + " of " + std::to_string(of.count) + ' ' + name(of.type);
}

/// What is different about a call's form; empty if nothing is.
COLLPROBE_COLD_INLINE std::string form_difference(const run_pair& runs, std::size_t i, std::size_t c)
{
    const logged_step& sa = runs.of_a(i);
    const logged_step& sb = runs.of_b(i);
    const logged_call& ca = runs.a.calls(sa)[c];
    const logged_call& cb = runs.b.calls(sb)[c];
    if (ca.call != cb.call || ca.type != cb.type || ca.count != cb.count) {
        return kind_in_words(ca) + " in A, " + kind_in_words(cb) + " in B";
    }
    const std::string& na = runs.a.text(ca.name);
    const std::string& nb = runs.b.text(cb.name);
    if (na == nb || na.empty() || nb.empty()) return "";
    return "'" + na + "' in A, '" + nb + "' in B";
}

/// The number of calls at the beginning of a step that have the same form in both runs.
COLLPROBE_COLD_INLINE std::size_t matching_calls(const run_pair& runs, std::size_t i)
{
    const std::size_t both = std::min(runs.of_a(i).calls, runs.of_b(i).calls);
    std::size_t c = 0;
    while (c < both && form_difference(runs, i, c).empty()) ++c;
    return c;
}

enum class call_state : std::uint8_t { equal, differs, undecided, one_sided };

COLLPROBE_COLD_INLINE call_state compare_call(const run_pair& runs, std::size_t i, std::size_t c)
{
    const logged_step& sa = runs.of_a(i);
    const logged_step& sb = runs.of_b(i);
    const logged_call& ca = runs.a.calls(sa)[c];
    const logged_call& cb = runs.b.calls(sb)[c];
    if (ca.has_digest != cb.has_digest) return call_state::one_sided;
    const bool is_by_rank = ca.call == collective::reduce_scatter || ca.call == collective::all_to_all;
    if (!ca.has_digest || (is_by_rank && sa.ranks != sb.ranks)) return call_state::undecided;
    return ca.digest == cb.digest ? call_state::equal : call_state::differs;
}

/// A number as an element of type T, which it was before it became a double. A conversion to float would lose
/// subnormal numbers in a build that flushes them to zero.
template <class T>
T element_of(double value) noexcept
{
    if constexpr (std::is_same_v<T, float>) {
        return collprobe::detail::bit_cast<float>(
            collprobe::detail::narrow<collprobe::detail::narrow_format<8, 23>>(value));
    } else {
        return T(value);
    }
}

inline std::uint64_t ulp_between(element_type type, double a, double b) noexcept
{
    std::uint64_t distance = 0;
    with_floating_type(type, [&]<class T>(T) { distance = ulp_distance(element_of<T>(a), element_of<T>(b)); });
    return distance;
}

/// Distance and angle of two vectors of finite numbers. Squares cannot overflow: a first pass finds the scale.
COLLPROBE_COLD_INLINE void measure(
    const std::vector<double>& a, const std::vector<double>& b, bool with_angle, step_difference& out)
{
    double largest = 0;
    for (const double each : a) largest = std::max(largest, absolute(each));
    for (const double each : b) largest = std::max(largest, absolute(each));
    const int exponent = collprobe::detail::binary_exponent(largest);
    const double scale = collprobe::detail::power_of_two(std::clamp(-exponent, -1022, 1022));
    double aa = 0;
    double bb = 0;
    double dd = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        const double x = a[i] * scale;
        const double y = b[i] * scale;
        aa += x * x;
        bb += y * y;
        dd += (y - x) * (y - x);
    }
    out.relative = dd <= 0 ? 0 : aa > 0 ? square_root(dd / aa) : infinity();
    if (!with_angle || !(aa > 0) || !(bb > 0)) return;
    double squares = 0; // of the distance of the unit vectors: keeps the digits that 1 - cosine would lose
    for (std::size_t i = 0; i < a.size(); ++i) {
        const double apart = a[i] * scale / square_root(aa) - b[i] * scale / square_root(bb);
        squares += apart * apart;
    }
    out.cosine_distance = squares / 2;
}

inline double relative_difference(double a, double b) noexcept
{
    if (!is_finite(a) || !is_finite(b)) return collprobe::detail::not_a_number();
    if (to_bits(a) == to_bits(b)) return 0;
    return absolute(a) > 0 ? absolute(b - a) / absolute(a) : infinity();
}

COLLPROBE_COLD_INLINE step_difference difference_of(const run_pair& runs, std::size_t i)
{
    step_difference out;
    const logged_step& sa = runs.of_a(i);
    const logged_step& sb = runs.of_b(i);
    out.step = sa.step;
    const auto loss = static_cast<std::size_t>(metric::loss_mean);
    out.relative_loss = relative_difference(sa.metrics[loss], sb.metrics[loss]);
    std::vector<double> a;
    std::vector<double> b;
    const auto add = [&](double x, double y) {
        if (is_finite(x) && is_finite(y)) {
            a.push_back(x);
            b.push_back(y);
        } else if (!same_number(x, y)) {
            ++out.nonfinite;
        }
    };
    const std::size_t calls = matching_calls(runs, i);
    for (std::size_t c = 0; c < calls; ++c) {
        const call_state state = compare_call(runs, i, c);
        out.calls += state == call_state::equal || state == call_state::differs ? 1 : 0;
        out.differing += state == call_state::differs ? 1 : 0;
        const logged_call& ca = runs.a.calls(sa)[c];
        const view<const double> x = runs.a.sample(ca);
        const view<const double> y = runs.b.sample(runs.b.calls(sb)[c]);
        if (x.size() != y.size() || x.empty()) continue;
        out.basis = difference_basis::samples;
        for (std::size_t s = 0; s < x.size(); ++s) {
            add(x[s], y[s]);
            if (!is_finite(x[s]) || !is_finite(y[s])) continue;
            const std::uint64_t distance = ulp_between(ca.type, x[s], y[s]);
            if (distance <= out.max_ulp) continue;
            out.max_ulp = distance;
            out.max_ulp_bucket = static_cast<int>(c);
        }
    }
    if (out.basis == difference_basis::none) {
        for (std::size_t c = 0; c < calls; ++c) {
            const double x = runs.a.calls(sa)[c].norm;
            const double y = runs.b.calls(sb)[c].norm;
            if (is_nan(x) && is_nan(y)) continue;
            out.basis = difference_basis::norms;
            add(x, y);
        }
    }
    out.elements = a.size();
    if (!a.empty()) measure(a, b, out.basis == difference_basis::samples, out);
    return out;
}

/// So many steps a sample of the noise weighs in its mean: 1 + 2 × the sum of its autocorrelations, up to a lag of five
/// times that. For noise of slow decay in few steps that sum is too small, so the time of AR(1) noise with the measured
/// first autocorrelation, whose bias is known, is a lower limit. Stops above `most`.
/// Sources: Sokal, "Monte Carlo Methods in Statistical Mechanics" (1997), section 3; Kendall, Biometrika 41 (1954) 403.
COLLPROBE_COLD_INLINE double autocorrelation_time(const std::vector<double>& values, double mean, double most)
{
    const std::size_t n = values.size();
    const auto product_at = [&](std::size_t lag) {
        double sum = 0;
        for (std::size_t i = lag; i < n; ++i) sum += (values[i] - mean) * (values[i - lag] - mean);
        return sum;
    };
    const double squares = product_at(0);
    const double count = static_cast<double>(n);
    if (squares <= 1e-18 * count * mean * mean) return 1; // the same number but for rounding
    double time = 1;
    double at_least = 1;
    for (std::size_t lag = 1; lag < n && time <= most && static_cast<double>(lag) <= 5 * time; ++lag) {
        const double correlation = product_at(lag) / squares;
        time += 2 * correlation;
        if (lag > 1) continue;
        const double unbiased = (correlation + 1 / count) / (1 - 3 / count);
        if (unbiased >= 1) return infinity();
        at_least = (1 + unbiased) / (1 - unbiased);
    }
    return std::max(time, at_least);
}

COLLPROBE_COLD_INLINE metric_difference compare_metric(const run_pair& runs, metric which)
{
    constexpr std::size_t least_steps = 40;
    constexpr std::size_t blocks = 8;
    constexpr double steps_per_time = 30;
    metric_difference out;
    out.which = which;
    const auto index = static_cast<std::size_t>(which);
    const auto value = [&](const logged_step& step) { return step.metrics[index]; };
    std::size_t first = 0;
    while (first < runs.steps.size() && same_number(value(runs.of_a(first)), value(runs.of_b(first)))) ++first;
    if (first == runs.steps.size()) return out;
    out.first_step = runs.of_a(first).step;
    std::vector<double> differences;
    double sum_a = 0;
    double sum_b = 0;
    double largest = 0;
    for (std::size_t i = first; i < runs.steps.size(); ++i) {
        const double a = value(runs.of_a(i));
        const double b = value(runs.of_b(i));
        if (is_finite(a) != is_finite(b)) ++out.one_sided;
        if (!is_finite(a) || !is_finite(b)) continue;
        differences.push_back(b - a);
        sum_a += a;
        sum_b += b;
        largest = std::max(largest, absolute(b - a));
    }
    out.steps = differences.size();
    if (differences.empty()) {
        out.verdict = metric_verdict::one_sided;
        return out;
    }
    const double n = static_cast<double>(differences.size());
    out.mean_a = sum_a / n;
    out.mean_b = sum_b / n;
    double mean = 0;
    for (const double each : differences) mean += each / n;
    out.mean_difference = mean;
    out.verdict = metric_verdict::few_steps;
    if (differences.size() < least_steps || !is_finite(largest)) return out;
    // The unit in which squares neither overflow nor vanish.
    const double unit = collprobe::detail::power_of_two(
        std::clamp(-collprobe::detail::binary_exponent(largest), -1022, 1022));
    for (double& each : differences) each *= unit;
    mean *= unit;
    out.verdict = metric_verdict::slow_noise;
    if (autocorrelation_time(differences, mean, n / steps_per_time) > n / steps_per_time) return out;
    const std::size_t length = differences.size() / blocks;
    const std::size_t begin = differences.size() - length * blocks;
    double means[blocks] = {};
    double center = 0;
    for (std::size_t block = 0; block < blocks; ++block) {
        for (std::size_t i = 0; i < length; ++i) means[block] += differences[begin + block * length + i];
        means[block] /= static_cast<double>(length);
        center += means[block] / static_cast<double>(blocks);
    }
    double squares = 0;
    for (const double each : means) squares += (each - center) * (each - center);
    const double error = square_root(squares / static_cast<double>(blocks * (blocks - 1)));
    out.standard_error = error / unit;
    const double endless = center > 0 ? infinity() : center < 0 ? -infinity() : 0;
    out.score = error > 0 ? center / error : endless;
    const bool has_moved = !is_finite(out.score) || absolute(out.score) > moved_limit;
    out.verdict = has_moved ? metric_verdict::moved : metric_verdict::within_noise;
    return out;
}

/// The alarms of `of` that `other` lacks.
COLLPROBE_COLD_INLINE std::vector<logged_alarm> alarms_missing_in(const run_log& other, const run_log& of)
{
    std::vector<logged_alarm> missing;
    for (const logged_alarm& each : of.alarms()) {
        const auto is_same = [&](const logged_alarm& known) { return is_same_alarm(known, each); };
        if (std::any_of(other.alarms().begin(), other.alarms().end(), is_same)) continue;
        const auto at = std::upper_bound(missing.begin(), missing.end(), each,
            [](const logged_alarm& a, const logged_alarm& b) { return a.steps.front() < b.steps.front(); });
        missing.insert(at, each);
    }
    return missing;
}

/// Whether an alarm belongs to the values of a run, with the same or another number of ranks.
constexpr bool counts(finding_kind what, bool same_ranks) noexcept
{
    return facts_of(what).is_of_results && (same_ranks || !facts_of(what).is_of_ranks);
}

/// Finds the steps of both runs, and the first step that only one has.
COLLPROBE_COLD_INLINE void pair_steps(run_pair& runs, run_comparison& out)
{
    const auto note = [&out](std::uint64_t step, const char* which) {
        if (out.structure_differs) return;
        out.structure_differs = true;
        out.first_structure.step = step;
        out.structure = std::string("only ") + which + " has this step";
    };
    std::size_t a = 0;
    std::size_t b = 0;
    const std::vector<logged_step>& in_a = runs.a.steps();
    const std::vector<logged_step>& in_b = runs.b.steps();
    while (a < in_a.size() || b < in_b.size()) {
        if (b == in_b.size() || (a < in_a.size() && in_a[a].step < in_b[b].step)) {
            note(in_a[a++].step, "A");
            ++out.steps_only_a;
        } else if (a == in_a.size() || in_b[b].step < in_a[a].step) {
            note(in_b[b++].step, "B");
            ++out.steps_only_b;
        } else {
            runs.steps.emplace_back(a++, b++);
        }
    }
    out.steps = runs.steps.size();
}

/// The first structural difference within a step, if it comes before the one that is known.
COLLPROBE_COLD_INLINE void note_structure(
    const run_pair& runs, std::size_t i, std::size_t matching, run_comparison& out)
{
    const logged_step& sa = runs.of_a(i);
    const logged_step& sb = runs.of_b(i);
    const bool unseen_differ = sa.unseen_calls != sb.unseen_calls;
    if (matching == sa.calls && matching == sb.calls && !unseen_differ) return;
    if (out.structure_differs && out.first_structure.step <= sa.step) return;
    out.structure_differs = true;
    out.first_structure = matching < sa.calls ? place_of(runs.a, sa, matching) : place_of(runs.b, sb, matching);
    if (matching < sa.calls && matching < sb.calls) {
        out.structure = form_difference(runs, i, matching);
    } else {
        out.structure = counted(sa.calls, "call") + " in A, " + std::to_string(sb.calls) + " in B";
        if (matching == sa.calls && matching == sb.calls) {
            out.first_structure = {};
            out.first_structure.step = sa.step;
            out.structure = counted(sa.unseen_calls, "call") + " not looked at in A, "
                + std::to_string(sb.unseen_calls) + " in B";
        }
    }
}

} // namespace detail

COLLPROBE_COLD_INLINE run_comparison compare(const run_log& a, const run_log& b)
{
    run_comparison out;
    out.run_a = a.run();
    out.run_b = b.run();
    out.communicator = a.communicator();
    out.ranks_a = a.ranks();
    out.ranks_b = b.ranks();
    out.disagreements = a.disagreement_count() + b.disagreement_count();
    detail::run_pair runs{a, b, {}};
    detail::pair_steps(runs, out);

    constexpr std::size_t none = ~std::size_t{0};
    std::size_t first = none; // step in which a result, a norm or the loss differs
    for (std::size_t i = 0; i < runs.steps.size(); ++i) {
        const std::size_t matching = detail::matching_calls(runs, i);
        detail::note_structure(runs, i, matching, out);
        const logged_step& sa = runs.of_a(i);
        const logged_step& sb = runs.of_b(i);
        if (sa.ranks == sb.ranks && sa.facts != sb.facts && out.steps_with_other_facts++ == 0) {
            out.first_other_facts = sa.step;
        }
        const auto loss = static_cast<std::size_t>(metric::loss_mean);
        bool any = sa.ranks == sb.ranks && !detail::same_number(sa.metrics[loss], sb.metrics[loss]);
        for (std::size_t c = 0; c < matching; ++c) {
            const logged_call& ca = a.calls(sa)[c];
            const logged_call& cb = b.calls(sb)[c];
            switch (detail::compare_call(runs, i, c)) {
            case detail::call_state::one_sided: ++out.one_sided; [[fallthrough]];
            case detail::call_state::undecided:
                ++out.undecided;
                any = any || (sa.ranks == sb.ranks && !detail::same_number(ca.norm, cb.norm));
                break;
            case detail::call_state::differs:
                ++out.differing;
                any = true;
                if (!out.results_differ) {
                    out.results_differ = true;
                    out.first_difference = detail::place_of(a, sa, c);
                    out.first_difference.digest_a = ca.digest;
                    out.first_difference.digest_b = cb.digest;
                }
                [[fallthrough]];
            case detail::call_state::equal: ++out.calls; break;
            }
        }
        if (any && first == none) first = i;
    }
    for (std::size_t later = 0; first != none; later = later == 0 ? 1 : 2 * later) {
        const bool is_last = first + later + 1 >= runs.steps.size();
        out.growth.push_back(detail::difference_of(runs, is_last ? runs.steps.size() - 1 : first + later));
        if (is_last) break;
    }

    bool metrics_equal = true;
    for (int which = 0; which < detail::metric_count; ++which) {
        out.metrics.push_back(detail::compare_metric(runs, static_cast<metric>(which)));
        metrics_equal = metrics_equal && out.metrics.back().verdict == metric_verdict::equal;
    }
    out.new_alarms = detail::alarms_missing_in(a, b);
    out.gone_alarms = detail::alarms_missing_in(b, a);
    const bool same_ranks = out.ranks_a == out.ranks_b;
    const auto is_of_values = [same_ranks](const logged_alarm& each) { return detail::counts(each.what, same_ranks); };
    const bool alarms_equal = std::none_of(out.new_alarms.begin(), out.new_alarms.end(), is_of_values)
        && std::none_of(out.gone_alarms.begin(), out.gone_alarms.end(), is_of_values);

    const bool differ = out.results_differ || out.structure_differs || out.one_sided != 0 || out.disagreements != 0
        || out.steps_with_other_facts != 0 || !alarms_equal || (same_ranks && !metrics_equal);
    out.outcome = differ ? comparison_outcome::differ
        : out.calls != 0 ? comparison_outcome::identical
                         : comparison_outcome::nothing_to_compare;
    return out;
}

namespace detail {

/// "step 2, bucket 3 'wte' (call 155)"
COLLPROBE_COLD_INLINE std::string describe_place(const compared_call& place)
{
    std::string text = "step " + std::to_string(place.step);
    if (place.bucket < 0) return text;
    text += ", bucket " + std::to_string(place.bucket);
    if (!place.name.empty()) text += " '" + place.name + "'";
    else if (!place.line.empty()) text += " (" + place.line + ")";
    return text + ", call " + std::to_string(place.sequence);
}

COLLPROBE_COLD_INLINE std::string describe_logged(const logged_alarm& raised)
{
    std::string text = "step " + std::to_string(raised.steps.front());
    if (raised.steps.size() > 1) text += " and " + counted(raised.steps.size() - 1, "more step");
    return text + ", " + describe_place(raised) + ": " + name(raised.what) + ": " + subject(raised.what, raised.ranks);
}

COLLPROBE_COLD_INLINE std::string verdict_in_words(const metric_difference& of)
{
    switch (of.verdict) {
    case metric_verdict::equal: return "equal";
    case metric_verdict::within_noise: return "within noise";
    case metric_verdict::moved: return "moved";
    case metric_verdict::slow_noise: return "differs; its noise is too slow for a test";
    case metric_verdict::few_steps: return "differs; too few steps for a test";
    case metric_verdict::one_sided: return "only in one run";
    }
    return "unknown";
}

inline std::string ranks_in_words(const run_comparison& of)
{
    if (of.ranks_a == of.ranks_b) return counted(static_cast<std::uint64_t>(of.ranks_a), "rank");
    return std::to_string(of.ranks_a) + " and " + std::to_string(of.ranks_b) + " ranks";
}

} // namespace detail

COLLPROBE_COLD_INLINE std::string verdict(const run_comparison& of)
{
    const std::string steps = detail::counted(of.steps, "step");
    std::string undecided;
    if (of.undecided != 0) {
        undecided = "; " + detail::counted(of.undecided, "other call") + " without digests that can be compared";
    }
    if (of.outcome == comparison_outcome::identical) {
        return "identical: " + steps + ", " + detail::counted(of.calls, "call") + " with equal digests, "
            + detail::ranks_in_words(of) + undecided;
    }
    if (of.outcome == comparison_outcome::nothing_to_compare) {
        return "nothing to compare: no result has a digest in both runs (" + steps + ", of which the metrics are equal)"
            + (of.undecided != 0 ? "; were results read?" : "");
    }
    std::string text = "the runs differ: ";
    if (of.results_differ) {
        const compared_call& first = of.first_difference;
        text += "first in " + detail::describe_place(first) + ", " + name(first.call) + " of "
            + std::to_string(first.count) + ' ' + name(first.type) + "; other results in "
            + std::to_string(of.differing) + " of " + detail::counted(of.calls, "call");
    } else if (of.calls != 0) {
        text += "all " + detail::counted(of.calls, "digest") + " that both have are equal";
    } else {
        text += "no result has a digest in both runs";
    }
    if (of.structure_differs) {
        const bool is_first = !of.results_differ || of.first_structure.step < of.first_difference.step
            || (of.first_structure.step == of.first_difference.step
                && of.first_structure.bucket <= of.first_difference.bucket);
        text += is_first ? "; other calls first in " : "; later other calls, first in ";
        text += detail::describe_place(of.first_structure) + ": " + of.structure;
    }
    if (of.one_sided != 0) text += "; " + detail::counted(of.one_sided, "call") + " with a digest in one run only";
    if (of.disagreements != 0) {
        text += "; the ranks' own logs disagree about " + detail::counted(of.disagreements, "step");
    }
    if (of.steps_with_other_facts != 0) {
        text += "; other findings, or other numbers of ranks or calls, in "
            + detail::counted(of.steps_with_other_facts, "step") + ", first in step "
            + std::to_string(of.first_other_facts);
    } else if (!of.results_differ && !of.structure_differs && of.one_sided == 0 && of.disagreements == 0) {
        text += "; metrics or alarms differ";
    }
    return text;
}

COLLPROBE_COLD_INLINE std::string describe(const run_comparison& of)
{
    std::string text = verdict(of) + '\n';
    if (of.results_differ) {
        text += "digests there: " + collprobe::detail::hexadecimal(of.first_difference.digest_a) + " in A, "
            + collprobe::detail::hexadecimal(of.first_difference.digest_b) + " in B\n";
    }
    if (of.steps_only_a + of.steps_only_b != 0) {
        text += "steps: " + std::to_string(of.steps) + " in both, " + std::to_string(of.steps_only_a) + " only in A, "
            + std::to_string(of.steps_only_b) + " only in B\n";
    }
    if (!of.growth.empty()) {
        text_table table;
        table.row("difference in").cell("calls").cell("max ulp").cell("relative").cell("1 - cosine").cell("not finite");
        table.cell("loss, relative");
        bool any_norms = false;
        bool any_samples = false;
        for (const step_difference& at : of.growth) {
            any_norms = any_norms || at.basis == difference_basis::norms;
            any_samples = any_samples || at.basis == difference_basis::samples;
            table.row("step " + std::to_string(at.step));
            table.cell(std::to_string(at.differing) + " of " + std::to_string(at.calls));
            table.cell(at.basis != difference_basis::samples ? std::string("-")
                    : std::to_string(at.max_ulp)
                        + (at.max_ulp_bucket < 0 ? "" : " in " + std::to_string(at.max_ulp_bucket)));
            table.cell(short_number(at.relative) + (at.basis == difference_basis::norms ? " *" : ""));
            table.cell(short_number(at.cosine_distance)).cell(std::to_string(at.nonfinite));
            table.cell(short_number(at.relative_loss));
        }
        text += '\n' + table.text();
        if (any_samples) text += "of the elements that both runs sampled; max ulp: \"3 in 1\" is in bucket 1\n";
        if (any_norms) text += "* of the results' norms: no elements were sampled (probe_options::order_sample)\n";
    }
    const auto is_equal = [](const metric_difference& each) { return each.verdict == metric_verdict::equal; };
    if (!std::all_of(of.metrics.begin(), of.metrics.end(), is_equal)) {
        text_table table;
        table.row("mean over steps").cell("A").cell("B").cell("B - A").cell("standard error").cell("score");
        table.cell("from step").cell("verdict");
        for (const metric_difference& each : of.metrics) {
            if (is_equal(each)) continue;
            table.row(name(each.which)).cell(short_number(each.mean_a)).cell(short_number(each.mean_b));
            table.cell(short_number(each.mean_difference)).cell(short_number(each.standard_error));
            table.cell(short_number(each.score)).cell(std::to_string(each.first_step));
            std::string words = detail::verdict_in_words(each);
            if (each.one_sided != 0 && each.verdict != metric_verdict::one_sided) {
                words += "; undefined in one run in " + detail::counted(each.one_sided, "step");
            }
            table.cell(words);
        }
        text += '\n' + table.text() + "moved: beyond a score of " + short_number(moved_limit)
            + ", which chance reaches in about one of 1000 comparisons\n";
        if (of.ranks_a != of.ranks_b) text += "metrics by rank depend on the number of ranks\n";
    }
    const auto list = [&text](const std::vector<logged_alarm>& alarms, const char* what) {
        constexpr std::size_t most = 20;
        for (std::size_t i = 0; i < alarms.size() && i < most; ++i) {
            text += std::string(what) + ": " + detail::describe_logged(alarms[i]) + '\n';
        }
        if (alarms.size() > most) text += "... and " + std::to_string(alarms.size() - most) + " more\n";
    };
    if (!of.new_alarms.empty() || !of.gone_alarms.empty()) text += '\n';
    list(of.new_alarms, "alarm only in B");
    list(of.gone_alarms, "alarm only in A");
    return text;
}

namespace detail {

COLLPROBE_COLD_INLINE void write_compared(json_writer& json, const compared_call& place, bool with_digests)
{
    json.open('{').key("step").integer(place.step).key("bucket").index(place.bucket);
    if (place.bucket >= 0) json.key("collective_seq_id").integer(place.sequence);
    if (!place.name.empty()) json.key("name").text(place.name);
    if (!place.line.empty()) json.key("line").text(place.line);
    if (with_digests) {
        json.key("call").text(name(place.call)).key("type").text(name(place.type));
        json.key("elements").integer(place.count);
        json.key("digest_a").bits(place.digest_a).key("digest_b").bits(place.digest_b);
    }
}

COLLPROBE_COLD_INLINE void write_alarms(json_writer& json, const std::vector<logged_alarm>& alarms)
{
    json.open('[');
    for (const logged_alarm& each : alarms) {
        json.element().open('{').key("first_step").integer(each.steps.front()).key("steps").integer(each.steps.size());
        json.key("bucket").index(each.call);
        if (!each.name.empty()) json.key("name").text(each.name);
        if (!each.line.empty()) json.key("line").text(each.line);
        json.key("check").text(name(each.what)).key("damage").text(name(each.where));
        write_ranks(json.key("ranks"), each.ranks);
        json.close('}');
    }
    json.close(']');
}

} // namespace detail

COLLPROBE_COLD_INLINE std::string json_line(const run_comparison& of)
{
    std::string line;
    detail::json_writer json(line);
    detail::write_head(json, "comparison", of.run_b);
    json.key("with").text(of.run_a).key("comm").text(of.communicator).key("outcome").text(name(of.outcome));
    json.key("verdict").text(verdict(of)).key("ranks_a").index(of.ranks_a).key("ranks_b").index(of.ranks_b);
    json.key("steps").integer(of.steps).key("steps_only_a").integer(of.steps_only_a);
    json.key("steps_only_b").integer(of.steps_only_b).key("calls").integer(of.calls);
    json.key("differing").integer(of.differing).key("undecided").integer(of.undecided);
    json.key("one_sided").integer(of.one_sided).key("disagreements").integer(of.disagreements);
    json.key("steps_with_other_facts").integer(of.steps_with_other_facts);
    if (of.results_differ) {
        json.key("first_difference");
        detail::write_compared(json, of.first_difference, true);
        json.close('}');
    }
    if (of.structure_differs) {
        json.key("structure");
        detail::write_compared(json, of.first_structure, false);
        json.key("text").text(of.structure).close('}');
    }
    json.key("growth").open('[');
    for (const step_difference& at : of.growth) {
        const char* const basis = at.basis == difference_basis::samples ? "samples"
            : at.basis == difference_basis::norms                      ? "norms"
                                                                       : "none";
        json.element().open('{').key("step").integer(at.step).key("calls").integer(at.calls);
        json.key("differing").integer(at.differing).key("basis").text(basis).key("elements").integer(at.elements);
        json.key("nonfinite").integer(at.nonfinite).key("max_ulp").integer(at.max_ulp);
        json.key("max_ulp_bucket").index(at.max_ulp_bucket).key("relative").number(at.relative);
        json.key("cosine_distance").number(at.cosine_distance).key("relative_loss").number(at.relative_loss).close('}');
    }
    json.close(']').key("metrics").open('[');
    for (const metric_difference& each : of.metrics) {
        json.element().open('{').key("metric").text(name(each.which)).key("outcome").text(name(each.verdict));
        if (each.verdict != metric_verdict::equal) {
            json.key("first_step").integer(each.first_step).key("steps").integer(each.steps);
            json.key("one_sided").integer(each.one_sided);
            json.key("mean_a").number(each.mean_a).key("mean_b").number(each.mean_b);
            json.key("mean_difference").number(each.mean_difference);
            json.key("standard_error").number(each.standard_error).key("score").number(each.score);
        }
        json.close('}');
    }
    json.close(']').key("new_alarms");
    detail::write_alarms(json, of.new_alarms);
    json.key("gone_alarms");
    detail::write_alarms(json, of.gone_alarms);
    json.close('}');
    return line + '\n';
}

} // namespace collprobe::inline COLLPROBE_ABI::report
