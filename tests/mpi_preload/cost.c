/* SPDX-FileCopyrightText: The collprobe authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * How long an all-reduce takes: cost ELEMENTS CALLS prints the median and the best time of a call, of rank 0. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int compare(const void* a, const void* b)
{
    const double left = *(const double*)a, right = *(const double*)b;
    return (left > right) - (left < right);
}

int main(int argc, char** argv)
{
    MPI_Init(&argc, &argv);
    const int count = atoi(argv[1]), calls = atoi(argv[2]);
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    float* const send = malloc(sizeof(float) * (size_t)count);
    float* const sums = malloc(sizeof(float) * (size_t)count);
    double* const times = malloc(sizeof(double) * (size_t)calls);
    srand((unsigned)rank + 1);
    for (int at = 0; at < count; ++at) send[at] = (float)rand() / (float)RAND_MAX - 0.5f;
    for (int call = 0; call < calls; ++call) {
        send[call % count] = (float)rand() / (float)RAND_MAX; /* another gradient each time */
        MPI_Barrier(MPI_COMM_WORLD);
        const double begin = MPI_Wtime();
        MPI_Allreduce(send, sums, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        times[call] = MPI_Wtime() - begin;
    }
    qsort(times, (size_t)calls, sizeof(double), compare);
    if (rank == 0) printf("median %.3f ms, best %.3f ms\n", times[calls / 2] * 1e3, times[0] * 1e3);
    MPI_Finalize();
    return 0;
}
