// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/report/words.hpp>

#include "../../report_files.hpp"
#include "../digits/words.hpp"
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
    report_files files;
    std::string dump; ///< folder, empty: none
    std::vector<std::uint64_t> dump_steps;
    std::optional<fault> injected;
};

inline constexpr std::size_t layer_count = 3; // 64-hidden-hidden-10, a bucket each

/// The settings of a run, for its reports.
inline std::vector<std::pair<std::string, std::string>> settings_of(const options& given, setting seeds)
{
    const auto number = [](double value) { return collprobe::report::short_number(value); };
    return {{"seeds", name(seeds)}, {"device", given.device == device_kind::cuda ? "cuda" : "host"},
        {"sampler", given.sampler == sampler_kind::iid ? "iid" : "curriculum"}, {"seed", std::to_string(given.seed)},
        {"steps", std::to_string(given.steps)}, {"batch of a rank", std::to_string(given.batch)},
        {"hidden units", std::to_string(given.hidden)}, {"element", name(given.element)},
        {"learning rate", number(given.learning_rate)}, {"momentum", number(given.momentum)},
        {"dropout", number(given.dropout)}};
}

} // namespace trainer
