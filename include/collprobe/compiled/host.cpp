// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

/// The library `collprobe::compiled`, host part: what headers only declare where COLLPROBE_COMPILED is defined. A build
/// without CMake may compile this file itself.
#if !defined(COLLPROBE_COMPILED)
#define COLLPROBE_COMPILED 1
#endif

#include <collprobe/report/detail/alarm.ipp>
#include <collprobe/report/detail/axis.ipp>
#include <collprobe/report/detail/compare.ipp>
#include <collprobe/report/detail/comparison_page.ipp>
#include <collprobe/report/detail/file.ipp>
#include <collprobe/report/detail/findings.ipp>
#include <collprobe/report/detail/html.ipp>
#include <collprobe/report/detail/html_charts.ipp>
#include <collprobe/report/detail/inspection.ipp>
#include <collprobe/report/detail/json.ipp>
#include <collprobe/report/detail/json_lines.ipp>
#include <collprobe/report/detail/prometheus.ipp>
#include <collprobe/report/detail/rank_steps.ipp>
#include <collprobe/report/detail/run_log.ipp>
#include <collprobe/report/detail/sinks.ipp>
#include <collprobe/report/detail/step_series.ipp>
#include <collprobe/report/detail/summary.ipp>
#include <collprobe/report/detail/suspect_rows.ipp>
#include <collprobe/report/detail/svg.ipp>
#include <collprobe/report/detail/table.ipp>
#include <collprobe/report/detail/trace.ipp>
#include <collprobe/report/detail/words.ipp>
