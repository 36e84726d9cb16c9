/* SPDX-FileCopyrightText: The collprobe authors
 * SPDX-License-Identifier: Apache-2.0
 * The example of include/collprobe/c/README.md as a program: four ranks, threads here, add their gradients. */
#if !defined(_POSIX_C_SOURCE)
#define _POSIX_C_SOURCE 200809L
#endif
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* include/collprobe/c/README.md has these lines: */
#include <collprobe/c/collprobe.h>

static void check(collprobeResult_t result)
{
    if (result != collprobeSuccess && result != collprobeNotReady) fprintf(stderr, "%s\n", collprobeGetLastError());
}
/* end */

enum { ranks = 4, count = 1000 };

/* What an MPI program has: here all ranks are in one process. */
struct world {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int here;
    unsigned round;
    const void* sent[ranks];
};
static struct world trainers = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, {NULL}};
static struct world probes = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, {NULL}};

struct rank {
    int number;
};

static void meet(struct world* w)
{
    pthread_mutex_lock(&w->lock);
    {
        const unsigned round = w->round;
        if (++w->here == ranks) {
            w->here = 0;
            ++w->round;
            pthread_cond_broadcast(&w->changed);
        }
        while (w->round == round) pthread_cond_wait(&w->changed, &w->lock);
    }
    pthread_mutex_unlock(&w->lock);
}

static int all_gather(void* context, const void* send, void* receive, size_t bytes)
{
    int r;
    probes.sent[((struct rank*)context)->number] = send;
    meet(&probes);
    for (r = 0; r < ranks; ++r) memcpy((char*)receive + (size_t)r * bytes, probes.sent[r], bytes);
    meet(&probes);
    return 0;
}

static float gradients[ranks][count];
static void compute(int rank, int step)
{
    int i;
    for (i = 0; i < count; ++i) gradients[rank][i] = (float)((i * 37 + step * 101 + rank * 13 + i * rank) % 97) - 48.0f;
    if (rank == 2 && step == 5) gradients[rank][77] = (float)NAN;
}
static double sum_over_ranks(float* gradient)
{
    float sum[count];
    double loss = 0;
    int r, i;
    meet(&trainers); /* all have their gradients */
    for (i = 0; i < count; ++i) {
        sum[i] = 0;
        for (r = 0; r < ranks; ++r) sum[i] += gradients[r][i];
        loss += 1e-3 * fabs((double)gradient[i]);
    }
    meet(&trainers); /* all have read them */
    memcpy(gradient, sum, sizeof sum);
    return loss;
}

static void* train(void* argument)
{
    struct rank* const self = argument;
    const int rank = self->number;
    float* const gradient = gradients[rank];
    int step;
    double loss;

    /* include/collprobe/c/README.md has these lines: */
    collprobeProbe_t probe;
    collprobeOptions_t options = COLLPROBE_OPTIONS_INIT;
    collprobeStep_t seen = COLLPROBE_STEP_INIT;
    options.allGather = all_gather; /* int all_gather(void* context, const void* send, void* receive, size_t bytes) */
    options.context = self;
    check(collprobeCreate(&probe, rank, ranks, &options));
    for (step = 0; step < 10; ++step) {
        uint64_t token, i;
        collprobeFinding_t found = COLLPROBE_FINDING_INIT;
        compute(rank, step);
        check(collprobeObserveInput(probe, collprobeAllReduceCall, collprobeFloat32, collprobeSum, gradient, count,
            "wte", NULL, &token));
        loss = sum_over_ranks(gradient); /* MPI_Allreduce(MPI_IN_PLACE, gradient, ...) */
        check(collprobeObserveResult(probe, token, gradient, count, NULL));
        seen.loss = loss;
        check(collprobeEndStep(probe, (uint64_t)step, &seen, NULL));
        while (collprobePoll(probe, 0) == collprobeSuccess)
            for (i = 0; collprobeGetFinding(probe, i, &found) == collprobeSuccess; ++i)
                if (rank == 0) printf("step %d: %s\n", (int)found.step, found.text);
    }
    check(collprobeDestroy(probe));
    /* end */
    return NULL;
}

int main(void)
{
    pthread_t threads[ranks];
    struct rank members[ranks];
    int r;
    for (r = 0; r < ranks; ++r) {
        members[r].number = r;
        if (pthread_create(&threads[r], NULL, train, &members[r]) != 0) abort();
    }
    for (r = 0; r < ranks; ++r) pthread_join(threads[r], NULL);
    return 0;
}
