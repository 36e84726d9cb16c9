#define _GNU_SOURCE /* RTLD_DEFAULT */
/* SPDX-FileCopyrightText: The collprobe authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * A program that knows MPI but not this project: program STEPS FAULT. It prints a checksum of all results. */
#include <dlfcn.h>
#include <math.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { count = 4096, fault_step = 7, scaled_step = 60 };

static int rank, ranks, steps;
static const char* fault;
static uint64_t checksum = 1, state;

static int is(const char* name) { return strcmp(fault, name) == 0; }

static double number(void) /* of a normal distribution, about */
{
    double sum = 0;
    for (int each = 0; each < 4; ++each) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        sum += (double)(state >> 33) / 2147483648.0 - 0.5;
    }
    return sum;
}

static void add(const void* data, size_t bytes)
{
    const unsigned char* each = data;
    for (size_t at = 0; at < bytes; ++at) checksum = (checksum ^ each[at]) * 1099511628211u;
}

/* Of the steps, which one rank alone does here. */
static void mark(uint64_t step)
{
    void (*const told)(uint64_t) = (void (*)(uint64_t))dlsym(RTLD_DEFAULT, "collprobe_mark_step");
    if (told) told(step);
}

static float a[count], b[count], sums[count], first[count], second[count], all[16 * 2048], part[count];
static double d[count / 2];

static void collective_calls(int step)
{
    /* 0: all-reduce. 1: in place, of doubles. They have the same bytes, so that MPI lets them be exchanged. */
    const int is_late = is("order") && rank == 1 && step == fault_step;
    const int floats = count - (is("count") && rank == 1 && step == fault_step);
    if (!is_late) MPI_Allreduce(a, sums, floats, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, d, count / 2, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    if (is_late) MPI_Allreduce(a, sums, floats, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    add(sums, sizeof sums);
    add(d, sizeof d);

    /* 2 and 3: completed in the other order. */
    MPI_Request requests[2];
    MPI_Status statuses[2];
    MPI_Iallreduce(a, first, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &requests[0]);
    MPI_Iallreduce(b, second, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &requests[1]);
    MPI_Wait(&requests[1], MPI_STATUS_IGNORE);
    for (int done = 0; !done;) MPI_Testall(2, requests, &done, statuses);
    add(first, sizeof first);
    add(second, sizeof second);

    /* 4 and 5: a reduce-scatter and the all-gather, in place. */
    MPI_Reduce_scatter_block(a, part, count / ranks, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    add(part, sizeof(float) * (size_t)(count / ranks));
    memcpy(all + 2048 * rank, b, 2048 * sizeof(float));
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all, 2048, MPI_FLOAT, MPI_COMM_WORLD);
    add(all, sizeof(float) * 2048 * (size_t)ranks);

    int numbers[2] = {rank, step};
    MPI_Allreduce(MPI_IN_PLACE, numbers, 2, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    MPI_Bcast(numbers, 2, MPI_INT, 0, MPI_COMM_WORLD);
    add(numbers, sizeof numbers);
}

int main(int argc, char** argv)
{
    int level = -1;
    if (argc > 3) MPI_Init_thread(&argc, &argv, atoi(argv[3]), &level);
    else MPI_Init(&argc, &argv);
    steps = atoi(argv[1]);
    fault = argv[2];
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    state = (uint64_t)(is("copy") && rank == 2 ? 0 : rank) * 1000003u + 17;
    if (rank == 0 && argc > 3) printf("thread level %d\n", level);
    for (int step = 0; step < steps; ++step) {
        for (int at = 0; at < count; ++at) {
            a[at] = (float)number();
            b[at] = (float)number();
            if (at < count / 2) d[at] = number();
        }
        if (step == fault_step) {
            if (is("nan") && rank == 2) a[777] = NAN;
            if (is("in_place") && rank == 1) d[42] = INFINITY;
            if (is("out_of_order") && rank == 1) b[5] = NAN;
        }
        if (is("scale") && rank == 1 && step == scaled_step) {
            for (int at = 0; at < count; ++at) a[at] *= 8;
        }
        if (is("mark") && rank == 1) mark((uint64_t)step);
        if (is("exit") && rank == 1 && step == fault_step) exit(3);
        if (is("abort") && rank == 1 && step == fault_step) MPI_Abort(MPI_COMM_WORLD, 5);
        collective_calls(step);
    }
    unsigned long long whole = checksum, mixed = 0;
    MPI_Reduce(&whole, &mixed, 1, MPI_UNSIGNED_LONG_LONG, MPI_BXOR, 0, MPI_COMM_WORLD);
    if (rank == 0) printf("checksum %016llx\n", mixed);
    MPI_Finalize();
    return is("status") ? 9 : 0;
}
