#!/usr/bin/env python3
# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""Foreign programs under the preload: end_to_end.py CASE with the paths of everything."""

import argparse
import glob
import json
import os
import random
import re
import shutil
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor


def run_ranks(ranks, command, variables, of_ranks, kills):
    """Starts a program once for each rank, as a job's launcher does. `of_ranks`: more variables of one rank, by rank.
    `kills`: the seconds after which a rank is killed, by rank. What a rank says is in lines that begin with its number."""
    folder = tempfile.mkdtemp(prefix="run_ranks_")
    shared = tempfile.mkdtemp(prefix="run_ranks_", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    started = []
    try:
        for rank in range(ranks):
            own = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), STAND_IN_NCCL_DIR=shared,
                       RENDEZVOUS=os.path.join(folder, "rendezvous"), **variables)
            started.append(subprocess.Popen(command, env={**own, **of_ranks.get(rank, {})}, stdin=subprocess.DEVNULL,
                                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
            if rank in kills:
                threading.Timer(kills[rank], started[rank].kill).start()
        with ThreadPoolExecutor(ranks) as pool:
            texts = list(pool.map(lambda each: each.communicate(timeout=120), started))
        out, err = ("".join(f"{rank}: {line}" for rank, text in enumerate(side) for line in text.splitlines(True))
                    for side in zip(*texts))
        status = max(abs(each.returncode) for each in started)
        if not kills and not status and os.listdir(shared):
            status, err = 1, err + f"shared memory was left behind: {os.listdir(shared)}\n"
        return subprocess.CompletedProcess(command, status, out, err)
    finally:
        for each in started:
            each.kill()
        shutil.rmtree(folder)
        shutil.rmtree(shared)


class Preloaded:
    """A run of a program's ranks, with the preload and without."""

    def __init__(self, paths, folder):
        self.paths = paths
        self.folder = folder
        self.count = 0

    def run(self, program, *arguments, ranks=4, of_ranks={}, kills={}, records=True, **variables):
        """Returns the run, and the folder of its records."""
        self.count += 1
        records_at = os.path.join(self.folder, f"records{self.count}")
        if records:
            variables = {"LD_PRELOAD": self.paths.preload, "COLLPROBE_DIR": records_at, "COLLPROBE_ENGINE": self.paths.engine,
                         "COLLPROBE_EVERY": "1", "COLLPROBE_MIN_BYTES": "1", **variables}
        command = [os.path.join(self.paths.programs, program), *arguments]
        return run_ranks(ranks, command, variables, of_ranks, kills), records_at

    def merge(self, records, *arguments):
        return subprocess.run([self.paths.merge, records, *arguments], capture_output=True, text=True, check=False)


def lines(records, kind):
    found = []
    for path in sorted(glob.glob(os.path.join(records, "*.jsonl"))):
        with open(path, encoding="utf-8") as file:
            for text in file:
                line = json.loads(text)
                if line.get("kind") == kind:
                    found.append(line)
    return found


def checksums(done):
    return re.findall(r"^\d+: checksum ([0-9a-fx]+)$", done.stdout, re.MULTILINE)


def require(condition, *evidence):
    if condition:
        return
    texts = []
    for each in evidence:
        if isinstance(each, subprocess.CompletedProcess):
            texts.append(f"status {each.returncode}\n--- stdout\n{each.stdout[-4000:]}\n--- stderr\n{each.stderr[-4000:]}")
        else:
            texts.append(str(each))
    raise AssertionError("\n".join(texts))


def a2_unwritable(job):
    """Where no file can be written the program runs as before, and that is said."""
    plain, _ = job.run("foreign_trainer", "--steps", "5", "--checksum", records=False, ranks=2)
    unwritable, _ = job.run("foreign_trainer", "--steps", "5", "--checksum", ranks=2, COLLPROBE_DIR="/proc/none")
    require(unwritable.returncode == 0 and checksums(unwritable) == checksums(plain), unwritable)
    require("nothing is written" in unwritable.stderr, unwritable)


def a5_groups(job):
    """Groups, several streams, non-blocking communicators, threads and splits."""
    for options in ("--groups --streams 3", "--nonblocking --groups --streams 2", "--type mixed --shard", "--split --avg"):
        plain, _ = job.run("foreign_trainer", *"--steps 12 --checksum".split(), *options.split(), records=False)
        probed, records = job.run("foreign_trainer", *"--steps 12 --checksum".split(), *options.split())
        require(probed.returncode == 0 and checksums(probed) == checksums(plain), options, plain, probed)
        merged = job.merge(records)
        require(merged.returncode == 0, options, merged)
        calls = lines(records, "call")
        require(len(calls) >= 12 * 8 * 4, options, len(calls))
    mixed, records = job.run("foreign_mixed", ranks=2)
    require(mixed.returncode == 0, mixed)
    # Its ranks fork: a child writes no file.
    require(len(os.listdir(records)) == 2 and len(lines(records, "process")) == 2, os.listdir(records))


def a9_ends(job):
    """Ends of all kinds leave whole lines, and a child writes no file."""
    for how in ("_exit", "leak", "return"):
        done, records = job.run("foreign_trainer", "--steps", "30", "--exit", how, ranks=2)
        require(done.returncode == 0, how, done)
        require(len(lines(records, "process")) == 2 and len(lines(records, "call")) > 100, how)
    random.seed(1)
    for _ in range(int(os.environ.get("KILLED_RUNS", "12"))):
        done, records = job.run("foreign_trainer", "--steps", "100000", "--step-us", "200", ranks=2,
                                STAND_IN_NCCL_DEADLINE_S="1",
                                kills={rank: random.uniform(0.1, 0.6) for rank in range(2)})
        for path in glob.glob(os.path.join(records, "*.jsonl")):
            with open(path, encoding="utf-8") as file:
                text = file.read()
            for line in text.split("\n")[:-1]:
                json.loads(line)


def a10_detection(job):
    """One rank that sends NaN, repeats a tensor, sends another's, or gets one flipped bit: rank, call and step."""
    base = "--steps 40 --buckets 6 --size 600 --log-every 10".split()
    for fault, words in (("nan:2,23,4", ("rank 2", "all_reduce#4", "step 23")),
                         ("stale:1,30,2", ("rank 1", "all_reduce#2", "step 30")),
                         ("copy:0,17,5", ("rank 0", "all_reduce#5", "step 17"))):
        done, records = job.run("foreign_trainer", *base, "--fault", fault, "--mark")
        require(done.returncode == 0, done)
        merged = job.merge(records)
        require(merged.returncode == 1, fault, merged)
        require(any(all(word in line for word in words) for line in merged.stdout.splitlines()), fault, merged)
        if fault.startswith("nan"):  # which the rank tells at once, and alone
            told = [line for line in lines(records, "alarm") if line["check"] == "non_finite"]
            require([line["writer"] for line in told] == [2], told)
    # The 100th call of the communicator that has the gradients: which step and bucket it is, the records say.
    done, records = job.run("foreign_trainer", *base, "--mark", STAND_IN_NCCL_FLIP="3 100 5 3")
    require(done.returncode == 0, done)
    flipped = [line for line in lines(records, "call") if line["collective_seq_id"] == 100 and line["writer"] == 3][0]
    merged = job.merge(records)
    name = f"{flipped['call']}#{flipped['bucket']}"
    require(merged.returncode == 1, merged)
    require(any("rank 3" in line and name in line and f"step {flipped['step']}" in line
                for line in merged.stdout.splitlines()), name, merged)
    # Without marks the steps are found: the numbers differ by where the finder began, the call and the rank do not.
    done, records = job.run("foreign_trainer", *base, "--fault", "nan:2,23,4")
    merged = job.merge(records)
    require(merged.returncode == 1 and "rank 2" in merged.stdout and "all_reduce#" in merged.stdout, merged)


def a10_clean_run(job):
    """10,000 clean steps: alarms within the stated rate, which is 3e-7 a step."""
    done, records = job.run("foreign_trainer", *"--steps 10000 --buckets 2 --size 256 --log-every 10 --mark".split(), ranks=3,
                            COLLPROBE_EVERY="8")
    require(done.returncode == 0, done)
    merged = job.merge(records)
    require(merged.returncode == 0, merged)
    judged = int(re.search(r"(\d+) steps judged", merged.stdout)[1])
    require(judged >= 1000, merged) # the others' records were dropped where the machine was too slow


def inband(job):
    """The live channel names rank, call and step while the program runs, and changes no bit."""
    base = "--steps 60 --buckets 5 --size 400 --log-every 0 --step-us 3000 --checksum".split()
    plain, _ = job.run("foreign_trainer", *base, records=False)
    for options in ("", "--groups --streams 2"):
        # A step that comes faster than it is judged, as on a busy machine, is left out, and that is said: another run has it.
        for _ in range(5):
            done, records = job.run("foreign_trainer", *base, *options.split(), "--fault", "nan:2,40,3",
                                    COLLPROBE_CHANNEL="inband", COLLPROBE_RUN="live")
            require(done.returncode == 0, done)
            told = [line for line in done.stderr.splitlines() if line.startswith("0: collprobe: communicator")]
            if any("rank 2 sent NaN or infinity (non_finite)" in line and "all_reduce#3" in line for line in told):
                break
            require("left out of the live view" in done.stderr, options, done)
        else:
            require(False, options, done)
        require(glob.glob(os.path.join(records, "live.*.live.jsonl")), os.listdir(records))
        clean, at = job.run("foreign_trainer", *base, *options.split(),
                            COLLPROBE_CHANNEL="inband", COLLPROBE_RUN="live")
        require(checksums(clean) == checksums(plain), plain, clean)
        # Each step is judged, or said to be left out; those at the ends may be no whole steps.
        judged = {line["step"] for line in lines(at, "step")}
        left_out = sum(int(n) for n in re.findall(r"(\d+) steps? left out of the live view", clean.stderr))
        require(len(judged) + left_out >= 50, sorted(judged), left_out, clean)
        # More ranks than processors: one may well be late, and so may the judge.
        told = [line for line in clean.stderr.splitlines()
                if "collprobe" in line and ": late: " not in line and "the live view" not in line]
        require(not told, clean)


def inband_settings(job):
    """Ranks with other settings keep to files; with equal ones the live file says what the merged files say."""
    done, records = job.run("foreign_trainer", *"--steps 30 --log-every 0".split(), ranks=3,
                            COLLPROBE_CHANNEL="inband", of_ranks={1: {"COLLPROBE_MIN_BYTES": "7"}})
    require(done.returncode == 0, done)
    require("no live verdicts, only files: these ranks have other settings than rank 0: 1" in done.stderr, done)
    require(len(lines(records, "call")) > 500, done)


def inband_mixed(job):
    """Threads, groups, splits and communicators of ncclCommInitAll under the live channel: none waits for itself."""
    begin = time.monotonic()
    done, _ = job.run("foreign_mixed", ranks=2, COLLPROBE_CHANNEL="inband")
    require(done.returncode == 0 and time.monotonic() - begin < 50, done)


def control_file(job):
    """An operator changes the sampling while the program runs."""
    control = os.path.join(job.folder, "control")
    with open(control, "w", encoding="utf-8") as file:
        file.write("every=4\n")
    done, records = job.run("foreign_trainer", *"--steps 300 --step-us 1000 --mark".split(), ranks=2,
                            COLLPROBE_CONTROL_FILE=control)
    require(done.returncode == 0, done)
    late = {line["step"] for line in lines(records, "call") if line["step"] >= 150}
    require(late == set(range(152, 300, 4)), late)


CASES = {function.__name__: function for function in (
    a2_unwritable, a5_groups, a9_ends, a10_detection, a10_clean_run,
    inband, inband_settings, inband_mixed, control_file)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("preload", "engine", "programs", "merge"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("case", choices=CASES)
    paths = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="collprobe_preload.")
    try:
        CASES[paths.case](Preloaded(paths, folder))
    finally:
        if "KEEP" not in os.environ:
            shutil.rmtree(folder)
        else:
            print("kept", folder)


if __name__ == "__main__":
    main()
