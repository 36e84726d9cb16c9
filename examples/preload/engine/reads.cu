// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

/// The engine's kernels. Everything else in the engine is plain C++.
#include <collprobe/device/cuda/kernels.cuh>
#include <collprobe/scan/cuda/one_read.cuh>

#include "reads.ipp"
