// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <collprobe/core/record.hpp>
#include <collprobe/detail/math.hpp>

/// A made-up run of eight ranks on two hosts, in which everything happens that a sink must show. write_samples.cpp
/// gives it to the sinks; the scripts that read their files know its numbers.
namespace sample_run {

using namespace collprobe;

inline constexpr int ranks = 8;
inline constexpr int steps = 10;
inline std::vector<finding_kind> all_findings()
{
    std::vector<finding_kind> all;
    for (int kind = 0; kind <= static_cast<int>(finding_kind::of_part); ++kind) all.push_back(static_cast<finding_kind>(kind));
    return all;
}

/// As `rank` knows it. Its ranks are those from 16 on of the job.
inline run_record describe(int rank)
{
    run_record run;
    run.name = "pretraining";
    run.job = "4711";
    run.communicator = "data parallel";
    run.communicator_id = "c0ffee";
    run.host = "node" + std::to_string(rank / 4);
    run.device = "GPU-" + std::to_string(rank);
    run.rank = rank;
    run.global_rank = 16 + rank;
    run.ranks = ranks;
    run.nodes = 2;
    run.process = 1000 + rank;
    run.started_ns = 1'700'000'000'000'000'000;
    run.library = "1.2.3";
    run.settings = {{"mode", "gather"}};
    return run;
}

/// Three calls. Rank 3 sends 1 NaN and 2 infinities in each step, and is late.
inline step_record step(int number)
{
    step_record record;
    record.step = static_cast<std::uint64_t>(number);
    record.first_call = 6 * record.step;
    record.ranks = ranks;
    record.loss = {.mean = 2.5 - 0.125 * number, .std = 0.25, .std_sample = 0.26, .range = 0.5, .finite = ranks};
    record.gradient_norm = {.mean = 1.75, .std = 0.4375, .cv = 0.25, .finite = ranks};
    record.cosine.mean_pairwise = 0.5;
    record.cosine.pooled = 0.625;
    record.cosine.noise_scale = 3;
    record.cosine.predicted_cosine = 0.25;
    record.unprobed_calls = 1;
    record.unread_calls = 2;
    record.lateness = {.calls = 3, .present = ranks, .last = 3, .behind = 2e6, .behind_before = 1e6, .noise = 1e4,
        .floor = 1e4, .stands_out = true};
    for (int r = 0; r < ranks; ++r) {
        record.losses.push_back(record.loss.mean + 0.03125 * r);
        record.gradient_norms.push_back(1 + 0.25 * r);
        record.cosine.leave_one_out.push_back(0.5 - 0.0625 * r);
        rank_lateness late;
        late.steps = number + 1;
        late.behind = r == 3 ? 2e6 : 1000.0 * r;
        record.lateness_by_rank.push_back(late);
        record.evidence_by_rank.push_back({.metric = finding_kind::gradient_norm,
            .odds = r == 3 ? 345000.0 : 0.25,
            .recurrence = 2,
            .since = 1,
            .extreme = 2,
            .unlike = r == 3});
    }
    static constexpr const char* names[] = {"wte", "blocks", "head"};
    for (int c = 0; c < 3; ++c) {
        call_record call;
        call.count = 1000u * static_cast<unsigned>(c + 1);
        call.site.file = "src/train.cpp";
        call.site.function = "step";
        call.site.line = 88u + static_cast<unsigned>(c);
        call.site.name = names[c];
        call.inputs.resize(ranks);
        for (statistics& each : call.inputs) each.count = call.count;
        call.audit.checked = call.audit.sum_checked = true;
        call.audit.residual = 1.0 + c;
        call.audit.residual_limit = 8;
        if (c == 1) {
            call.inputs[3].nan = 1;
            call.inputs[3].positive_infinity = 1;
            call.inputs[3].negative_infinity = 1;
            call.nonfinite = 3;
            call.results_agree = false;
            record.findings.push_back({.ranks = {3}, .call = c, .what = finding_kind::non_finite, .statistic = 3, .index = 7,
                .site = call.site});
        }
        record.calls.push_back(call);
    }
    return record;
}

/// About call 1; it names rank 3.
inline finding alarm(finding_kind what, int step_number)
{
    finding raised;
    raised.step = static_cast<std::uint64_t>(step_number);
    raised.call = 1;
    raised.what = what;
    raised.where = damage::input;
    raised.ranks = {3};
    raised.statistic = 3;
    raised.action = advice::skip;
    raised.site = step(step_number).calls[1].site;
    return raised;
}

/// Texts that a format must escape: chosen ones, and some of random bytes.
inline std::vector<std::string> hard_texts()
{
    using namespace std::string_literals;
    std::string all_bytes;
    for (int byte = 0; byte < 256; ++byte) all_bytes += static_cast<char>(byte);
    std::vector<std::string> texts{"plain", "", "a \"quoted\" \\ back\\slash\\", "two\nlines\r\nand\ttabs\n",
        "nul \0 inside"s, "</script><script>alert(1)</script>", "{label=\"x\"} 1\n# EOF\n",
        "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x92\xbe", "\xc3", "\xe2\x82", "\xf0\x9f\x92", "\x80\xbf",
        "\xc0\xaf \xe0\x80\xaf \xf0\x80\x80\xaf", "\xed\xa0\x80 \xed\xbf\xbf", "\xf4\x90\x80\x80 \xf5 \xff\xfe",
        "\xe2\x82\xe2\x82\xac\xf0\x9f\x92 x", "\xe2\x80\xa8 \xc2\x85 \x1b[31m", "%s%n ' `$(x)`", "\\", "\"", "\\n",
        all_bytes};
    constexpr char pieces[] = "a\"\\\n<\x80\xbf\x9f\x90\xc2\xe0\xe2\xed\xf0\xf4\xff";
    std::uint64_t state = 1;
    for (int i = 0; i < 40; ++i) {
        std::string text;
        for (int length = 0; length < 24; ++length) {
            state = detail::mix64(state + 1);
            text += pieces[state % (sizeof pieces - 1)];
        }
        texts.push_back(text);
    }
    return texts;
}

} // namespace sample_run
