/* SPDX-FileCopyrightText: The collprobe authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Two processes with two threads each, every thread a rank, and what programs do beside plain calls: nested groups of
 * several communicators and streams, parts of communicators, fork(), and an end by _exit(). Failing groups, communicators that
 * do not block, shrink or grow, and aborts are in engine_stand_in_test.cpp. */
#include <pthread.h>
#include <sys/wait.h>

#include "common.h"

enum { threads = 2, count = 500 };

static ncclUniqueId world_id;

struct rank_state {
    int rank, ranks;
    ncclComm_t world, half;
    cudaStream_t first, second;
    float *a, *b;
};

static float value_of(int rank, size_t index) { return (float)deviate(((uint64_t)rank << 32) + index); }

static float* make_values(const struct rank_state* self)
{
    float* made = NULL;
    float values[count];
    for (size_t i = 0; i < count; ++i) values[i] = value_of(self->rank, i);
    CHECK_CUDA(cudaMalloc((void**)&made, 8 * sizeof(values)));
    CHECK_CUDA(cudaMemcpy(made, values, sizeof(values), cudaMemcpyHostToDevice));
    CHECK_CUDA(cudaDeviceSynchronize()); /* other streams may not find the copy before */
    return made;
}
static void reset(const struct rank_state* self, float* values)
{
    float* const fresh = make_values(self);
    CHECK_CUDA(cudaMemcpy(values, fresh, count * sizeof(float), cudaMemcpyDeviceToDevice));
    CHECK_CUDA(cudaDeviceSynchronize());
    CHECK_CUDA(cudaFree(fresh));
}

/* That values are the sum over the ranks first, first + step, ... */
static void expect_sum(const struct rank_state* self, const float* values, int first, int step)
{
    float seen[count];
    CHECK_CUDA(cudaMemcpy(seen, values, sizeof(seen), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < count; ++i) {
        double sum = 0;
        for (int rank = first; rank < self->ranks; rank += step) sum += value_of(rank, i);
        const double error = seen[i] - sum;
        REQUIRE(error < 1e-5 && error > -1e-5);
    }
}
static void expect_rank(const float* values, int rank)
{
    float seen[count];
    CHECK_CUDA(cudaMemcpy(seen, values, sizeof(seen), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < count; ++i) REQUIRE(seen[i] == value_of(rank, i));
}
static void synchronize(const struct rank_state* self)
{
    CHECK_CUDA(cudaStreamSynchronize(self->first));
    CHECK_CUDA(cudaStreamSynchronize(self->second));
}

static void use_nested_groups(struct rank_state* self)
{
    reset(self, self->a);
    reset(self, self->b);
    CHECK_NCCL(ncclGroupStart());
    CHECK_NCCL(ncclAllReduce(self->a, self->a, count, ncclFloat32, ncclSum, self->world, self->first));
    CHECK_NCCL(ncclGroupStart());
    CHECK_NCCL(ncclAllReduce(self->b, self->b, count, ncclFloat32, ncclSum, self->half, self->second));
    CHECK_NCCL(ncclGroupEnd());
    CHECK_NCCL(ncclGroupEnd());
    synchronize(self);
    expect_sum(self, self->a, 0, 1);
    expect_sum(self, self->b, self->rank % 2, 2);

    reset(self, self->b);
    CHECK_NCCL(ncclBcast(self->b, count, ncclFloat32, 0, self->half, self->second));
    synchronize(self);
    expect_rank(self->b, self->rank % 2);
}

static void make_parts(struct rank_state* self)
{
    CHECK_NCCL(ncclCommSplit(self->world, self->rank % 2, self->rank, &self->half, NULL));
    int size = 0;
    CHECK_NCCL(ncclCommCount(self->half, &size));
    REQUIRE(size == self->ranks / 2);

    /* All but the first. */
    ncclComm_t part = NULL;
    CHECK_NCCL(ncclCommSplit(self->world, self->rank == 0 ? NCCL_SPLIT_NOCOLOR : 7, -self->rank, &part, NULL));
    REQUIRE((part == NULL) == (self->rank == 0));
    if (part != NULL) {
        reset(self, self->a);
        CHECK_NCCL(ncclAllReduce(self->a, self->b, count, ncclFloat32, ncclSum, part, self->first));
        synchronize(self);
        expect_sum(self, self->b, 1, 1);
        CHECK_NCCL(ncclCommDestroy(part));
    }
}

static void* run_rank(void* argument)
{
    struct rank_state* const self = argument;
    int devices = 0;
    CHECK_CUDA(cudaGetDeviceCount(&devices));
    CHECK_CUDA(cudaSetDevice(self->rank % devices));
    CHECK_CUDA(cudaStreamCreateWithFlags(&self->first, cudaStreamNonBlocking));
    CHECK_CUDA(cudaStreamCreateWithFlags(&self->second, cudaStreamNonBlocking));
    CHECK_NCCL(ncclCommInitRank(&self->world, self->ranks, world_id, self->rank));
    self->a = make_values(self);
    self->b = make_values(self);
    make_parts(self);
    use_nested_groups(self);
    CHECK_NCCL(ncclCommDestroy(self->half));
    CHECK_NCCL(ncclCommDestroy(self->world));
    CHECK_CUDA(cudaFree(self->a));
    CHECK_CUDA(cudaFree(self->b));
    CHECK_CUDA(cudaStreamDestroy(self->first));
    CHECK_CUDA(cudaStreamDestroy(self->second));
    return NULL;
}

/* As a data loader does, while communicators live. */
static void fork_a_worker(void)
{
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) _exit(7);
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

/* The devices of one process, by one thread. */
static void use_all_devices(void)
{
    int devices = 0;
    CHECK_CUDA(cudaGetDeviceCount(&devices));
    if (devices > 2) devices = 2;
    ncclComm_t comms[2];
    float* values[2];
    CHECK_NCCL(ncclCommInitAll(comms, devices, NULL));
    CHECK_NCCL(ncclGroupStart());
    for (int d = 0; d < devices; ++d) {
        const float one = 1;
        CHECK_CUDA(cudaSetDevice(d));
        CHECK_CUDA(cudaMalloc((void**)&values[d], sizeof(float)));
        CHECK_CUDA(cudaMemcpy(values[d], &one, sizeof(float), cudaMemcpyHostToDevice));
        CHECK_NCCL(ncclAllReduce(values[d], values[d], 1, ncclFloat32, ncclSum, comms[d], NULL));
    }
    CHECK_NCCL(ncclGroupEnd());
    for (int d = 0; d < devices; ++d) {
        float sum = 0;
        CHECK_CUDA(cudaSetDevice(d));
        CHECK_CUDA(cudaMemcpy(&sum, values[d], sizeof(float), cudaMemcpyDeviceToHost));
        REQUIRE(sum == (float)devices);
        CHECK_CUDA(cudaFree(values[d]));
        if (d == 0) fork_a_worker();
        CHECK_NCCL(ncclCommDestroy(comms[d]));
    }
}

int main(void)
{
    const int process = atoi(environment("RANK"));
    const int processes = atoi(environment("WORLD_SIZE"));
    if (process == 0) CHECK_NCCL(ncclGetUniqueId(&world_id));
    share(&world_id, process == 0, "world");
    use_all_devices();
    pthread_t running[threads];
    struct rank_state states[threads];
    memset(states, 0, sizeof(states));
    for (int t = 0; t < threads; ++t) {
        states[t].rank = process * threads + t;
        states[t].ranks = processes * threads;
        REQUIRE(pthread_create(&running[t], NULL, run_rank, &states[t]) == 0);
    }
    for (int t = 0; t < threads; ++t) REQUIRE(pthread_join(running[t], NULL) == 0);
    printf("mixed: all right\n");
    (void)fflush(stdout);
    _exit(0);
}
