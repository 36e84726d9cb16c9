// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "../hooks.h"

/// The functions of NCCL that the engine calls. hooks.h declares them with the types that C's calling
/// convention sees: handles as pointers, enumerations as int. Clang's check of function types is off here,
/// for it sees the difference.
namespace collprobe_preload {

#if defined(__clang__)
#define COLLPROBE_CALLS_C __attribute__((no_sanitize("function")))
#else
#define COLLPROBE_CALLS_C
#endif

inline constexpr int nccl_success = 0;
inline constexpr int nccl_in_progress = 7;

COLLPROBE_CALLS_C inline int all_gather_bytes(
    const collprobe_nccl& nccl, const void* send, void* receive, std::size_t bytes, void* comm, void* stream)
{
    constexpr int nccl_uint8 = 1;
    return nccl.all_gather(send, receive, bytes, nccl_uint8, comm, stream);
}

/// False if NCCL does not say.
COLLPROBE_CALLS_C inline bool ask_size_and_rank(const collprobe_nccl& nccl, void* comm, int& ranks, int& rank)
{
    return nccl.comm_count != nullptr && nccl.comm_user_rank != nullptr
        && nccl.comm_count(comm, &ranks) == nccl_success && nccl.comm_user_rank(comm, &rank) == nccl_success;
}

#undef COLLPROBE_CALLS_C

} // namespace collprobe_preload
