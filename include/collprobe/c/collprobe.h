/* SPDX-FileCopyrightText: The collprobe authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * The C entry: C99 and newer, C++11 and newer. It needs no header of CUDA, NCCL or MPI; link collprobe::c.
 *
 * A probe is one rank's view of the collectives of a job. There are two kinds:
 * - Around anything (`collprobeCreate`). The caller makes the collectives by any library (gloo, MPI, UCC, NCCL) and
 *   shows each input before and each result after the call. Once a step the probes exchange a small message by one
 *   function of the caller, an all-gather of bytes.
 * - Around NCCL (`collprobeCreateNccl`). The calls below that end on (probe, stream) have the arguments of NCCL's own
 *   functions in their order, with a probe in place of the communicator. They make the call and look at it.
 *
 * Results. Every function returns `collprobeSuccess` or says why not; `collprobeGetLastError` has the sentence. No
 * exception leaves, no call ends the process. Null handles, wrong arguments and calls in the wrong order are answered
 * by `collprobeInvalidArgument`; a probe that was destroyed, too.
 * Threads. One thread at a time uses a probe; different probes are independent.
 * Growth. Functions and members are only ever added. A struct has its size as its first member, which
 * `COLLPROBE_..._INIT` sets; it makes all other members "none".
 * Strings are UTF-8 and are copied, unless it is said otherwise. Numbers that the library does not know are NaN. */
#ifndef COLLPROBE_C_COLLPROBE_H
#define COLLPROBE_C_COLLPROBE_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#error "collprobe is for Linux"
#endif
#define COLLPROBE_API __attribute__((visibility("default")))

#if defined(__cplusplus)
#define COLLPROBE_ENUM : int /* so that a wrong number is defined behaviour, and refused */
extern "C" {
#else
#define COLLPROBE_ENUM
#endif

typedef struct collprobeProbe* collprobeProbe_t;

typedef enum COLLPROBE_ENUM {
    collprobeSuccess = 0,
    collprobeNotReady = 1, /* there is no further record or finding; no error */
    collprobeInvalidArgument = 2,
    collprobeMismatch = 3, /* the ranks made different calls, or have different versions or options */
    collprobeTimeout = 4,
    collprobePeerFailure = 5, /* another rank failed, or the caller's all-gather did */
    collprobeDeviceFailure = 6, /* work on a stream failed */
    collprobeUnsupported = 7, /* not by this library's build, or not for this probe */
    collprobeInternalError = 8
} collprobeResult_t;

/* The numbers of ncclDataType_t. */
typedef enum COLLPROBE_ENUM {
    collprobeInt8 = 0,
    collprobeUint8 = 1,
    collprobeInt32 = 2,
    collprobeUint32 = 3,
    collprobeInt64 = 4,
    collprobeUint64 = 5,
    collprobeFloat16 = 6,
    collprobeFloat32 = 7,
    collprobeFloat64 = 8,
    collprobeBfloat16 = 9,
    collprobeFloat8e4m3 = 10,
    collprobeFloat8e5m2 = 11
} collprobeDataType_t;

/* The numbers of ncclRedOp_t. */
typedef enum COLLPROBE_ENUM {
    collprobeSum = 0,
    collprobeProd = 1,
    collprobeMax = 2,
    collprobeMin = 3,
    collprobeAvg = 4
} collprobeRedOp_t;

typedef enum COLLPROBE_ENUM {
    collprobeAllReduceCall = 0,
    collprobeReduceScatterCall = 1,
    collprobeAllGatherCall = 2,
    collprobeAllToAllCall = 3
} collprobeCall_t;

typedef enum COLLPROBE_ENUM {
    collprobeEqual = 0, /* the same value on all ranks: a learning rate, weights */
    collprobeDistinct = 1 /* another value on each rank: a seed */
} collprobeExpectation_t;

typedef enum COLLPROBE_ENUM { collprobeHost = 0, collprobeCuda = 1 } collprobeDevice_t;
typedef enum COLLPROBE_ENUM { collprobeTable = 0, collprobeJson = 1 } collprobeFormat_t;

/* cudaStream_t and ncclComm_t. */
typedef struct CUstream_st* collprobeStream_t;
typedef struct ncclComm* collprobeNcclComm_t;
/* What calls in place of NCCL's return: ncclResult_t where <nccl.h> was included before, so that a check of its
 * results goes on to compile. collprobeGetLastError has the sentence. */
#if defined(NCCL_H_)
typedef ncclResult_t collprobeNcclResult_t;
#else
typedef int collprobeNcclResult_t;
#endif

/* The caller's all-gather of host memory: part r of `receive`, `bytes` long, becomes rank r's `send`. It blocks until
 * all ranks have come, and returns 0, or another number if it failed, as behind a time-out of its own. Called on a
 * thread of the library, at the same time as the program's collectives: give it a communicator of its own. Calls of a
 * probe come one at a time, in the order of the steps: 128 bytes a rank, which tell whether the ranks agree on the
 * step, then the message (not after a mismatch). It makes no call of its probe, and throws nothing. If it fails, the
 * probe is of no more use: its calls return collprobePeerFailure. */
typedef int (*collprobeAllGatherFunction_t)(void* context, const void* send, void* receive, size_t bytes);

/* Equal on all ranks, but `context`. */
typedef struct {
    size_t size; /* sizeof(collprobeOptions_t) */
    collprobeAllGatherFunction_t allGather; /* of collprobeCreate, which needs it */
    void* context; /* of allGather */
    collprobeDevice_t device; /* of collprobeCreate: where the buffers are */
    int every; /* the first of so many steps is looked at; 0: each */
    int calls; /* of a step that there is room for from the start; 0: 64. More cost an allocation, once */
    int expectations; /* values of collprobeExpect... in a step; 0: 32 */
    double falseAlarms; /* share of healthy steps in which a number names a rank; 0: 1e-4 */
    const char* name; /* of the communicator, in messages; null: none */
} collprobeOptions_t;

/* A number that the caller does not know. (NaN is a number that it knows: a loss that is NaN is a finding.) */
#define COLLPROBE_UNKNOWN (-1.7976931348623157e308)

/* What a rank knows of its step. A loss and a norm that are not known are COLLPROBE_UNKNOWN. */
typedef struct {
    size_t size; /* sizeof(collprobeStep_t) */
    double loss; /* mean over the rank's batch */
    double weight; /* samples or tokens in that mean: 0 counts as none, 1 if ranks are alike */
    double gradientNorm; /* L2 norm behind the collectives as the trainer computed it */
    const float* deviceLoss; /* in place of `loss`: read on the stream of collprobeEndStep; probes of CUDA alone */
} collprobeStep_t;

/* Something that the step has found. Strings are valid until the next collprobePoll of the probe. */
typedef struct {
    size_t size; /* sizeof(collprobeFinding_t) */
    uint64_t step;
    const char* kind; /* "non_finite", "duplicate", "loss", ...: the README of include/collprobe/step has all */
    const char* text; /* a sentence with rank, call and evidence */
    const char* call; /* name of the call or value; "" if it is of the whole step */
    int rank; /* -1: not of one rank */
    int callIndex; /* in the step; -1: of the whole step */
    int exact; /* 1: neither chance nor rounding explains it. 0: a number with a rate of false alarms */
    uint64_t element; /* first bad element; UINT64_MAX if not known */
    double statistic;
    double threshold;
} collprobeFinding_t;

#define COLLPROBE_OPTIONS_INIT {sizeof(collprobeOptions_t), NULL, NULL, collprobeHost, 0, 0, 0, 0.0, NULL}
#define COLLPROBE_STEP_INIT {sizeof(collprobeStep_t), COLLPROBE_UNKNOWN, 1.0, COLLPROBE_UNKNOWN, NULL}
#define COLLPROBE_FINDING_INIT {sizeof(collprobeFinding_t), 0, NULL, NULL, NULL, -1, -1, 0, 0, 0.0, 0.0}

/* In place of a buffer: this rank sends, or gets, nothing in this call, as of an expert that it does not have. */
#define COLLPROBE_NO_BUFFER ((const void*)-1)

/* 10000 major + 100 minor + patch, of the library that is loaded. */
COLLPROBE_API int collprobeGetVersion(void);
/* Why the last call on this thread did not succeed; "" if none has failed. Valid until the thread's next call. */
COLLPROBE_API const char* collprobeGetLastError(void);

/* A probe around collectives of the caller. Not collective. `ranks` up to 16,384. */
COLLPROBE_API collprobeResult_t collprobeCreate(
    collprobeProbe_t* probe, int rank, int ranks, const collprobeOptions_t* options);
/* A probe around NCCL. It borrows `comm`, which must outlive it. `options` may be null. The message of a step travels
 * by NCCL: as there, ranks with other calls or options are not noticed and may hang. Unsupported in a build without
 * CUDA and NCCL. */
COLLPROBE_API collprobeResult_t collprobeCreateNccl(
    collprobeProbe_t* probe, collprobeNcclComm_t comm, const collprobeOptions_t* options);
/* Waits for the probe's work, with it for the other ranks' ends of the same steps. Null is no error. */
COLLPROBE_API collprobeResult_t collprobeDestroy(collprobeProbe_t probe);

/* Shows the input of a call, before it is made. `count`: elements that this rank sends, or with COLLPROBE_NO_BUFFER
 * those that the others send. `name`: of the tensor, equal on all ranks; null or "": the call is named by kind and
 * place, "all_reduce#3". A probe keeps 16,384 names of up to 255 bytes; a name that is new behind them counts as none.
 * `token`: for the result. Host memory is read before the function returns, so that the call may work in place, and
 * `stream` is ignored. CUDA: read on `stream`, which must not be captured. All ranks show the same calls in the same
 * order: else the step has no record, and collprobePoll says collprobeMismatch and which calls they are. Integers are
 * counted. */
COLLPROBE_API collprobeResult_t collprobeObserveInput(collprobeProbe_t probe, collprobeCall_t call,
    collprobeDataType_t type, collprobeRedOp_t operation, const void* data, uint64_t count, const char* name,
    collprobeStream_t stream, uint64_t* token);
/* Shows the result of that call, behind it, in the step of the input. Results come in any order. `count`: elements that
 * this rank gets; COLLPROBE_NO_BUFFER with 0: none, also of a call that failed. */
COLLPROBE_API collprobeResult_t collprobeObserveResult(
    collprobeProbe_t probe, uint64_t token, const void* data, uint64_t count, collprobeStream_t stream);

/* Compares a value of this step between the ranks, bit by bit: a number of the host, or a buffer, read as above. It
 * needs a name. All ranks tell the same values in the same order. */
COLLPROBE_API collprobeResult_t collprobeExpectNumber(
    collprobeProbe_t probe, collprobeExpectation_t expectation, const char* name, double value);
COLLPROBE_API collprobeResult_t collprobeExpectBuffer(collprobeProbe_t probe, collprobeExpectation_t expectation,
    const char* name, collprobeDataType_t type, const void* data, uint64_t count, collprobeStream_t stream);

/* Ends a step: the calls since the last one. Collective, but waits for no other rank, unless four steps are under way.
 * `step`: a number of the caller, equal on all ranks. `seen` may be null. Each input has its result. Of a probe by
 * collprobeCreate the message travels by a thread of the library, behind the reads of the step; `stream` is that of
 * deviceLoss. Around NCCL it travels on `stream`. */
COLLPROBE_API collprobeResult_t collprobeEndStep(
    collprobeProbe_t probe, uint64_t step, const collprobeStep_t* seen, collprobeStream_t stream);
/* Takes the next record: collprobeSuccess, or collprobeNotReady if none is there. `wait`: not 0: waits for the oldest
 * step under way; NotReady then means that there is none. Another result is that of a step which has no record; later
 * ones may have. The functions below read the record taken last. Of records not taken the last 64 are kept. */
COLLPROBE_API collprobeResult_t collprobePoll(collprobeProbe_t probe, int wait);
/* Finding `index` of the record, from 0 on, one for each rank that is named; NotReady behind the last one. */
COLLPROBE_API collprobeResult_t collprobeGetFinding(
    collprobeProbe_t probe, uint64_t index, collprobeFinding_t* finding);
/* A number of the record by name: "step", "findings", "calls" (of floating point), "calls_not_read", "loss.mean",
 * "loss.weighted_mean", "loss.std", "loss.range", "gradient_norm.mean", "gradient_norm.std", "gradient_norm.range",
 * "result_norm", "cosine.mean_pairwise", "cosine.pooled", "noise_scale" with rank -1; "loss", "gradient_norm", "cosine"
 * of a rank. */
COLLPROBE_API collprobeResult_t collprobeGetValue(
    collprobeProbe_t probe, const char* name, int rank, double* value);
/* The record as a table for people, or as a JSON line with every number (README of include/collprobe/report). `run`:
 * the name of the run, in JSON. Valid until the probe's next collprobeGetText, collprobePoll or collprobeDestroy. */
COLLPROBE_API collprobeResult_t collprobeGetText(
    collprobeProbe_t probe, collprobeFormat_t format, const char* run, const char** text);

/* What the probe has learnt of the run, to be saved with a checkpoint: sets `bytes` to its size, and copies it to
 * `state` if that is not null. `bytes` then has the room there, which must be enough. */
COLLPROBE_API collprobeResult_t collprobeSaveState(collprobeProbe_t probe, void* state, size_t* bytes);
/* On all ranks alike, with no step under way. Refuses what is no state, or one of other ranks; then nothing changes. */
COLLPROBE_API collprobeResult_t collprobeRestoreState(collprobeProbe_t probe, const void* state, size_t bytes);

/* ncclAllReduce, ncclReduceScatter and ncclAllGather with a probe. `datatype`, `op`: NCCL's. The call is named by kind
 * and place. On an error of the probe before the call, the call is not made. */
COLLPROBE_API collprobeNcclResult_t collprobeAllReduce(const void* sendbuff, void* recvbuff, size_t count,
    int datatype, int op, collprobeProbe_t probe, collprobeStream_t stream);
COLLPROBE_API collprobeNcclResult_t collprobeReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount,
    int datatype, int op, collprobeProbe_t probe, collprobeStream_t stream);
COLLPROBE_API collprobeNcclResult_t collprobeAllGather(const void* sendbuff, void* recvbuff, size_t sendcount,
    int datatype, collprobeProbe_t probe, collprobeStream_t stream);
/* ncclGroupStart and ncclGroupEnd. In a group that NCCL's own functions opened, the calls above are refused. */
COLLPROBE_API collprobeNcclResult_t collprobeGroupStart(void);
COLLPROBE_API collprobeNcclResult_t collprobeGroupEnd(void);
/* Copies `count` elements from `source` to this rank's slot of `destination` (`slotCount` elements for each rank), and
 * gathers the slots. Events order the copy behind all `producers`, the gather behind the copy, and all `consumers`
 * behind the gather; the host does not wait. guard/README.md. */
COLLPROBE_API collprobeNcclResult_t collprobeCopyThenAllGather(const void* source, size_t count, void* destination,
    size_t slotCount, int datatype, collprobeProbe_t probe, collprobeStream_t stream,
    const collprobeStream_t* producers, int producerCount, const collprobeStream_t* consumers, int consumerCount);

#if defined(__cplusplus)
} /* extern "C" */
#endif
#endif
