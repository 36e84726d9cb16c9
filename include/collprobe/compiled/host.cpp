// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

/// The library `collprobe::compiled`, host part: what headers only declare where COLLPROBE_COMPILED is defined. A build
/// without CMake may compile this file itself.
#if !defined(COLLPROBE_COMPILED)
#define COLLPROBE_COMPILED 1
#endif

#include <collprobe/audit/detail/audit.ipp>
#include <collprobe/audit/detail/merge_ranks.ipp>
#include <collprobe/audit/detail/step_audit.ipp>
#include <collprobe/audit/detail/weight_probe.ipp>
#include <collprobe/core/detail/collective.ipp>
#include <collprobe/core/detail/error.ipp>
#include <collprobe/device/host/detail/stream.ipp>
#include <collprobe/metrics/detail/average_weights.ipp>
#include <collprobe/metrics/detail/call_period.ipp>
#include <collprobe/metrics/detail/direction.ipp>
#include <collprobe/metrics/detail/dispersion.ipp>
#include <collprobe/metrics/detail/exchangeability.ipp>
#include <collprobe/metrics/detail/lateness.ipp>
#include <collprobe/metrics/detail/order_sensitivity.ipp>
#include <collprobe/metrics/detail/outlier.ipp>
#include <collprobe/quant/detail/quantisation_probe.ipp>
#include <collprobe/replica/detail/receipt.ipp>
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
#include <collprobe/scan/detail/tensor_part.ipp>
#include <collprobe/step/detail/call_roster.ipp>
#include <collprobe/step/detail/call_series.ipp>
#include <collprobe/step/detail/judge.ipp>
#include <collprobe/step/detail/merged_steps.ipp>
#include <collprobe/step/detail/summary.ipp>
