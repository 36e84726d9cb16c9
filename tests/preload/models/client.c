/* SPDX-FileCopyrightText: The collprobe authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * A program that uses NCCL and knows nothing of collprobe, as a library or with a main function. With
 * MODEL_BY_NAME it opens NCCL by its name. It prints results and errno. */
#define _GNU_SOURCE
#include "nccl.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef MODEL_BY_NAME
static void* by_name(const char* name)
{
    static void* nccl;
    if (nccl == NULL) nccl = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    return nccl != NULL ? dlsym(nccl, name) : NULL;
}
#define NCCL(name) ((__typeof__(nccl##name)*)by_name("nccl" #name))
#else
#define NCCL(name) nccl##name
#endif

#define TRY(call) \
    do { \
        errno = 33; \
        const int result = call; \
        printf("%s: %d errno %d\n", #call, result, errno); \
    } while (0)
#define P(number) ((void*)(intptr_t)(number))

static ncclUniqueId id;
static ncclConfig_t config
    = {.size = sizeof config, .magic = 0xcafebeef, .blocking = 0, .commName = "a name", .minCTAs = INT_MIN};

static void every_function(ncclComm_t comm)
{
    const ncclCollConfig_t with = {.size = sizeof with, .magic = 0xcafebeef, .userProfilerTag = 123456789012};
    const ncclCollConfig_t plain = {.size = sizeof with, .magic = 0xcafebeef};
    const cudaStream_t stream = P(0x77);
    double factor = 0.25;
    int operation = 0, state = 0;
    void* window = NULL;
    TRY(NCCL(AllReduce)(P(1), P(2), 3, 4, 5, comm, stream));
    TRY(NCCL(AllReduceConfig)(P(11), P(12), 13, 14, 15, comm, stream, &with));
    TRY(NCCL(ReduceScatter)(P(21), P(22), 23, 24, 25, comm, stream));
    TRY(NCCL(ReduceScatterConfig)(P(31), P(32), 33, 34, 35, comm, stream, &plain));
    TRY(NCCL(AllGather)(P(41), P(42), 43, 44, comm, stream));
    TRY(NCCL(AllGatherConfig)(P(51), P(52), 53, 54, comm, stream, &with));
    TRY(NCCL(Broadcast)(P(61), P(62), 63, 64, 65, comm, stream));
    TRY(NCCL(BroadcastConfig)(P(71), P(72), 73, 74, 75, comm, stream, NULL));
    TRY(NCCL(Bcast)(P(81), 82, 83, 84, comm, stream));
    TRY(NCCL(Reduce)(P(91), P(92), 93, 94, 95, 96, comm, stream));
    TRY(NCCL(ReduceConfig)(P(101), P(102), 103, 104, 105, 106, comm, stream, &with));
    TRY(NCCL(AlltoAll)(P(111), P(112), 113, 114, comm, stream));
    TRY(NCCL(AlltoAllConfig)(P(121), P(122), 123, 124, comm, stream, &with));
    TRY(NCCL(Gather)(P(131), P(132), 133, 134, 135, comm, stream));
    TRY(NCCL(GatherConfig)(P(141), P(142), 143, 144, 145, comm, stream, &with));
    TRY(NCCL(Scatter)(P(151), P(152), 153, 154, 155, comm, stream));
    TRY(NCCL(ScatterConfig)(P(161), P(162), 163, 164, 165, comm, stream, &with));
    TRY(NCCL(Send)(P(171), 172, 173, 174, comm, stream));
    TRY(NCCL(Recv)(P(181), 182, 183, 184, comm, stream));
    TRY(NCCL(PutSignal)(P(191), 192, 193, 194, P(195), 196, 197, 198, 199, comm, stream));
    TRY(NCCL(Signal)(201, 202, 203, 204, comm, stream));
    TRY(NCCL(WaitSignal)(2, P(212), comm, stream));
    TRY(NCCL(AllReduce)(P(1), P(2), 3, 4, 5, P(1), stream)); /* a wrong communicator */
    TRY(NCCL(RedOpCreatePreMulSum)(&operation, &factor, 8, 1, comm));
    TRY(NCCL(RedOpCreatePreMulSum)(&operation, P(221), 8, 0, comm));
    TRY(NCCL(RedOpDestroy)(operation, comm));
    TRY(NCCL(CommWindowRegister)(comm, P(231), 232, &window, 1));
    TRY(NCCL(CommGetAsyncError)(comm, &state));
}

static void every_communicator(void)
{
    ncclComm_t comm = NULL, other = NULL, some[3];
    const int devices[3] = {2, 1, 0};
    int excluded[2] = {6, 7};
    ncclUniqueId ids[2] = {id, id};
    ids[1].internal[5] = 9;
    TRY(NCCL(CommInitRank)(&comm, 8, id, 3));
    TRY(NCCL(CommInitRankConfig)(&other, 4, id, 2, &config));
    TRY(NCCL(CommFinalize)(other));
    TRY(NCCL(CommDestroy)(other));
    TRY(NCCL(CommInitRankConfig)(&other, 4, id, 2, NULL));
    TRY(NCCL(CommAbort)(other));
    TRY(NCCL(CommInitRankScalable)(&other, 16, 15, 2, ids, &config));
    TRY(NCCL(CommRevoke)(other, 0));
    TRY(NCCL(CommInitAll)(some, 3, devices));
    TRY(NCCL(CommInitAll)(some, 2, NULL));
    TRY(NCCL(CommSplit)(comm, 4, 5, &other, NULL));
    TRY(NCCL(CommSplit)(comm, 4, 5, &other, &config));
    TRY(NCCL(CommSplit)(comm, -1, 5, &other, NULL));
    TRY(NCCL(CommShrink)(comm, excluded, 2, &other, NULL, 0));
    TRY(NCCL(CommShrink)(comm, excluded, 2, &other, &config, 1));
    TRY(NCCL(CommGrow)(comm, 10, NULL, -1, &other, NULL));
    TRY(NCCL(CommGrow)(NULL, 10, &id, 9, &other, NULL));
    TRY(NCCL(CommSuspend)(other, 1));
    config.size = offsetof(ncclConfig_t, commName); /* of an older version */
    TRY(NCCL(CommInitRankConfig)(&other, 4, id, 2, &config));
    config.size = sizeof config;
}

static void groups(ncclComm_t comm)
{
    ncclComm_t one = P(1), other = NULL, third = NULL;
    int excluded[1] = {5};
    TRY(NCCL(GroupStart)());
    TRY(NCCL(AllReduce)(P(1), P(2), 3, 7, 0, comm, P(1)));
    TRY(NCCL(GroupStart)());
    TRY(NCCL(AllReduce)(P(3), P(4), 3, 7, 0, comm, P(2)));
    TRY(NCCL(GroupEnd)());
    TRY(NCCL(GroupEnd)());
    TRY(NCCL(GroupEnd)()); /* none is open */
    TRY(NCCL(GroupStart)());
    TRY(NCCL(GroupEnd)());
    TRY(NCCL(GroupStart)());
    TRY(NCCL(AllGather)(P(1), P(2), 3, 7, comm, P(1)));
    TRY(NCCL(GroupSimulateEnd)(P(9)));
    TRY(NCCL(GroupStart)());
    TRY(NCCL(CommInitRankConfig)(&one, 2, id, 0, &config));
    TRY(NCCL(CommSplit)(comm, 1, 2, &other, NULL));
    TRY(NCCL(CommShrink)(comm, excluded, 1, &third, NULL, 0));
    TRY(NCCL(GroupEnd)());
    TRY(NCCL(AllReduce)(P(1), P(2), 3, 7, 0, one, P(1)));
}

static void* one_thread(void* unused)
{
    (void)unused;
    ncclComm_t comm = NULL;
    if (NCCL(CommInitRank)(&comm, 8, id, 3) != 0 || NCCL(AllReduce)(P(1), P(2), 3, 4, 5, comm, P(1)) != 0)
        _exit(95);
    return NULL;
}

static void threads(void)
{
    pthread_t all[8];
    for (int each = 0; each < 8; ++each) pthread_create(&all[each], NULL, one_thread, NULL);
    for (int each = 0; each < 8; ++each) pthread_join(all[each], NULL);
}

static void forked(ncclComm_t comm)
{
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        ncclComm_t own = NULL;
        TRY(NCCL(AllReduce)(P(5), P(6), 7, 7, 0, comm, P(1)));
        TRY(NCCL(CommInitRank)(&own, 8, id, 3));
        TRY(NCCL(AllReduce)(P(8), P(9), 10, 7, 0, own, P(1)));
        fflush(stdout);
        _exit(3);
    }
    int status = 0;
    waitpid(child, &status, 0);
    printf("child %d\n", WEXITSTATUS(status));
    TRY(NCCL(AllReduce)(P(1), P(2), 3, 7, 0, comm, P(1)));
}

static void steps(ncclComm_t* comm)
{
    void (*mark_step)(uint64_t);
    *(void**)&mark_step = dlsym(RTLD_DEFAULT, "collprobe_mark_step");
    for (uint64_t step = 5; step < 7 && mark_step != NULL; ++step) mark_step(step);
    TRY(NCCL(CommInitRank)(comm, 8, id, 3));
    for (uint64_t step = 7; step < 9 && mark_step != NULL; ++step) {
        errno = 12;
        mark_step((UINT64_C(1) << 40) + step);
        if (errno != 12) puts("another errno");
    }
}

/* The first call, so that the forwarder has to find NCCL between. */
static void many_arguments(void)
{
    TRY(NCCL(DevCommCreate)(
        id, 1, 2.5, 3, 4.5F, -5, 6, 7, 8, 9.5, 10, 11.5, 12.5, 13.5, 14.5, 15.5, 16.5, 17.5));
}

static void forwards(ncclComm_t comm)
{
    void *memory = NULL, *handle = NULL;
    int count = 0, rank = 0, version = 0;
    TRY(NCCL(GetVersion)(&version));
    TRY(NCCL(GetUniqueId)(&id));
    TRY(NCCL(CommCount)(comm, &count));
    TRY(NCCL(CommUserRank)(comm, &rank));
    TRY(NCCL(MemAlloc)(&memory, 48));
    const ncclUniqueId made = NCCL(TeamLsa)(30.0, 12);
    const ncclTeam_t team = NCCL(TeamWorld)(comm);
    printf("version %d id %d count %d rank %d made %d %d team %d %d %d\n", version, id.internal[127], count,
        rank, made.internal[0], made.internal[127], team.rank, team.ranks, team.stride);
    puts(NCCL(GetErrorString)(0));
#ifdef MODEL_BY_NAME
    if (NCCL(ParamBind) != NULL) {
        TRY(NCCL(ParamBind)(&handle, "x"));
        puts(NCCL(GetLastError)(comm));
    }
#else
    (void)handle;
#endif
}

__attribute__((visibility("default"))) int model_run(const char* scenario)
{
    ncclComm_t comm = NULL;
#ifdef MODEL_BY_NAME
    if (by_name("ncclAllReduce") == NULL) {
        puts("no NCCL");
        return 4;
    }
#endif
    memset(&id, 3, sizeof id);
    id.internal[0] = 1;
    id.internal[127] = 2;
    if (strcmp(scenario, "steps") == 0) steps(&comm);
    else if (strcmp(scenario, "threads") == 0) threads();
    else if (strcmp(scenario, "many arguments") == 0) many_arguments();
    else if (strcmp(scenario, "communicators") == 0) every_communicator();
    else {
        TRY(NCCL(CommInitRank)(&comm, 8, id, 3));
        if (strcmp(scenario, "one call") == 0) TRY(NCCL(AllReduce)(P(1), P(2), 3, 4, 5, comm, P(6)));
        else if (strcmp(scenario, "polls") == 0)
            for (int state = 7; state == 7;) TRY(NCCL(CommGetAsyncError)(comm, &state));
        else if (strcmp(scenario, "groups") == 0) groups(comm);
        else if (strcmp(scenario, "fork") == 0) forked(comm);
        else if (strcmp(scenario, "forwards") == 0) forwards(comm);
        else every_function(comm);
    }
    if (comm != NULL) TRY(NCCL(CommDestroy)(comm));
    fflush(stdout);
    return 5;
}

#ifdef MODEL_MAIN
int main(int count, char** words) { return model_run(count > 1 ? words[1] : "functions"); }
#endif
