#!/usr/bin/env python3
# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""Inspects every all-reduce algorithm of Open MPI 4.1 and MPICH 4.0 that their settings can force, and prints a table.

    forced_algorithms.py --openmpi INSPECT_ALL_REDUCE --mpich INSPECT_ALL_REDUCE [--ranks 2,3,4] [--log FOLDER]

The programs are examples/studies/inspect_all_reduce, each built with its MPI. A cell is the name of the order. After it:
"!" if the ranks got different bits, "~" if the same call gave other bits, and the share of random sums that the order
reproduces if that is not 100 %. FOLDER gets what each run printed, with the orders in brackets.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

MESSAGE = ["--communicator", "mpi", "--types", "float", "-b", "4K", "-e", "4K", "-w", "0", "-n", "1", "--verbose"]


def openmpi(label, *settings):
    command = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
    for setting in settings:
        command += ["--mca", *setting.split("=", 1)]
    return "Open MPI", label, command, {}


def tuned(label, *settings):
    return openmpi(label, "coll_tuned_use_dynamic_rules=1", *("coll_tuned_" + each for each in settings))


def by_reduce(label, *settings):
    return tuned("2 nonoverlapping, reduce " + label, "allreduce_algorithm=2",
                 *("reduce_algorithm" + each for each in settings))


def mpich(label, **settings):
    return "MPICH", label, ["mpiexec.mpich"], {"MPIR_CVAR_" + key: str(value) for key, value in settings.items()}


def nonblocking(algorithm, label="", **settings):
    settings = {"IALLREDUCE_" + key: value for key, value in settings.items()}
    return mpich("nb, " + algorithm + label, ALLREDUCE_INTRA_ALGORITHM="nb", DEVICE_COLLECTIVES="none",
                 IALLREDUCE_INTRA_ALGORITHM=algorithm, **settings)


ALGORITHMS = [
    openmpi("default"),
    tuned("1 basic linear", "allreduce_algorithm=1"),
    by_reduce("1 linear", "=1"),
    by_reduce("2 chain, 4 chains", "=2"),
    by_reduce("2 chain, 2 chains", "=2", "_chain_fanout=2"),
    by_reduce("3 pipeline", "=3"),
    by_reduce("4 binary", "=4"),
    by_reduce("5 binomial", "=5"),
    by_reduce("6 in-order binary", "=6"),
    by_reduce("7 rabenseifner", "=7"),
    tuned("3 recursive doubling", "allreduce_algorithm=3"),
    tuned("4 ring", "allreduce_algorithm=4"),
    tuned("5 segmented ring", "allreduce_algorithm=5"),
    tuned("6 rabenseifner", "allreduce_algorithm=6"),
    openmpi("component basic", "coll=basic,self,libnbc,sync"),
    openmpi("component sm", "coll_sm_priority=100"),
    openmpi("component han", "coll_han_priority=100"),
    openmpi("component adapt", "coll_adapt_priority=100"),
    mpich("default"),
    mpich("recursive_doubling", ALLREDUCE_INTRA_ALGORITHM="recursive_doubling"),
    mpich("reduce_scatter_allgather", ALLREDUCE_INTRA_ALGORITHM="reduce_scatter_allgather"),
    mpich("smp", ALLREDUCE_INTRA_ALGORITHM="smp"),
    mpich("posix release_gather", ALLREDUCE_POSIX_INTRA_ALGORITHM="release_gather"),
    *(nonblocking("sched_" + each) for each in ("naive", "smp", "recursive_doubling", "reduce_scatter_allgather")),
    *(nonblocking("tsp_recexch_single_buffer", f", k = {k}", RECEXCH_KVAL=k) for k in (2, 3, 4, 8)),
    *(nonblocking("tsp_recexch_multiple_buffer", f", k = {k}", RECEXCH_KVAL=k) for k in (2, 3, 4)),
    *(nonblocking("tsp_tree", f", {kind}, k = {k}", TREE_TYPE=kind, TREE_KVAL=k)
      for kind in ("kary", "knomial_1", "knomial_2") for k in (2, 3, 4)),
    nonblocking("tsp_tree", ", kary, k = 3, buffer per child", TREE_TYPE="kary", TREE_KVAL=3, TREE_BUFFER_PER_CHILD=1),
    nonblocking("tsp_ring"),
    *(nonblocking("tsp_recexch_reduce_scatter_recexch_allgatherv", f", k = {k}", RECEXCH_KVAL=k) for k in (2, 3)),
]

# MPICH's ranks wait without giving up their core. With more ranks than cores that takes ten times as long.
YIELD = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
unsigned ucp_worker_progress(void* worker)
{
    static unsigned (*real)(void*);
    if (!real) real = (unsigned (*)(void*))dlsym(RTLD_NEXT, "ucp_worker_progress");
    unsigned arrived = real(worker);
    if (arrived == 0) sched_yield();
    return arrived;
}
"""


def yielding(folder):
    source, library = os.path.join(folder, "yield.c"), os.path.join(folder, "yield.so")
    with open(source, "w") as file:
        file.write(YIELD)
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", library, "-ldl"], check=True)
    return library


def cell(row):
    name = row["order_class"] + ("" if row["ranks_agree"] else " !") + ("" if row["run_stable"] else " ~")
    share = row["reproduced"]
    return name + ("" if share in (1, "nan") else f" ({share:.0%})")


def inspect(program, algorithm, ranks, preload, seconds, log):
    library, label, command, settings = algorithm
    environment = dict(os.environ, **settings)
    if library == "MPICH":
        environment["LD_PRELOAD"] = preload
    with tempfile.NamedTemporaryFile() as jsonl:
        run = ["timeout", str(seconds), *command, "-n", str(ranks), program, *MESSAGE, "--jsonl", jsonl.name]
        done = subprocess.run(run, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if log:
            with open(os.path.join(log, f"{library}, {label}, {ranks}".replace("/", "-")), "w") as file:
                file.write(done.stdout)
        if done.returncode != 0:
            return "no answer" if done.returncode == 124 else "fails"
        with open(jsonl.name) as lines:
            return cell(next(line for line in map(json.loads, lines) if line["kind"] == "inspection"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--openmpi", metavar="PROGRAM")
    parser.add_argument("--mpich", metavar="PROGRAM")
    parser.add_argument("--ranks", default="2,3,4,5,6,7,8,9,16,33,40")
    parser.add_argument("--only", default="", help="algorithms whose label contains this")
    parser.add_argument("--seconds", type=int, default=60, help="for one run")
    parser.add_argument("--log", metavar="FOLDER")
    given = parser.parse_args()
    programs = {"Open MPI": given.openmpi, "MPICH": given.mpich}
    ranks = [int(each) for each in given.ranks.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        preload = yielding(folder) if given.mpich else ""
        print("| algorithm |" + "".join(f" {n} |" for n in ranks) + "\n|---|" + "---|" * len(ranks))
        for algorithm in ALGORITHMS:
            if not programs[algorithm[0]] or given.only not in algorithm[1]:
                continue
            cells = [inspect(programs[algorithm[0]], algorithm, n, preload, given.seconds, given.log) for n in ranks]
            print(f"| {algorithm[0]}: {algorithm[1]} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
