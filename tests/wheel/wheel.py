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
import textwrap
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


def json_lines(library, path, last):
    """A step of two ranks that are threads, through the C library: the lines of its records."""
    program = textwrap.dedent("""
        import ctypes, math, sys, threading
        library, path, last = ctypes.CDLL(sys.argv[1]), sys.argv[2], float(sys.argv[3])
        library.collprobeGetLastError.restype = ctypes.c_char_p
        gather = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
        class Options(ctypes.Structure):
            _fields_ = [("size", ctypes.c_size_t), ("gather", gather), ("context", ctypes.c_void_p), ("device", ctypes.c_int),
                        ("every", ctypes.c_int), ("calls", ctypes.c_int), ("expectations", ctypes.c_int),
                        ("false_alarms", ctypes.c_double), ("name", ctypes.c_char_p)]
        met, sent, texts = threading.Barrier(2, timeout=300), [b"", b""], [[], []]
        def ok(status):
            assert status == 0, library.collprobeGetLastError()
        def run(rank):
            def exchange(context, send, receive, size):
                sent[rank] = ctypes.string_at(send, size)
                met.wait()
                ctypes.memmove(receive, b"".join(sent), 2 * size)
                met.wait()
                return 0
            options = Options(ctypes.sizeof(Options), gather(exchange))
            probe = ctypes.c_void_p()
            ok(library.collprobeCreate(ctypes.byref(probe), rank, 2, ctypes.byref(options)))
            values = (ctypes.c_float * 4)(1 + rank, 2, 3, last)
            total = (ctypes.c_float * 4)(3, 4, 6, 2 * last)
            token = ctypes.c_uint64()
            for step in range(3):
                ok(library.collprobeObserveInput(probe, 0, 7, 0, values, ctypes.c_uint64(4), b"weight", None, ctypes.byref(token)))
                ok(library.collprobeObserveResult(probe, token, total, ctypes.c_uint64(4), None))
                ok(library.collprobeEndStep(probe, ctypes.c_uint64(step), None, None))
                ok(library.collprobePoll(probe, 1))
                text = ctypes.c_char_p()
                ok(library.collprobeGetText(probe, 1, b"run", ctypes.byref(text)))
                texts[rank].append(text.value.decode().strip())
            ok(library.collprobeDestroy(probe))
        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
        for thread in threads: thread.start()
        for thread in threads: thread.join(400)
        assert len(texts[0]) == 3 and [t.count('"rank"') for t in texts[0]] == [t.count('"rank"') for t in texts[1]]
        open(path, "w").write("".join(text + "\\n" for text in texts[0]))
        """)
    run(sys.executable, "-c", program, library, path, last)


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

        library = os.path.join(package, "lib/libcollprobe.so")
        a, b = scratch / "a.jsonl", scratch / "b.jsonl"
        json_lines(library, a, 4)
        json_lines(library, b, "nan")
        expect(run(programs / "collprobe", "compare", a, a).stdout, "identical: 3 steps")
        expect(run(programs / "collprobe", "compare", a, b, code=1).stdout, "step 0")
        expect(run(programs / "collprobe", "watch", "--once", b).stdout, "run", "2 ranks", "step 2")

        run(sys.argv[4], scratch / "ranks", "nan")
        expect(run(programs / "collprobe_merge", scratch / "ranks", "--html", scratch / "ranks.html", code=1).stdout,
               "Rank 2 sent NaN or infinity in 1 of 60 steps")
        assert (scratch / "ranks.html").stat().st_size > 10000

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
