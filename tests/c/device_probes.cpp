// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// The C entry's probes of CUDA and NCCL with the stand-in's kernels, in place of c/cuda/probe.cu and c/nccl/probe.cu.
#include "tests/support/stand_in/kernels.hpp"

#include <collprobe/c/cuda/probe.ipp>
#include <collprobe/c/nccl/probe.ipp>
