// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Whether what the ranks hold is right and the same, and what to do if not: checks of results and replicas, alarms,
/// repair, and faults to try them with. No CUDA, NCCL or MPI header is pulled in.

#include <collprobe/integrity/agreement.hpp>
#include <collprobe/integrity/alarm.hpp>
#include <collprobe/integrity/audited.hpp>
#include <collprobe/integrity/baseline_rules.hpp>
#include <collprobe/integrity/conservation.hpp>
#include <collprobe/integrity/conservation_bound.hpp>
#include <collprobe/integrity/disagreement.hpp>
#include <collprobe/integrity/divergence.hpp>
#include <collprobe/integrity/dynamic_averaging.hpp>
#include <collprobe/integrity/fault.hpp>
#include <collprobe/integrity/fault_plan.hpp>
#include <collprobe/integrity/fault_types.hpp>
#include <collprobe/integrity/gather_check.hpp>
#include <collprobe/integrity/gather_verdict.hpp>
#include <collprobe/integrity/majority_repair.hpp>
#include <collprobe/integrity/periodic_averaging.hpp>
#include <collprobe/integrity/replica.hpp>
#include <collprobe/integrity/sketch.hpp>
#include <collprobe/integrity/verified_average.hpp>
