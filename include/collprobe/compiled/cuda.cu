// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

/// The library `collprobe::compiled_cuda`: the kernels of probed calls. Files of plain C++ that make such calls link
/// to it, and files of nvcc that define COLLPROBE_COMPILED_CUDA compile none of them.
#include <collprobe/device/cuda/kernels.cuh>
#include <collprobe/scan/cuda/one_read.cuh>
#include <collprobe/step/probed.hpp>

#define COLLPROBE_INSTANCE template
#include <collprobe/compiled/cuda_instances.hpp>
