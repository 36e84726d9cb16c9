#!/usr/bin/env python3
# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""What collprobe-run sets, and what its --check says: run_launcher.py CASE FOLDER_OF_MODELS PRELOAD PROXY."""
import os
import shutil
import subprocess
import sys
import tempfile

case, models, preload, proxy = sys.argv[1:]
launcher = os.path.join(os.path.dirname(preload), "collprobe-run")


def run(*words, **variables):
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith(("COLLPROBE_", "LD_", "NVTX_"))}
    return subprocess.run([launcher, *words], capture_output=True, text=True, env={**environment, **variables},
                          check=False, timeout=60)


def expect(found, wanted, run):
    assert found == wanted, f"found {found!r}, wanted {wanted!r}\n{run.stdout}{run.stderr}"


def variables():
    """Every option becomes a variable of the program; paths become absolute."""
    done = run("--dir", "records", "--every=4", "--budget", "0.02", "--ops", "all_reduce", "--min-bytes", "1", "--comms",
               "dp", "--channel", "inband", "--sinks", "html", "--step", "calls", "--control", "/tmp/control", "--run", "r",
               "--log", "off", "--nccl", "/a/libnccl.so.2", "--chain", "--", "env")
    expect(done.returncode, 0, done)
    found = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    wanted = {"DIR": os.getcwd() + "/records", "EVERY": "4", "BUDGET": "0.02", "OPS": "all_reduce", "MIN_BYTES": "1",
              "COMMS": "dp", "CHANNEL": "inband", "SINKS": "html", "STEP": "calls", "CONTROL_FILE": "/tmp/control",
              "RUN": "r", "LOG": "off", "NCCL_PATH": "/a/libnccl.so.2", "CHAIN": "1"}
    for name, value in wanted.items():
        expect(found.get("COLLPROBE_" + name), value, done)
    expect(found["LD_PRELOAD"], os.path.realpath(preload), done)
    printed = run("--print", "--every", "8")
    expect(printed.stdout, f"LD_PRELOAD={os.path.realpath(preload)}\nCOLLPROBE_EVERY=8\n", printed)


def preloads():
    """An earlier preload stays, and none comes twice; the program's status is the launcher's."""
    done = run("env", LD_PRELOAD="/nowhere/other.so")
    assert f"LD_PRELOAD=/nowhere/other.so:{os.path.realpath(preload)}\n" in done.stdout, done.stdout
    done = run("env", LD_PRELOAD=os.path.realpath(preload))
    assert f"LD_PRELOAD={os.path.realpath(preload)}\n" in done.stdout, done.stdout
    done = run("--proxy", "env")
    assert f"LD_PRELOAD={os.path.realpath(proxy)}\n" in done.stdout, done.stdout
    expect(run("sh", "-c", "exit 7").returncode, 7, done)


def options():
    """What is wrong is told, with status 2."""
    for words, text in ((["--evry", "3", "true"], "--evry is no option"), (["--every"], "--every needs a value"),
                        ([], "usage: collprobe-run"), (["--check"], "--check needs a program")):
        done = run(*words)
        expect(done.returncode, 2, done)
        assert text in done.stderr, done.stderr
    done = run("--help")
    expect(done.returncode, 0, done)
    other = tempfile.mkdtemp()
    try: # without its libraries
        shutil.copy(launcher, other)
        done = subprocess.run([os.path.join(other, "collprobe-run"), "true"], capture_output=True, text=True, check=False)
        expect(done.returncode, 2, done)
        assert "libcollprobe_preload.so is neither in" in done.stderr, done.stderr
    finally:
        shutil.rmtree(other)


def check(status, text, *words, **variables):
    done = run("--check", *words, **variables)
    expect(done.returncode, status, done)
    assert text in done.stdout, done.stdout


def check_programs():
    """Each way to reach NCCL is told, with what sees it."""
    check(0, "is linked to NCCL: the preload sees its calls\nstart it by: collprobe-run PROGRAM", f"{models}/model_linked")
    check(0, "is linked to NCCL", f"{models}/libmodel_library.so")
    check(3, "opens libnccl.so.2 by its name: the proxy sees its calls", f"{models}/model_by_name")
    check(0, "has an NCCL of its own and exports it", f"{models}/libmodel_own_nccl.so")
    check(4, "has an NCCL of its own and does not export it", f"{models}/libmodel_own_hidden.so")
    check(5, "no way to NCCL was found", "true")
    check(2, "there is no program nothing_of_that_name", "nothing_of_that_name")


def check_python():
    """Of Python it is said what its packages do; a package that the script imports decides."""
    folder = tempfile.mkdtemp()
    try:
        library = os.path.join(folder, "torch", "lib", "libtorch_cuda.so")
        os.makedirs(os.path.dirname(library))
        shutil.copy(f"{models}/libmodel_library.so", library)
        wrapper = os.path.join(folder, "vllm", "distributed", "device_communicators", "pynccl_wrapper.py")
        os.makedirs(os.path.dirname(wrapper))
        with open(wrapper, "w", encoding="utf-8") as file:
            file.write("# opens NCCL\n")
        script = os.path.join(folder, "serve.py")
        for package, status in (("torch", 0), ("vllm", 3)):
            with open(script, "w", encoding="utf-8") as file:
                file.write(f"import {package}\n")
            check(status, "libtorch_cuda.so is linked to NCCL", sys.executable, script, PYTHONPATH=folder)
    finally:
        shutil.rmtree(folder)


def check_process():
    """Of a process its maps tell."""
    for library, status, text in ((f"{models}/libmodel_library.so", 0, "the process has to be started again"),
                                  (preload, 0, "its calls are seen")):
        child = subprocess.Popen([sys.executable, "-c", "import ctypes, sys, time; ctypes.CDLL(sys.argv[1]); print(flush=True);"
                                  "time.sleep(60)", library], stdout=subprocess.PIPE)
        try:
            child.stdout.readline()
            check(status, text, str(child.pid))
        finally:
            child.kill()
            child.wait()
    check(2, "cannot be looked at", "999999999")


globals()[case]()
