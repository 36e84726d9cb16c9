/* SPDX-FileCopyrightText: The collprobe authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * A model of the engine: it traces its hooks. MODEL_ENGINE makes it one that does not work, or that calls
 * NCCL. */
#define _GNU_SOURCE
#include "../../../examples/preload/hooks.h"
#include "trace.h"

#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <time.h>

static int is(const char* word)
{
    static const char* value;
    if (value == NULL && (value = getenv("MODEL_ENGINE")) == NULL) value = "";
    return strcmp(value, word) == 0;
}

static int is_quick; /* as an engine that has nothing to do: for the measurement of what the first stage costs */

static int number(const void* comm) { return (int)(intptr_t)comm; }

/* By name, as one that is not linked to the real NCCL would do. */
static void call_nccl(void* comm, void* stream)
{
    int (*all_gather)(const void*, void*, size_t, int, void*, void*);
    int (*group_end)(void);
    *(void**)&all_gather = dlsym(RTLD_DEFAULT, "ncclAllGather");
    *(void**)&group_end = dlsym(RTLD_DEFAULT, "ncclGroupStart");
    if (all_gather == NULL || group_end == NULL) _exit(98);
    group_end();
    all_gather(NULL, NULL, 1, 7, comm, stream);
    *(void**)&group_end = dlsym(RTLD_DEFAULT, "ncclGroupEnd");
    group_end();
}

static void before(struct collprobe_call* call)
{
    if (is_quick) return;
    for (int each = 0; each < 8; ++each)
        if (call->engine[each] != 0) _exit(97);
    call->engine[7] = 4711;
    trace("hook before %d comm %d stream %p send %p receive %p count %zu type %d operation %d root %d depth "
          "%u tag %" PRIu64 " %d",
        call->kind, number(call->comm), call->stream, call->send, call->receive, call->count, call->type,
        call->operation, call->root, call->depth, call->tag, call->has_tag);
    if (is("calls nccl")) call_nccl(call->comm, call->stream);
    errno = 1;
}

static void after(struct collprobe_call* call, int result)
{
    int count = 0;
    if (is_quick) return;
    if (call->engine[7] != 4711 || call->nccl->comm_count(call->comm, &count) != (result == 4 ? 4 : 0))
        _exit(96);
    trace("hook after %d %d", call->kind, result);
    if (is("calls nccl")) call_nccl(call->comm, call->stream);
    errno = 2;
}

static void group_ended(int result, int simulated)
{
    trace("hook group_ended %d %d", result, simulated);
    errno = 3;
}

static void comm_made(const struct collprobe_made* made)
{
    unsigned sum = 0;
    for (size_t each = 0; each < made->id_bytes; ++each)
        sum = sum * 31 + ((const unsigned char*)made->id)[each];
    int version = 0;
    made->nccl->get_version(&version);
    trace("hook comm_made %d of %d id %zu %u parent %d origin %d ranks %d rank %d device %d blocking %d "
          "color %d key %d "
          "excluded %d %d name %s result %d depth %u",
        number(made->comm), version, made->id_bytes, made->device < 0 ? sum : 0, number(made->parent),
        made->origin, made->ranks, made->rank, made->device, made->blocking, made->color, made->key,
        made->excluded_count, made->excluded != NULL ? made->excluded[0] : -1,
        made->name != NULL ? made->name : "-", made->result, made->depth);
    errno = 4;
}

static void comm_ends(void* comm, int end)
{
    trace("hook comm_ends %d %d", number(comm), end);
    errno = 5;
}

static void comm_polled(void* comm, int result, int state)
{
    trace("hook comm_polled %d %d %d", number(comm), result, state);
    errno = 6;
}

static void operation_made(void* comm, int operation, const void* scalar, int type)
{
    trace("hook operation_made %d %d %g %d", number(comm), operation, scalar ? *(const double*)scalar : 0.0,
        type);
    errno = 7;
}

static void operation_ended(void* comm, int operation)
{
    trace("hook operation_ended %d %d", number(comm), operation);
    errno = 8;
}

static void window_made(void* comm, size_t bytes)
{
    trace("hook window_made %d %zu", number(comm), bytes);
    errno = 9;
}

static void mark_step(uint64_t step)
{
    trace("hook mark_step %" PRIu64, step);
    errno = 10;
}

__attribute__((visibility("default"))) const struct collprobe_hooks* collprobe_engine_open(unsigned abi)
{
    static struct collprobe_hooks hooks = {COLLPROBE_PRELOAD_ABI, before, after, group_ended, comm_made,
        comm_ends, comm_polled, operation_made, operation_ended, window_made, mark_step};
    trace("engine opened");
    is_quick = is("is quick");
    if (is("has no device")) {
        fputs("collprobe: the model has no device; calls pass through\n", stderr);
        return NULL;
    }
    if (is("is slow")) nanosleep(&(struct timespec){0, 100000000}, NULL);
    if (is("has another abi")) hooks.abi = abi + 1;
    return &hooks;
}
