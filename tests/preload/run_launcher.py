#!/usr/bin/env python3
# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""Starts programs by collprobe-run, and asks it about them: run_launcher.py TEST MODELS PRELOAD PROXY."""
import os
import re
import shutil
import subprocess
import sys
import tempfile

models, preload, proxy = (os.path.abspath(each) for each in sys.argv[2:5])
launcher = os.path.join(os.path.dirname(preload), "collprobe-run")


def model(name):
    return os.path.join(models, name)


def run(*words, folder=None, program=launcher, **variables):
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith(("COLLPROBE_", "LD_", "NVTX_"))}
    environment.update(variables)
    return subprocess.run([program, *words], capture_output=True, text=True, env=environment, cwd=folder, timeout=50)


def variables():
    """Each option sets its variable; folders and files are absolute; --print says what launchers have to set."""
    options = {"--every": "EVERY", "--budget": "BUDGET", "--ops": "OPS", "--min-bytes": "MIN_BYTES", "--comms": "COMMS",
               "--channel": "CHANNEL", "--sinks": "SINKS", "--step": "STEP", "--run": "RUN", "--log": "LOG"}
    words, wanted = [], {"LD_PRELOAD=" + preload}
    for option, name in options.items():
        words += [option, "a b" + name] if len(words) % 4 else [option + "=a b" + name]
        wanted.add("COLLPROBE_%s=a b%s" % (name, name))
    words += ["--dir", "some", "--nccl", "/x/libnccl.so.2", "--control=c", "--chain"]
    with tempfile.TemporaryDirectory() as folder:
        folder = os.path.realpath(folder)
        wanted |= {"COLLPROBE_DIR=%s/some" % folder, "COLLPROBE_NCCL_PATH=/x/libnccl.so.2",
                   "COLLPROBE_CONTROL_FILE=%s/c" % folder, "COLLPROBE_CHAIN=1"}
        done = run("--print", *words, folder=folder)
        assert set(done.stdout.splitlines()) == wanted, (done.stdout, done.stderr)
        done = run(*words, "--", "env", folder=folder)
        assert wanted <= set(done.stdout.splitlines()), (done.stdout, done.stderr)
    # Arguments reach the program as they are, options of its own too, and its status comes back.
    done = run("--every", "2", "sh", "-c", 'printf "%s|" "$@"; exit 9', "-", "--dir", "a b", "*", "")
    assert done.stdout == "--dir|a b|*||" and done.returncode == 9, done


def preloads():
    """The library is added after those that are there, once, and by an absolute path."""
    for words, library in (([], preload), (["--proxy"], proxy)):
        assert run(*words, "printenv", "LD_PRELOAD").stdout == library + "\n"
        done = run(*words, "--print", LD_PRELOAD="/some/other.so")
        assert done.stdout == "LD_PRELOAD=/some/other.so:%s\n" % library, done
        done = run(*words, "--print", LD_PRELOAD=library + ":/some/other.so")
        assert done.stdout == "LD_PRELOAD=%s:/some/other.so\n" % library, done
    done = run(model("model_linked"), "one call", COLLPROBE_ENGINE="/absent.so")
    assert done.returncode == 5 and "/absent.so" in done.stderr, done
    with tempfile.TemporaryDirectory() as prefix:
        for place in ("bin", "lib/x86_64-linux-gnu", "with space", "other"):
            os.makedirs(os.path.join(prefix, place))
        for name in ("collprobe-run", "collprobe-check"):
            shutil.copy(os.path.join(os.path.dirname(launcher), name), os.path.join(prefix, "bin"))
            shutil.copy(os.path.join(os.path.dirname(launcher), name), os.path.join(prefix, "with space"))
        installed = os.path.join(prefix, "bin/collprobe-run")
        done = run("true", program=installed)
        assert done.returncode == 2 and "libcollprobe_preload.so is neither" in done.stderr, done
        there = shutil.copy(preload, os.path.join(prefix, "lib/x86_64-linux-gnu"))
        link = os.path.join(prefix, "other/start")
        os.symlink(installed, link)
        for program in (installed, link):
            done = run("--print", program=program)
            assert done.stdout == "LD_PRELOAD=%s\n" % os.path.realpath(there), done
        shutil.copy(preload, os.path.join(prefix, "with space"))
        done = run("true", program=os.path.join(prefix, "with space/collprobe-run"))
        assert done.returncode == 2 and "space" in done.stderr, done


def options():
    """What cannot be understood ends with status 2; a program that cannot be started as the shell has it."""
    for words in ([], ["--every"], ["--evry", "3", "true"], ["-x"], ["--check"]):
        done = run(*words)
        assert done.returncode == 2 and done.stderr, (words, done)
    done = run("--help")
    assert done.returncode == 0 and "--check" in done.stdout
    assert run("/absent/program").returncode == 127
    with tempfile.TemporaryDirectory() as folder:
        for name in ("collprobe-run", "libcollprobe_preload.so"):
            shutil.copy(os.path.join(os.path.dirname(launcher), name), folder)
        program = os.path.join(folder, "collprobe-run")
        assert run("--nvtx", "true", program=program).returncode == 2
        done = run("--version", program=program)
        assert re.match(r"collprobe-run \d+\.\d+\.\d+, built without libcollprobe_engine.so", done.stdout), done
        assert "calls of NCCL pass through unprobed" in run("true", program=program).stderr
        engine = shutil.copy(model("libmodel_engine.so"), os.path.join(folder, "libcollprobe_engine.so"))
        assert "built with the engine" in run("--version", program=program).stdout
        assert run("true", program=program).stderr == ""
        done = run("--nvtx", "printenv", "NVTX_INJECTION64_PATH", program=program)
        assert done.stdout == os.path.realpath(engine) + "\n", done
        done = run("--nvtx", "true", program=program, NVTX_INJECTION64_PATH="/nsight.so")
        assert done.returncode == 2 and "another tool" in done.stderr, done


PRELOAD, PROXY, UNSEEN, NOTHING = 0, 3, 4, 5


def ask(*words, wanted, text, **variables):
    done = run("--check", *words, **variables)
    assert done.returncode == wanted and text in done.stdout, (words, done)


def check_programs():
    ask(model("model_linked"), "--check", wanted=PRELOAD, text="is linked to NCCL")
    ask(model("model_by_name"), wanted=PROXY, text="opens libnccl.so.2 by its name")
    ask(model("libmodel_library.so"), wanted=PRELOAD, text="is linked to NCCL")
    ask(model("libmodel_own_nccl.so"), wanted=PRELOAD, text="an NCCL of its own and exports it")
    ask(model("libmodel_own_hidden.so"), wanted=UNSEEN, text="does not export it")
    ask("true", wanted=NOTHING, text="no way to NCCL")
    ask("/absent", wanted=2, text="there is no program")
    if os.path.exists(model("model_static")):
        ask(model("model_static"), wanted=NOTHING, text="static program without NCCL")
    # By a library that the program is linked to, where the loader finds that.
    ask(model("model_through_library"), wanted=PRELOAD, text="libmodel_library.so is linked to NCCL")
    ask(model("model_through_own_nccl"), wanted=PRELOAD, text="an NCCL of its own and exports it")
    ask(model("model_through_own_hidden"), wanted=UNSEEN, text="does not export it")
    ask(model("model_alone"), wanted=UNSEEN, text="binds its calls to it")
    ask(model("model_renamed"), wanted=UNSEEN, text="under other names (torchcomms_nccl")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(shutil.copy(model("model_linked"), folder), 0o4755)
        ask(os.path.join(folder, "model_linked"), wanted=UNSEEN, text="ignores LD_PRELOAD")
        script = os.path.join(folder, "start.sh")
        with open(script, "w") as file:
            file.write("#!/bin/sh\nexec python3 train.py\n")
        os.chmod(script, 0o755)
        ask(script, wanted=NOTHING, text="what it starts is not known")


def check_python():
    """By the packages in the folders of the interpreter, of which none is imported."""
    with tempfile.TemporaryDirectory() as folder:
        def package(path, library):
            target = os.path.join(folder, path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copy(library, target)
        here = {"PYTHONPATH": folder}
        for name in ("torch", "vllm", "other"):
            with open(os.path.join(folder, name + ".py"), "w") as file:
                file.write("import %s\n" % name)
        ask(sys.executable, os.path.join(folder, "other.py"), wanted=NOTHING, text="no package", **here)
        package("torch/lib/libtorch_cuda.so", model("libmodel_library.so"))
        ask(sys.executable, os.path.join(folder, "torch.py"), wanted=PRELOAD, text="libtorch_cuda.so is linked", **here)
        package("vllm/distributed/device_communicators/pynccl_wrapper.py", __file__)
        ask(sys.executable, os.path.join(folder, "vllm.py"), wanted=PROXY, text="opens libnccl.so.2", **here)
        ask(sys.executable, os.path.join(folder, "other.py"), wanted=PRELOAD, text="libtorch_cuda.so is linked", **here)
        ask(os.path.join(folder, "torch.py"), "--lr", "1", wanted=PRELOAD, text="libtorch_cuda.so is linked", **here)
        package("torchcomms/_comms_nccl.cpython.so", model("libmodel_own_hidden.so"))
        script = os.path.join(folder, "program")
        with open(script, "w") as file:
            file.write("#!%s\nfrom torchcomms import all_reduce\n" % sys.executable)
        os.chmod(script, 0o755)
        ask(script, wanted=UNSEEN, text="does not export it", **here)


def check_process():
    def process(library, **variables):
        code = "import ctypes, time; ctypes.CDLL(%r); print(flush=True); time.sleep(50)" % library
        environment = dict(os.environ, **variables)
        started = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment)
        started.stdout.readline()
        return started
    for library, variables, wanted, text in (
            (model("libmodel_library.so"), {}, PRELOAD, "has to be started again"),
            (model("libmodel_library.so"), {"LD_PRELOAD": preload}, PRELOAD, "its calls are seen"),
            (model("nccl/libnccl.so.2"), {}, PROXY, "it was opened by name"),
            (model("libmodel_own_hidden.so"), {}, UNSEEN, "does not export it"), ("libc.so.6", {}, NOTHING, "no way")):
        started = process(library, **variables)
        try:
            ask(str(started.pid), wanted=wanted, text=text)
        finally:
            started.kill()
            started.wait()
            started.stdout.close()
    ask("999999999", wanted=2, text="cannot be looked at")


if __name__ == "__main__":
    globals()[sys.argv[1]]()
