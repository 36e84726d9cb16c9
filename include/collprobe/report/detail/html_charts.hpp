// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <collprobe/core/record.hpp>
#include <collprobe/report/detail/rank_steps.hpp>
#include <collprobe/report/detail/step_series.hpp>

/// The sections of a page with drawings: each with its numbers in a table below.
namespace collprobe::inline COLLPROBE_ABI::report::detail {

/// `note`: what belongs below the charts; may be empty.
void write_charts(std::string& out, const step_series& series, const std::string& note);
void write_ranks(std::string& out, const rank_steps& ranks, report_mode mode);

/// "17", "17 to 93"
std::string step_range(std::uint64_t first, std::uint64_t last);

} // namespace collprobe::inline COLLPROBE_ABI::report::detail

#if COLLPROBE_DEFINITIONS
#include <collprobe/report/detail/html_charts.ipp>
#endif
