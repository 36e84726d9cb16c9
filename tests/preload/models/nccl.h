/* SPDX-FileCopyrightText: The collprobe authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * What the models know of NCCL, written down apart from symbols.def. Handles are numbers: version * 1000 +
 * serial. */
#ifndef COLLPROBE_MODEL_NCCL_H
#define COLLPROBE_MODEL_NCCL_H

#include <stddef.h>
#include <stdint.h>

typedef void* ncclComm_t;
typedef void* cudaStream_t;
typedef struct {
    char internal[128];
} ncclUniqueId;
typedef struct {
    size_t size;
    unsigned magic, version;
    int blocking, cgaClusterSize, minCTAs, maxCTAs;
    const char* netName;
    int splitShare, trafficClass;
    const char* commName;
    int rest[16];
} ncclConfig_t;
typedef struct {
    size_t size;
    unsigned magic, version;
    void* ext;
    int minCTAs, maxCTAs, nvlsCTAs, cgaClusterSize;
    const char* algSelection;
    int forceAlgSelection, CTAPolicy;
    uint64_t userProfilerTag;
    void* launchCompletionEvent;
} ncclCollConfig_t;
typedef struct {
    int rank, ranks, stride;
} ncclTeam_t;

#define MODEL_REDUCING const void *send, void *receive, size_t count, int type, int operation
#define MODEL_ROOTED const void *send, void *receive, size_t count, int type, int root
#define MODEL_REDUCING_ROOTED MODEL_REDUCING, int root
#define MODEL_PLAIN const void *send, void *receive, size_t count, int type
#define MODEL_ON ncclComm_t comm, cudaStream_t stream
#define MODEL_WITH const ncclCollConfig_t* config

/* Each also with a configuration. */
#define MODEL_COLLECTIVES(each) \
    each(AllReduce, MODEL_REDUCING, operation, -1) each(ReduceScatter, MODEL_REDUCING, operation, -1) \
    each(AllGather, MODEL_PLAIN, -1, -1) each(Broadcast, MODEL_ROOTED, -1, root) \
    each(Reduce, MODEL_REDUCING_ROOTED, operation, root) each(AlltoAll, MODEL_PLAIN, -1, -1) \
    each(Gather, MODEL_ROOTED, -1, root) each(Scatter, MODEL_ROOTED, -1, root)
#define MODEL_DECLARE(name, operands, operation, root) \
    int nccl##name(operands, MODEL_ON); \
    int nccl##name##Config(operands, MODEL_ON, MODEL_WITH);
MODEL_COLLECTIVES(MODEL_DECLARE)
int ncclBcast(void* buffer, size_t count, int type, int root, MODEL_ON);
int ncclSend(const void* send, size_t count, int type, int peer, MODEL_ON);
int ncclRecv(void* receive, size_t count, int type, int peer, MODEL_ON);
int ncclPutSignal(const void* send, size_t count, int type, int peer, void* window, size_t offset, int signal,
    int context, unsigned flags, MODEL_ON);
int ncclSignal(int peer, int signal, int context, unsigned flags, MODEL_ON);
int ncclWaitSignal(int signals, void* list, MODEL_ON);

int ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank);
int ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config);
int ncclCommInitRankScalable(
    ncclComm_t* comm, int ranks, int rank, int ids, ncclUniqueId* id, ncclConfig_t* config);
int ncclCommInitAll(ncclComm_t* comm, int devices, const int* device);
int ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made, ncclConfig_t* config);
int ncclCommShrink(
    ncclComm_t comm, int* excluded, int excluded_count, ncclComm_t* made, ncclConfig_t* config, int flags);
int ncclCommGrow(
    ncclComm_t comm, int ranks, const ncclUniqueId* id, int rank, ncclComm_t* made, ncclConfig_t* config);
int ncclCommFinalize(ncclComm_t comm);
int ncclCommDestroy(ncclComm_t comm);
int ncclCommAbort(ncclComm_t comm);
int ncclCommRevoke(ncclComm_t comm, int flags);
int ncclCommSuspend(ncclComm_t comm, int flags);
int ncclCommGetAsyncError(ncclComm_t comm, int* state);
int ncclCommWindowRegister(ncclComm_t comm, void* buffer, size_t bytes, void** window, int flags);
int ncclGroupStart(void);
int ncclGroupEnd(void);
int ncclGroupSimulateEnd(void* simulation);
int ncclRedOpCreatePreMulSum(int* operation, void* scalar, int type, int residence, ncclComm_t comm);
int ncclRedOpDestroy(int operation, ncclComm_t comm);

int ncclGetVersion(int* version);
int ncclGetUniqueId(ncclUniqueId* id);
const char* ncclGetErrorString(int result);
int ncclCommCount(ncclComm_t comm, int* count);
int ncclCommUserRank(ncclComm_t comm, int* rank);
int ncclMemAlloc(void** pointer, size_t bytes);
ncclTeam_t ncclTeamWorld(ncclComm_t comm);
/* Not as NCCL has them: with all kinds of arguments, to see that a forwarder keeps them. */
int ncclDevCommCreate(ncclUniqueId id, int a, double b, int c, float d, long e, int f, int g, int h, double i,
    int j, double k, double l, double m, double n, double o, double p, double q);
ncclUniqueId ncclTeamLsa(double a, long b);
/* Lacking in the older model, and not in the newer one. */
int ncclParamBind(void** handle, const char* key);
const char* ncclGetLastError(ncclComm_t comm);

#endif
