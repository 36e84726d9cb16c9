// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <collprobe/core/element.hpp>
#include <collprobe/report/json.hpp>
#include <collprobe/report/table.hpp>

#include "options.hpp"
#include "train.hpp"

namespace guarded_all_gather {

inline std::string hexadecimal(std::uint64_t value)
{
    char text[20];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
    return text;
}

/// One object and a newline. A final loss that is not finite is null.
inline std::string json_line(const run_result& run)
{
    std::string line;
    collprobe::report::detail::json_writer json(line);
    json.open('{').key("schema").integer(collprobe::report::json_schema).key("kind").text("summary");
    json.key("mode").text(name(run.how)).key("final_loss");
    if (collprobe::is_finite(run.losses.back())) json.number(run.losses.back());
    else json.index(-1);
    json.key("loss_digest").text(hexadecimal(run.digest)).key("hazards_reported").integer(run.hazards);
    json.key("seconds_per_step").number(run.seconds_per_step).close('}');
    return line + '\n';
}

/// The run of that mode; null if there is none.
inline const run_result* find(const std::vector<run_result>& runs, mode how)
{
    for (const run_result& run : runs) {
        if (run.how == how) return &run;
    }
    return nullptr;
}

/// The first step whose losses differ in a bit; their number if there is none.
inline std::size_t first_difference(const run_result& a, const run_result& b)
{
    std::size_t step = 0;
    while (step < a.losses.size() && collprobe::to_bits(a.losses[step]) == collprobe::to_bits(b.losses[step])) ++step;
    return step;
}

inline std::string table(const std::vector<run_result>& runs)
{
    const run_result* const right = find(runs, mode::synchronised);
    collprobe::report::text_table rows;
    rows.row("mode").cell("final loss").cell("loss digest").cell("first wrong step").cell("hazards").cell("ms a step");
    for (const run_result& run : runs) {
        char loss[32] = "NaN or infinite";
        if (collprobe::is_finite(run.losses.back())) std::snprintf(loss, sizeof loss, "%.9g", run.losses.back());
        char time[32];
        std::snprintf(time, sizeof time, "%.3f", 1000 * run.seconds_per_step);
        std::string wrong = "none";
        if (right == nullptr) wrong = "";
        else if (const std::size_t step = first_difference(run, *right); step < run.losses.size()) wrong = std::to_string(step);
        rows.row(name(run.how)).cell(loss).cell(hexadecimal(run.digest)).cell(wrong);
        rows.cell(std::to_string(run.hazards)).cell(time);
    }
    return rows.text();
}

/// What is not as it should be; empty if nothing.
inline std::string complaint(const std::vector<run_result>& runs)
{
    const run_result* const right = find(runs, mode::synchronised);
    for (const run_result& run : runs) {
        const std::string which = name(run.how);
        if (run.how == mode::unguarded) {
            if (run.hazards == 0) return which + ": the checker reported nothing";
            continue;
        }
        if (run.hazards != 0) return which + ": " + run.first_hazard;
        if (right == nullptr) continue;
        if (const std::size_t step = first_difference(run, *right); step < run.losses.size()) {
            return which + ": the loss of step " + std::to_string(step) + " is not the synchronised one's";
        }
    }
    return "";
}

/// What the table means.
inline std::string conclusion(const std::vector<run_result>& runs)
{
    std::string text;
    const run_result* const right = find(runs, mode::synchronised);
    if (const run_result* const unguarded = find(runs, mode::unguarded)) {
        text += "unguarded: " + unguarded->first_hazard + "\n";
        if (right != nullptr && first_difference(*unguarded, *right) == right->losses.size()) {
            text += "unguarded: right this time, by luck.\n";
        }
    }
    if (right != nullptr && find(runs, mode::guarded) != nullptr) {
        text += "guarded: the synchronised losses, bit for bit, at every step; the host waited for nothing.\n";
    }
    return text;
}

} // namespace guarded_all_gather
