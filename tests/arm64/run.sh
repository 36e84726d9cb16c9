#!/bin/sh
# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
#
# run.sh <folder>/<name>
#
# Compiles a test for ARM64, in the current folder, and runs it with an emulator. Exit status 77 without either.
set -eu
tests=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
for tool in aarch64-linux-gnu-g++ qemu-aarch64-static; do
    command -v "$tool" >/dev/null || {
        echo "skipped: $tool was not found (Debian: g++-aarch64-linux-gnu, qemu-user-static)"
        exit 77
    }
done
program=$(basename "$1")
aarch64-linux-gnu-g++ -std=c++20 -O2 -Wall -Wextra -Wconversion -Wshadow -Werror -DCOLLPROBE_TEST_BRIEF=1 -static \
    -isystem include -I "$tests/../include" -I "$tests" "$tests/$1_test.cpp" "$tests/support/main.cpp" -pthread \
    -o "$program"
qemu-aarch64-static "./$program"
