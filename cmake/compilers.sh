#!/bin/sh
# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
#
# compilers.sh [headers]
#
# Prints a table of compilers and what they say of collprobe: whether they accept all headers that need no library of a
# vendor, in one file (with `headers`, also each alone), and an audited step, without a warning; and whether that step
# runs. The newest clang++, with libc++, comes from PyPI's package ziglang (100 MB to load, 400 MB below
# build/compilers; ZIGLANG names another version, as "==0.17.1"); programs for ARM64 run in an emulator. A compiler
# that is absent has no row. nvcc compiles a probed all-reduce and a guarded gather for sm_90 and sm_120: the installed one,
# and the newest with its CCCL and NCCL, from PyPI's packages nvidia-cuda-* and nvidia-nccl-cu13 (700 MB). The first run
# takes 12 minutes on two cores, since libc++ is compiled. Exit status 1 if a compiler refuses something.
set -eu
cd "$(dirname -- "$0")/.."
work=$PWD/build/compilers
mkdir -p "$work"

if [ ! -x "$work/venv/bin/python" ]; then python3 -m venv "$work/venv"; fi
"$work/venv/bin/python" -m pip install -q --disable-pip-version-check "ziglang${ZIGLANG:-}" >&2 \
    || echo 'compilers.sh: ziglang was not installed: the rows of the newest clang++ are left out' >&2
# It says of -c that it is not used where it only checks.
newest="$work/venv/bin/python -m ziglang c++ -Wno-unused-command-line-argument"

headers=$(cd include && find collprobe -name '*.hpp' | grep -Ev '/detail/|/(cuda|nccl|mpi)(/|\.hpp)' | sort)
for header in $headers; do echo "#include <$header>"; done >"$work/all.cpp"

failed=0
# cell <name of the log> <command...>: "yes" or "NO", and the log of what was refused.
cell() {
    log="$work/$1.log"
    shift
    if "$@" >"$log" 2>&1; then
        result=yes
    else
        result=NO
        failed=1
        echo "compilers.sh: see $log" >&2
    fi
}

# row <C++ standard> <emulator, or nothing> <compiler and its options>
row() {
    standard=$1 emulator=$2
    shift 2
    # shellcheck disable=SC2086 # a command and its options
    version=$($1 --version 2>/dev/null | head -n 1) || return 0
    [ -n "$version" ] || return 0
    # shellcheck disable=SC2086
    set -- $1 -std=c++"$standard" -Wall -Wextra -Wconversion -Wshadow -Werror -I include
    name=$(echo "$version-$*" | tr -cs 'A-Za-z0-9+.\n' _ | cut -c 1-150)
    cell "$name.all" "$@" -c "$work/all.cpp" -o "$work/all.o"
    accepted=$result
    if [ "$mode" = headers ]; then
        for header in $headers; do
            echo "#include <$header>" >"$work/alone.cpp"
            cell "$name.$(echo "$header" | tr / _)" "$@" -c "$work/alone.cpp" -o "$work/alone.o"
            [ "$result" = yes ] || accepted=NO
        done
    fi
    cell "$name.step" "$@" -O2 examples/audit_with_alarms.cpp -pthread -o "$work/step"
    compiled=$result
    ran=-
    if [ "$compiled" = yes ] && { [ -z "$emulator" ] || command -v "$emulator" >/dev/null; }; then
        # shellcheck disable=SC2086 # no emulator is no word
        cell "$name.run" $emulator "$work/step"
        ran=$result
        grep -q 'result_differs: rank 3' "$work/$name.run.log" || ran=NO failed=1
    fi
    printf '%-58s %-8s %-8s %-8s %s\n' "$(echo "$version" | cut -c 1-40) $arch" "c++$standard" "$accepted" "$compiled" "$ran"
}

# cuda_row <nvcc> <folder of nccl.h>
cuda_row() {
    [ -x "$1" ] && [ -f "$2/nccl.h" ] || return 0
    version="nvcc $("$1" --version | sed -n 's/.*, V//p'), NCCL $(sed -n 's/#define NCCL_\(MAJOR\|MINOR\|PATCH\) //p' "$2/nccl.h" \
        | paste -sd.)"
    for architecture in 90 120; do
        cell "nvcc_$(echo "$version" | tr -cs 'A-Za-z0-9.\n' _)_$architecture" "$1" -std=c++20 -arch=sm_$architecture -I include \
            -isystem "$2" -Werror all-warnings -Xcompiler -Wall,-Wextra,-Werror -c tests/cuda/warnings.cu -o "$work/step.o"
        printf '%-58s %-8s %-8s %-8s %s\n' "$version sm_$architecture" c++20 - "$result" -
    done
}

mode=${1:-}
printf '%-58s %-8s %-8s %-8s %s\n' compiler standard headers step runs
for standard in 20 2b; do # clang++ 14 has no name for 23 yet
    arch=''
    row "$standard" '' "${CXX:-g++}"
    row "$standard" '' clang++
    arch='libc++'
    row "$standard" '' "$newest -target x86_64-linux-musl"
    arch='libc++, ARM64'
    row "$standard" qemu-aarch64-static "$newest -target aarch64-linux-musl"
    arch='ARM64'
    row "$standard" qemu-aarch64-static 'aarch64-linux-gnu-g++ -static'
done
nvcc=$(command -v "${CUDACXX:-nvcc}" || echo /usr/local/cuda/bin/nvcc)
for folder in "${NCCL_HOME:-/usr}/include" "$(dirname -- "$nvcc")/../include"; do
    if [ -f "$folder/nccl.h" ]; then break; fi
done
cuda_row "$nvcc" "$folder"
"$work/venv/bin/python" -m pip install -q --disable-pip-version-check nvidia-cuda-nvcc nvidia-cuda-runtime nvidia-cuda-cccl \
    nvidia-nccl-cu13 >&2 || echo 'compilers.sh: the packages of CUDA were not installed: the rows of the newest nvcc are left out' >&2
for found in "$work"/venv/lib/python3*/site-packages/nvidia; do cuda_row "$found/cu13/bin/nvcc" "$found/nccl/include"; done
exit "$failed"
