/* SPDX-FileCopyrightText: The collprobe authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * A NCCL, and with MODEL_QUICK_ENGINE an engine, that does nothing: for the measurement of what the first
 * stage costs. */
#include "../../../examples/preload/hooks.h"
#include "nccl.h"

#define EXPORTED __attribute__((visibility("default")))

#ifdef MODEL_QUICK_ENGINE

static void before(struct collprobe_call* call) { (void)call; }
static void after(struct collprobe_call* call, int result) { (void)call, (void)result; }
static void group_ended(int result, int simulated) { (void)result, (void)simulated; }
static void comm_made(const struct collprobe_made* made) { (void)made; }
static void comm_polled(void* comm, int result, int state) { (void)comm, (void)result, (void)state; }

EXPORTED const struct collprobe_hooks* collprobe_engine_open(unsigned abi)
{
    static const struct collprobe_hooks hooks = {.abi = COLLPROBE_PRELOAD_ABI,
        .before = before,
        .after = after,
        .group_ended = group_ended,
        .comm_made = comm_made,
        .comm_polled = comm_polled};
    return abi == COLLPROBE_PRELOAD_ABI ? &hooks : NULL;
}

#else

EXPORTED int ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank)
{
    (void)ranks, (void)id, (void)rank;
    *comm = comm;
    return 0;
}
EXPORTED int ncclAllReduce(MODEL_REDUCING, MODEL_ON)
{
    (void)send, (void)receive, (void)count, (void)type, (void)operation, (void)comm, (void)stream;
    return 0;
}
EXPORTED int ncclGroupStart(void) { return 0; }
EXPORTED int ncclGroupEnd(void) { return 0; }
EXPORTED int ncclCommGetAsyncError(ncclComm_t comm, int* state)
{
    (void)comm, (void)state;
    return 0;
}

#endif
