// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

/// All of collprobe that any C++20 compiler can include. No CUDA, NCCL or MPI header is pulled in.

#include <collprobe/comm/communicator.hpp>
#include <collprobe/config.hpp>
#include <collprobe/device/host.hpp>
#include <collprobe/device/host_stream.hpp>
#include <collprobe/element.hpp>
#include <collprobe/error.hpp>
#include <collprobe/record.hpp>
#include <collprobe/version.hpp>
#include <collprobe/view.hpp>
