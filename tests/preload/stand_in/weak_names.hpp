// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Included before `nccl.cpp`, where the public functions are: as in NCCL, each name is weak and has a strong twin.
#include <nccl.h>

#define STAND_IN_NCCL_NAMES_2_19(each) \
    each(ncclGetVersion) each(ncclGetErrorString) each(ncclGetLastError) each(ncclMemAlloc) each(ncclMemFree) \
    each(ncclGetUniqueId) each(ncclCommInitRank) each(ncclCommInitRankConfig) each(ncclCommInitAll) \
    each(ncclCommSplit) each(ncclCommFinalize) each(ncclCommDestroy) each(ncclCommAbort) \
    each(ncclCommGetAsyncError) each(ncclCommCount) each(ncclCommCuDevice) each(ncclCommUserRank) \
    each(ncclRedOpCreatePreMulSum) each(ncclRedOpDestroy) \
    each(ncclGroupStart) each(ncclGroupEnd) each(ncclAllReduce) each(ncclReduceScatter) each(ncclAllGather) \
    each(ncclBroadcast) each(ncclBcast) each(ncclReduce) each(ncclSend) each(ncclRecv)
#if NCCL_VERSION_CODE >= 22200
#define STAND_IN_NCCL_NAMES_2_22(each) each(ncclGroupSimulateEnd)
#else
#define STAND_IN_NCCL_NAMES_2_22(each)
#endif
#if NCCL_VERSION_CODE >= 22800
#define STAND_IN_NCCL_NAMES_2_28(each) each(ncclAlltoAll)
#else
#define STAND_IN_NCCL_NAMES_2_28(each)
#endif
#define STAND_IN_NCCL_NAMES(each) \
    STAND_IN_NCCL_NAMES_2_19(each) STAND_IN_NCCL_NAMES_2_22(each) STAND_IN_NCCL_NAMES_2_28(each)

#define STAND_IN_NCCL_EXPORT(name) \
    extern "C" __attribute__((weak, visibility("default"))) decltype(name) name; \
    extern "C" __attribute__((alias(#name), visibility("default"))) decltype(name) p##name;
STAND_IN_NCCL_NAMES(STAND_IN_NCCL_EXPORT)
#undef STAND_IN_NCCL_EXPORT
