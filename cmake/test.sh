#!/bin/sh
# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
#
# Configures, builds and tests:
#     test.sh              the preset quick: g++, not optimised
#     test.sh all          every preset
#     test.sh PRESET...    those presets
# With BEGIN_WITHIN=SECONDS no preset is begun later than that: it counts as a skip, where a time-out would lose them all.
# The last line counts the tests of all of them. A preset that cannot be configured or built counts as one failure,
# one whose compiler, or PyTorch, is absent as one skip. Compilers run below ccache where that is installed (CCACHE_DISABLE=1: not).
set -u
cd "$(CDPATH='' cd -- "$(dirname -- "$(readlink -f -- "$0")")/.." && pwd)" || exit 1
[ -d tests ] || {
    echo "test.sh: an archive has no tests: clone the repository" >&2
    exit 2
}
jobs=$(nproc 2>/dev/null || echo 2)

passed=0
failed=0
skipped=0
notes=""
note() {
    echo "$1"
    notes="$notes$1
"
}

[ $# -gt 0 ] || set -- quick
# Of all presets, none repeats what another has with the same compiler: quick leaves numbers and MPI to host, and without a GPU
# what needs one is built and runs in emulated alone.
all=""
if [ "$*" = all ]; then
    all=all
    # Where time is short, one of these two comes first from commit to commit.
    set -- tsan torch
    [ $(($(git rev-list --count HEAD 2>/dev/null || echo 0) % 2)) -eq 0 ] || set -- torch tsan
    set -- quick host asan "$@" fast-math emulated
    if nvidia-smi -L >/dev/null 2>&1; then set -- "$@" cuda; fi
fi
purpose=test
for preset in "$@"; do
    [ "$preset" = quick ] || [ "$preset" = torch ] || purpose=all
done
sh cmake/setup.sh "$purpose" || {
    echo "0 passed, 1 failed"
    exit 1
}
if ccache=$(command -v ccache); then
    export CMAKE_CXX_COMPILER_LAUNCHER="$ccache" CMAKE_CUDA_COMPILER_LAUNCHER="$ccache"
fi

# The number in attribute $1 of the first line of the report $2 that has it; 0 if none does.
count() {
    number=$(sed -n "s/^[[:space:]]*$1=\"\([0-9][0-9]*\)\".*/\1/p" "$2" | head -n 1)
    echo "${number:-0}"
}

run_preset() {
    preset=$1
    report="$PWD/build/$preset/test_report.xml"
    begin=$(date +%s)
    echo "== $preset"
    rm -f "$report"
    options=""
    if [ "$preset" = quick ] && [ -n "$all" ]; then
        options="-DCOLLPROBE_TEST_LABELS_LEFT_OUT=headers;slow;study;numbers;mpi"
    fi
    # shellcheck disable=SC2086 # none, or arguments
    if ! cmake --preset "$preset" $options; then
        note "$preset: FAILED to configure"
        failed=$((failed + 1))
        return
    fi
    if ! NINJA_STATUS="[$preset %f/%t, %e s] " \
            cmake --build --preset "$preset" -j "$jobs" -- -k 0; then
        note "$preset: FAILED to build"
        failed=$((failed + 1))
        return
    fi
    ctest --preset "$preset" -j "$jobs" --output-junit "$report"
    status=$?
    if [ ! -s "$report" ]; then
        note "$preset: FAILED, ctest left no report"
        failed=$((failed + 1))
        return
    fi
    total=$(count tests "$report")
    bad=$(count failures "$report")
    not_run=$(($(count skipped "$report") + $(count disabled "$report")))
    if [ "$status" -ne 0 ] && [ "$bad" -eq 0 ]; then bad=1; fi
    note "$preset: $((total - bad - not_run)) passed, $bad failed, $not_run skipped, in $(($(date +%s) - begin)) s"
    passed=$((passed + total - bad - not_run))
    failed=$((failed + bad))
    skipped=$((skipped + not_run))
}

all_begun=$(date +%s)
for preset in "$@"; do
    if [ $(($(date +%s) - all_begun)) -gt "${BEGIN_WITHIN:-1000000}" ]; then
        note "$preset: SKIPPED, more than $BEGIN_WITHIN s are over"
        skipped=$((skipped + 1))
        continue
    fi
    if { [ "$preset" = cuda ] || [ "$preset" = emulated ]; } && ! command -v "${CUDACXX:-nvcc}" >/dev/null 2>&1; then
        note "$preset: SKIPPED, nvcc was not found"
        skipped=$((skipped + 1))
        continue
    fi
    if [ "$preset" = torch ] && ! sh cmake/setup.sh torch; then
        note "$preset: SKIPPED, PyTorch could not be installed"
        skipped=$((skipped + 1))
        continue
    fi
    run_preset "$preset"
done

echo
echo "$notes"
summary="$passed passed, $failed failed"
[ "$skipped" -eq 0 ] || summary="$summary, $skipped skipped"
echo "$summary"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
