// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

/// The library `collprobe::compiled`, host part: the common instances of templates.
#if !defined(COLLPROBE_COMPILED)
#define COLLPROBE_COMPILED 1
#endif
#define COLLPROBE_COMPILED_SOURCE

#include <collprobe/audit/merge_ranks.hpp>
#include <collprobe/audit/weight_probe.hpp>
#include <collprobe/metrics/average_weights.hpp>
#include <collprobe/quant/quantisation_probe.hpp>
#include <collprobe/replica/receipt.hpp>
#include <collprobe/report/inspection.hpp>
#include <collprobe/report/json_lines.hpp>
#include <collprobe/report/prometheus.hpp>
#include <collprobe/report/sinks.hpp>
#include <collprobe/step/judge_again.hpp>
#include <collprobe/step/probed.hpp>

#define COLLPROBE_INSTANCE template
#include <collprobe/compiled/host_instances.hpp>
