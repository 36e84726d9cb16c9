#!/bin/sh
# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
#
# check_headers.sh include/collprobe: names every line that includes what it may not, and every
# public header that the umbrella lacks. Exit status 1 if there is any.
set -eu
cd "$1"

{
    # Each of these alone costs an including file more than all of collprobe.
    heavy='cmath|memory|thread|functional|immintrin\.h|iostream|sstream|chrono|regex|map|unordered_map'
    grep -rnE "^[[:space:]]*#[[:space:]]*include[[:space:]]*<($heavy)>" --include='*.hpp' . |
        sed -E 's/(<[^>]*>).*/\1 is too costly to include/'

    # Vendors' headers, and the headers that need them, stay behind the files that are named for them.
    vendors='cuda[^>"]*|nvtx3/[^>"]*|nccl[^>"]*|mpi\.h|collprobe/device/(detail/)?cuda[^>"]*|collprobe/comm/(detail/)?(nccl|mpi)[^>"]*'
    grep -rnE "^[[:space:]]*#[[:space:]]*include[[:space:]]*[<\"]($vendors)[>\"]" --include='*.hpp' . |
        grep -vE '^\./(device/(detail/)?cuda|comm/(detail/)?(nccl|mpi)|guard/(cuda|nccl))' |
        sed -E 's/$/ (only files that are named cuda*, nccl* or mpi* may)/'

    # What only nvcc compiles stays out of every .hpp.
    kernels='cub/[^>"]*|thrust/[^>"]*|cooperative_groups[^>"]*|device_launch_parameters\.h|[^>"]*\.cuh'
    grep -rnE "^[[:space:]]*#[[:space:]]*include[[:space:]]*[<\"]($kernels)[>\"]" --include='*.hpp' . |
        sed -E 's/$/ (only a .cuh may)/'

    # A reader of the umbrella gets every public header that needs nothing but a C++ compiler, but for what is
    # costly and for one file of a program: comm/bootstrap* (sockets and files), the inspector of reductions,
    # the checker of stream order, and what has an umbrella of its own: integrity/.
    find . -name '*.hpp' ! -path '*/detail/*' ! -path './device/cuda*' ! -path './comm/nccl*' ! -path './comm/mpi*' \
        ! -path './guard/cuda*' ! -path './guard/nccl*' ! -path './comm/bootstrap*' ! -path './reduce/inspect*' \
        ! -path './report/inspection*' ! -path './guard/stream_*' ! -path './integrity/*' ! -name integrity.hpp \
        ! -path './collprobe.hpp' | sort | while read -r header; do
        grep -q "^#include <collprobe/${header#./}>" collprobe.hpp ||
            echo "${header#./} is missing from collprobe.hpp"
    done
    find integrity -name '*.hpp' ! -path '*/detail/*' 2>/dev/null | sort | while read -r header; do
        grep -q "^#include <collprobe/$header>" integrity.hpp || echo "$header is missing from integrity.hpp"
    done
} | {
    found=0
    while read -r line; do
        echo "$line"
        found=1
    done
    exit "$found"
}
