#!/bin/sh
# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
#
# Builds the example silent_inconsistency and runs it with the arguments given here.
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)

# What the build says goes to stderr: stdout is the example's.
sh "$root/cmake/setup.sh" demo
(
    cd "$root"
    cmake --preset demo
    cmake --build --preset demo -j "$(nproc 2>/dev/null || echo 2)" --target silent_inconsistency
) >&2
exec "$root/build/demo/examples/silent_inconsistency" "$@"
