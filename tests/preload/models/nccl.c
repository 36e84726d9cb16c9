/* SPDX-FileCopyrightText: The collprobe authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * A model of NCCL: it traces its arguments, sets errno, and is linked as NCCL is: weak names with strong
 * aliases, and some of its functions call others through the PLT. MODEL_VERSION is its version. */
#include "nccl.h"
#include "trace.h"

#include <errno.h>
#include <string.h>

#ifndef MODEL_VERSION
#define MODEL_VERSION 21903
#endif
#define FUNCTION(result, name, parameters) \
    __typeof__(nccl##name) nccl##name __attribute__((weak, alias("pnccl" #name))); \
    result pnccl##name parameters
#pragma GCC visibility push(default)

enum { success = 0, invalid_argument = 4, in_progress = 7 };
static _Thread_local int depth;
static int serial;
static struct {
    ncclComm_t* place;
    ncclComm_t comm;
} late[16]; /* handles that are written when the group ends */
static int lates;

static int wanted(const char* what)
{
    static const char* words;
    if (words == NULL && (words = getenv("MODEL_NCCL")) == NULL) words = "";
    return strstr(words, what) != NULL;
}

static int number(ncclComm_t comm) { return (int)(intptr_t)comm; }

/* As NCCL would crash with a communicator of another NCCL. */
static int known(ncclComm_t comm)
{
    errno = 1000 + number(comm) % 1000;
    return number(comm) / 1000 == MODEL_VERSION ? success : invalid_argument;
}

static int new_comm(ncclComm_t* comm)
{
    const ncclComm_t made = (ncclComm_t)(intptr_t)(MODEL_VERSION * 1000 + ++serial);
    if (depth != 0 && wanted("late handles")) {
        late[lates].place = comm;
        late[lates++].comm = made;
    } else *comm = made;
    errno = 77;
    return wanted("in progress") ? in_progress : success;
}

static unsigned sum(const ncclUniqueId* id)
{
    unsigned total = 0;
    for (size_t each = 0; each < sizeof id->internal; ++each) total = total * 31 + (unsigned char)id->internal[each];
    return total;
}

static void trace_call(const char* name, const void* send, const void* receive, size_t count, int type, int operation,
    int root, ncclComm_t comm, cudaStream_t stream, const void* config)
{
    trace("nccl %s %p %p %zu %d %d %d %d %p %s errno %d", name, send, receive, count, type, operation, root,
        number(comm), stream, config != NULL ? "config" : "-", errno);
}

#define CALL(name, parameters, send, receive, count, type, operation, root, config) \
    FUNCTION(int, name, parameters) \
    { \
        trace_call(#name, send, receive, count, type, operation, root, comm, stream, config); \
        return known(comm); \
    }
#define COLLECTIVE(name, operands, operation, root) \
    CALL(name, (operands, MODEL_ON), send, receive, count, type, operation, root, NULL) \
    CALL(name##Config, (operands, MODEL_ON, MODEL_WITH), send, receive, count, type, operation, root, config)
MODEL_COLLECTIVES(COLLECTIVE)
CALL(Send, (const void* send, size_t count, int type, int peer, MODEL_ON), send, NULL, count, type, -1, peer, NULL)
CALL(Recv, (void* receive, size_t count, int type, int peer, MODEL_ON), NULL, receive, count, type, -1, peer, NULL)
CALL(WaitSignal, (int signals, void* list, MODEL_ON), list, NULL, (size_t)signals, -1, -1, -1, NULL)

FUNCTION(int, Bcast, (void* buffer, size_t count, int type, int root, MODEL_ON))
{
    trace("nccl Bcast");
    return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}

FUNCTION(int, PutSignal,
    (const void* send, size_t count, int type, int peer, void* window, size_t offset, int signal, int context,
        unsigned flags, MODEL_ON))
{
    trace("nccl PutSignal %p %zu %d %d %p %zu %d %d %u %d %p", send, count, type, peer, window, offset, signal, context,
        flags, number(comm), stream);
    return known(comm);
}

FUNCTION(int, Signal, (int peer, int signal, int context, unsigned flags, MODEL_ON))
{
    trace("nccl Signal %d %d %d %u %d %p", peer, signal, context, flags, number(comm), stream);
    return known(comm);
}

FUNCTION(int, CommInitRank, (ncclComm_t * comm, int ranks, ncclUniqueId id, int rank))
{
    trace("nccl CommInitRank %d %u %d", ranks, sum(&id), rank);
    void* memory = NULL;
    if (ncclMemAlloc(&memory, 64) != success) return invalid_argument;
    return new_comm(comm);
}

FUNCTION(int, CommInitRankConfig, (ncclComm_t * comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config))
{
    trace("nccl CommInitRankConfig %d %u %d %d", ranks, sum(&id), rank, config != NULL ? config->blocking : 1);
    return new_comm(comm);
}

FUNCTION(int, CommInitRankScalable,
    (ncclComm_t * comm, int ranks, int rank, int ids, ncclUniqueId* id, ncclConfig_t* config))
{
    trace("nccl CommInitRankScalable %d %d %d %u %s", ranks, rank, ids, sum(id + ids - 1), config ? "config" : "-");
    return new_comm(comm);
}

FUNCTION(int, CommInitAll, (ncclComm_t * comm, int devices, const int* device))
{
    trace("nccl CommInitAll %d %s", devices, device != NULL ? "devices" : "-");
    for (int each = 0; each < devices; ++each) new_comm(comm + each);
    return success;
}

FUNCTION(int, CommSplit, (ncclComm_t comm, int color, int key, ncclComm_t* made, ncclConfig_t* config))
{
    trace("nccl CommSplit %d %d %d %s", number(comm), color, key, config ? "config" : "-");
    if (color >= 0) return new_comm(made);
    *made = NULL;
    return success;
}

FUNCTION(int, CommShrink,
    (ncclComm_t comm, int* excluded, int excluded_count, ncclComm_t* made, ncclConfig_t* config, int flags))
{
    trace("nccl CommShrink %d %d %d %s %d", number(comm), excluded[0], excluded_count, config ? "config" : "-", flags);
    return new_comm(made);
}

FUNCTION(int, CommGrow,
    (ncclComm_t comm, int ranks, const ncclUniqueId* id, int rank, ncclComm_t* made, ncclConfig_t* config))
{
    trace("nccl CommGrow %d %d %u %d %s", number(comm), ranks, id ? sum(id) : 0, rank, config ? "config" : "-");
    return new_comm(made);
}

#define OF_COMM(name) \
    FUNCTION(int, name, (ncclComm_t comm)) \
    { \
        trace("nccl " #name " %d", number(comm)); \
        return known(comm); \
    }
#define OF_COMM_WITH_FLAGS(name) \
    FUNCTION(int, name, (ncclComm_t comm, int flags)) \
    { \
        trace("nccl " #name " %d %d", number(comm), flags); \
        return known(comm); \
    }
OF_COMM(CommFinalize)
OF_COMM(CommAbort)
OF_COMM_WITH_FLAGS(CommRevoke)
OF_COMM_WITH_FLAGS(CommSuspend)

FUNCTION(int, CommDestroy, (ncclComm_t comm))
{
    trace("nccl CommDestroy %d", number(comm));
    int state = success;
    ncclCommGetAsyncError(comm, &state);
    return known(comm);
}

FUNCTION(int, CommGetAsyncError, (ncclComm_t comm, int* state))
{
    static int polls;
    trace("nccl CommGetAsyncError %d", number(comm));
    *state = wanted("in progress") && ++polls < 3 ? in_progress : success;
    return known(comm);
}

FUNCTION(int, CommWindowRegister, (ncclComm_t comm, void* buffer, size_t bytes, void** window, int flags))
{
    trace("nccl CommWindowRegister %d %p %zu %d", number(comm), buffer, bytes, flags);
    *window = buffer;
    return known(comm);
}

FUNCTION(int, GroupStart, (void))
{
    trace("nccl GroupStart");
    if (wanted("no group")) return invalid_argument;
    ++depth;
    return success;
}

static int end_group(void)
{
    errno = 55;
    if (depth == 0) return 5;
    if (--depth > 0) return success;
    for (; lates > 0; --lates) *late[lates - 1].place = late[lates - 1].comm;
    return wanted("group fails") ? 1 : success;
}

FUNCTION(int, GroupEnd, (void))
{
    trace("nccl GroupEnd");
    return end_group();
}

FUNCTION(int, GroupSimulateEnd, (void* simulation))
{
    trace("nccl GroupSimulateEnd %p", simulation);
    return end_group();
}

FUNCTION(int, RedOpCreatePreMulSum, (int* operation, void* scalar, int type, int residence, ncclComm_t comm))
{
    trace("nccl RedOpCreatePreMulSum %s %d %d %d", scalar ? "scalar" : "-", type, residence, number(comm));
    *operation = 6;
    return known(comm);
}

FUNCTION(int, RedOpDestroy, (int operation, ncclComm_t comm))
{
    trace("nccl RedOpDestroy %d %d", operation, number(comm));
    return known(comm);
}

FUNCTION(int, GetVersion, (int* version))
{
    *version = MODEL_VERSION;
    return success;
}

FUNCTION(int, GetUniqueId, (ncclUniqueId * id))
{
    memset(id, MODEL_VERSION % 100, sizeof *id);
    return success;
}

FUNCTION(const char*, GetErrorString, (int result)) { return result == success ? "no error" : "an error"; }

FUNCTION(int, CommCount, (ncclComm_t comm, int* count))
{
    *count = 8;
    return known(comm);
}

FUNCTION(int, CommUserRank, (ncclComm_t comm, int* rank))
{
    *rank = 3;
    return known(comm);
}

FUNCTION(int, MemAlloc, (void** pointer, size_t bytes))
{
    static char memory[64];
    trace("nccl MemAlloc %zu", bytes);
    *pointer = memory;
    return success;
}

FUNCTION(ncclTeam_t, TeamWorld, (ncclComm_t comm)) { return (ncclTeam_t){number(comm) % 1000, 8, 1}; }

FUNCTION(int, DevCommCreate,
    (ncclUniqueId id, int a, double b, int c, float d, long e, int f, int g, int h, double i, int j, double k, double l,
        double m, double n, double o, double p, double q))
{
    trace("nccl DevCommCreate %u %d %g %d %g %ld %d %d %d %g %d %g %g %g %g %g %g %g", sum(&id), a, b, c, (double)d, e,
        f, g, h, i, j, k, l, m, n, o, p, q);
    return success;
}

FUNCTION(ncclUniqueId, TeamLsa, (double a, long b))
{
    ncclUniqueId id;
    memset(&id, (int)a + (int)b, sizeof id);
    return id;
}

#if MODEL_VERSION >= 23203
FUNCTION(int, ParamBind, (void** handle, const char* key))
{
    *handle = NULL;
    return *key == 'x' ? success : invalid_argument;
}

FUNCTION(const char*, GetLastError, (ncclComm_t comm)) { return known(comm) == success ? "none" : "some"; }
#endif
