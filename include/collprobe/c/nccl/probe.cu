// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <collprobe/device/cuda/kernels.cuh>
#include <collprobe/scan/cuda/one_read.cuh>

#include <collprobe/c/nccl/probe.ipp>
