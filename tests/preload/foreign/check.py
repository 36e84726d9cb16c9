#!/usr/bin/env python3
# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""What the foreign trainer and the NCCL below it must do, without a preload: check.py CASE with paths of them."""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time

RUN = [sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "run_ranks.py")]


class Outcome:
    def __init__(self, done, seconds):
        self.status = done.returncode
        self.out = done.stdout
        self.err = done.stderr
        self.seconds = seconds

    def checksums(self):
        return re.findall(r"^\d+: checksum ([0-9a-f]{16})$", self.out, re.MULTILINE)

    def __str__(self):
        return f"status {self.status} after {self.seconds:.1f} s\n--- stdout\n{self.out}--- stderr\n{self.err}"


def run(program, *arguments, ranks=4, launcher=()):
    begin = time.monotonic()
    command = [*RUN, "--ranks", str(ranks), "--timeout", "60", *launcher, "--", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return Outcome(done, time.monotonic() - begin)


def require(condition, outcome):
    if not condition:
        raise AssertionError(str(outcome))


def results(paths):
    """All ways to train give what each rank computes alone."""
    for options in (
        "",
        "--avg --type fp32 --streams 2",
        "--premul --type mixed --groups",
        "--type fp64 --shard --evaluate-every 4",
        "--avg --shard --tag --split",
        "--premul --nonblocking --streams 3",
        "--capture --streams 3 --avg --type mixed",
    ):
        outcome = run(paths.trainer, *"--steps 12 --size 300 --verify 1 --log-every 3".split(), *options.split())
        require(outcome.status == 0, outcome)


def same_bits(paths):
    """How calls are made changes no bit."""
    base = "--steps 8 --size 300 --checksum --shard".split()
    plain = run(paths.trainer, *base, ranks=3)
    require(plain.status == 0 and len(plain.checksums()) == 3, plain)
    for options in ("--groups", "--nonblocking", "--nonblocking --groups", "--streams 4", "--capture", "--tag"):
        other = run(paths.trainer, *base, *options.split(), ranks=3)
        require(other.status == 0 and other.checksums() == plain.checksums(), other)
    for options in ("--avg", "--seed 2", "--same-first", "--fault copy:1,3,2"):
        other = run(paths.trainer, *base, *options.split(), ranks=3)
        require(other.status == 0 and other.checksums() != plain.checksums(), other)


def faults(paths):
    """A faulty rank spoils the result of its bucket on all ranks, in that step alone."""
    for kind in "nan inf stale copy zero scale".split():
        outcome = run(paths.trainer, *f"--steps 8 --size 200 --verify 1 --fault {kind}:1,5,2".split())
        require(outcome.status == 3, outcome)
        require(outcome.err.count("step 5, bucket 2,") == 4, outcome)
        require(outcome.err.count(": step ") == 4, outcome)


def flipped_bit(paths):
    """STAND_IN_NCCL_FLIP is wrong on one rank, in one result."""
    base = "--steps 6 --size 200 --buckets 3 --same-first --verify 1".split()
    # After the broadcast, three calls a step.
    flip = f"STAND_IN_NCCL_FLIP=rank=2,call={1 + 3 * 4 + 1},element=77,bit=14"
    outcome = run(paths.trainer, *base, launcher=["--env", flip])
    require(outcome.status == 3, outcome)
    require(outcome.err.count(": step ") == 1, outcome)
    require("2: step 4, bucket 1, element 77:" in outcome.err, outcome)
    other = run(paths.trainer, *base, launcher=["--env", flip + ",comm=1"])
    require(other.status == 0, other)


def dead_rank(paths):
    """The death of a rank ends the others at the deadline."""
    outcome = run(paths.trainer, "--steps", "100000", "--size", "100",
        launcher=["--kill", "1@0.5", "--env", "STAND_IN_NCCL_DEADLINE_S=1"])
    require(outcome.status == 1 and outcome.seconds < 20, outcome)
    require("missing: 1" in outcome.err, outcome)


def late_rank(paths):
    """A rank that never comes to the communicator ends the others at the deadline; no name of their memory stays."""
    outcome = run(paths.rpath, launcher=["--rank-env", "3:RENDEZVOUS=/nowhere", "--kill", "3@0.2", "--env",
        "STAND_IN_NCCL_DEADLINE_S=1"])
    require(outcome.status == 1 and outcome.seconds < 20, outcome)
    require("only 3 ranks have come" in outcome.err, outcome)
    with tempfile.TemporaryDirectory() as shared:
        environment = {**os.environ, "RANK": "0", "WORLD_SIZE": "2", "RENDEZVOUS": shared + ".id",
            "STAND_IN_NCCL_DIR": shared, "STAND_IN_NCCL_DEADLINE_S": "0.2"}
        alone = subprocess.run([paths.rpath], env=environment, capture_output=True, check=False)
        os.unlink(shared + ".id.work")
        require(alone.returncode == 1 and not os.listdir(shared), os.listdir(shared))


def counts_of(path):
    with open(path, encoding="utf-8") as file:
        return sorted((json.loads(line) for line in file), key=lambda each: each["rank"])


def counts(paths):
    """Every call of the program is counted, and those that NCCL makes itself."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "counts")
        outcome = run(paths.trainer, *"--steps 7 --size 50 --log-every 0 --shard".split(),
            launcher=["--env", "STAND_IN_NCCL_COUNTS=" + path])
        require(outcome.status == 0, outcome)
        seen = counts_of(path)
        require([each["rank"] for each in seen] == [0, 1, 2, 3], seen)
        for each in seen:
            calls = each["calls"]
            wanted = {"ncclAllReduce": 7 * 8 + 1, "ncclReduceScatter": 7, "ncclAllGather": 7, "ncclBroadcast": 1,
                "ncclCommInitRankConfig": 1, "ncclCommDestroy": 1}
            require({name: calls.get(name) for name in wanted} == wanted, each)
            require(calls["ncclCommGetAsyncError"] == each["inside"]["ncclCommGetAsyncError"] > 72, each)
            require(each["inside"]["ncclMemAlloc"] == each["inside"]["ncclMemFree"] == 1, each)

        path = os.path.join(folder, "counts_of_work")
        outcome = run(paths.rpath, launcher=["--env", "STAND_IN_NCCL_COUNTS=" + path])
        require(outcome.status == 0, outcome)
        for each in counts_of(path):
            require(each["calls"]["ncclBcast"] == each["calls"]["ncclBroadcast"] == 1, each)
            require(each["inside"]["ncclBroadcast"] == 1 and "ncclBcast" not in each["inside"], each)


def polls(paths):
    """A communicator that does not block tells its success in the poll of that number."""
    with tempfile.TemporaryDirectory() as folder:
        for number in 1, 3, 6:
            path = os.path.join(folder, str(number))
            outcome = run(paths.trainer, *"--steps 5 --size 50 --log-every 0 --nonblocking".split(),
                launcher=["--env", "STAND_IN_NCCL_COUNTS=" + path, "--env", f"STAND_IN_NCCL_POLLS={number}"])
            require(outcome.status == 0, outcome)
            operations = 1 + 1 + 5 * 8 + 1 + 1  # init, broadcast, buckets, one more in the first step, finalize
            for each in counts_of(path):
                outside = each["calls"]["ncclCommGetAsyncError"] - each["inside"]["ncclCommGetAsyncError"]
                require(outside >= number * operations, each)


def symbols(paths):
    """The library looks as NCCL does: weak names with strong twins, nothing else, calls of its own by name."""
    exported = subprocess.run(["nm", "-D", "--defined-only", paths.nccl], capture_output=True, text=True, check=True)
    kinds = {line.split()[2]: line.split()[1] for line in exported.stdout.splitlines()}
    plain = {name for name in kinds if name.startswith("nccl")}
    require(len(plain) >= 40 and set(kinds) == plain | {"p" + name for name in plain}, kinds)
    require(all(kinds[name] == "W" and kinds["p" + name] == "T" for name in plain), kinds)
    dynamic = subprocess.run(["readelf", "-Wdr", paths.nccl], capture_output=True, text=True, check=True).stdout
    require("Library soname: [libnccl.so.2]" in dynamic, dynamic)
    called = set(re.findall(r"(?:JUMP_SLO|GLOB_DAT).* (nccl\w+)", dynamic))
    wanted = {"ncclBroadcast", "ncclMemAlloc", "ncclMemFree", "ncclCommRegister", "ncclCommDeregister",
        "ncclGetUniqueId", "ncclCommGetAsyncError"}
    require(wanted <= called, called)


def main():
    cases = {case.__name__: case
        for case in (results, same_bits, faults, flipped_bit, dead_rank, late_rank, counts, polls, symbols)}
    parser = argparse.ArgumentParser(description=__doc__)
    for name in "trainer", "rpath", "nccl":
        parser.add_argument("--" + name, required=True)
    parser.add_argument("case", choices=cases)
    paths = parser.parse_args()
    cases[paths.case](paths)


if __name__ == "__main__":
    main()
