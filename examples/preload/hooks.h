/* SPDX-FileCopyrightText: The collprobe authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * What the two objects of the preload know of each other. The first stage (C, in every process) stands between the
 * program and NCCL; the engine (C++ and CUDA, opened when the first communicator is made) looks at the buffers.
 * A first stage and an engine with different COLLPROBE_PRELOAD_ABI do not work together: then calls pass through. */
#ifndef COLLPROBE_PRELOAD_HOOKS_H
#define COLLPROBE_PRELOAD_HOOKS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define COLLPROBE_PRELOAD_ABI 1u

/* Calls that move data, by kind; ncclBcast and the forms with a configuration have the kind of their plain form. */
enum collprobe_kind {
    collprobe_all_reduce,
    collprobe_reduce_scatter,
    collprobe_all_gather,
    collprobe_broadcast,
    collprobe_reduce,
    collprobe_all_to_all,
    collprobe_gather,
    collprobe_scatter,
    collprobe_send, /* from here on counted only */
    collprobe_recv,
    collprobe_put_signal,
    collprobe_signal,
    collprobe_wait_signal,
    collprobe_kinds
};

/* A loaded NCCL. It is never freed. */
struct collprobe_nccl {
    const char* path; /* of the file it was loaded from */
    /* The real functions, by name; null if this NCCL lacks it. Never one of the wrappers. */
    int (*all_gather)(const void*, void*, size_t, int, void*, void*);
    int (*comm_count)(void*, int*);
    int (*comm_user_rank)(void*, int*);
    int (*comm_async_error)(void*, int*);
    int (*get_version)(int*);
};

/* One call that moves data, from before the real function is entered until it has returned, on the caller's stack. */
struct collprobe_call {
    const struct collprobe_nccl* nccl;
    void* comm; /* ncclComm_t */
    void* stream; /* cudaStream_t */
    const void* send;
    void* receive;
    size_t count; /* as the program gave it */
    uint64_t tag; /* userProfilerTag of NCCL 2.32 */
    int kind; /* enum collprobe_kind */
    int type; /* ncclDataType_t */
    int operation; /* ncclRedOp_t; 0 where there is none */
    int root; /* or the peer; 0 where there is none */
    int has_tag;
    unsigned depth; /* open groups of this thread: above 0 NCCL enqueues at the end of the outermost one */
    uint64_t engine[8]; /* the engine's own; zero before */
};

enum collprobe_origin { collprobe_init, collprobe_split, collprobe_shrink, collprobe_grow };

/* A communicator that a call made, or is making (result ncclInProgress, or in a group). */
struct collprobe_made {
    const struct collprobe_nccl* nccl;
    void* comm; /* null: a split that this rank is in no part of */
    void* parent; /* of a split, a shrink or a grow of an existing member; else null */
    const void* id; /* the unique id of an init or of a new member of a grow; else null */
    size_t id_bytes; /* 128, or several ids' */
    const char* name; /* ncclConfig_t::commName; null if there is none */
    int origin; /* enum collprobe_origin */
    int ranks; /* -1: not told by the call */
    int rank; /* -1: not told by the call */
    int device; /* of ncclCommInitAll; -1: the current one */
    int blocking; /* 0 or 1; -1: as the parent, or NCCL's default */
    int color; /* of a split */
    int key;
    const int* excluded; /* of a shrink */
    int excluded_count;
    int result; /* of the real function: ncclSuccess, or ncclInProgress */
    unsigned depth;
};

enum collprobe_end { collprobe_finalize, collprobe_destroy, collprobe_abort, collprobe_revoke, collprobe_suspend };

/* What the engine does. Each returns soon, throws nothing and changes nothing that the program can see. The first
 * stage calls none of them from inside of another, nor from inside of NCCL. */
struct collprobe_hooks {
    unsigned abi;
    /* Around a call that moves data. `after` also with a result that is an error. */
    void (*before)(struct collprobe_call* call);
    void (*after)(struct collprobe_call* call, int result);
    /* The outermost group of this thread has ended; `simulated`: by ncclGroupSimulateEnd, which makes no call. */
    void (*group_ended)(int result, int simulated);
    void (*comm_made)(const struct collprobe_made* made);
    /* Before the real function. In a group the end takes effect later, but the handle is not used any more. */
    void (*comm_ends)(void* comm, int end);
    /* After ncclCommGetAsyncError, with what it returned and told. */
    void (*comm_polled)(void* comm, int result, int state);
    /* ncclRedOpCreatePreMulSum: `scalar` is null if it is in device memory. */
    void (*operation_made)(void* comm, int operation, const void* scalar, int type);
    void (*operation_ended)(void* comm, int operation);
    /* ncclCommWindowRegister: kernels may move data without a call from now on. */
    void (*window_made)(void* comm, size_t bytes);
    /* The program's own number of its step, by collprobe_mark_step. */
    void (*mark_step)(uint64_t step);
};

/* The one function that the engine exports: "collprobe_engine_open". Null: it cannot work here; it has said why. */
typedef const struct collprobe_hooks* (*collprobe_engine_open_function)(unsigned abi);

#ifdef __cplusplus
}
#endif

#endif
