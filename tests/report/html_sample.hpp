// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include <collprobe/core/record.hpp>
#include <collprobe/core/record/inspection.hpp>
#include <collprobe/detail/math.hpp>

/// A training run as it could have been: the loss falls, ranks differ by noise. With faults rank 5 repeats its data in
/// a few steps, rank 3 gets wrong bits once, rank 6 sends NaN, rank 2 is late from the middle on, and rank 1 has a
/// large norm.
struct made_up_run {
    int ranks = 8;
    std::uint64_t steps = 300;
    bool faults = false;
    bool quantised = false;
    bool inspected = false;
    collprobe::report_mode mode = collprobe::report_mode::gather;
};

/// A number from -1 to 1 that depends on its arguments alone: the mean of four is nearly Gaussian.
inline double made_up_noise(std::uint64_t step, std::uint64_t rank, std::uint64_t kind)
{
    double sum = 0;
    for (std::uint64_t i = 0; i < 4; ++i) {
        const std::uint64_t bits = collprobe::detail::mix64(
            collprobe::detail::mix64(step * 0x10001 + i) + rank * 0x9e3779b97f4a7c15u + kind * 0xc2b2ae3d27d4eb4fu);
        sum += static_cast<double>(bits >> 11) * 0x1p-52 - 1;
    }
    return sum / 4;
}

inline collprobe::spread made_up_spread(const std::vector<double>& values)
{
    collprobe::spread of;
    const double n = static_cast<double>(values.size());
    double sum = 0;
    for (const double value : values) sum += value;
    of.mean = sum / n;
    double squares = 0;
    for (const double value : values) squares += (value - of.mean) * (value - of.mean);
    of.std = std::sqrt(squares / n);
    if (n > 1) of.std_sample = std::sqrt(squares / (n - 1));
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    of.minimum = *low;
    of.maximum = *high;
    of.range = *high - *low;
    of.cv = of.std / std::abs(of.mean);
    of.finite = static_cast<int>(values.size());
    return of;
}

inline collprobe::step_record made_up_step(const made_up_run& of, std::uint64_t step)
{
    using namespace collprobe;
    step_record record;
    record.step = step;
    record.ranks = of.ranks;
    record.mode = of.mode;
    const auto ranks = static_cast<std::size_t>(of.ranks);
    const double done = static_cast<double>(step) / static_cast<double>(of.steps);
    const double level = 0.35 + 2 * std::exp(-5 * done);
    const auto is = [&](std::uint64_t rank, double at) {
        return of.faults && rank < ranks && step == static_cast<std::uint64_t>(at * static_cast<double>(of.steps));
    };
    const char* const names[3] = {"wte", "blocks", "head"};
    record.calls.resize(3);
    for (std::size_t c = 0; c < 3; ++c) {
        call_record& call = record.calls[c];
        call.count = 1u << (18 + c);
        call.site = call_site::named(names[c]);
        call.audit.checked = true;
        call.audit.sum_checked = true;
        call.audit.residual = 1.5 + made_up_noise(step, c, 9);
        call.audit.residual_limit = 6;
    }
    for (std::size_t rank = 0; rank < ranks; ++rank) {
        record.losses.push_back(level * (1 + 0.06 * made_up_noise(step, rank, 1)) + 0.03 * made_up_noise(step, 999, 2));
        const double scale = is(1, 0.62) ? 3.5 : 1;
        record.gradient_norms.push_back(
            scale * (0.4 + level) * (1 + 0.1 * made_up_noise(step, rank, 3)) * (1 + 0.2 * made_up_noise(step, 999, 4)));
        const double cosine = 0.55 - 0.35 * done + 0.06 * made_up_noise(step, rank, 5);
        record.cosine.leave_one_out.push_back(cosine);
        rank_lateness late;
        late.steps = 20;
        late.latest = 4e5 * (1 + made_up_noise(step, rank, 6));
        if (of.faults && rank == 2 && step * 2 > of.steps) late.latest += 3.5e6;
        record.lateness_by_rank.push_back(late);
        if (late.latest > record.lateness.behind || rank == 0) {
            record.lateness.behind = late.latest;
            record.lateness.last = static_cast<int>(rank);
        }
    }
    record.lateness.calls = 3;
    record.lateness.present = of.ranks;
    record.loss = made_up_spread(record.losses);
    record.gradient_norm = made_up_spread(record.gradient_norms);
    double cosines = 0;
    for (const double each : record.cosine.leave_one_out) cosines += each;
    record.cosine.pooled = cosines / of.ranks - 0.05;
    record.cosine.mean_pairwise = record.cosine.pooled - 0.005;
    record.cosine.noise_scale = 1 / record.cosine.pooled - 1;
    if (step > 10) record.cosine.predicted_cosine = 0.5 - 0.35 * done;

    const auto blame = [&](int rank, int call, finding_kind what, double statistic, double threshold, bool exact, double rate) {
        finding named;
        named.ranks = {rank};
        named.call = call;
        named.what = what;
        named.statistic = statistic;
        named.threshold = threshold;
        named.exact = exact;
        named.false_alarms_per_step = rate;
        if (call >= 0) named.site = record.calls[static_cast<std::size_t>(call)].site;
        record.findings.push_back(named);
    };
    if (is(3, 0.3) || is(3, 0.34)) {
        record.calls[1].results_agree = false;
        record.calls[1].audit.where = damage::broadcast;
        record.calls[1].audit.culprits = {3};
        blame(3, 1, finding_kind::result_differs, 1, 0, true, 0);
    }
    if (is(6, 0.8)) {
        record.calls[2].nonfinite = 1234;
        record.losses[6] = collprobe::detail::not_a_number();
        blame(6, 2, finding_kind::non_finite, 1234, 0, true, 0);
    }
    if (is(1, 0.62)) blame(1, -1, finding_kind::gradient_norm, 19.2, 7.4, false, 0);
    for (const double at : {0.45, 0.47, 0.48}) {
        if (is(5, at)) blame(5, 0, finding_kind::stale, 1, 0, true, 0);
    }
    if (of.faults && ranks > 2 && step == of.steps / 2 + 5) blame(2, -1, finding_kind::late, 3.6e6, 1.1e6, false, 1e-5);
    if (of.quantised) {
        for (std::size_t c = 0; c < 3; ++c) {
            call_quantisation& codes = record.calls[c].quantisation;
            codes.seen = true;
            codes.outcome.bytes_plain = record.calls[c].count * 7;
            codes.outcome.bytes_sent = codes.outcome.bytes_plain;
            if (c == 0) {
                codes.outcome.why_not = unquantised_reason::small;
                continue;
            }
            codes.outcome.within = c == 1 ? code_format::int8 : code_format::int4;
            codes.outcome.block = 128;
            codes.outcome.bytes_sent /= c == 1 ? 4 : 8;
            codes.sqnr_db = (c == 1 ? 39 : 16) + made_up_noise(step, c, 7);
            codes.noise_ratio = c == 1 ? 4e-4 : 0.13;
            codes.crest = 4.2;
            codes.verdict = c == 1 ? quantisation_verdict::negligible
                : made_up_noise(step, c, 8) > 0.3 ? quantisation_verdict::harmful : quantisation_verdict::visible;
        }
    }
    if (of.mode == report_mode::summary) {
        record.losses.clear();
        record.gradient_norms.clear();
        record.cosine.leave_one_out.clear();
        record.cosine.mean_pairwise = collprobe::detail::not_a_number();
        record.lateness_by_rank.clear();
        record.lateness = {};
        std::vector<finding> kept;
        for (const finding& each : record.findings) {
            if (each.what == finding_kind::non_finite) kept.push_back(each);
        }
        record.findings = kept;
    }
    return record;
}

/// An alarm for each suspect, with the advice that `alarms` would give.
inline std::vector<collprobe::finding> made_up_alarms(const collprobe::step_record& record)
{
    using namespace collprobe;
    std::vector<finding> raised;
    for (const finding& named : record.findings) {
        finding next;
        next.step = record.step;
        next.call = named.call;
        next.what = named.what;
        if (named.rank() >= 0) next.ranks = {named.rank()};
        next.statistic = named.statistic;
        next.threshold = named.threshold;
        next.site = named.site;
        next.where = damage::input;
        next.action = advice::skip;
        if (named.what == finding_kind::result_differs) {
            next.where = damage::broadcast;
            next.action = advice::resync;
            next.source = 0;
        }
        if (named.what == finding_kind::gradient_norm) {
            next.action = advice::recheck;
            next.false_alarms_per_step = 2.9e-7;
        }
        if (named.what == finding_kind::late) {
            next.where = damage::none;
            next.action = advice::none;
            next.false_alarms_per_step = named.false_alarms_per_step;
        }
        raised.push_back(next);
    }
    return raised;
}

inline collprobe::run_record describe_made_up(const made_up_run& of)
{
    collprobe::run_record run;
    run.name = of.faults ? "pretraining-125m, node 3 suspected" : "pretraining-125m";
    run.job = "481516";
    run.host = "gpu-a12";
    run.ranks = of.ranks;
    run.nodes = of.ranks > 8 ? of.ranks / 8 : 1;
    run.process = 20817;
    run.started_ns = 1'772'618'400'000'000'000;
    run.library = "0.2.0";
    run.settings = {{"false_alarms_per_step", "1e-4"}, {"parts", "audit, quantisation_probe"}, {"every", "1"}};
    return run;
}

inline collprobe::inspection made_up_inspection()
{
    collprobe::inspection found;
    found.communicator = "world";
    found.count = 1 << 20;
    found.ranks = 8;
    found.order = collprobe::order_class::ring;
    found.partial_sum_bits = 24;
    found.roundings_per_element = 7;
    found.permutation_stable = false;
    found.max_ulp = 2.4;
    found.rms_ulp = 0.6;
    found.reproduced = 1;
    found.time_us = 212.5;
    found.algbw_gbs = 19.7;
    found.busbw_gbs = 34.5;
    return found;
}
