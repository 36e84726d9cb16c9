// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/order/cuda/intercept.hpp>
#include <collprobe/order/nccl/ordered.hpp>

/// As order/cuda/intercept.hpp, which it includes, for the calls of NCCL, too. Not seen: ncclGather, ncclScatter, and
/// calls from a device.
#if COLLPROBE_STREAM_ORDER
#undef ncclGroupStart
#define ncclGroupStart(...) collprobe::ordered::group_start(__VA_ARGS__)
#undef ncclGroupEnd
#define ncclGroupEnd(...) collprobe::ordered::group_end(__VA_ARGS__)
#undef ncclAllGather
#define ncclAllGather(...) collprobe::ordered::all_gather(__VA_ARGS__)
#undef ncclAllReduce
#define ncclAllReduce(...) collprobe::ordered::all_reduce(__VA_ARGS__)
#undef ncclReduceScatter
#define ncclReduceScatter(...) collprobe::ordered::reduce_scatter(__VA_ARGS__)
#undef ncclBroadcast
#define ncclBroadcast(...) collprobe::ordered::broadcast(__VA_ARGS__)
#undef ncclBcast
#define ncclBcast(...) collprobe::ordered::bcast(__VA_ARGS__)
#undef ncclReduce
#define ncclReduce(...) collprobe::ordered::reduce(__VA_ARGS__)
#undef ncclSend
#define ncclSend(...) collprobe::ordered::send(__VA_ARGS__)
#undef ncclRecv
#define ncclRecv(...) collprobe::ordered::recv(__VA_ARGS__)
#if NCCL_VERSION_CODE >= 22800
#undef ncclAlltoAll
#define ncclAlltoAll(...) collprobe::ordered::all_to_all(__VA_ARGS__)
#endif
#endif
