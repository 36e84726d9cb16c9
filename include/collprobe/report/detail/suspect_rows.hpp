// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <collprobe/core/record.hpp>
#include <collprobe/report/findings.hpp>

/// What a page says of the findings of a run.
namespace collprobe::inline COLLPROBE_ABI::report::detail {

/// How much a run deserves attention: the word beside its verdict.
enum class run_level : std::uint8_t { none, fine, look, act };

constexpr const char* name(run_level level) noexcept
{
    switch (level) {
    case run_level::none: return "none";
    case run_level::fine: return "fine";
    case run_level::look: return "look";
    case run_level::act: return "act";
    }
    return "none";
}

run_level level_of(const run_findings& found) noexcept;

/// A row of the table of suspects: an alarm, or a finding that raised none.
struct suspect_row {
    std::string ranks;
    std::vector<int> rank_list;
    finding what = finding::non_finite;
    int call = -1;
    call_site site = {};
    std::string evidence;
    std::uint64_t first_step = 0;
    std::uint64_t last_step = 0;
    std::uint64_t steps = 0;
    std::string false_alarms;
    std::string advice;
};

/// Alarms, the gravest first; then findings without one, exact ones first.
std::vector<suspect_row> suspect_rows(const run_findings& found);
/// The host of a row's ranks; empty if the run's record does not show it.
std::string host_of(const suspect_row& row, const run_record& run);

} // namespace collprobe::inline COLLPROBE_ABI::report::detail

#if COLLPROBE_DEFINITIONS
#include <collprobe/report/detail/suspect_rows.ipp>
#endif
