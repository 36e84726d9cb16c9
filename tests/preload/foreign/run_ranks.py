#!/usr/bin/env python3
# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""Starts a program once for each rank, as a job's launcher does.

run_ranks.py --ranks N [option...] -- PROGRAM [argument...]

Each rank finds RANK, WORLD_SIZE, LOCAL_RANK, RENDEZVOUS (a path that all ranks know) and STAND_IN_NCCL_DIR (a folder
for shared memory, removed at the end) in its environment. What ranks print comes out when all have ended, in the order
of ranks; what they say on stderr comes out at once. Every line begins with the rank.

Exit status: 0 if all ranks ended with 0 and left no shared memory behind, 124 after the time-out, else the status of
the rank that was the first to fail (128 + n: ended by signal n). Ranks that --kill ends do not count. When a rank has
failed, the others have 10 seconds to end as well.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time


TERMINATED = threading.Event()


def assignment(text):
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"not NAME=VALUE: {text}")
    return name, value


def of_rank(text):
    rank, colon, rest = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError(f"not RANK:NAME=VALUE: {text}")
    return int(rank), assignment(rest)


def kill_time(text):
    rank, at, seconds = text.partition("@")
    if not at:
        raise argparse.ArgumentTypeError(f"not RANK@SECONDS: {text}")
    return int(rank), float(seconds)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--preload", metavar="LIB", help="LD_PRELOAD of the ranks")
    parser.add_argument("--env", type=assignment, action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--rank-env", type=of_rank, action="append", default=[], metavar="RANK:NAME=VALUE")
    parser.add_argument("--timeout", type=float, default=120, metavar="SECONDS")
    parser.add_argument("--kill", type=kill_time, action="append", default=[], metavar="RANK@SECONDS")
    parser.add_argument("command", nargs="+", metavar="PROGRAM ARGUMENT")
    return parser.parse_args()


def environment(options, rank, folder, shared):
    variables = dict(os.environ)
    variables.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(options.ranks),
        RENDEZVOUS=os.path.join(folder, "rendezvous"),
        STAND_IN_NCCL_DIR=shared,
    )
    variables.update(options.env)
    variables.update(pair for of, pair in options.rank_env if of == rank)
    if options.preload:
        variables["LD_PRELOAD"] = ":".join(filter(None, (options.preload, variables.get("LD_PRELOAD"))))
    return variables


class Rank:
    """A process, and threads that read what it says."""

    def __init__(self, number, command, variables):
        self.number = number
        self.is_killed = False
        self.out = []
        self.process = subprocess.Popen(
            command, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True)
        self.readers = [threading.Thread(target=self.read_out), threading.Thread(target=self.read_err)]
        for reader in self.readers:
            reader.start()

    def read_out(self):
        for line in self.process.stdout:
            self.out.append(line.decode(errors="replace"))

    def read_err(self):
        for line in self.process.stderr:
            sys.stderr.write(f"{self.number}: {line.decode(errors='replace')}")
            sys.stderr.flush()

    def kill(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def has_failed(self):
        return self.process.poll() not in (None, 0) and not self.is_killed


def wait_for(ranks, options):
    """Waits for the ranks; gives the first that failed, if any, and whether all ended in time."""
    begin = time.monotonic()
    end = begin + options.timeout
    kills = sorted(options.kill, key=lambda each: each[1])
    first_failed = None
    while any(rank.process.poll() is None for rank in ranks):
        now = time.monotonic()
        if now > end or TERMINATED.is_set():
            return first_failed, False
        while kills and now - begin >= kills[0][1]:
            victim = ranks[kills.pop(0)[0]]
            if victim.process.poll() is None:
                victim.is_killed = True
                victim.kill()
        if first_failed is None:
            first_failed = next((rank for rank in ranks if rank.has_failed()), None)
            if first_failed is not None:
                end = min(end, now + 10)
        time.sleep(0.005)
    return first_failed or next((rank for rank in ranks if rank.has_failed()), None), True


def run(options, folder, shared):
    command = list(options.command)
    if command[0].endswith(".py"):
        command.insert(0, sys.executable)
    ranks = []
    failed, in_time = None, False
    try:
        for number in range(options.ranks):
            ranks.append(Rank(number, command, environment(options, number, folder, shared)))
        failed, in_time = wait_for(ranks, options)
    finally:
        for rank in ranks:
            rank.kill()  # children that outlive a rank as well
            rank.process.wait()
            for reader in rank.readers:
                reader.join()
    for rank in ranks:
        for line in rank.out:
            sys.stdout.write(f"{rank.number}: {line}")
    sys.stdout.flush()
    if failed is not None:
        late = "" if in_time else ", and others went on"
        code = failed.process.returncode
        sys.stderr.write(f"run_ranks: rank {failed.number} ended with status {code}{late}\n")
        return 128 - code if code < 0 else code
    if TERMINATED.is_set():
        return 128 + signal.SIGTERM
    if not in_time:
        sys.stderr.write(f"run_ranks: not over after {options.timeout:g} s\n")
        return 124
    left = os.listdir(shared)
    if left and not options.kill:
        sys.stderr.write(f"run_ranks: shared memory was left behind: {' '.join(left)}\n")
        return 1
    return 0


def main():
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: TERMINATED.set())
    folder = tempfile.mkdtemp(prefix="run_ranks_")
    shared = tempfile.mkdtemp(prefix="run_ranks_", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    try:
        return run(options, folder, shared)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(shared, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
