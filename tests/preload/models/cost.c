/* SPDX-FileCopyrightText: The collprobe authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * What a call costs, in ns: the best of many rounds. */
#include "nccl.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

int main(void)
{
    enum { rounds = 60, calls = 20000 };
    ncclComm_t comm = NULL;
    ncclUniqueId id;
    memset(&id, 1, sizeof id);
    if (ncclCommInitRank(&comm, 2, id, 0) != 0) return 2;
    double data = 1e9, group = 1e9, poll = 1e9;
    for (int round = 0; round < rounds; ++round) {
        int bad = 0, state = 0;
        const double begin = now_ns();
        for (int call = 0; call < calls; ++call) bad |= ncclAllReduce(&id, &id, 32, 7, 0, comm, NULL);
        const double middle = now_ns();
        for (int call = 0; call < calls; ++call) bad |= ncclGroupStart() | ncclGroupEnd();
        const double later = now_ns();
        for (int call = 0; call < calls; ++call) bad |= ncclCommGetAsyncError(comm, &state);
        const double end = now_ns();
        if (bad != 0) return 3;
        data = (middle - begin) / calls < data ? (middle - begin) / calls : data;
        group = (later - middle) / calls < group ? (later - middle) / calls : group;
        poll = (end - later) / calls < poll ? (end - later) / calls : poll;
    }
    printf("all-reduce %.1f ns, group start and end %.1f ns, poll %.1f ns\n", data, group, poll);
    return 0;
}
