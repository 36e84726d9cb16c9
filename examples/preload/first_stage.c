// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
//
// The wrappers. Each calls the real function in any case, and returns what that returned; no lock is held
// meanwhile.
#include "first_stage.h"
#include "engine_file.h"
#include "real.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <time.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))
#define CALLER __builtin_extract_return_addr(__builtin_return_address(0))

enum { success = 0, in_progress = 7 }; // of ncclResult_t
enum { no_color = -1, shrink_abort = 1, scalar_on_host = 1, config_magic = 0xcafebeef };

// The first members of ncclConfig_t, which tells its size; later versions have more.
struct comm_config {
    size_t size;
    unsigned magic, version;
    int blocking, cluster_size, min_ctas, max_ctas;
    const char* net_name;
    int split_share, traffic_class;
    const char* comm_name;
};

// The same of ncclCollConfig_t.
struct call_config {
    size_t size;
    unsigned magic, version;
    void* extension;
    int min_ctas, max_ctas, nvls_ctas, cluster_size;
    const char* algorithms;
    int force_algorithms, policy;
    uint64_t profiler_tag;
};
_Static_assert(offsetof(struct comm_config, comm_name) == 48, "as in nccl.h");
_Static_assert(offsetof(struct call_config, profiler_tag) == 56, "as in nccl.h");

// A communicator of a call in a group that is told at the end of the group: its handle was not there when the
// call returned, or that of an earlier one was not, for the engine counts them in the order of the calls.
struct unmade {
    struct unmade* next;
    void* const* comm; // where the handle will be; null: it is in `made`
    struct collprobe_made made;
};

static _Thread_local struct {
    const struct real* inside;
    struct unmade* unmade; // in the order of the calls
    unsigned depth; // open groups
} thread;

const struct real* inside(void) { return thread.inside; }

static _Atomic(const struct collprobe_hooks*) hooks_now;
enum { not_opened, opening, decided };
static atomic_int engine_state;
static atomic_uint_fast64_t told_step;
static atomic_int step_is_told;

// A child of fork has neither the engine's thread nor a usable CUDA: its calls pass through.
static void child_passes_through(void)
{
    atomic_store(&hooks_now, NULL);
    atomic_store(&engine_state, decided);
}

static const struct collprobe_hooks* engine(void)
{
    int state = not_opened;
    if (atomic_load_explicit(&engine_state, memory_order_acquire) == not_opened
        && pthread_atfork(NULL, NULL, child_passes_through) == 0 // twice would be no harm
        && atomic_compare_exchange_strong(&engine_state, &state, opening)) {
        const struct collprobe_hooks* const hooks = open_engine();
        if (hooks != NULL && atomic_load(&engine_state) == opening) {
            atomic_store(&hooks_now, hooks);
            if (atomic_load(&step_is_told))
                hooks->mark_step(atomic_load(&told_step)); // twice would be no harm
        }
        atomic_store(&engine_state, decided);
    }
    // Another thread opens it. Longer than 10 s a program does not wait for it.
    for (int wait = 0; atomic_load_explicit(&engine_state, memory_order_acquire) == opening && wait < 10000;
         ++wait)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    return atomic_load_explicit(&hooks_now, memory_order_acquire);
}

EXPORTED void collprobe_mark_step(uint64_t step)
{
    const int error = errno;
    atomic_store(&told_step, step);
    atomic_store(&step_is_told, 1);
    const struct collprobe_hooks* const hooks = atomic_load(&hooks_now);
    if (hooks != NULL) hooks->mark_step(step);
    errno = error;
}

// A call of the program, or of NCCL itself or the engine within one.
struct visit {
    const struct real* real;
    const struct real* outer; // null: the program's own call
    void* const* functions;
    const struct collprobe_hooks* hooks; // null: it passes through
};

static inline struct visit enter(enum symbol symbol, const void* caller)
{
    struct visit visit = {.outer = thread.inside};
    if (visit.outer != NULL) {
        visit.real = visit.outer;
        visit.functions = visit.real->own;
    } else {
        visit.real = real_of(symbol, caller);
        visit.functions = visit.real->functions;
        visit.hooks = atomic_load_explicit(&hooks_now, memory_order_acquire);
    }
    thread.inside = visit.real;
    return visit;
}

static inline void leave(const struct visit* visit) { thread.inside = visit->outer; }

#define COLLPROBE_DATA(name, first, kind, parameters, ...) typedef int(*name##_function) parameters;
#define COLLPROBE_COUNT COLLPROBE_DATA
#define COLLPROBE_STATE(name, first, parameters) typedef int(*name##_function) parameters;
#define COLLPROBE_FORWARD(name, first, absent)
#include "symbols.def"
#define REAL(name) ((name##_function)visit.functions[symbol_##name])

static uint64_t tag_of(const struct call_config* config)
{
    const int has_tag = config != NULL && config->magic == config_magic
        && config->size >= offsetof(struct call_config, profiler_tag) + sizeof config->profiler_tag;
    return has_tag ? config->profiler_tag : 0; // 0: no tag
}
#define TAG(config) .tag = tag_of(config), .has_tag = tag_of(config) != 0

#define COLLPROBE_DATA(name, first, sort, parameters, arguments, ...) \
    EXPORTED int nccl##name parameters \
    { \
        const struct visit visit = enter(symbol_##name, CALLER); \
        int result; \
        if (visit.hooks == NULL) result = REAL(name) arguments; \
        else { \
            struct collprobe_call call = {.nccl = &visit.real->nccl, \
                .comm = comm, \
                .stream = stream, \
                .kind = collprobe_##sort, \
                .depth = thread.depth, \
                __VA_ARGS__}; \
            int* const error = &errno; \
            const int before = *error; \
            visit.hooks->before(&call); \
            *error = before; \
            result = REAL(name) arguments; \
            const int after = *error; \
            visit.hooks->after(&call, result); \
            *error = after; \
        } \
        leave(&visit); \
        return result; \
    }
#define COLLPROBE_COUNT COLLPROBE_DATA
#define COLLPROBE_STATE(name, first, parameters)
#define COLLPROBE_FORWARD(name, first, absent)
#include "symbols.def"

static void keep_until_group_ends(void* const* comm, const struct collprobe_made* made)
{
    const size_t excluded_bytes = (size_t)made->excluded_count * sizeof *made->excluded;
    const size_t name_bytes = made->name != NULL ? strlen(made->name) + 1 : 0;
    struct unmade* const unmade = calloc(1, sizeof *unmade + made->id_bytes + excluded_bytes + name_bytes);
    if (unmade == NULL) return;
    unmade->comm = comm;
    unmade->made = *made;
    char* bytes = (char*)(unmade + 1);
#define KEEP(member, size) \
    if (made->member != NULL) { \
        unmade->made.member = memcpy(bytes, made->member, size); \
        bytes += size; \
    }
    KEEP(excluded, excluded_bytes)
    KEEP(id, made->id_bytes)
    KEEP(name, name_bytes)
#undef KEEP
    struct unmade** end = &thread.unmade;
    while (*end != NULL) end = &(*end)->next;
    *end = unmade;
}

static void group_made(const struct collprobe_hooks* hooks, int result)
{
    while (thread.unmade != NULL) {
        struct unmade* const unmade = thread.unmade;
        thread.unmade = unmade->next;
        if (unmade->comm != NULL) unmade->made.comm = *unmade->comm;
        unmade->made.result = result;
        unmade->made.depth = 0;
        if (hooks != NULL && (result == success || result == in_progress)) hooks->comm_made(&unmade->made);
        free(unmade);
    }
}

static void configure(struct collprobe_made* made, const struct comm_config* config)
{
    if (config == NULL || config->magic != config_magic) return;
    if (config->size >= offsetof(struct comm_config, blocking) + sizeof config->blocking
        && config->blocking != INT_MIN) // which stands for no value
        made->blocking = config->blocking != 0;
    if (config->size >= offsetof(struct comm_config, comm_name) + sizeof config->comm_name)
        made->name = config->comm_name;
}

static struct collprobe_made by_id(const void* id, size_t id_bytes, int ranks, int rank, int result)
{
    return (struct collprobe_made){.id = id,
        .id_bytes = id_bytes,
        .origin = collprobe_init,
        .ranks = ranks,
        .rank = rank,
        .device = -1,
        .blocking = -1,
        .result = result};
}

static struct collprobe_made from(void* parent, int origin, int result)
{
    return (struct collprobe_made){.parent = parent,
        .origin = origin,
        .ranks = -1,
        .rank = -1,
        .device = -1,
        .blocking = -1,
        .result = result};
}

// After a call that may have written a handle to `comm`, which held `earlier` before. A null `comm`: of a
// split that this rank is in no part of, which the engine has to count.
static void tell(const struct visit* visit, void* const* comm, const void* earlier,
    struct collprobe_made* made, const struct comm_config* config)
{
    if (visit->outer != NULL || (made->result != success && made->result != in_progress)) return;
    const int error = errno;
    const struct collprobe_hooks* const hooks = engine();
    if (hooks != NULL) {
        configure(made, config);
        made->nccl = &visit->real->nccl;
        made->depth = thread.depth;
        made->comm = comm != NULL ? *comm : NULL;
        const int unknown = comm != NULL && (made->comm == NULL || made->comm == earlier);
        if (thread.depth != 0 && (unknown || thread.unmade != NULL))
            keep_until_group_ends(unknown ? comm : NULL, made);
        else hooks->comm_made(made);
    }
    errno = error;
}

static void* handle_at(void* const* comm) { return comm != NULL && thread.depth != 0 ? *comm : NULL; }

EXPORTED int ncclCommInitRank(void** comm, int ranks, struct unique_id id, int rank)
{
    const struct visit visit = enter(symbol_CommInitRank, CALLER);
    const void* const earlier = handle_at(comm);
    const int result = REAL(CommInitRank)(comm, ranks, id, rank);
    struct collprobe_made made = by_id(&id, sizeof id, ranks, rank, result);
    tell(&visit, comm, earlier, &made, NULL);
    leave(&visit);
    return result;
}

EXPORTED int ncclCommInitRankConfig(void** comm, int ranks, struct unique_id id, int rank, const void* config)
{
    const struct visit visit = enter(symbol_CommInitRankConfig, CALLER);
    const void* const earlier = handle_at(comm);
    const int result = REAL(CommInitRankConfig)(comm, ranks, id, rank, config);
    struct collprobe_made made = by_id(&id, sizeof id, ranks, rank, result);
    tell(&visit, comm, earlier, &made, config);
    leave(&visit);
    return result;
}

EXPORTED int ncclCommInitRankScalable(
    void** comm, int ranks, int rank, int ids, struct unique_id* id, const void* config)
{
    const struct visit visit = enter(symbol_CommInitRankScalable, CALLER);
    const void* const earlier = handle_at(comm);
    const int result = REAL(CommInitRankScalable)(comm, ranks, rank, ids, id, config);
    const size_t id_bytes = id != NULL && ids > 0 ? (size_t)ids * sizeof *id : 0;
    struct collprobe_made made = by_id(id, id_bytes, ranks, rank, result);
    tell(&visit, comm, earlier, &made, config);
    leave(&visit);
    return result;
}

// Stands for the unique id that ncclCommInitAll keeps to itself: no other communicator has it, on no host.
static struct unique_id unused_id(void)
{
    static atomic_uint_fast64_t made;
    struct {
        uint64_t random[2]; // of this process, from the kernel
        uint64_t seconds, nanoseconds, process, number;
    } parts = {.process = (uint64_t)getpid(), .number = atomic_fetch_add(&made, 1)};
    const void* const random = (const void*)getauxval(AT_RANDOM);
    if (random != NULL) memcpy(parts.random, random, sizeof parts.random);
    struct timespec now = {0, 0};
    clock_gettime(CLOCK_REALTIME, &now);
    parts.seconds = (uint64_t)now.tv_sec;
    parts.nanoseconds = (uint64_t)now.tv_nsec;
    struct unique_id id = {{0}};
    memcpy(id.bytes, &parts, sizeof parts);
    return id;
}

EXPORTED int ncclCommInitAll(void** comm, int devices, const int* device)
{
    const struct visit visit = enter(symbol_CommInitAll, CALLER);
    const int result = REAL(CommInitAll)(comm, devices, device);
    const struct unique_id id = unused_id();
    for (int rank = 0; comm != NULL && result == success && rank < devices; ++rank) {
        struct collprobe_made made = by_id(&id, sizeof id, devices, rank, result);
        made.device = device != NULL ? device[rank] : rank;
        tell(&visit, comm + rank, NULL, &made, NULL);
    }
    leave(&visit);
    return result;
}

EXPORTED int ncclCommSplit(void* comm, int color, int key, void** new_comm, const void* config)
{
    const struct visit visit = enter(symbol_CommSplit, CALLER);
    const void* const earlier = handle_at(new_comm);
    const int result = REAL(CommSplit)(comm, color, key, new_comm, config);
    struct collprobe_made made = from(comm, collprobe_split, result);
    made.color = color;
    made.key = key;
    tell(&visit, color != no_color ? new_comm : NULL, earlier, &made, config);
    leave(&visit);
    return result;
}

static void end(const struct visit* visit, void* comm, int how)
{
    if (visit->hooks == NULL || comm == NULL) return;
    const int error = errno;
    visit->hooks->comm_ends(comm, how);
    errno = error;
}

EXPORTED int ncclCommShrink(
    void* comm, int* excluded, int excluded_count, void** new_comm, const void* config, int flags)
{
    const struct visit visit = enter(symbol_CommShrink, CALLER);
    const void* const earlier = handle_at(new_comm);
    if ((flags & shrink_abort) != 0) end(&visit, comm, collprobe_revoke);
    const int result = REAL(CommShrink)(comm, excluded, excluded_count, new_comm, config, flags);
    struct collprobe_made made = from(comm, collprobe_shrink, result);
    made.excluded = excluded;
    made.excluded_count = excluded != NULL && excluded_count > 0 ? excluded_count : 0;
    tell(&visit, new_comm, earlier, &made, config);
    leave(&visit);
    return result;
}

EXPORTED int ncclCommGrow(
    void* comm, int ranks, const struct unique_id* id, int rank, void** new_comm, const void* config)
{
    const struct visit visit = enter(symbol_CommGrow, CALLER);
    const void* const earlier = handle_at(new_comm);
    const int result = REAL(CommGrow)(comm, ranks, id, rank, new_comm, config);
    struct collprobe_made made = from(comm, collprobe_grow, result);
    made.id = id;
    made.id_bytes = id != NULL ? sizeof *id : 0;
    made.ranks = ranks;
    made.rank = rank;
    tell(&visit, new_comm, earlier, &made, config);
    leave(&visit);
    return result;
}

EXPORTED int ncclCommFinalize(void* comm)
{
    const struct visit visit = enter(symbol_CommFinalize, CALLER);
    end(&visit, comm, collprobe_finalize);
    const int result = REAL(CommFinalize)(comm);
    leave(&visit);
    return result;
}

EXPORTED int ncclCommDestroy(void* comm)
{
    const struct visit visit = enter(symbol_CommDestroy, CALLER);
    end(&visit, comm, collprobe_destroy);
    const int result = REAL(CommDestroy)(comm);
    leave(&visit);
    return result;
}

EXPORTED int ncclCommAbort(void* comm)
{
    const struct visit visit = enter(symbol_CommAbort, CALLER);
    end(&visit, comm, collprobe_abort);
    const int result = REAL(CommAbort)(comm);
    leave(&visit);
    return result;
}

EXPORTED int ncclCommRevoke(void* comm, int flags)
{
    const struct visit visit = enter(symbol_CommRevoke, CALLER);
    end(&visit, comm, collprobe_revoke);
    const int result = REAL(CommRevoke)(comm, flags);
    leave(&visit);
    return result;
}

EXPORTED int ncclCommSuspend(void* comm, int flags)
{
    const struct visit visit = enter(symbol_CommSuspend, CALLER);
    end(&visit, comm, collprobe_suspend);
    const int result = REAL(CommSuspend)(comm, flags);
    leave(&visit);
    return result;
}

EXPORTED int ncclCommGetAsyncError(void* comm, int* state)
{
    const struct visit visit = enter(symbol_CommGetAsyncError, CALLER);
    const int result = REAL(CommGetAsyncError)(comm, state);
    if (visit.hooks != NULL && comm != NULL && state != NULL) {
        const int error = errno;
        visit.hooks->comm_polled(comm, result, *state);
        errno = error;
    }
    leave(&visit);
    return result;
}

EXPORTED int ncclCommWindowRegister(void* comm, void* buffer, size_t bytes, void** window, int flags)
{
    const struct visit visit = enter(symbol_CommWindowRegister, CALLER);
    const int result = REAL(CommWindowRegister)(comm, buffer, bytes, window, flags);
    if (visit.hooks != NULL && (result == success || result == in_progress)) {
        const int error = errno;
        visit.hooks->window_made(comm, bytes);
        errno = error;
    }
    leave(&visit);
    return result;
}

EXPORTED int ncclRedOpCreatePreMulSum(int* operation, void* scalar, int type, int residence, void* comm)
{
    const struct visit visit = enter(symbol_RedOpCreatePreMulSum, CALLER);
    const int result = REAL(RedOpCreatePreMulSum)(operation, scalar, type, residence, comm);
    if (visit.hooks != NULL && result == success && operation != NULL) {
        const int error = errno;
        visit.hooks->operation_made(comm, *operation, residence == scalar_on_host ? scalar : NULL, type);
        errno = error;
    }
    leave(&visit);
    return result;
}

EXPORTED int ncclRedOpDestroy(int operation, void* comm)
{
    const struct visit visit = enter(symbol_RedOpDestroy, CALLER);
    const int result = REAL(RedOpDestroy)(operation, comm);
    if (visit.hooks != NULL && result == success) {
        const int error = errno;
        visit.hooks->operation_ended(comm, operation);
        errno = error;
    }
    leave(&visit);
    return result;
}

EXPORTED int ncclGroupStart(void)
{
    const struct visit visit = enter(symbol_GroupStart, CALLER);
    const int result = REAL(GroupStart)();
    if (visit.outer == NULL && result == success) ++thread.depth;
    leave(&visit);
    return result;
}

// An end closes a level whatever it returns, unless none is open.
static void group_ended(const struct visit* visit, int result, int simulated)
{
    if (visit->outer != NULL || thread.depth == 0 || --thread.depth != 0) return;
    const struct collprobe_hooks* const hooks = atomic_load_explicit(&hooks_now, memory_order_acquire);
    const int error = errno;
    group_made(simulated ? NULL : hooks, result);
    if (hooks != NULL) hooks->group_ended(result, simulated);
    errno = error;
}

EXPORTED int ncclGroupEnd(void)
{
    const struct visit visit = enter(symbol_GroupEnd, CALLER);
    const int result = REAL(GroupEnd)();
    group_ended(&visit, result, 0);
    leave(&visit);
    return result;
}

EXPORTED int ncclGroupSimulateEnd(void* simulation)
{
    const struct visit visit = enter(symbol_GroupSimulateEnd, CALLER);
    const int result = REAL(GroupSimulateEnd)(simulation);
    group_ended(&visit, result, 1);
    leave(&visit);
    return result;
}
