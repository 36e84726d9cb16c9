// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <charconv>
#include <cstddef>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "file_error.hpp"
#include "random.hpp"

#ifndef COLLPROBE_EXAMPLE_DATA
#define COLLPROBE_EXAMPLE_DATA "examples/studies/data"
#endif

namespace trainer {

inline const std::string default_digits = std::string(COLLPROBE_EXAMPLE_DATA) + "/optdigits.csv";

inline constexpr std::size_t pixels = 64;
inline constexpr std::size_t classes = 10;

/// Images and their classes: `inputs` holds 64 numbers in [0, 1] per sample, `labels` a class below 10.
struct dataset {
    std::vector<float> inputs;
    std::vector<int> labels;

    std::size_t size() const { return labels.size(); }
    const float* image(std::size_t sample) const { return inputs.data() + sample * pixels; }
    void add(const dataset& other, std::size_t sample)
    {
        inputs.insert(inputs.end(), other.image(sample), other.image(sample) + pixels);
        labels.push_back(other.labels[sample]);
    }
};

struct split_dataset {
    dataset train;
    dataset test;
};

/// Reads rows of 64 pixels (0 to 16) and a class, separated by commas.
/// \throws std::runtime_error naming the file and the reason or the line if it cannot be read so.
inline dataset read_digits(const std::string& path)
{
    const auto refuse = [&path] {
        throw std::runtime_error(
            std::string(file_error("read the data file", path).what()) + " (give another with --data)");
    };
    errno = 0;
    std::ifstream file(path);
    if (!file) refuse();
    dataset digits;
    std::string line;
    for (std::size_t number = 1; std::getline(file, line); ++number) {
        const char* at = line.data();
        const char* const end = at + line.size();
        for (std::size_t column = 0; column <= pixels; ++column) {
            int value = -1;
            const auto [rest, problem] = std::from_chars(at, end, value);
            const bool last = column == pixels;
            if (problem != std::errc() || value < 0 || value > (last ? static_cast<int>(classes) - 1 : 16)
                || (!last && (rest == end || *rest != ','))) {
                throw std::runtime_error(path + ", line " + std::to_string(number) + ", column "
                    + std::to_string(column + 1) + ": expected 64 pixels of 0 to 16 and a class of 0 to 9");
            }
            at = rest + (last ? 0 : 1);
            if (last) digits.labels.push_back(value);
            else digits.inputs.push_back(static_cast<float>(value) / 16);
        }
    }
    if (file.bad()) refuse(); // a folder opens, but cannot be read
    if (digits.size() < 10) throw std::runtime_error(path + " holds fewer than ten samples");
    return digits;
}

/// Every fifth sample of a fixed random order is for testing, the others for training: the same split
/// in every run. (Not every fifth row: the rows of the file count 0, 1, 2, ... in long stretches.)
inline split_dataset split(const dataset& all)
{
    split_dataset parts;
    std::size_t position = 0;
    for (const std::size_t sample : random_order(all.size(), 5)) {
        (position++ % 5 == 4 ? parts.test : parts.train).add(all, sample);
    }
    return parts;
}

} // namespace trainer
