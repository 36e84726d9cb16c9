#!/bin/sh
# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
#
# ranks.sh N PROGRAM [ARGUMENT]...: N ranks of one job on one GPU, over NCCL itself. NCCL refuses two ranks on one device
# of one host, and takes processes with different values of NCCL_HOSTID for hosts of their own: they meet by sockets of
# the loopback interface. So values, orders, errors and captures are real, and times of collectives are not.
#
# Rank r writes to $LOG/rank<r> (LOG: a folder). Each process may take LIMIT seconds (60), or RANKS_LIMIT if that is set.
# Exit status: that of the lowest rank that failed, whose last lines are printed, or 0.
set -u
ranks=$1
shift
LOG=${LOG:-$(mktemp -d)}
mkdir -p "$LOG" || exit 2
meeting=$(mktemp -d) || exit 2
trap 'rm -rf "$meeting"' EXIT
pids=""
rank=0
while [ "$rank" -lt "$ranks" ]; do
    RANK=$rank WORLD_SIZE=$ranks LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 \
        NCCL_COMM_ID="127.0.0.1:$((20000 + $$ % 20000))" RANKS_FOLDER="$meeting" \
        NCCL_HOSTID="host$rank" NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 \
        timeout -k 5 "${RANKS_LIMIT:-${LIMIT:-60}}" "$@" >"$LOG/rank$rank" 2>&1 &
    pids="$pids $!"
    rank=$((rank + 1))
done
status=0
rank=0
for pid in $pids; do
    wait "$pid"
    code=$?
    if [ "$status" -eq 0 ] && [ "$code" -ne 0 ]; then
        status=$code
        echo "rank $rank ended with status $code:"
        tail -n 20 "$LOG/rank$rank"
    fi
    rank=$((rank + 1))
done
exit "$status"
