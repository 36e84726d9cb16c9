// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nccl.h>

// What NCCL has since 2.29, where the header is older.
extern "C" {

#if NCCL_VERSION_CODE < 22900
ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId* id);
ncclResult_t ncclCommGrow(
    ncclComm_t comm, int ranks, const ncclUniqueId* id, int rank, ncclComm_t* grown, ncclConfig_t* config);
#endif

} // extern "C"
