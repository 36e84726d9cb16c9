// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The main job, for any C++20 compiler: in-process ranks, probes, the table of a step. Each folder beside it has an
/// umbrella of its own: collprobe/audit.hpp, guard.hpp, reduce.hpp, order.hpp and so on. No CUDA, NCCL or MPI header is
/// pulled in.

#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/version.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/device/host/device.hpp>
#include <collprobe/report/table.hpp>
#include <collprobe/step/probed.hpp>
