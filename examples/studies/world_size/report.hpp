// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <collprobe/core/ulp.hpp>
#include <collprobe/report/table.hpp>

#include "options.hpp"
#include "train.hpp"

namespace world_size {

inline std::string hexadecimal(std::uint64_t value)
{
    char text[20];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
    return text;
}

/// One object and a newline.
inline std::string json_line(const run_result& run, wire_element element)
{
    char accuracy[32];
    std::snprintf(accuracy, sizeof accuracy, "%.17g", run.test_accuracy);
    return std::string(R"({"schema":1,"kind":"summary","reduction":")") + name(run.reduction) + R"(","element":")"
        + trainer::name(element) + R"(","ranks":)" + std::to_string(run.ranks) + R"(,"leaves":)"
        + std::to_string(run.leaves) + R"(,"weights_digest":")" + hexadecimal(run.digest) + R"(","test_accuracy":)"
        + accuracy + "}\n";
}

/// How far the weights of two runs are apart.
struct difference {
    std::size_t elements = 0; ///< that differ
    std::uint64_t median_ulp = 0; ///< of those
    std::uint64_t largest_ulp = 0;
};

inline difference compare(const std::vector<float>& a, const std::vector<float>& b)
{
    std::vector<std::uint64_t> distances;
    for (std::size_t i = 0; i < a.size(); ++i) {
        if (collprobe::to_bits(a[i]) != collprobe::to_bits(b[i])) {
            distances.push_back(collprobe::ulp_distance(a[i], b[i]));
        }
    }
    if (distances.empty()) return {};
    std::sort(distances.begin(), distances.end());
    return {distances.size(), distances[distances.size() / 2], distances.back()};
}

/// The first run with the same reduction: what the others are compared with.
inline const run_result& first_of(const std::vector<run_result>& runs, averaging reduction)
{
    return *std::find_if(runs.begin(), runs.end(), [&](const auto& run) { return run.reduction == reduction; });
}

inline std::string table(const std::vector<run_result>& runs)
{
    collprobe::report::text_table rows;
    rows.row("reduction").cell("ranks x leaves").cell("weights digest").cell("that differ");
    rows.cell("median ulp").cell("largest ulp").cell("accuracy");
    for (const run_result& run : runs) {
        const run_result& first = first_of(runs, run.reduction);
        const difference apart = compare(first.weights, run.weights);
        char accuracy[32];
        std::snprintf(accuracy, sizeof accuracy, "%.2f %%", 100 * run.test_accuracy);
        rows.row(name(run.reduction)).cell(std::to_string(run.ranks) + " x " + std::to_string(run.leaves));
        rows.cell(hexadecimal(run.digest));
        if (&run == &first) {
            rows.cell("").cell("").cell("");
        } else {
            rows.cell(std::to_string(apart.elements) + " of " + std::to_string(run.weights.size()));
            rows.cell(std::to_string(apart.median_ulp)).cell(std::to_string(apart.largest_ulp));
        }
        rows.cell(accuracy);
    }
    return rows.text();
}

/// Whether all runs with one reduction ended with the same bits, on all ranks.
inline bool identical(const std::vector<run_result>& runs, averaging reduction)
{
    const run_result& first = first_of(runs, reduction);
    return std::all_of(runs.begin(), runs.end(), [&](const run_result& run) {
        return run.reduction != reduction || (run.ranks_agree && compare(first.weights, run.weights).elements == 0);
    });
}

/// What the table means, in a line for each reduction.
inline std::string conclusion(const std::vector<run_result>& runs)
{
    std::string text;
    for (const run_result& run : runs) {
        if (&run != &first_of(runs, run.reduction)) continue;
        const auto count = std::count_if(
            runs.begin(), runs.end(), [&](const run_result& each) { return each.reduction == run.reduction; });
        const std::string label = std::string(name(run.reduction)) + ": ";
        if (count < 2) {
            text += label + "one run, nothing to compare it with.\n";
        } else if (identical(runs, run.reduction)) {
            text += label + "the number of ranks leaves no trace: " + std::to_string(count) + " runs, one digest.\n";
        } else {
            text += label + "the same gradients, added in another order for each number of ranks: other weights.\n";
        }
    }
    return text;
}

} // namespace world_size
