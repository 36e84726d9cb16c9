#!/bin/sh
# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
#
# Measures what including collprobe/collprobe.hpp costs: the median of five compilations at -O0 of
# an empty file and of a file with that one line. CXX chooses the compiler.
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

: >"$work/empty.cpp"
echo '#include <collprobe/collprobe.hpp>' >"$work/umbrella.cpp"

median_ms() {
    for _ in 1 2 3 4 5; do
        begin=$(date +%s%N)
        "${CXX:-g++}" -std=c++20 -O0 -I "$root/include" -c "$work/$1.cpp" -o "$work/$1.o"
        echo $((($(date +%s%N) - begin) / 1000000))
    done | sort -n | sed -n 3p
}

median_ms umbrella >/dev/null # fills the file cache
empty=$(median_ms empty)
umbrella=$(median_ms umbrella)
echo "empty file:     $empty ms"
echo "umbrella:       $umbrella ms"
echo "the difference: $((umbrella - empty)) ms"
