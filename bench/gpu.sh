#!/bin/sh
# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
#
# gpu.sh [SECONDS] [PART...]: what one GPU can tell about this project, within so many seconds (540). The parts, of
# which all run if none is named, in this order:
#   tests        all tests labelled gpu
#   nccl         four ranks on this GPU, over NCCL itself: trainers with and without faults, orders of NCCL's sums
#   ddp          PyTorch's DistributedDataParallel under the preload: the same weights, and faults that are named
#   bench        the benchmarks, whose results become bench/results/gpu_<name>.md
#   sanitizers   compute-sanitizer's memcheck, racecheck and initcheck on the gpu tests
# Each part has a limit, and none begins without time. The summary, at most 80 lines, is complete after each part. A second
# call goes on with what the first one built. Exit status 0: nothing failed; 1: something did; 2: there was nothing to do it with.
#
# gpu.sh prepare [built]: on a machine without a GPU, before its copy goes to one: puts the packages that a GPU machine
# lacks into .gpu (2 MB); built: all programs, too, for the architectures ARCH (90), so that nothing is built there.
# gpu.sh rehearse [PART...]: without a GPU what can be done without: tests, and benchmarks at small sizes. A CPU executes
# the kernels' PTX (preset emulated). All stays in build/gpu_emulated.
#
# Needs a GPU, nvcc and CMake (not if it was built before), doctest, Google Benchmark and nlohmann-json (.gpu has them); for
# ddp PyTorch. From the environment:
#   CUDACXX, NCCL_HOME   nvcc, prefix of NCCL           BUILD, RESULTS  instead of build/gpu, bench/results
#   BUILT    1: all programs are in BUILD already       OUT, NAME       of summaries and logs, of the table
#   ARCH     architectures                              COMMIT          what to call the sources, where git cannot tell
#   JOBS     compilations at a time                     TEST_FILTER     regular expression of tests
#   SANITIZE        regular expression of "tool program"; SANITIZER_LIMIT seconds for each (60), SANITIZER_JOBS at a time (8)
#   BENCH_FILTER    regular expression of cases; by default those that decide, at most 256 MiB and 1 GiB
#   COLLPROBE_BENCH_BYTES   most bytes of a buffer, for a run that times nothing (rehearse: 65536)
set -u
root=$(CDPATH='' cd -- "$(dirname -- "$(readlink -f -- "$0")")/.." && pwd) || exit 2
cd "$root" || exit 2
jobs=${JOBS:-$(nproc 2>/dev/null || echo 2)}
begin=$(date +%s)
failed=0

die() {
    echo "gpu.sh: $*" >&2
    [ -z "${told:-}" ] || tell "gpu.sh: $*"
    exit 2
}

nvcc=${CUDACXX:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
mode=gpu
case ${1:-} in
prepare | rehearse)
    mode=$1
    shift
    ;;
esac
budget=540
case ${1:-} in
'' | *[!0-9]*) ;;
*)
    budget=${1#"${1%%[!0]*}"} # a number that begins with 0 is octal elsewhere
    budget=${budget:-0}
    shift
    [ "$mode" = gpu ] || die "$mode takes no seconds"
    ;;
esac
left() { echo $((budget - ($(date +%s) - begin))); }
at_most() { # at_most <seconds> <command>...: no longer than that and what is left
    seconds=$1
    shift
    [ "$mode" != gpu ] || [ "$seconds" -le "$(left)" ] || seconds=$(left)
    [ "$seconds" -ge 1 ] || return 124
    timeout -k 2 "$seconds" "$@"
}

# configure <build> <architectures>: CMake's output goes to $1/configure.log.
configure() {
    generator=Ninja
    command -v ninja >/dev/null 2>&1 || generator="Unix Makefiles"
    mkdir -p "$1"
    at_most 3600 cmake --preset "$preset" -B "$1" -G "$generator" -DCMAKE_CUDA_COMPILER="$nvcc" -DCMAKE_CUDA_ARCHITECTURES="$2" \
        -DCOLLPROBE_GPU_TEST_ARCHITECTURES="$2" -DCMAKE_COMPILE_WARNING_AS_ERROR=OFF -DCMAKE_BUILD_RPATH_USE_ORIGIN=ON \
        -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON ${DEPENDENCIES:+-DCMAKE_PREFIX_PATH="$DEPENDENCIES"} \
        >"$1/configure.log" 2>&1
}
build_preload() { # build_preload <build> <architectures>, installed into <build>/installed
    cmake --preset preload -B "$1/preload" -DCMAKE_CUDA_COMPILER="$nvcc" -DCMAKE_CUDA_ARCHITECTURES="$2" \
        ${DEPENDENCIES:+-DCMAKE_PREFIX_PATH="$DEPENDENCIES"} \
        && cmake --build "$1/preload" -j "$jobs" --target preload && cmake --install "$1/preload" --prefix "$1/installed"
}

prepare() {
    case ${1:-} in
    '' | built) ;;
    *) die "prepare: '$1' is not built" ;;
    esac
    prefix=.gpu/prefix
    rm -rf .gpu
    mkdir -p $prefix/include $prefix/lib/cmake
    for name in doctest benchmark nlohmann; do
        [ -d "/usr/include/$name" ] || die "prepare: /usr/include/$name was not found (sh cmake/setup.sh all)"
        cp -rL "/usr/include/$name" $prefix/include/
    done
    libraries=/usr/lib/$(gcc -print-multiarch)
    for library in "$libraries"/libbenchmark.so "$libraries"/libbenchmark_main.so; do # no links: files alone may be carried
        [ -e "$library" ] || continue
        cp -L "$library" $prefix/lib/ && cp -L "$library" "$prefix/lib/$(objdump -p "$library" | awk '$1 == "SONAME" {print $2}')"
    done
    main=libbenchmark_main.a # as Debian has it
    if [ -e "$libraries/$main" ]; then cp "$libraries/$main" $prefix/lib/; else main=libbenchmark_main.so; fi
    # Packages as CMake finds them, without paths of this machine.
    package() { # package <name> <target> [<library> [<what it links>]]
        mkdir -p "$prefix/lib/cmake/$1"
        kind=INTERFACE location=
        [ $# -le 2 ] || kind=UNKNOWN location=" IMPORTED_LOCATION \"\${prefix}/lib/$3\""
        cat >>"$prefix/lib/cmake/$1/$1Config.cmake" <<END
get_filename_component(prefix "\${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
find_package(Threads REQUIRED)
if(NOT TARGET $2)
add_library($2 $kind IMPORTED)
set_target_properties($2 PROPERTIES INTERFACE_LINK_LIBRARIES "Threads::Threads;${4:-}"$location)
target_include_directories($2 INTERFACE "\${prefix}/include")
endif()
END
    }
    package doctest doctest::doctest
    package nlohmann_json nlohmann_json::nlohmann_json
    package benchmark benchmark::benchmark libbenchmark.so
    package benchmark benchmark::benchmark_main "$main" benchmark::benchmark
    git rev-parse --short HEAD >.gpu/commit 2>/dev/null || echo "not known" >.gpu/commit
    [ "${1:-}" = built ] || return 0
    DEPENDENCIES=$root/$prefix
    build=$root/build/gpu
    arch=${ARCH:-90}
    preset=cuda
    configure "$build" "$arch" || die "CMake cannot configure this (build/gpu/configure.log)"
    cmake --build "$build" -j "$jobs" --target cuda_tests cuda_benches inspect_all_reduce || die "not all of it is built"
    build_preload "$build" "$arch" || die "the preload is not built"
    (cd "$build" && find tests bench examples installed -type f -perm -u+x ! -name '*.sh' -exec strip -s {} + 2>/dev/null
        cmake=$(sed -n 's/^CMAKE_COMMAND:INTERNAL=//p' CMakeCache.txt)
        python=$(sed -n 's/^[_A-Za-z]*Python3_EXECUTABLE:[A-Z]*=//p' CMakeCache.txt | head -n 1)
        find . -name CTestTestfile.cmake -exec sed -i \
            "s#\"$cmake\"#\"@CMAKE@\"#; s#${python:-no python}#@PYTHON@#g; s#$root#@ROOT@#g" {} +
        { find . -name CTestTestfile.cmake && find tests bench examples installed -type f -perm -u+x \
            && find installed examples/data -type f && find . -name scratch -type d -prune; } | sort -u \
            | tar -cf "$root/.gpu/built.tar" --no-recursion -T - \
        && xz -T 0 "$root/.gpu/built.tar") || die "the archive of programs is not complete"
    echo "$arch" >.gpu/architectures
}
if [ "${1:-}" = build_preload ]; then # its own process, which has a limit
    build_preload "$2" "$3"
    exit
fi
if [ "$mode" = prepare ]; then
    prepare "$@"
    du -sh .gpu
    exit
fi

[ $# -gt 0 ] || set -- tests nccl ddp bench sanitizers
for part in "$@"; do
    case $part in
    tests | nccl | ddp | bench | sanitizers) ;;
    *) die "no such part: $part (tests, nccl, ddp, bench, sanitizers)" ;;
    esac
done
parts=" $* "
wanted() { case $parts in *" $1 "*) return 0 ;; *) return 1 ;; esac; }

if [ "$mode" = rehearse ]; then
    budget=7200
    build=${BUILD:-build/gpu_emulated}
    results=${RESULTS:-$build}
    preset=emulated
    gpu=emulated
    driver=none
    arch=90-virtual
else
    build=${BUILD:-build/gpu}
    results=${RESULTS:-bench/results}
    preset=cuda
    command -v nvidia-smi >/dev/null 2>&1 || die "no GPU: nvidia-smi was not found"
    # One line: several GPUs are taken to be alike.
    query() { at_most 20 nvidia-smi --query-gpu="$1" --format=csv,noheader 2>/dev/null | head -n 1; }
    gpu=$(query name)
    driver=$(query driver_version)
    arch=${ARCH:-$(query compute_cap | tr -d ' .')}
    case $arch in
    '' | *[!0-9a-z]*) die "no GPU: nvidia-smi names none" ;;
    esac
fi
mkdir -p "$build" 2>/dev/null || die "cannot write to $build"
build=$(CDPATH='' cd -- "$build" && pwd)
case $build in *[[:space:]]*) die "a space in $build" ;; esac
out=${OUT:-$build/out}
logs=$build/log
summary=$out/summary_$1.txt
{ mkdir -p "$out" "$logs" && : >"$summary" && : >"$logs/told"; } 2>/dev/null || die "cannot write to $out or $logs"

told=$logs/told
# In the summary, too. Where all does not fit, it has what is not right in full, and of the rest a line for each part.
tell() {
    printf '%s\n' "$1" | cut -c1-220 | tee -a "$told"
    if [ "$(wc -l <"$told")" -le 79 ]; then cat "$told"; else
        awk 'NR == 1 || /^[^ ]|FAILED|no device|weights are|a step takes|clean:/ { keep = /FAILED|NOT RUN/; print; next }
            keep' "$told"
    fi | head -n 79 >"$summary"
}
bad() {
    tell "$1"
    failed=1
}
part() { # part <name> <limit> <command>...: its output goes to $logs/<name>
    name=$1
    limit=$2
    shift 2
    [ "$mode" = gpu ] || limit=3600 # on few processors
    [ "$limit" -le "$(left)" ] || limit=$(($(left) - 5))
    rm -f "$logs/$name"
    if [ "$limit" -lt 10 ]; then
        bad "-- $name: NOT RUN, no time left"
        return 1
    fi
    from=$(date +%s)
    # In a session of its own: what a part leaves behind, in whatever process group, ends with it.
    # shellcheck disable=SC2016 # of the inner shell
    setsid -w sh -c 'echo $$ >"$0"; exec timeout -k 5 "$@"' "$logs/session" "$limit" "$@" >"$logs/$name" 2>&1
    code=$?
    session=$(cat "$logs/session")
    for stat in /proc/[0-9]*/stat; do
        sed 's/.*) //' "$stat" 2>/dev/null | {
            read -r _ _ _ of _ && [ "$of" = "$session" ] && kill -9 "$(echo "$stat" | tr -dc 0-9)"
        } 2>/dev/null
    done
    case $code in
    "${expected:-0}") tell "-- $name: $(($(date +%s) - from)) s" ;;
    124 | 137) bad "-- $name: FAILED, not finished in $limit s" ;;
    *) bad "-- $name: FAILED with status $code, $(($(date +%s) - from)) s" ;;
    esac
    return "$code"
}
show() { # show <lines> <log>: its end
    [ ! -f "$logs/$2" ] || tail -n "$1" "$logs/$2" | while IFS= read -r line; do tell "   $line"; done
}
four() { # four <name> <limit> <lines> <program> [<argument>...]: four ranks; of rank 0 the last lines
    label=$1
    seconds=$2
    lines=$3
    shift 3
    [ -x "$1" ] || [ "$1" = python3 ] || {
        bad "-- $label: FAILED, $1 was not built"
        return 1
    }
    rm -rf "$logs/ranks_$label"
    LOG=$logs/ranks_$label LIMIT=$seconds part "$label" $((seconds + 5)) sh bench/gpu/ranks.sh 4 "$@"
    code=$?
    show "$lines" "ranks_$label/rank0"
    return $code
}

ctest_part() { # ctest_part <name> <limit> <lines> <argument of ctest>...: of its output what failed
    name=$1
    limit=$2
    lines=$3
    shift 3
    part "$name" "$limit" ctest --test-dir "$build" --output-on-failure --no-tests=error "$@"
    sed -n '/tests passed/p; /FAILED:$/,$p' "$logs/$name" >"$logs/${name}_failed" 2>/dev/null
    show "$lines" "${name}_failed"
    if grep -qs '\*\*\*Skipped' "$logs/$name"; then bad "   $(grep -c '\*\*\*Skipped' "$logs/$name") tests found no device"; fi
}

DEPENDENCIES=${DEPENDENCIES:-}
[ -n "$DEPENDENCIES" ] || [ ! -d .gpu/prefix ] || DEPENDENCIES=$root/.gpu/prefix
sources=$(git rev-parse --short HEAD 2>/dev/null)
[ -z "$(git status --porcelain -uno 2>/dev/null)" ] || sources="$sources with changes"
[ -n "$sources" ] || [ ! -f .gpu/commit ] || sources=$(cat .gpu/commit)
COMMIT=${COMMIT:-${sources:-not known}}

# NCCL of NVIDIA's Python package has no libnccl.so to link with.
if [ "$mode" = gpu ]; then
    package=$(at_most 30 python3 -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0])' 2>/dev/null)
    for prefix in ${NCCL_HOME:-} "$(dirname -- "$(dirname -- "$nvcc")")" /usr /usr/local "${package:-/nonexistent}"; do
        [ -f "$prefix/include/nccl.h" ] || continue
        library=$(find "$prefix"/lib* -name 'libnccl.so*' 2>/dev/null | head -n 1)
        [ -n "$library" ] || continue
        rm -rf "$build/nccl"
        mkdir -p "$build/nccl/lib" "$build/nccl/include"
        ln -s "$library" "$build/nccl/lib/libnccl.so"
        ln -s "$library" "$build/nccl/lib/libnccl.so.2"
        for header in "$prefix"/include/nccl*; do ln -s "$header" "$build/nccl/include/"; done
        export NCCL_ROOT="$build/nccl" NCCL_HOME="$build/nccl"
        break
    done
    [ -n "${NCCL_ROOT:-}" ] || bad "NCCL was not found (NCCL_HOME): what uses it is left out"
fi
LD_LIBRARY_PATH=${NCCL_ROOT:+$NCCL_ROOT/lib:}${DEPENDENCIES:+$DEPENDENCIES/lib:}${LD_LIBRARY_PATH:-}
export LD_LIBRARY_PATH

tell "gpu.sh$parts: $gpu, driver $driver, compiled for $arch, commit $COMMIT, $jobs processors"

# Programs: built before, carried, or built now.
if [ "${BUILT:-}" = 1 ]; then
    :
elif [ "$mode" = gpu ] && [ -f .gpu/built.tar.xz ] && [ "$(cat .gpu/architectures)" = "$arch" ]; then
    archive=$(cksum <.gpu/built.tar.xz)
    [ "$(cat "$build/carried" 2>/dev/null)" = "$archive" ] || part unpack 60 sh -c "tar -xJf .gpu/built.tar.xz -C '$build' \
        && find '$build' -name CTestTestfile.cmake -exec sed -i 's#@ROOT@/build/gpu#$build#g; s#@ROOT@#$root#g
            s#@CMAKE@#$(command -v cmake)#g; s#@PYTHON@#$(command -v python3)#g' {} + \
        && echo '$archive' >'$build/carried'" || die "the programs that were carried cannot be unpacked"
    carried=$(cat .gpu/commit)
    [ "${COMMIT%% *}" = "$carried" ] || tell "   the programs that were carried are those of commit $carried"
    COMMIT=$carried
else
    at_most 20 "$nvcc" --version >/dev/null 2>&1 || die "nvcc was not found (CUDACXX, PATH, /usr/local/cuda/bin)"
    targets=""
    if wanted tests || wanted nccl || wanted sanitizers; then targets="cuda_tests"; fi
    if wanted nccl && [ "$mode" = gpu ]; then targets="$targets inspect_all_reduce"; fi
    if wanted bench; then targets="$targets cuda_benches"; fi
    if [ -n "$targets" ]; then
        configure "$build" "$arch" || {
            tail -n 15 "$build/configure.log"
            die "CMake cannot configure this ($build/configure.log)"
        }
        # shellcheck disable=SC2086 # words
        part build 300 cmake --build "$build" -j "$jobs" --target $targets -- -k 0 || {
            grep -E 'error|FAILED' "$logs/build" | head -n 20 >"$logs/build_errors"
            show 10 build_errors
        }
    fi
fi

for part in ddp sanitizers; do
    if [ "$mode" = rehearse ] && wanted "$part"; then tell "-- $part: NOT RUN, needs a GPU"; fi
done
if [ "$mode" = rehearse ] && ! wanted tests && ! wanted nccl && ! wanted bench; then die "there is nothing to do without a GPU"; fi

if wanted tests; then
    at_a_time=4
    [ "$mode" = gpu ] || at_a_time=$jobs
    # Ranks that are processes have a part of their own; ptx tests the emulator.
    ctest_part tests 240 14 -L '^gpu$' -R "${TEST_FILTER:-.}" -E '^nccl_ranks|^gpu_sh|^ptx' -j "$at_a_time"
fi

if wanted nccl; then
    # Processes take turns on a GPU: more of them at a time end later.
    together=2
    if [ "$mode" = gpu ]; then export RANKS_LIMIT=50; else together=$jobs; fi
    ctest_part nccl_ranks 150 10 -R '^nccl_ranks' -j "$together"
    unset RANKS_LIMIT
fi
if wanted nccl && [ "$mode" = gpu ]; then
    for run in nccl "nccl_trainer_probed 30" "zero_trainer_probed 6" "zero_trainer_probed 6 nan" "zero_trainer_probed 6 bit" \
        "zero_trainer_probed 6 stale" check_foreign_streams; do
        # shellcheck disable=SC2086 # words
        set -- $run
        program=$build/examples/$1
        shift
        four "$(echo "$run" | tr ' ' '_')" 40 3 "$program" "$@"
    done
    for how in default ring,simple ring,ll tree,simple tree,ll; do
        algorithm=${how%,*}
        protocol=${how#*,}
        # Other collectives know no tree.
        [ "$how" = default ] || export NCCL_ALGO="allreduce:$algorithm;allgather:ring;broadcast:ring;reducescatter:ring" \
            NCCL_PROTO="$protocol"
        four "inspect_$(echo "$how" | tr , _)" 40 4 "$build/examples/inspect_all_reduce" --communicator nccl --types float,bfloat16 \
            -b 4K -e 64K -w 1 -n 2 --verbose
    done
    unset NCCL_ALGO NCCL_PROTO
fi

ddp_under_preload() { # ddp_under_preload <name> <argument>...: what the records say of it
    ddp=$1
    shift
    rm -rf "$build/ddp_$ddp"
    four "ddp_$ddp" 60 1 "$build/installed/bin/collprobe-run" --dir "$build/ddp_$ddp" --every 1 python3 bench/gpu/ddp.py "$@"
    expected=1 # something was found
    [ "$ddp" != clean ] || expected=0
    part "merge_$ddp" 20 "$build/installed/bin/collprobe_merge" "$build/ddp_$ddp" --html "$out/ddp_$ddp.html"
    expected=0
    show 1 "merge_$ddp"
    words='[Rr]anks? .*2.* (unlike|NaN|sent the data)|began with rank 2'
    [ "$ddp" != clean ] || words='^Nothing was found'
    tail -n 1 "$logs/merge_$ddp" 2>/dev/null | grep -qE "$words" || bad "   FAILED: the last line should match $words"
}
if wanted ddp && [ "$mode" = gpu ]; then
    if ! at_most 60 python3 -c 'import torch' 2>/dev/null; then
        bad "-- ddp: NOT RUN, there is no PyTorch"
    else
        export DEPENDENCIES
        [ -x "$build/installed/bin/collprobe-run" ] || part preload 150 sh bench/gpu.sh build_preload "$build" "$arch"
        if [ -x "$build/installed/bin/collprobe-run" ]; then
            four ddp_bare 60 1 python3 bench/gpu/ddp.py
            ddp_under_preload clean
            weights() { sed -n 's/.*sum of weights //p' "$logs/ranks_$1"/rank*; }
            if [ "$(weights ddp_bare)" = "$(weights ddp_clean)" ] && [ -n "$(weights ddp_bare)" ]; then
                tell "   the weights are those of the bare run"
            else
                bad "   FAILED: the weights are not those of the bare run"
            fi
            median() { sed -n 's/.*ms a step \([0-9.]*\),.*/\1/p' "$logs/ranks_$1"/rank* | sort -n | sed -n 2p; }
            tell "   $(echo "$(median ddp_clean) $(median ddp_bare)" | awk 'NF == 2 {
                printf "a step takes %.2f ms under the preload, which looks at every step, and %.2f bare: a ratio of %.2f", $1, $2, $1 / $2}')"
            ddp_under_preload nan --fault nan
            ddp_under_preload copy --fault copy --dtype bfloat16
            ddp_under_preload scale --fault scale
        fi
    fi
fi

run_bench() {
    set --
    [ "$mode" = gpu ] || export COLLPROBE_BENCH_BYTES="${COLLPROBE_BENCH_BYTES:-65536}"
    for source in bench/*_gpu_bench.cu; do
        name=$(basename "$source" .cu)
        program=$build/bench/$name
        file=$program.json
        rm -f "$file" # an earlier run's would count
        [ -x "$program" ] || {
            bad "-- $name: FAILED, it was not built"
            continue
        }
        if at_most 20 "$program" --benchmark_filter="$filter" --benchmark_list_tests 2>&1 | grep -q 'Failed to match'; then
            continue # all of its cases are filtered out
        fi
        part "$name" "$bench_limit" "$program" --benchmark_filter="$filter" --benchmark_out="$file" --benchmark_out_format=json
        # What was interrupted left no end of its JSON, but rows that count.
        grep -qs '"name"' "$file" || {
            bad "   FAILED, no results ($name)"
            continue
        }
        set -- "$@" "$file"
        if grep '"error_message"' "$file" | grep -qv 'SKIPPED'; then bad "   FAILED in part ($name)"; fi
    done
    measured=$([ $# -eq 0 ] || cat "$@" | grep -c '"iterations": [1-9]')
    [ "${measured:-0}" -gt 0 ] || {
        bad "-- bench: FAILED, nothing was measured"
        return
    }
    name=gpu_${NAME:-$(echo "$gpu" | tr '[:upper:]' '[:lower:]' | sed 's/^nvidia //; s/[^a-z0-9][^a-z0-9]*/_/g')}.md
    {
        if [ "$mode" = rehearse ]; then
            echo "# GPU benchmarks, emulated: times are not of a GPU"
            echo
            echo "A CPU executed the PTX of the kernels, over stand-ins for CUDA and NCCL; commit $COMMIT, $(date -u +%Y-%m-%d)."
        else
            nccl=$(cat "$@" | sed -n 's/^ *"nccl": "\(.*\)".*/\1/p' | head -n 1)
            echo "# Measured on a GPU: $gpu"
            echo
            echo "Driver $driver, CUDA $(at_most 20 "$nvcc" --version | sed -n 's/.*release.*, V//p'), NCCL ${nccl:-none}, compiled for" \
                "sm_$arch with -O2; clocks as found: SM up to $(query clocks.max.sm), memory $(query clocks.mem); commit $COMMIT," \
                "$(date -u +%Y-%m-%d)."
        fi
        [ -z "${COLLPROBE_BENCH_BYTES:-}" ] \
            || echo "Buffers have at most $COLLPROBE_BENCH_BYTES bytes, whatever the case says, and few rounds were made."
        echo "Made by \`sh bench/gpu.sh bench\`; what the columns mean stands at the top of \`bench/*_gpu_bench.cu\`."
        awk -f bench/gpu/tables.awk "$@"
    } >"$out/$name"
    mkdir -p "$results" 2>/dev/null
    [ "$(cd "$results" 2>/dev/null && pwd)" = "$(cd "$out" && pwd)" ] || cp "$out/$name" "$results/" 2>/dev/null \
        || bad "   FAILED: cannot write to $results; the table is in $out"
    tell "-- bench: $measured cases, $results/$name"
}
if wanted bench; then
    # The sizes and types that decide.
    decide='^(statistics|copy).*/(float|bfloat16|half|int8)/KiB:(1024|25600|262144|1048576)/'
    decide="$decide|^(encode|combine|decode).*KiB:(25600|262144|1048576)/|^sum/|^host_cost|^pipeline|step"
    [ "$mode" = gpu ] || decide=.
    filter=${BENCH_FILTER:-$decide}
    bench_limit=60
    run_bench
fi

run_sanitizers() {
    sanitizer=$(command -v compute-sanitizer || echo "$(dirname -- "$nvcc")/compute-sanitizer")
    [ -x "$sanitizer" ] || {
        bad "-- sanitizers: NOT RUN, compute-sanitizer was not found"
        return
    }
    for tool in memcheck racecheck initcheck; do
        for program in "$build"/tests/*/*_gpu.cu; do [ ! -x "$program" ] || echo "$tool $program"; done
        # One judges times. initcheck waits for each kernel, and the race lab holds one up.
    done | grep -E "${SANITIZE:-.}" | grep -vE 'racecheck .*lateness|initcheck .*race_lab' >"$logs/to_sanitize"
    # The tests ask for errors of CUDA's calls on purpose: those are not reported. Of what is a template, float and bfloat16.
    # A limit for each, and one for all.
    [ -s "$logs/to_sanitize" ] || {
        bad "-- sanitizers: FAILED, nothing to run (not built, or SANITIZE)"
        return
    }
    rm -f "$logs"/*check "$logs"/*check.status "$logs"/*check.first
    # shellcheck disable=SC2016 # of the inner shell
    part sanitizers 280 env COLLPROBE_TEST_FEW=1 xargs -P "${SANITIZER_JOBS:-8}" -L 1 sh -c '
        log=$0/$(basename "$4").$3
        echo 124 >"$log.status"
        timeout -k 10 "$2" "$1" --tool "$3" --report-api-errors no --error-exitcode 99 "$4" \
            --test-case-exclude="*::float16>,*<double>,*<long*,*<unsigned*,*<short*,*<int>,*<signed*" >"$log" 2>&1
        echo $? >"$log.status"
    ' "$logs" "$sanitizer" "${SANITIZER_LIMIT:-60}" <"$logs/to_sanitize"
    clean="" late="" broken=""
    while read -r tool program; do
        log=$(basename "$program").$tool
        case $(cat "$logs/$log.status" 2>/dev/null || echo 124) in
        0) clean="$clean $log" ;;
        124 | 137) late="$late $log" ;;
        *)
            # The sanitizer itself fails where several threads launch kernels at once: it says so, or it sees an illegal
            # address where memcheck has no finding.
            found='^=========  *(Uninit|Invalid|Misaligned|Out-of|Stack|Double|Malloc|Address|Barrier|(Error|Warning|ERROR|WARN): *(Race|Pot))'
            tools_own='Internal Sanitizer Error'
            if [ "$tool" != memcheck ] && [ "$(cat "$logs/$(basename "$program").memcheck.status" 2>/dev/null)" = 0 ]; then
                tools_own="$tools_own|cudaErrorIllegalAddress"
            fi
            if grep -qE "$tools_own" "$logs/$log" && ! grep -qE "$found" "$logs/$log"; then
                broken="$broken $log"
                continue
            fi
            bad "   FAILED: $log: $(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$logs/$log" | tail -n 1)"
            grep '^=========' "$logs/$log" | head -n 4 >"$logs/$log.first"
            show 4 "$log.first"
            ;;
        esac
    done <"$logs/to_sanitize"
    [ -n "$clean" ] || bad "   FAILED: of no program it is known that it is right"
    tell "   clean: $(echo "$clean" | wc -w); not finished:${late:- none}; the sanitizer itself failed:${broken:- none}"
}
if wanted sanitizers && [ "$mode" = gpu ]; then run_sanitizers; fi

tar -C "$build" -czf "$out/logs.tgz" log 2>/dev/null
echo "all of it: $(($(date +%s) - begin)) s, $([ "$failed" -eq 0 ] && echo "nothing failed" || echo "something FAILED")" | tee -a "$summary"
exit "$failed"
