// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <cstdlib>

#include <cuda_runtime_api.h>

/// Makes a test program that includes it end with exit status 77, a visible skip, where there is no
/// CUDA device.
namespace {

[[maybe_unused]] const bool has_gpu = [] {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0) return true;
    std::puts("no CUDA device: skipped");
    std::fflush(stdout);
    std::_Exit(77);
}();

} // namespace
