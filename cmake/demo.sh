#!/bin/sh
# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
#
# Builds the example silent_inconsistency and runs it with the arguments given here.
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)

# What the build says goes to stderr: stdout is the example's.
sh "$root/cmake/setup.sh"
(
    cd "$root"
    cmake --preset host
    cmake --build --preset host -j "$(nproc)" --target silent_inconsistency
) >&2
exec "$root/build/host/examples/silent_inconsistency" "$@"
