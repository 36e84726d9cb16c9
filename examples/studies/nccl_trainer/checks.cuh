// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <cstdlib>

#include <cuda_runtime.h>
#include <nccl.h>

#define CUDA_CHECK(call) \
    do { \
        const cudaError_t code = (call); \
        if (code != cudaSuccess) { \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(code)); \
            std::exit(1); \
        } \
    } while (0)

#define NCCL_CHECK(call) \
    do { \
        const ncclResult_t code = (call); \
        if (code != ncclSuccess) { \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, ncclGetErrorString(code)); \
            std::exit(1); \
        } \
    } while (0)

/// Ends the process with status 77 ("skipped", to test drivers) where there is none.
inline int count_gpus()
{
    int devices = 0;
    if (const cudaError_t code = cudaGetDeviceCount(&devices); code != cudaSuccess || devices == 0) {
        std::fprintf(stderr, "no GPU here, nothing to train on: %s\n", cudaGetErrorString(code));
        std::exit(77);
    }
    return devices;
}
