// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

/// All of collprobe that any C++20 compiler can include, but for what a program uses once, in one file:
/// comm/bootstrap.hpp, reduce/inspect.hpp and report/inspection.hpp; and for the checks and repairs of results, which
/// have an umbrella of their own: collprobe/integrity.hpp. No CUDA, NCCL or MPI header is pulled in.

#include <collprobe/comm/adaptor.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/local.hpp>
#include <collprobe/comm/local_calls.hpp>
#include <collprobe/comm/local_device.hpp>
#include <collprobe/comm/local_order.hpp>
#include <collprobe/comm/local_run.hpp>
#include <collprobe/config.hpp>
#include <collprobe/device/host.hpp>
#include <collprobe/device/host_stream.hpp>
#include <collprobe/element.hpp>
#include <collprobe/error.hpp>
#include <collprobe/guard/all_gather.hpp>
#include <collprobe/guard/gather_options.hpp>
#include <collprobe/guard/guarded.hpp>
#include <collprobe/guard/node_groups.hpp>
#include <collprobe/guard/shard.hpp>
#include <collprobe/guard/shard_layout.hpp>
#include <collprobe/guard/stream_list.hpp>
#include <collprobe/probe/alignment.hpp>
#include <collprobe/probe/captured_step.hpp>
#include <collprobe/probe/copy_statistics.hpp>
#include <collprobe/probe/digest.hpp>
#include <collprobe/probe/digest_reducer.hpp>
#include <collprobe/probe/dispersion.hpp>
#include <collprobe/probe/exponent_histogram.hpp>
#include <collprobe/probe/gram.hpp>
#include <collprobe/probe/order_sensitivity.hpp>
#include <collprobe/probe/outlier.hpp>
#include <collprobe/probe/outlier_table.hpp>
#include <collprobe/probe/probe_options.hpp>
#include <collprobe/probe/probed.hpp>
#include <collprobe/probe/statistics.hpp>
#include <collprobe/record.hpp>
#include <collprobe/reduce/contract.hpp>
#include <collprobe/reduce/reproducible.hpp>
#include <collprobe/report/alarm.hpp>
#include <collprobe/report/json.hpp>
#include <collprobe/report/metric.hpp>
#include <collprobe/report/summary.hpp>
#include <collprobe/report/table.hpp>
#include <collprobe/sum/accumulation.hpp>
#include <collprobe/sum/error_free.hpp>
#include <collprobe/sum/exact_sum.hpp>
#include <collprobe/sum/order.hpp>
#include <collprobe/sum/sum_rows.hpp>
#include <collprobe/sum/ulp.hpp>
#include <collprobe/version.hpp>
#include <collprobe/view.hpp>
