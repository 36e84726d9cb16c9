/* SPDX-FileCopyrightText: The collprobe authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Collective calls on other communicators than the world, some of them short-lived: communicators FAULT. */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { count = 4096, steps = 60 };

static float a[count], sums[count];

int main(int argc, char** argv)
{
    MPI_Init(&argc, &argv);
    const int is_faulty = strcmp(argv[1], "nan") == 0;
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm rows, copy, self, brief;
    MPI_Comm_split(MPI_COMM_WORLD, rank / 2, rank, &rows);
    MPI_Comm_set_name(rows, "rows");
    MPI_Comm_dup(MPI_COMM_WORLD, &copy);
    MPI_Comm_dup(MPI_COMM_SELF, &self);
    srand((unsigned)rank + 1);
    double total = 0;
    for (int step = 0; step < steps; ++step) {
        for (int at = 0; at < count; ++at) a[at] = (float)rand() / (float)RAND_MAX - 0.5f;
        if (is_faulty && rank == 3 && step == 40) a[9] = NAN;
        MPI_Allreduce(a, sums, count, MPI_FLOAT, MPI_SUM, rows);
        total += sums[1];
        a[9] = 0;
        if (is_faulty && rank == 1 && step == 50) a[11] = INFINITY;
        MPI_Allreduce(a, sums, count, MPI_FLOAT, MPI_SUM, copy);
        total += sums[1];
        MPI_Allreduce(a, sums, count, MPI_FLOAT, MPI_SUM, self);
        if (step % 10 == 3) {
            MPI_Comm_dup(rows, &brief);
            MPI_Allreduce(a, sums, count, MPI_FLOAT, MPI_SUM, brief);
            MPI_Comm_free(&brief);
        }
        if (step == 55) { /* freed while its steps are under way, and made again */
            MPI_Comm_free(&rows);
            MPI_Comm_split(MPI_COMM_WORLD, rank / 2, rank, &rows);
        }
    }
    MPI_Comm_free(&copy);
    if (rank == 0) printf("total %a\n", total);
    MPI_Finalize();
    return 0;
}
