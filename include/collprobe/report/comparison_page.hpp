// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <collprobe/core/view.hpp>
#include <collprobe/report/compare.hpp>

namespace collprobe::inline COLLPROBE_ABI::report {

/// Comparisons of two runs, one for each communicator, as one HTML page: the verdict, where the runs part, how the
/// difference grows, metrics and alarms. As `html_page` it has no script and nothing outside of itself;
/// `<script type="application/json" id="collprobe-data">` has an array of the JSON lines' objects.
std::string comparison_page(view<const run_comparison> all);

} // namespace collprobe::report

#if COLLPROBE_DEFINITIONS
#include <collprobe/report/detail/comparison_page.ipp>
#endif
