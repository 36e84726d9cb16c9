#!/bin/sh
# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
#
# symbols.sh LIBRARY NM: a preloaded library shows functions of MPI and collprobe_mark_step alone. A symbol of its own
# libstdc++ would stand before that of the program.
set -eu
shown=$("$2" -D --defined-only "$1" | awk '{print $3}')
echo "$shown" | grep -qx MPI_Allreduce || {
    echo "symbols.sh: $1 does not show MPI_Allreduce" >&2
    exit 1
}
others=$(echo "$shown" | grep -Evi '^(p?mpi_|ompi_|collprobe_mark_step$)' || true)
[ -z "$others" ] || {
    echo "symbols.sh: $1 shows $(echo "$others" | wc -l) other symbols, among them:" >&2
    echo "$others" | head -n 5 >&2
    exit 1
}
