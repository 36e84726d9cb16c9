// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The main job for files that nvcc compiles: probes and audits with their kernels, CUDA as a device, and NCCL where
/// its header is found, of 2.19 or newer.
///
/// CUDA's own library has a namespace `::cuda`: write `collprobe::cuda::stream`, also behind
/// `using namespace collprobe`.

#include <collprobe/audit/audit.hpp>
#include <collprobe/collprobe.hpp>
#include <collprobe/device/cuda/device.hpp>
#include <collprobe/device/cuda/kernels.cuh>
#include <collprobe/quant/cuda/codec_kernels.cuh>
#include <collprobe/scan/cuda/one_read.cuh>

#if __has_include(<nccl.h>)
#include <nccl.h>
#if NCCL_VERSION_CODE >= 21900 // an older one is no error of who does not ask for it
#include <collprobe/comm/nccl/communicator.hpp>
#endif
#endif

#if defined(COLLPROBE_COMPILED_CUDA) && !COLLPROBE_STREAM_ORDER
#define COLLPROBE_INSTANCE extern template
#include <collprobe/compiled/cuda_instances.hpp>
#endif
