#!/usr/bin/env python3
# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""wheel.py build|commands <project> <folder of the wheel> [<rank_log_sample>]"""
import ast
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import venv

task, project, folder = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
SKIPPED = 77


def run(*words, code=0, timeout=600, **more):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=timeout, **more)
    assert done.returncode == code, f"{words}: exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def expect(text, *parts):
    for part in parts:
        assert part in text, f"'{part}' is not in: {text}"


def skip(why):
    print("skipped:", why)
    sys.exit(SKIPPED)


def the_wheel():
    found = sorted(folder.glob("collprobe-*.whl"))
    if not found:
        skip("there is no wheel")
    return found[-1]


def build():
    """Not optimised much, and without nvcc: cmake/wheel.sh makes those that are handed out."""
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as scratch:
        venv.create(scratch, with_pip=True)
        pip = [os.path.join(scratch, "bin/python"), "-m", "pip", "--disable-pip-version-check"]
        asked = subprocess.run([*pip, "download", "-q", "--no-deps", "-d", scratch, "nlohmann-json"], capture_output=True,
                               text=True, timeout=600)
        if asked.returncode != 0:
            skip("no package registry can be reached: " + asked.stderr.strip().split("\n")[-1])
        run(*pip, "wheel", "-q", "--no-deps", "-w", folder, "-C", "cmake.define.COLLPROBE_CUDA=OFF",
            "-C", "cmake.define.CMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG", project / "examples/programs", timeout=1700)
    done = run(sys.executable, project / "cmake/check_wheel.py", the_wheel())
    print(done.stdout)
    for each in (project / "examples/programs/collprobe").rglob("*.py"):
        ast.parse(each.read_text(), feature_version=(3, 9))


def npy(path, values):
    header = repr({"descr": "<f4", "fortran_order": False, "shape": (len(values),)}).ljust(117) + "\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()
                     + struct.pack("<%df" % len(values), *values))


def commands():
    """Each command's help and one use of it, from a fresh virtual environment."""
    wheel = the_wheel()
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        venv.create(scratch / "venv", with_pip=True)
        python, programs = scratch / "venv/bin/python", scratch / "venv/bin"
        run(python, "-m", "pip", "install", "-q", "--no-index", wheel)
        said = run(python, "-c", "import collprobe, collprobe.launch; print(collprobe.__version__, collprobe.__path__[0])").stdout
        version, package = said.split()
        assert version in wheel.name, said
        expect(run(python, "-c", "import collprobe; collprobe.nothing", code=1).stderr, "has no attribute 'nothing'")
        names = {line.split()[0] for line in
                 (project / "examples/programs/pyproject.toml").read_text().split("[project.scripts]")[1].split("[")[0].split("\n")
                 if " = " in line}
        names.remove("collprobe")  # has no file of its own
        expect(run(programs / "collprobe", "--help").stdout, "usage: collprobe", "page", "compare", "trace", "watch")
        assert names == set(os.listdir(os.path.join(package, "bin"))), names
        for name in names:
            shown = run(programs / name, "--help").stdout
            expect(shown.lower(), "usage: " + name, "status" if name != "collprobe-run" else "--dir")
            assert "site-packages" not in shown, shown

        said = run(programs / "collprobe-run", "--version").stdout
        expect(said, version, "without libcollprobe_engine.so (built without CUDA)")
        done = run(programs / "collprobe-run", "--dir", scratch / "logs", "printenv", "LD_PRELOAD", "COLLPROBE_DIR")
        assert done.stdout == f"{os.path.realpath(package)}/lib/libcollprobe_preload.so\n{scratch / 'logs'}\n", done
        expect(done.stderr, "calls of NCCL pass through unprobed")
        expect(run(programs / "collprobe-run", "--proxy", "--print").stdout, "/lib/libcollprobe_proxy.so\n")
        for mpi in ("openmpi", "mpich"):
            library = os.path.join(os.path.realpath(package), f"lib/libcollprobe_mpi_{mpi}.so")
            if os.path.exists(library): # where mpicc was found
                expect(run(programs / "collprobe-run", f"--mpi={mpi}", "--print").stdout, f"LD_PRELOAD={library}\n")
        expect(run(programs / "collprobe-check", "/bin/true", code=5).stdout, "NCCL")

        run(python, "-c", "from collprobe import _library; _library.load()")  # the C library with all its functions
        a, b = scratch / "a.jsonl", scratch / "b.jsonl"
        run(sys.argv[4], scratch / "a")
        run(sys.argv[4], scratch / "b", "nan")
        run(programs / "collprobe_merge", scratch / "a", "--jsonl", a)
        expect(run(programs / "collprobe_merge", scratch / "b", "--jsonl", b, "--html", scratch / "b.html", code=1).stdout,
               "Rank 2 sent NaN or infinity in 1 of 60 steps")
        assert (scratch / "b.html").stat().st_size > 10000
        expect(run(programs / "collprobe", "compare", a, a).stdout, "identical: 60 steps")
        expect(run(programs / "collprobe", "compare", a, b, code=1).stdout, "step 40")
        expect(run(programs / "collprobe", "watch", "--once", b).stdout, "sample", "4 ranks", "step 59")

        for name, last in (("right", 3.0), ("same", 3.0), ("wrong", 3.5)):
            (scratch / name).mkdir()
            npy(scratch / name / "weight.npy", [1.0, 2.0, last])
        receipt = scratch / "weights.receipt"
        run(programs / "collprobe_verify", "--write", receipt, "--step", 7, scratch / "right/weight.npy")
        run(programs / "collprobe_verify", receipt, scratch / "same/weight.npy")
        expect(run(programs / "collprobe_verify", receipt, scratch / "wrong/weight.npy", code=1).stdout, "weight")

        shown = run(programs / "summation_order", "--random", "heavy", "--ranks", 4, "--elements", 2000).stdout
        expect(shown, "native ring", "exact")


{"build": build, "commands": commands}[task]()
