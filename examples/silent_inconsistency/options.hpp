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

#include "../digits/command_line.hpp"
#include "../digits/dataset.hpp"
#include "faults.hpp"
#include "sampler.hpp"

namespace trainer {

enum class sampler_kind { curriculum, iid };
enum class device_kind { host, cuda };
inline constexpr int max_cuda_ranks = 64; // as many as local::device_group takes

/// The command line.
struct options {
    int ranks = 8;
    std::uint64_t steps = 300;
    std::size_t batch = 32;
    std::size_t hidden = 64;
    std::vector<setting> settings = {setting::strict, setting::mild, setting::significant};
    device_kind device = device_kind::host;
    sampler_kind sampler = sampler_kind::curriculum;
    std::uint64_t seed = 1;
    wire_element element = wire_element::float32;
    double learning_rate = 0.04;
    double momentum = 0.9;
    double dropout = 0.2;
    std::string data = default_digits;
    std::string jsonl; ///< empty: none
    std::string dump; ///< folder, empty: none
    std::vector<std::uint64_t> dump_steps;
    std::optional<fault> injected;
    bool help = false;
};

inline constexpr std::size_t layer_count = 3; // 64-hidden-hidden-10, a bucket each

inline constexpr const char* help_text =
    R"(silent_inconsistency: do the ranks of a data-parallel training run agree before they aggregate?

Trains a small network on handwritten digits with n ranks (threads) three times: with one random seed for all ranks
(strict), with another seed on rank 0 (mild) and with a seed per rank (significant). The weights stay equal on all
ranks every time, and so the training curves look fine; probes around the all-reduce show what does not agree.

  --ranks N              ranks, 1 to 256; with --device cuda to 64 (8)
  --steps N              optimiser steps per setting (300)
  --batch N              samples per rank and step (32)
  --hidden N             units in each of the two hidden layers (64)
  --settings LIST        of strict, mild, significant (all three; with --fault: strict)
  --device KIND          what the ranks train on: host (the CPU), or cuda (the GPUs of this machine, which the ranks
                         share round robin: one is enough) (host)
  --sampler KIND         curriculum: the seed picks one of eight pools of equal difficulty for the step;
                         iid: every step draws from all samples (curriculum)
  --seed N               seed of the run (1)
  --element TYPE         what the gradients travel as: float, bfloat16 or half (float)
  --learning-rate X      of SGD (0.04)
  --momentum X           of SGD, 0 to below 1 (0.9)
  --dropout X            probability that a hidden unit is dropped, 0 to below 1 (0.2)
  --data PATH            the data file (optdigits.csv of the build)
  --jsonl PATH           write an object per step and a summary per setting, one a line
  --dump DIR             write what the probes saw at the steps of --dump-steps, as NumPy files:
                         grad_step<S>_rank<R>.npy (buckets one after another) and loss_step<S>.npy.
                         With several settings in one run they go to DIR/<setting>/.
  --dump-steps LIST      steps counted from 0: 0,50,100 (0)
  --fault rank=R,kind=K,at=STEP[,factor=X][,bucket=B]
                         damage what rank R sends at that step. Kinds: scale (by factor, 100), noise
                         (of factor times the gradient's norm, 100), stale (the buffer of the step before),
                         duplicate (the samples and the dropout of the next rank), nan (one element).
                         Without bucket all buckets are damaged, with nan the first one.
  --help                 this text

Options take their value as the next argument or behind '='. Exit status: 0, 1 if the run failed, 2 if the command
line is wrong.
)";

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
            constexpr word<fault_kind> kinds[] = {{"scale", fault_kind::scale}, {"noise", fault_kind::noise},
                {"stale", fault_kind::stale}, {"duplicate", fault_kind::duplicate}, {"nan", fault_kind::nan}};
            result.kind = choose("--fault: kind", value, kinds);
            has_kind = true;
        } else if (key == "at") {
            result.at = number<std::uint64_t>("--fault: at", value, 0, 1'000'000'000);
            has_step = true;
        } else if (key == "factor") {
            factor = number("--fault: factor", value, -1e30, 1e30);
        } else if (key == "bucket") {
            result.bucket = number<std::size_t>("--fault: bucket", value, 0, layer_count - 1);
        } else {
            throw usage_error(
                "--fault: '" + std::string(key) + "' is none of rank, kind, at, factor, bucket");
        }
    }
    if (!has_rank || !has_kind || !has_step) throw usage_error("--fault needs rank=, kind= and at=");
    if (factor && result.kind != fault_kind::scale && result.kind != fault_kind::noise) {
        throw usage_error("--fault: factor belongs to the kinds scale and noise only");
    }
    if (result.bucket && result.kind == fault_kind::duplicate) {
        throw usage_error("--fault: a duplicate rank duplicates all its buckets, so bucket= has no meaning");
    }
    if (result.kind == fault_kind::stale && result.at == 0) {
        throw usage_error("--fault: nothing is stale at step 0, at= must be at least 1");
    }
    result.factor = factor.value_or(100);
    return result;
}

inline void check_together(const options& given, bool settings_given, bool dump_steps_given)
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
    if (dump_steps_given && given.dump.empty()) throw usage_error("--dump-steps needs --dump");
    for (const std::uint64_t step : given.dump_steps) {
        if (step >= given.steps)
            throw usage_error("--dump-steps: the run ends before step " + std::to_string(step));
    }
    for (std::size_t i = 0; settings_given && i < given.settings.size(); ++i) {
        for (std::size_t j = 0; j < i; ++j) {
            if (given.settings[i] == given.settings[j])
                throw usage_error("--settings: each setting once only");
        }
    }
}

} // namespace detail

/// \throws usage_error for anything it cannot follow.
inline options parse_options(const std::vector<std::string>& arguments)
{
    options result;
    bool settings_given = false;
    bool dump_steps_given = false;
    command_line line(arguments);
    while (line.next()) {
        const std::string_view option = line.option();
        if (option == "--help" || option == "-h") {
            result.help = true;
            return result;
        }
        if (option == "--ranks") {
            result.ranks = detail::number(option, line.value(), 1, 256);
        } else if (option == "--steps") {
            result.steps = detail::number<std::uint64_t>(option, line.value(), 1, 1'000'000'000);
        } else if (option == "--batch") {
            result.batch = detail::number<std::size_t>(option, line.value(), 1, 100'000);
        } else if (option == "--hidden") {
            result.hidden = detail::number<std::size_t>(option, line.value(), 1, 4096);
        } else if (option == "--settings") {
            result.settings.clear();
            settings_given = true;
            for (const std::string_view part : detail::split_list(line.value())) {
                constexpr detail::word<setting> words[] = {{"strict", setting::strict},
                    {"mild", setting::mild}, {"significant", setting::significant}};
                result.settings.push_back(detail::choose(option, part, words));
            }
        } else if (option == "--device") {
            constexpr detail::word<device_kind> words[] = {{"host", device_kind::host}, {"cuda", device_kind::cuda}};
            result.device = detail::choose(option, line.value(), words);
        } else if (option == "--sampler") {
            constexpr detail::word<sampler_kind> words[]
                = {{"curriculum", sampler_kind::curriculum}, {"iid", sampler_kind::iid}};
            result.sampler = detail::choose(option, line.value(), words);
        } else if (option == "--seed") {
            result.seed = detail::number<std::uint64_t>(option, line.value(), 0, ~std::uint64_t{0});
        } else if (option == "--element") {
            result.element = parse_element(option, line.value());
        } else if (option == "--learning-rate") {
            result.learning_rate = detail::number(option, line.value(), 0.0, 1000.0);
        } else if (option == "--momentum") {
            result.momentum = detail::number(option, line.value(), 0.0, 0.9999);
        } else if (option == "--dropout") {
            result.dropout = detail::number(option, line.value(), 0.0, 0.9999);
        } else if (option == "--data") {
            result.data = line.path();
        } else if (option == "--jsonl") {
            result.jsonl = line.path();
        } else if (option == "--dump") {
            result.dump = line.path();
        } else if (option == "--dump-steps") {
            dump_steps_given = true;
            for (const std::string_view part : detail::split_list(line.value())) {
                result.dump_steps.push_back(detail::number<std::uint64_t>(option, part, 0, 1'000'000'000));
            }
        } else if (option == "--fault") {
            result.injected = detail::parse_fault(line.value());
        } else {
            line.refuse();
        }
    }
    if (result.injected && !settings_given) result.settings = {setting::strict};
    if (!result.dump.empty() && !dump_steps_given) result.dump_steps = {0};
    detail::check_together(result, settings_given, dump_steps_given);
    std::sort(result.settings.begin(), result.settings.end()); // reports go from the healthiest on
    return result;
}

} // namespace trainer
