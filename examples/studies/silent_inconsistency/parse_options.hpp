// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "options.hpp"

namespace trainer {

namespace detail {

inline fault parse_fault(std::string_view text)
{
    fault result;
    bool has_rank = false;
    bool has_kind = false;
    bool has_step = false;
    std::optional<double> factor;
    std::vector<std::string_view> given;
    for (const std::string_view part : split_list(text)) {
        const std::size_t equals = part.find('=');
        const std::string_view key = part.substr(0, equals);
        if (std::find(given.begin(), given.end(), key) != given.end()) {
            throw usage_error("--fault: " + std::string(key) + " is given twice");
        }
        given.push_back(key);
        const std::string_view value
            = equals == std::string_view::npos ? std::string_view() : part.substr(equals + 1);
        if (key == "rank") {
            result.rank = number("--fault: rank", value, 0, 255);
            has_rank = true;
        } else if (key == "kind") {
            const std::vector<word<fault_kind>> kinds = {{"scale", fault_kind::scale}, {"drift", fault_kind::drift},
                {"noise", fault_kind::noise},
                {"stale", fault_kind::stale}, {"duplicate", fault_kind::duplicate}, {"nan", fault_kind::nan}};
            result.kind = choose("--fault: kind", value, kinds);
            has_kind = true;
        } else if (key == "at") {
            result.at = number<std::uint64_t>("--fault: at", value, 0, 1'000'000'000);
            has_step = true;
        } else if (key == "steps") {
            result.steps = number<std::uint64_t>("--fault: steps", value, 1, 1'000'000'000);
        } else if (key == "factor") {
            factor = number("--fault: factor", value, -1e30, 1e30);
        } else if (key == "bucket") {
            result.bucket = number<std::size_t>("--fault: bucket", value, 0, layer_count - 1);
        } else {
            throw usage_error(
                "--fault: '" + std::string(key) + "' is none of rank, kind, at, steps, factor, bucket");
        }
    }
    if (!has_rank || !has_kind || !has_step) throw usage_error("--fault needs rank=, kind= and at=");
    if (factor && result.kind != fault_kind::scale && result.kind != fault_kind::drift
        && result.kind != fault_kind::noise) {
        throw usage_error("--fault: factor belongs to the kinds scale, drift and noise only");
    }
    if (result.bucket && result.kind == fault_kind::duplicate) {
        throw usage_error("--fault: a duplicate rank duplicates all its buckets, so bucket= has no meaning");
    }
    if (result.kind == fault_kind::stale && result.at == 0) {
        throw usage_error("--fault: nothing is stale at step 0, at= must be at least 1");
    }
    result.factor = factor.value_or(result.kind == fault_kind::drift ? 0.002 : 100);
    return result;
}

inline void check_together(const options& given, const command_line& line)
{
    if (given.injected) {
        if (given.injected->rank >= given.ranks) throw usage_error("--fault: there is no such rank");
        if (given.injected->at >= given.steps) throw usage_error("--fault: the run ends before that step");
        if (given.injected->kind == fault_kind::duplicate && given.ranks < 2) {
            throw usage_error("--fault: one rank has no other to duplicate");
        }
    }
    if (given.device == device_kind::cuda && given.ranks > max_cuda_ranks) {
        throw usage_error("--ranks: at most " + std::to_string(max_cuda_ranks) + " with --device cuda");
    }
    if (line.given("--dump-steps") && given.dump.empty()) throw usage_error("--dump-steps needs --dump");
    for (const std::uint64_t step : given.dump_steps) {
        if (step >= given.steps)
            throw usage_error("--dump-steps: the run ends before step " + std::to_string(step));
    }
    for (std::size_t i = 0; line.given("--settings") && i < given.settings.size(); ++i) {
        for (std::size_t j = 0; j < i; ++j) {
            if (given.settings[i] == given.settings[j])
                throw usage_error("--settings: each setting once only");
        }
    }
}

} // namespace detail

/// \throws usage_error for anything it cannot follow, help_request
inline options parse_options(const std::vector<std::string>& arguments)
{
    command_line line(
        "silent_inconsistency: do the ranks of a data-parallel training run agree before they aggregate?\n\n"
        "Trains a small network on handwritten digits with n ranks (threads) three times: with one random seed for all\n"
        "ranks (strict), with another seed on rank 0 (mild) and with a seed per rank (significant). The weights stay\n"
        "equal on all ranks every time, and so the training curves look fine; probes around the all-reduce show what\n"
        "does not agree.",
        "0, 1 if the run failed,\n2 if the command line is wrong.");
    options result;
    line.number("--ranks", result.ranks, 1, 256, "ranks, 1 to 256; with --device cuda to 64");
    line.number("--steps", result.steps, 1, 1'000'000'000, "optimiser steps per setting");
    line.number("--batch", result.batch, 1, 100'000, "samples per rank and step");
    line.number("--hidden", result.hidden, 1, 4096, "units in each of the two hidden layers");
    line.choices("--settings", result.settings,
        {{"strict", setting::strict}, {"mild", setting::mild}, {"significant", setting::significant}},
        "of strict, mild, significant (all three; with --fault: strict)");
    line.choice("--device", "KIND", result.device, {{"host", device_kind::host}, {"cuda", device_kind::cuda}},
        "what the ranks train on: host (the CPU), or cuda (the GPUs of this\n"
        "machine, which the ranks share round robin: one is enough)");
    line.choice("--sampler", "KIND", result.sampler,
        {{"curriculum", sampler_kind::curriculum}, {"iid", sampler_kind::iid}},
        "curriculum: the seed picks one of up to eight pools of equal difficulty for\n"
        "the step; iid: every step draws from all samples");
    line.number("--seed", result.seed, 0, ~std::uint64_t{0}, "seed of the run");
    line.choice("--element", "TYPE", result.element, wire_elements(),
        "what the gradients travel as: float, bfloat16 or half");
    line.number("--learning-rate", result.learning_rate, 0, 1000, "of SGD", "X");
    line.number("--momentum", result.momentum, 0, 0.9999, "of SGD, 0 to below 1", "X");
    line.number("--dropout", result.dropout, 0, 0.9999, "probability that a hidden unit is dropped, 0 to below 1", "X");
    line.path("--data", result.data, "the data file (optdigits.csv of the build)");
    line.files(result.files, "write an object per step and a summary per setting, one a line");
    line.path("--dump", result.dump,
        "write what the probes saw at the steps of --dump-steps, as NumPy files:\n"
        "grad_step<S>_rank<R>.npy (buckets one after another) and\nloss_step<S>.npy. "
        "With several settings in one run they go to\nDIR/<setting>/.",
        "DIR");
    line.numbers("--dump-steps", result.dump_steps, 0, 1'000'000'000, "steps counted from 0: 0,50,100 (0)");
    line.value("--fault", "rank=R,kind=K,at=STEP[,steps=N][,factor=X][,bucket=B]",
        [&result](std::string_view, std::string_view text) { result.injected = detail::parse_fault(text); },
        "damage what rank R sends at that step, or at N steps from then on.\n"
        "Kinds: scale (by factor, 100), drift (by 1 + factor, 1 + 2 factor, ...;\n"
        "0.002), noise (of factor times the gradient's norm, 100), stale (the buffer of\n"
        "the step before), duplicate (the samples and the dropout of the next\n"
        "rank), nan (one element). Without bucket all buckets are damaged, with\nnan the first one.");
    line.parse(arguments);
    if (result.injected && !line.given("--settings")) result.settings = {setting::strict};
    if (!result.dump.empty() && !line.given("--dump-steps")) result.dump_steps = {0};
    detail::check_together(result, line);
    std::sort(result.settings.begin(), result.settings.end()); // reports go from the healthiest on
    return result;
}

} // namespace trainer
