/* SPDX-FileCopyrightText: The collprobe authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * A job of one call of each kind, whose results are compared with what each rank computes alone. It is compiled for
 * each way to reach NCCL. */
#include <math.h>

#include "common.h"

#ifdef FOREIGN_BY_NAME
#include <dlfcn.h>

void* find_nccl(const char* function)
{
    static void* library = NULL;
    if (library == NULL) library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    void* const found = library == NULL ? NULL : dlsym(library, function);
    if (found == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    return found;
}
#endif

int foreign_work(void); /* of the library */

enum { count = 3001 };

static int rank, ranks;
static ncclComm_t comm;
static cudaStream_t stream;
static float *input, *output, *seen;

static float value_of(int of_rank, size_t index) { return (float)deviate(((uint64_t)of_rank << 32) + index); }
static float sum_of(size_t index)
{
    double sum = 0;
    for (int each = 0; each < ranks; ++each) sum += value_of(each, index);
    return (float)sum;
}

/* The input is n elements for each rank, and the output holds something else. */
static void begin(size_t elements)
{
    CHECK_CUDA(cudaStreamSynchronize(stream)); /* which may still read */
    for (size_t i = 0; i < elements; ++i) seen[i] = value_of(rank, i);
    CHECK_CUDA(cudaMemcpyAsync(input, seen, elements * sizeof(float), cudaMemcpyHostToDevice, stream));
    CHECK_CUDA(cudaMemsetAsync(output, 0xff, (size_t)ranks * count * sizeof(float), stream));
}
static void fetch(const float* from, size_t elements, const char* what)
{
    CHECK_CUDA(cudaMemcpyAsync(seen, from, elements * sizeof(float), cudaMemcpyDeviceToHost, stream));
    CHECK_CUDA(cudaStreamSynchronize(stream));
    printf("%s %016llx\n", what, (unsigned long long)hash_bytes(0, seen, elements * sizeof(float)));
}
static void expect(float value, float wanted) { REQUIRE(fabsf(value - wanted) <= 1e-5f * (1 + fabsf(wanted))); }

static void make_calls(void)
{
    const size_t all = (size_t)ranks * count;
    const size_t mine = (size_t)rank * count;

    begin(count);
    CHECK_NCCL(NCCL(AllReduce)(input, output, count, ncclFloat32, ncclSum, comm, stream));
    fetch(output, count, "all_reduce");
    for (size_t i = 0; i < count; ++i) expect(seen[i], sum_of(i));

    begin(count);
    CHECK_NCCL(NCCL(AllReduce)(input, input, count, ncclFloat32, ncclAvg, comm, stream));
    fetch(input, count, "all_reduce_in_place");
    for (size_t i = 0; i < count; ++i) expect(seen[i], sum_of(i) / (float)ranks);

    begin(all);
    CHECK_NCCL(NCCL(ReduceScatter)(input, output, count, ncclFloat32, ncclSum, comm, stream));
    fetch(output, count, "reduce_scatter");
    for (size_t i = 0; i < count; ++i) expect(seen[i], sum_of(mine + i));

    begin(count);
    CHECK_NCCL(NCCL(AllGather)(input, output, count, ncclFloat32, comm, stream));
    fetch(output, all, "all_gather");
    for (size_t i = 0; i < all; ++i) REQUIRE(seen[i] == value_of((int)(i / count), i % count));

    begin(count);
    CHECK_NCCL(NCCL(Bcast)(input, count, ncclFloat32, ranks - 1, comm, stream));
    fetch(input, count, "bcast");
    for (size_t i = 0; i < count; ++i) REQUIRE(seen[i] == value_of(ranks - 1, i));

    begin(count);
    CHECK_NCCL(NCCL(Reduce)(input, output, count, ncclFloat32, ncclSum, 0, comm, stream));
    if (rank == 0) {
        fetch(output, count, "reduce");
        for (size_t i = 0; i < count; ++i) expect(seen[i], sum_of(i));
    }

    /* To the next, from the one before, more than NCCL holds on its way. */
    begin(all);
    const int next = (rank + 1) % ranks;
    const int before = (rank + ranks - 1) % ranks;
    CHECK_NCCL(NCCL(GroupStart)());
    CHECK_NCCL(NCCL(Send)(input, all, ncclFloat32, next, comm, stream));
    CHECK_NCCL(NCCL(Recv)(output, all, ncclFloat32, before, comm, stream));
    CHECK_NCCL(NCCL(GroupEnd)());
    fetch(output, all, "ring");
    for (size_t i = 0; i < all; ++i) REQUIRE(seen[i] == value_of(before, i));

    begin(count);
    CHECK_NCCL(NCCL(AllReduce)(input, output, 0, ncclFloat32, ncclSum, comm, stream));

#if NCCL_VERSION_CODE >= 22800
    begin(all);
    CHECK_NCCL(NCCL(AlltoAll)(input, output, count, ncclFloat32, comm, stream));
    fetch(output, all, "all_to_all");
    for (size_t i = 0; i < all; ++i) REQUIRE(seen[i] == value_of((int)(i / count), mine + i % count));
#endif
}

int foreign_work(void)
{
    rank = atoi(environment("RANK"));
    ranks = atoi(environment("WORLD_SIZE"));
    int devices = 0;
    CHECK_CUDA(cudaGetDeviceCount(&devices));
    CHECK_CUDA(cudaSetDevice(rank % devices));
    int version = 0;
    CHECK_NCCL(NCCL(GetVersion)(&version));
    ncclUniqueId id;
    if (rank == 0) CHECK_NCCL(NCCL(GetUniqueId)(&id));
    share(&id, rank == 0, "work");
    CHECK_NCCL(NCCL(CommInitRank)(&comm, ranks, id, rank));
    CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    const size_t bytes = (size_t)ranks * count * sizeof(float);
    CHECK_CUDA(cudaMalloc((void**)&input, bytes));
    CHECK_NCCL(NCCL(MemAlloc)((void**)&output, bytes));
    CHECK_CUDA(cudaMallocHost((void**)&seen, bytes));
    make_calls();
    CHECK_CUDA(cudaFree(input));
    CHECK_NCCL(NCCL(MemFree)(output));
    CHECK_CUDA(cudaFreeHost(seen));
    CHECK_CUDA(cudaStreamDestroy(stream));
    CHECK_NCCL(NCCL(CommDestroy)(comm));
    printf("done %d\n", version);
    return 0;
}

int main(void) { return foreign_work(); }
