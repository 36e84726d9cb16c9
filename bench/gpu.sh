#!/bin/sh
# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
#
# gpu.sh [emulated] [tests] [bench] [sanitizers]: builds for the GPU of this machine and runs
#   tests        all tests labelled gpu;
#   bench        the benchmarks, whose results become bench/results/gpu_<name>.md;
#   sanitizers   compute-sanitizer's memcheck, racecheck and initcheck on the gpu tests.
# Of these all three unless some are named, in this order: the slow part comes last. Exit status 0 if nothing
# failed, 1 if something did, 2 if there was nothing to do it with. Logs and JSON stay in build/gpu.
#
# `gpu.sh emulated` shows that this script, the tests and all cases of the benchmarks work, without a GPU: a CPU
# executes the kernels' PTX (preset emulated), at small sizes and without sanitizers. All stays in build/gpu_emulated.
#
# Needs a GPU, nvcc, doctest (tests) and Google Benchmark (bench); NCCL for what uses it; CMake if it is
# there, else plain nvcc. From the environment:
#   CUDACXX       nvcc                         DEPENDENCIES   a prefix with include/ and lib/ of doctest and
#   NCCL_HOME     prefix of NCCL                              Google Benchmark, where they are not installed
#   BUILD         instead of build/gpu         RESULTS        a folder instead of bench/results
#   NAME          of the table                 COMMIT         what to call the sources, where git cannot tell
#   JOBS          compilations at a time
#   BENCH_FILTER  regular expression           TIME_LIMIT     seconds for a program of tests (300)
#   COLLPROBE_BENCH_BYTES   most bytes of a buffer, for a run that times nothing (emulated: 65536)
#   SANITIZER_LIMIT   seconds for a program under a tool (240)   SANITIZER_JOBS   programs at a time (4)
set -u
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd) || exit 2
cd "$root" || exit 2
jobs=${JOBS:-$(nproc 2>/dev/null || echo 2)}
failed=0
summary=""

die() {
    echo "gpu.sh: $*" >&2
    exit 2
}
note() {
    echo "$1"
    summary="$summary$1
"
}
bad() {
    note "$1"
    failed=1
}

emulated=no
if [ "${1:-}" = emulated ]; then
    emulated=yes
    shift
fi
[ $# -gt 0 ] || set -- tests bench sanitizers
want_tests=no want_bench=no want_sanitizers=no
for part in "$@"; do
    case $part in
    tests) want_tests=yes ;;
    bench) want_bench=yes ;;
    sanitizers) want_sanitizers=yes ;;
    *) die "no such part: $part (tests, bench, sanitizers)" ;;
    esac
done

if [ "$emulated" = yes ]; then
    build=${BUILD:-build/gpu_emulated}
    results=${RESULTS:-$build}
    preset=emulated
    gpu=emulated
    driver=none
    ARCH=90-virtual
    export COLLPROBE_BENCH_BYTES="${COLLPROBE_BENCH_BYTES:-65536}"
    [ "$want_sanitizers" = no ] || note "sanitizers: SKIPPED, they need a GPU"
    want_sanitizers=no
else
    build=${BUILD:-build/gpu}
    results=${RESULTS:-bench/results}
    preset=cuda
    command -v nvidia-smi >/dev/null 2>&1 || die "no GPU: nvidia-smi was not found"
    # One line: several GPUs are taken to be alike.
    query() { nvidia-smi --query-gpu="$1" --format=csv,noheader 2>/dev/null | head -n 1; }
    gpu=$(query name)
    driver=$(query driver_version)
    ARCH=${ARCH:-$(query compute_cap | tr -d ' .')}
    case $ARCH in
    '' | *[!0-9a-z]*) die "no GPU: nvidia-smi names none" ;;
    esac
fi
nvcc=${CUDACXX:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
"$nvcc" --version >/dev/null 2>&1 || die "nvcc was not found (CUDACXX, PATH, /usr/local/cuda/bin)"
cuda=$("$nvcc" --version | sed -n 's/.*release.*, V//p')
cuda_home=$(CDPATH='' cd -- "$(dirname -- "$(command -v "$nvcc")")/.." && pwd)
mkdir -p "$build/log" "$build/tests" "$build/bench" || die "cannot write to $build"
build=$(CDPATH='' cd -- "$build" && pwd)
echo "gpu.sh: $gpu, architecture $ARCH, driver $driver, nvcc $cuda, $jobs jobs"

# NCCL of NVIDIA's Python package has no libnccl.so to link with.
nccl_flags=""
if [ -z "${NCCL_HOME:-}" ]; then
    for prefix in "$cuda_home" /usr /usr/local; do
        [ -f "$prefix/include/nccl.h" ] && NCCL_HOME=$prefix && break
    done
fi
if [ -z "${NCCL_HOME:-}" ]; then
    package=$(python3 -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0])' 2>/dev/null)
    [ -f "${package:-}/include/nccl.h" ] && NCCL_HOME=$package
fi
if [ -n "${NCCL_HOME:-}" ]; then
    export NCCL_HOME
    library=""
    for file in "$NCCL_HOME"/lib*/libnccl.so "$NCCL_HOME"/lib*/*/libnccl.so "$NCCL_HOME"/lib*/libnccl.so.2 \
        "$NCCL_HOME"/lib*/*/libnccl.so.2; do
        [ -f "$file" ] && library=$file && break
    done
    if [ -n "$library" ] && [ -f "$NCCL_HOME/include/nccl.h" ]; then
        prefix=$build/nccl
        rm -rf "$prefix"
        mkdir -p "$prefix/lib" "$prefix/include"
        ln -s "$library" "$prefix/lib/libnccl.so"
        ln -s "$library" "$prefix/lib/libnccl.so.2"
        for header in "$NCCL_HOME"/include/nccl*; do ln -s "$header" "$prefix/include/"; done
        NCCL_HOME=$prefix
        export NCCL_ROOT="$prefix"
        LD_LIBRARY_PATH=$prefix/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
        nccl_flags="-I$prefix/include -L$prefix/lib -lnccl"
    fi
fi
[ -n "$nccl_flags" ] || [ "$emulated" = yes ] || note "NCCL was not found (NCCL_HOME): what uses it is left out"
[ -z "${DEPENDENCIES:-}" ] || LD_LIBRARY_PATH=$DEPENDENCIES/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}"

targets=""
[ "$want_tests$want_sanitizers" = nono ] || targets="cuda_tests"
[ "$want_bench" = no ] || targets="$targets cuda_benches"

configure_with_cmake() {
    command -v cmake >/dev/null 2>&1 || {
        echo "gpu.sh: CMake was not found: plain nvcc instead"
        return 1
    }
    generator=Ninja
    command -v ninja >/dev/null 2>&1 || generator="Unix Makefiles"
    cmake --preset "$preset" -B "$build" -G "$generator" -DCMAKE_CUDA_COMPILER="$nvcc" \
        -DCMAKE_CUDA_ARCHITECTURES="$ARCH" -DCOLLPROBE_GPU_TEST_ARCHITECTURES="$ARCH" \
        -DCMAKE_COMPILE_WARNING_AS_ERROR=OFF -DCOLLPROBE_BUILD_BENCH=ON \
        ${DEPENDENCIES:+-DCMAKE_PREFIX_PATH="$DEPENDENCIES"} >"$build/log/configure" 2>&1 && return
    tail -n 15 "$build/log/configure"
    echo "gpu.sh: CMake cannot configure this (log/configure): plain nvcc instead"
    return 1
}

# Programs have the names that they have with CMake.
build_with_nvcc() {
    rm -f "$build"/tests/*_gpu.cu "$build"/tests/*/*_gpu.cu "$build"/bench/*_gpu_bench
    flags="-std=c++20 -O2 -arch=sm_$ARCH -Iinclude -Itests -I."
    [ -z "${DEPENDENCIES:-}" ] || flags="$flags -I$DEPENDENCIES/include -L$DEPENDENCIES/lib"
    list=$build/log/to_build
    : >"$list"
    if [ "$want_tests$want_sanitizers" != nono ]; then
        # shellcheck disable=SC2086
        "$nvcc" $flags -c tests/support/main.cpp -o "$build/tests/main.o" \
            || die "the tests need doctest (DEPENDENCIES)"
        for file in tests/*/*_gpu_test.cu; do
            name=$(basename "$(dirname "$file")").$(basename "$file" _test.cu).cu
            echo "$build/tests/$name $file $build/tests/main.o" >>"$list"
        done
    fi
    if [ "$want_bench" = yes ]; then
        for file in bench/*_gpu_bench.cu; do
            echo "$build/bench/$(basename "$file" .cu) $file -lbenchmark_main -lbenchmark -lpthread" >>"$list"
        done
    fi
    while read -r program file rest; do
        libraries=""
        if grep -q '#include .*\(collprobe/.*nccl\|support/nccl\)' "$file"; then
            [ -n "$nccl_flags" ] || {
                note "left out, for NCCL was not found: $file"
                continue
            }
            libraries=$nccl_flags
        fi
        echo "$nvcc $flags $file $rest $libraries -o $program >'$build/log/$(basename "$program").build' 2>&1 || { cat '$build/log/$(basename "$program").build' >&2; exit 1; }"
    done <"$list" >"$list.commands"
    tr '\n' '\0' <"$list.commands" | xargs -0 -P "$jobs" -n 1 sh -c
}

with_cmake=no
start=$(date +%s)
if configure_with_cmake; then
    with_cmake=yes
    keep_going=-k
    [ "$generator" != Ninja ] || keep_going=-k0
    # shellcheck disable=SC2086
    cmake --build "$build" -j "$jobs" --target $targets -- "$keep_going" \
        >"$build/log/build" 2>&1 || {
        grep -E 'error|FAILED' "$build/log/build" | head -n 20
        bad "build: FAILED in part (log/build)"
    }
elif [ "$emulated" = yes ]; then
    die "nothing is emulated without CMake"
else
    build_with_nvcc || bad "build: FAILED in part (log/*.build)"
fi
note "build: $(($(date +%s) - start)) s"

limited() {
    seconds=$1
    shift
    timeout -k 10 "$seconds" "$@"
}

run_tests() {
    if [ "$with_cmake" = yes ]; then
        # On a GPU one at a time: several may not fit into its memory.
        at_a_time=1
        [ "$emulated" = no ] || at_a_time=$jobs
        ctest --test-dir "$build" -L '^gpu$' -j "$at_a_time" --output-on-failure --no-tests=error \
            --timeout "${TIME_LIMIT:-300}" >"$build/log/tests" 2>&1
        status=$?
        sed -n '/Failed/,$p; /tests passed/p' "$build/log/tests" | head -n 200
        line=$(sed -n '/tests passed/p' "$build/log/tests" | tail -n 1)
        if [ "$status" -eq 0 ] && grep -q 'Skipped' "$build/log/tests"; then
            bad "tests: FAILED: $(grep -c '\*\*\*Skipped' "$build/log/tests") of them found no device (log/tests)"
        elif [ "$status" -eq 0 ]; then
            note "tests: ${line:-none ran}"
        else
            bad "tests: FAILED: ${line:-ctest ended with $status} (log/tests)"
        fi
        return
    fi
    for program in "$build"/tests/*_gpu.cu; do
        [ -x "$program" ] || {
            bad "tests: FAILED, none was built"
            return
        }
        name=$(basename "$program")
        limited "${TIME_LIMIT:-300}" "$program" >"$build/log/$name" 2>&1
        status=$?
        case $status in
        0) note "tests: $name passed" ;;
        77) bad "tests: $name FAILED, it found no device" ;;
        124 | 137) bad "tests: $name FAILED, it ran out of time" ;;
        *)
            tail -n 30 "$build/log/$name"
            bad "tests: $name FAILED with status $status (log/$name)"
            ;;
        esac
    done
}

run_sanitizers() {
    sanitizer=$(command -v compute-sanitizer || echo "$cuda_home/bin/compute-sanitizer")
    [ -x "$sanitizer" ] || {
        note "sanitizers: SKIPPED, compute-sanitizer was not found"
        return
    }
    for program in "$build"/tests/*_gpu.cu "$build"/tests/*/*_gpu.cu; do # by nvcc alone, and by CMake
        [ -x "$program" ] || continue
        for tool in memcheck racecheck initcheck; do echo "$tool $program"; done
    done >"$build/log/to_sanitize"
    [ -s "$build/log/to_sanitize" ] || {
        bad "sanitizers: FAILED, no test was built"
        return
    }
    # The tests ask for errors of CUDA's calls on purpose: those are not reported.
    # shellcheck disable=SC2016
    xargs -P "${SANITIZER_JOBS:-4}" -L 1 sh -c '
        log=$0/log/$(basename "$4").$3
        timeout -k 10 "$2" "$1" --tool "$3" --report-api-errors no --error-exitcode 99 "$4" >"$log" 2>&1
        echo $? >"$log.status"
    ' "$build" "$sanitizer" "${SANITIZER_LIMIT:-240}" <"$build/log/to_sanitize"
    while read -r tool program; do
        log=$(basename "$program").$tool
        status=$(cat "$build/log/$log.status")
        last=$(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$build/log/$log" | tail -n 1 | sed 's/^=* //')
        case $status in
        0) note "sanitizers: $log clean (${last:-no summary})" ;;
        77) bad "sanitizers: $log FAILED, the program found no device" ;;
        124 | 137) bad "sanitizers: $log NOT FINISHED in ${SANITIZER_LIMIT:-240} s; errors so far: $(grep -c '^=========  *\(Invalid\|Uninit\|Error\|Race\)' "$build/log/$log")" ;;
        99)
            grep '^=========' "$build/log/$log" | head -n 20
            bad "sanitizers: $log FAILED, ${last:-errors} (log/$log)"
            ;;
        *)
            tail -n 5 "$build/log/$log"
            bad "sanitizers: $log FAILED, the program ended with $status (log/$log)"
            ;;
        esac
    done <"$build/log/to_sanitize"
}

# Google Benchmark's JSON, one key a line, as tables: one for each first part of the names, a row for each
# benchmark, a column for each counter.
tables() {
    awk '
        function number(text) {
            if (text !~ /^[-+0-9.eE]+$/) return text
            value = text + 0
            size = value < 0 ? -value : value
            if (value == int(value) && size < 1e6) return sprintf("%d", value)
            return sprintf(size >= 100 ? "%.0f" : size >= 10 ? "%.1f" : size >= 0.1 ? "%.3f" : "%.2g", value)
        }
        function print_family(family, columns, rows, i, k, cells, line, rule) {
            columns = width[family]
            rows = height[family]
            line = "| case | time |"
            rule = "|---|---|"
            for (i = 1; i <= columns; ++i) { line = line " " column[family, i] " |"; rule = rule "---|" }
            printf "\n## %s\n\n%s\n%s\n", family, line, rule
            for (k = 1; k <= rows; ++k) {
                line = "| " title[family, k] " | " time[family, k] " |"
                for (i = 1; i <= columns; ++i) line = line " " cell[family, k, column[family, i]] " |"
                print line
            }
        }
        /^ *"benchmarks": *\[/ { inside = 1; next }
        !inside { next }
        /^ *\{/ { name = ""; unit = ""; count = 0; message = ""; next }
        /^ *"/ {
            key = $0
            sub(/^ *"/, "", key)
            value = key
            sub(/".*/, "", key)
            sub(/^[^"]*": */, "", value)
            sub(/,$/, "", value)
            gsub(/^"|"$/, "", value)
            if (key == "name") name = value
            else if (key == "time_unit") unit = value
            else if (key == "real_time") real = value
            else if (key == "error_message" || key == "skip_message") message = value
            else if (key !~ /^(family_index|per_family_instance_index|run_name|run_type|repetitions|repetition_index|threads|iterations|cpu_time|error_occurred|skipped)$/) {
                ++count
                keys[count] = key
                values[count] = value
            }
            next
        }
        /^ *\}/ {
            if (name == "") next
            family = name
            sub(/\/.*/, "", family)
            short = name
            sub(/^[^\/]*\//, "", short)
            gsub(/\/(iterations:[0-9]+|manual_time|real_time)/, "", short)
            if (!(family in height)) families[++family_count] = family
            row = ++height[family]
            title[family, row] = short
            time[family, row] = message != "" ? "not measured: " message : number(real) " " unit
            for (i = 1; message == "" && i <= count; ++i) {
                if (!((family, keys[i]) in known)) { known[family, keys[i]] = 1; column[family, ++width[family]] = keys[i] }
                cell[family, row, keys[i]] = number(values[i])
            }
            name = ""
        }
        END { for (f = 1; f <= family_count; ++f) print_family(families[f]) }
    ' "$@"
}

run_bench() {
    ran=""
    for program in "$build"/bench/*_gpu_bench; do
        [ -x "$program" ] || {
            bad "bench: FAILED, none was built (Google Benchmark: DEPENDENCIES)"
            return
        }
        name=$(basename "$program")
        json=$build/bench/$name.json
        rm -f "$json" # an earlier run's would count
        if "$program" --benchmark_filter="${BENCH_FILTER:-.}" --benchmark_list_tests 2>&1 | grep -q 'Failed to match'; then
            continue # all of its cases are filtered out
        fi
        "$program" --benchmark_filter="${BENCH_FILTER:-.}" --benchmark_out="$json" --benchmark_out_format=json \
            2>&1 | tee "$build/log/$name"
        # What was interrupted left no end of its JSON, but rows that count.
        grep -qs '"name"' "$json" || {
            bad "bench: $name FAILED, no results (log/$name)"
            continue
        }
        ran="$ran $json"
        if grep '"error_message"' "$json" | grep -qv 'SKIPPED'; then bad "bench: $name FAILED in part (log/$name)"; fi
    done
    [ -n "$ran" ] || {
        bad "bench: FAILED, nothing ran"
        return
    }
    # shellcheck disable=SC2086
    measured=$(cat $ran | grep -c '"iterations": [1-9]')
    [ "$measured" -gt 0 ] || {
        bad "bench: FAILED, nothing was measured"
        return
    }
    commit=$(git rev-parse --short HEAD 2>/dev/null || echo "${COMMIT:-not known}")
    [ -z "$(git status --porcelain -uno 2>/dev/null)" ] || commit="$commit with changes"
    # shellcheck disable=SC2086
    nccl=$(cat $ran | sed -n 's/^ *"nccl": "\(.*\)".*/\1/p' | head -n 1)
    short=${NAME:-$(echo "$gpu" | tr '[:upper:]' '[:lower:]' | sed 's/^nvidia //; s/[^a-z0-9][^a-z0-9]*/_/g')}
    made_by=bench
    [ "$emulated" = no ] || made_by="emulated bench"
    mkdir -p "$results"
    table=$results/gpu_$short.md
    {
        if [ "$emulated" = yes ]; then
            echo "# GPU benchmarks, emulated: times are not of a GPU"
            echo
            echo "A CPU executed the PTX of the kernels, over stand-ins for CUDA and NCCL; commit $commit, $(date -u +%Y-%m-%d)."
        else
            echo "# Measured on a GPU: $gpu"
            echo
            echo "Driver $driver, CUDA $cuda, NCCL ${nccl:-none}, compiled for sm_$ARCH with -O2; commit $commit, $(date -u +%Y-%m-%d)."
        fi
        [ -z "${COLLPROBE_BENCH_BYTES:-}" ] \
            || echo "Buffers have at most $COLLPROBE_BENCH_BYTES bytes, whatever the case says, and few rounds were made."
        echo "Made by \`sh bench/gpu.sh $made_by\`; what the columns mean stands at the top of \`bench/*_gpu_bench.cu\`."
        # shellcheck disable=SC2086
        tables $ran
    } >"$table"
    note "bench: $measured cases measured, $table"
}

[ "$want_tests" = no ] || run_tests
[ "$want_bench" = no ] || run_bench
[ "$want_sanitizers" = no ] || run_sanitizers
echo
echo "$summary"
exit "$failed"
