#!/usr/bin/env python3
# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""Programs of MPI under collprobe-run --mpi: mpi_preload.py CASE with the paths of everything."""

import argparse
import glob
import json
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))


def require(condition, *evidence):
    if not condition:
        raise AssertionError("\n".join(str(each) for each in evidence))


class Job:
    """Runs programs with the preload and without."""

    def __init__(self, paths):
        self.paths = paths

    def run(self, *program, ranks=2, launcher=True, timeout=120, **variables):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("COLLPROBE_")}
        environment.update(COLLPROBE_WAIT="5", **variables)
        command = [self.paths.mpiexec, "-n", str(ranks)]
        if launcher:
            command += [self.paths.launcher, "--mpi"]
        process = subprocess.Popen([*command, *program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env=environment)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.terminate()  # mpiexec ends its ranks
            out, err = process.communicate()
            return subprocess.CompletedProcess(program, 124, out, err)
        return subprocess.CompletedProcess(program, process.returncode, out, err)

    def program(self, name="program"):
        return os.path.join(self.paths.programs, name + "." + self.paths.mpi)

    def says(self, *program, **options):
        """What the preload says of a program that ends well."""
        done = self.run(*program, **options)
        require(done.returncode == 0 and done.stdout, done)
        return said(done)

    def both(self, *program, **options):
        """The output and the status are the same with the preload; returns what it says."""
        bare = self.run(*program, launcher=False, **options)
        done = self.run(*program, **options)
        require(bare.returncode == done.returncode, bare, done)
        require(bare.stdout == done.stdout and bare.stdout, bare, done)
        return said(done)


def said(done):
    return [line for line in done.stderr.splitlines() if line.startswith("collprobe: ")]


def findings(lines):
    """But that a rank comes late, which on a machine with other work is true."""
    return [line for line in lines if re.match(r"collprobe: step ", line) and "delay at the calls" not in line]


def summary(lines):
    """Steps and calls of the world."""
    for line in lines:
        match = re.match(r"collprobe: MPI_COMM_WORLD: (\d+) step\(s\), (\d+) call\(s\) looked at, \d+ finding", line)
        if match:
            return tuple(int(each) for each in match.groups())
    raise AssertionError("\n".join(lines))


def same(job):
    """Results, output and exit status do not change, nor the thread level that the program asks for."""
    for level in ((), ("0",), ("1",), ("3",)):
        lines = job.both(job.program(), "20", "none", *level)
        require(not findings(lines), *lines)
        require(summary(lines)[1] == 120, *lines)
        require("collprobe: not looked at: 20 MPI_Allreduce of MPI_INT, 20 MPI_Bcast, 1 MPI_Reduce" in lines, *lines)
    job.both(job.program(), "3", "status")


def healthy(job):
    lines = job.says(job.program(), "300", "none", timeout=280)
    steps, calls = summary(lines)
    require(steps >= 290 and calls == 1800 and not findings(lines), *lines)


def faults(job):
    """Rank, call, element and step of each."""
    for fault, ranks, rank, call, element in (
            ("nan", 3, 2, "all_reduce#0", 777), ("in_place", 2, 1, "all_reduce#1", 42),
            ("out_of_order", 2, 1, "all_reduce#3", 5)):
        lines = findings(job.says(job.program(), "20", fault, ranks=ranks))
        require(lines and all("step 7: " in line and f": rank {rank} sent NaN" in line for line in lines), fault, *lines)
        require(f"'{call}'" in lines[0] and f"the first at index {element}" in lines[0], fault, *lines)
    lines = findings(job.says(job.program(), "20", "copy", ranks=3))
    require(len(lines) == 2 and ": rank 0 " in lines[0] and "the same bits as rank 2" in lines[0], *lines)
    require(": rank 2 " in lines[1] and "the same bits as rank 0" in lines[1], *lines)
    lines = findings(job.says(job.program(), "70", "scale", ranks=3))
    require(lines and all("step 60: " in line and ": rank 1 had" in line for line in lines), *lines)
    require(any("all_reduce#0" in line for line in lines), *lines)


def told_steps(job):
    """Steps of so many calls, all short ones, and the calls of each are named from 0 on."""
    lines = job.says(job.program(), "20", "nan", ranks=3, COLLPROBE_STEP_CALLS="6")
    require(summary(lines)[0] == 20, *lines)
    require("step 7: " in findings(lines)[0] and ": rank 2 sent NaN" in findings(lines)[0], *lines)
    lines = job.says(job.program(), "20", "none", COLLPROBE_EVERY="4", COLLPROBE_STEP_CALLS="6")
    require(summary(lines) == (5, 30), *lines)
    lines = job.says(job.program(), "20", "none", COLLPROBE_MIN_BYTES="1000000")
    require(any("20 MPI_Allreduce that are short" in line or "40 MPI_Allreduce that are short" in line
                for line in lines), *lines)
    require(job.says(job.program(), "20", "nan", ranks=3, COLLPROBE_ENABLE="0") == [])


def ends(job):
    """A rank that leaves early ends the job as it does without the preload."""
    for fault in ("exit", "abort"):
        for _ in range(5):
            bare = job.run(job.program(), "20", fault, launcher=False, timeout=60)
            done = job.run(job.program(), "20", fault, timeout=60)
            # MPICH's launcher sometimes tells the code of a rank that it kills in place of that of the rank that left.
            if 9 not in (bare.returncode, done.returncode):
                break
        require(bare.returncode != 124 and bare.returncode == done.returncode, bare, done)


def misuse(job):
    """Ranks that disagree are told so, and the program ends where it ends without the preload."""
    for fault in ("order", "mark"):
        done = job.run(job.program(), "20", fault, ranks=3, timeout=100)
        require(done.returncode == 0 and "checksum" in done.stdout, done)
        lines = [line for line in said(done) if " from here on: " in line]
        require(lines and any("rank 1" in line or "ranks 0 and 2" in line for line in lines), done)
    bare = job.run(job.program(), "20", "count", ranks=3, launcher=False, timeout=30)
    done = job.run(job.program(), "20", "count", ranks=3, timeout=100)
    require(done.returncode != 124 or bare.returncode == 124, bare, done)


def communicators(job):
    """Each has its own probe; ranks are told by the communicator and the world; short-lived ones are counted."""
    lines = job.both(job.program("communicators"), "none", ranks=4)
    require(not findings(lines), *lines)
    require(any("26 MPI_Allreduce first on a communicator" in line for line in lines), *lines)
    lines = findings(job.says(job.program("communicators"), "nan", ranks=4))
    require(len(lines) == 2, *lines)
    row = [line for line in lines if "of rows with rank 2 of the world as rank 0: " in line and ": rank 1 sent NaN" in line]
    require(len(row) == 1 and "index 9; this is rank 3 of the world" in row[0], *lines)
    require(any(re.match(r"collprobe: step \d+: .*: rank 1 sent NaN.* index 11$", line) for line in lines), *lines)


def records(job):
    with tempfile.TemporaryDirectory() as folder:
        folder = os.path.join(folder, "run1")
        done = job.run(job.program(), "20", "nan", ranks=3, COLLPROBE_DIR=folder)
        files = glob.glob(os.path.join(folder, "*.jsonl"))
        require(len(files) == 1 and "MPI_COMM_WORLD" in files[0], files, done)
        with open(files[0], encoding="utf-8") as file:
            steps = [json.loads(line) for line in file]
        require(len(steps) == summary(said(done))[0], len(steps), done)
        require(any(each.get("step") == 7 for each in steps), steps[-1])


def fortran(job, program="program_mpi"):
    lines = job.both(job.program(program), "40", "none")
    require(not findings(lines) and summary(lines)[1] == 160, *lines)
    require("collprobe: not looked at: 40 MPI_Allreduce of MPI_INTEGER" in lines, *lines)
    for fault, element in (("nan", 777), ("in_place", 42)):
        lines = findings(job.says(job.program(program), "20", fault))
        require(len(lines) == 1 and "step 7: " in lines[0] and ": rank 1 sent NaN" in lines[0] and f"index {element}" in lines[0], *lines)


def fortran_f08(job):
    fortran(job, "program_mpi_f08")


def python(job):
    """mpi4py's wheel knows both MPIs; that of MPICH by the name that all with its binary interface have."""
    interpreter = os.path.join(job.paths.venv, "bin", "python")
    if not os.path.exists(interpreter):
        print("skipped: there is no mpi4py (the test mpi_preload.venv says why)")
        return
    with tempfile.TemporaryDirectory() as folder:
        variables = {"MPI4PY_MPIABI": job.paths.mpi}
        if job.paths.mpi == "mpich":
            linked = subprocess.run(["ldd", job.program()], capture_output=True, text=True, check=True).stdout
            library = re.search(r"libmpich\.so\.12 => (\S+)", linked)
            if library:
                os.symlink(library.group(1), os.path.join(folder, "libmpi.so.12"))
                variables["LD_LIBRARY_PATH"] = folder
        program = [interpreter, os.path.join(HERE, "program.py")]
        lines = job.both(*program, "20", "none", **variables)
        require(not findings(lines) and summary(lines)[1] == 80, *lines)
        for fault, element in (("nan", 777), ("in_place", 42)):
            lines = findings(job.says(*program, "20", fault, **variables))
            require(lines and "step 7: " in lines[0] and ": rank 1 sent NaN" in lines[0] and f"index {element}" in lines[0], *lines)


def venv(job):
    """Makes the environment of the case `python`."""
    folder = job.paths.venv
    steps = [[sys.executable, "-m", "venv", folder],
             [os.path.join(folder, "bin", "python"), "-m", "pip", "install", "--quiet", "--only-binary=:all:",
              "mpi4py"]]
    for step in steps:
        try:
            done = subprocess.run(step, capture_output=True, text=True, timeout=240, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            done = subprocess.CompletedProcess(step, 1, "", str(error))
        if done.returncode != 0:
            interpreter = os.path.join(folder, "bin", "python")
            if os.path.lexists(interpreter):
                os.remove(interpreter)
            print("skipped: mpi4py could not be installed:", done.stderr.strip()[-300:])
            return


def other_mpi(job):
    """Under the layer for another MPI the program runs as it does alone, and that is said once."""
    done = job.run(job.program(), "5", "none", launcher=False, LD_PRELOAD=job.paths.other_layer)
    require(done.returncode == 0 and "checksum" in done.stdout, done)
    lines = said(done)
    require(len(lines) == 1 and "is none that the preloaded layer is built for" in lines[0], done)


def launcher(job):
    """Which MPI it is, is found out, or asked for; what cannot be reached is said."""
    def start(*words, **variables):
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith(("COLLPROBE_", "LD_", "PMI", "OMPI_COMM_"))}
        return subprocess.run([job.paths.launcher, *words], capture_output=True, text=True, timeout=60, check=False,
                              env=dict(environment, **variables))
    layer = f"libcollprobe_mpi_{job.paths.mpi}.so"
    done = start(f"--mpi={job.paths.mpi}", "--step-calls", "3", "--print")
    require(layer in done.stdout and "COLLPROBE_STEP_CALLS=3" in done.stdout, done)
    told = {"OMPI_COMM_WORLD_SIZE" if job.paths.mpi == "openmpi" else "PMI_SIZE": "2"}
    require(layer in start("--mpi", "sh", "-c", "echo $LD_PRELOAD", **told).stdout)
    for words, text in ((["--mpi=other", "true"], "openmpi and mpich are known"),
                        (["--mpi", "true"], "which MPI does true"), (["--mpi", "/absent"], "there is no program"),
                        (["--mpi"], "usage")):
        done = start(*words)
        require(done.returncode == 2 and text in done.stderr, words, done)
    before = start("--mpi", job.paths.mpiexec, "-n", "2", job.program(), "5", "nan")
    require(before.returncode == 0 and summary(said(before))[1] == 30, before)


def main():
    parser = argparse.ArgumentParser()
    for name in ("mpi", "mpiexec", "launcher", "programs", "venv", "other-layer"):
        parser.add_argument("--" + name, default="")
    parser.add_argument("case")
    paths = parser.parse_args()
    cases = {case.__name__: case for case in (same, healthy, faults, told_steps, ends, misuse, communicators, records,
                                              fortran, fortran_f08, python, venv, other_mpi, launcher)}
    cases[paths.case](Job(paths))


main()
