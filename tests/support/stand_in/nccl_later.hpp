// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>
#include <nccl.h>

// What NCCL has since 2.29 and 2.32, where the header is older.
extern "C" {

#if NCCL_VERSION_CODE < 22900
ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId* id);
ncclResult_t ncclCommGrow(
    ncclComm_t comm, int ranks, const ncclUniqueId* id, int rank, ncclComm_t* grown, ncclConfig_t* config);
#endif

#if NCCL_VERSION_CODE < 23200
struct ncclCollConfig_t {
    std::size_t size;
    unsigned int magic;
    unsigned int version;
    void* ext;
    int minCTAs;
    int maxCTAs;
    int nvlsCTAs;
    int cgaClusterSize;
    const char* algSelection;
    int forceAlgSelection;
    int CTAPolicy;
    std::uint64_t userProfilerTag;
    cudaEvent_t launchCompletionEvent;
};

ncclResult_t ncclAllReduceConfig(const void* send, void* receive, std::size_t count, ncclDataType_t type,
    ncclRedOp_t what, ncclComm_t comm, cudaStream_t on, const ncclCollConfig_t* config);
ncclResult_t ncclReduceScatterConfig(const void* send, void* receive, std::size_t count, ncclDataType_t type,
    ncclRedOp_t what, ncclComm_t comm, cudaStream_t on, const ncclCollConfig_t* config);
ncclResult_t ncclAllGatherConfig(const void* send, void* receive, std::size_t count, ncclDataType_t type,
    ncclComm_t comm, cudaStream_t on, const ncclCollConfig_t* config);
#endif

} // extern "C"
