// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include <collprobe/core/element.hpp>
#include <collprobe/core/record/inspection.hpp>
#include <collprobe/report/table.hpp>

/// Inspections of all-reduces as a table; report/json.hpp writes them as JSON lines.
namespace collprobe::inline COLLPROBE_ABI::report {

/// The orders of one inspection, one per line: first element, number of elements, the ranks that see it if not all do,
/// and the order in brackets.
COLLPROBE_COLD_INLINE std::string order_list(const inspection& found)
{
    std::string text;
    for (const inspection::order_of_elements& each : found.orders) {
        text += "from element " + std::to_string(each.first) + ", " + std::to_string(each.elements) + " of them";
        if (!each.ranks.empty()) text += ", on rank";
        for (const int rank : each.ranks) text += ' ' + std::to_string(rank);
        text += ": " + (each.brackets.empty() ? name(found.order) : each.brackets) + '\n';
    }
    return text;
}

namespace detail {

/// The type whose sums keep that many significant bits; empty if there is none.
inline const char* accumulator_of(int significant_bits) noexcept
{
    const char* result = "";
    collprobe::detail::for_each_type([&]<class T>(T) {
        if (floating_element<T> && element_traits<T>::digits == significant_bits) result = element_traits<T>::name;
    });
    return result;
}

/// "24 (float)", ">=121", "-"
COLLPROBE_COLD_INLINE std::string partial_sum_precision(const inspection& found)
{
    if (found.partial_sum_bits == 0) return "-";
    const std::string bits
        = (found.partial_sum_bits_or_more ? ">=" : "") + std::to_string(found.partial_sum_bits);
    const std::string_view type
        = found.partial_sum_bits_or_more ? "" : accumulator_of(found.partial_sum_bits);
    return type.empty() ? bits : bits + " (" + std::string(type) + ")";
}

} // namespace detail

/// A row per inspection, as in nccl-tests: size, count and type first, bandwidths last. The letters of `stable` tell
/// what the bits do not depend on (`-` for a missing letter): r: the run; s: the size of the message and the place in
/// it; p: which rank has which value. A "!" after them: the ranks got different bits.
COLLPROBE_COLD_INLINE std::string inspection_table(const std::vector<inspection>& found)
{
    text_table table;
    table.row("size (B)").cell("count").cell("type").cell("ranks").cell("order").cell("partial sums").cell("roundings");
    table.cell("stable").cell("max ulp").cell("rms ulp").cell("reproduced").cell("time (us)");
    table.cell("algbw (GB/s)").cell("busbw (GB/s)");
    for (const inspection& each : found) {
        table.row(std::to_string(each.bytes())).cell(std::to_string(each.count)).cell(name(each.element));
        table.cell(std::to_string(each.ranks)).cell(name(each.order));
        table.cell(detail::partial_sum_precision(each));
        table.cell(each.roundings_per_element < 0 ? "-" : std::to_string(each.roundings_per_element));
        table.cell(std::string(each.run_stable ? "r" : "-") + (each.size_stable ? "s" : "-")
            + (each.permutation_stable ? "p" : "-") + (each.ranks_agree ? "" : "!"));
        table.cell(short_number(each.max_ulp)).cell(short_number(each.rms_ulp));
        char share[16] = "-";
        if (!is_nan(each.reproduced)) {
            // Rounded down, so that 100 % means all.
            std::snprintf(share, sizeof share, "%.4g %%",
                static_cast<double>(static_cast<int>(each.reproduced * 1e4)) / 100);
        }
        table.cell(share).cell(short_number(each.time_us));
        table.cell(short_number(each.algbw_gbs)).cell(short_number(each.busbw_gbs));
    }
    return table.text();
}

} // namespace collprobe::report
