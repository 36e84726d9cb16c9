#!/bin/sh
# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
#
# compile_time.sh [headers]
#
# Measures what collprobe costs its users: CPU seconds (user and system) of the compiler, above a file that
# includes only what every such file includes anyway, and the size of the object. Prints a table with the goals.
# Indented rows are of the compiled form. With `headers`, a second table has each public header. Of RUNS compilations
# (3) the fastest counts, since other work on the machine can only add. CXX and CUDACXX choose the compilers; without nvcc the CUDA rows are left out.
# Exit status 1 if a row misses its goal and STRICT is set.
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
cxx=${CXX:-g++}
cuda=${CUDACXX:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
runs=${RUNS:-3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

printf '#include <%s>\n' string vector >std.cpp
printf '#include <%s>\n' cuda_runtime.h >runtime.cu
echo '#include <collprobe/collprobe.hpp>' >umbrella.cpp
echo '#include <collprobe/collprobe.cuh>' >umbrella.cu
# What a trainer's file has: a probe, one probed call a step, the end of the step and the records.
call() {
    printf '#include <collprobe/collprobe.%s>\nusing namespace collprobe;\n' "$1"
    echo "void step($2& world, view<bfloat16> gradient, $3 stream, step_record& record) {"
    echo '    probed comm{world};'
    echo '    comm.all_reduce(gradient, gradient, reduction::average, stream);'
    echo '    comm.end_step(0, {.loss = 0.5}, stream);'
    echo '    (void)comm.poll(record);'
    echo '}'
}
call hpp local::communicator host::stream_ref >call.cpp
call cuh nccl::communicator_ref collprobe::cuda::stream_ref >call.cu

# CPU seconds of one compilation of $1 with the options behind it.
compile() {
    file=$1
    shift
    case $file in
    *.cu) set -- "$cuda" -std=c++20 -arch=sm_90 "$@" ;;
    *) set -- "$cxx" -std=c++20 "$@" ;;
    esac
    (
        "$@" -I "$root/include" -c "$file" -o "$file.o" >&2 || exit 1
        times >times.txt
        tail -n 1 times.txt
    ) | awk '{ sum = 0; for (i = 1; i <= 2; ++i) { split($i, part, "m"); sum += part[1] * 60 + part[2] } print sum }'
}

# The fastest of several; nothing if the file does not compile.
seconds() {
    count=0
    while [ "$count" -lt "$runs" ]; do
        compile "$@"
        count=$((count + 1))
    done | sort -n | head -n 1
}

missed=0
# row <label> <baseline's seconds> <goal in s> <goal in KB, or -> <file> <option ...>
row() {
    label=$1 baseline=$2 goal=$3 most_kb=$4
    shift 4
    took=$(seconds "$@")
    if [ -z "$took" ]; then
        echo "compile_time.sh: $label does not compile" >&2
        exit 1
    fi
    kb=$(($(wc -c <"$1.o") / 1024))
    [ "$most_kb" != - ] || kb=-
    verdict=$(awk -v t="$took" -v b="$baseline" -v g="$goal" -v k="$kb" -v m="$most_kb" \
        'BEGIN { print (t - b > g || (m != "-" && k > m)) ? "missed" : "met" }')
    [ "$verdict" = met ] || missed=1
    awk -v l="$label" -v t="$took" -v b="$baseline" -v g="$goal" -v k="$kb" -v m="$most_kb" -v v="$verdict" \
        'BEGIN { printf "%-52s %6.2f %6.2f %6.1f %6s %6s  %s\n", l, t, t - b, g, k, m, v }'
}

"$cxx" -std=c++20 -I "$root/include" -E umbrella.cpp >/dev/null # fills the file cache
std_O0=$(seconds std.cpp -O0)
std_O2=$(seconds std.cpp -O2)
printf '%-52s %6s %6s %6s %6s %6s\n' 'CPU seconds' 'took' 'above' 'goal' 'KB' 'goal'
printf '%-52s %6.2f\n' '<string> and <vector>, -O0' "$std_O0"
row 'collprobe.hpp, -O0' "$std_O0" 0.5 - umbrella.cpp -O0
row 'a probed all-reduce of bfloat16, local, -O2' "$std_O2" 4 - call.cpp -O2
row '  collprobe::compiled: the all-reduce' "$std_O2" 2.4 - call.cpp -O2 -DCOLLPROBE_COMPILED
if [ -x "$cuda" ] || command -v "$cuda" >/dev/null; then
    runtime=$(seconds runtime.cu -O3)
    printf '%-52s %6.2f\n' '<cuda_runtime.h>, nvcc -O3, sm_90' "$runtime"
    row 'collprobe.cuh, nvcc -O3, sm_90' "$runtime" 3 - umbrella.cu -O3
    if printf '#include <nccl.h>\n' >nccl.cu && compile nccl.cu >/dev/null 2>&1; then
        row 'a probed all-reduce of bfloat16, NCCL, nvcc -O3' "$runtime" 10 300 call.cu -O3
        row '  collprobe::compiled_cuda: the all-reduce' "$runtime" 10 300 call.cu -O3 \
            -DCOLLPROBE_COMPILED -DCOLLPROBE_COMPILED_CUDA
    else
        echo 'nccl.h was not found: the row of a probed all-reduce is left out'
    fi
else
    echo 'nvcc was not found: the rows of CUDA are left out'
fi

if [ "${1:-}" = headers ]; then
    echo
    printf '%-52s %6s %6s\n' "-O0, above <string> and <vector> ($std_O0 s)" 'took' 'above'
    find "$root/include/collprobe" -name '*.hpp' | sed "s|^$root/include/||" \
        | grep -Ev '/detail/|/(cuda|nccl|mpi)(/|\.hpp)' | while read -r header; do
        echo "#include <$header>" >header.cpp
        took=$(seconds header.cpp -O0)
        echo "$header $took $std_O0" | awk '{ printf "%-52s %6.2f %6.2f\n", $1, $2, $2 - $3 }'
    done | sort -k3 -n -r
fi
[ -z "${STRICT:-}" ] || exit "$missed"
