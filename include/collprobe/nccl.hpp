// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

/// NCCL's communicators, for any C++ compiler: NCCL 2.19 or newer, no nvcc.

#include <collprobe/comm/nccl/communicator.hpp>
#include <collprobe/comm/nccl/group.hpp>
#include <collprobe/comm/nccl/options.hpp>
#include <collprobe/comm/nccl/types.hpp>
