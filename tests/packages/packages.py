#!/usr/bin/env python3
# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""packages.py easybuild|conan <project> <folder for the tool> <version> <C++ compiler>

The recipe takes an archive of the last commit. The tool's virtual environment stays in the folder for the next run.
"""
import glob
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import venv

tool, project, folder, version, compiler = sys.argv[1], *map(pathlib.Path, sys.argv[2:4]), sys.argv[4], sys.argv[5]
SKIPPED = 77


def skip(why):
    print("skipped:", why)
    sys.exit(SKIPPED)


def run(*words, **more):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=800, **more)
    assert done.returncode == 0, f"{words}: exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def install(*packages):
    """The folder of the programs of these packages."""
    programs = folder / "venv/bin"
    if not (folder / "installed").exists():
        venv.create(folder / "venv", with_pip=True, clear=True)
        done = subprocess.run([programs / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check", *packages],
                              capture_output=True, text=True, timeout=800)
        if done.returncode != 0:
            skip(f"{packages} could not be installed: " + done.stderr.strip().split("\n")[-1])
        (folder / "installed").touch()
    return programs


def unpack_archive(scratch):
    """An archive as a tag would have, and the folder that it was unpacked to."""
    archive = scratch / f"collprobe-{version}.tar.gz"
    done = subprocess.run(["git", "-C", project, "archive", f"--prefix=collprobe-{version}/", "-o", archive, "HEAD"],
                          capture_output=True, text=True)
    if done.returncode != 0:
        skip("the project is no clone of Git: " + done.stderr.strip())
    run("tar", "-xzf", archive, "-C", scratch)
    return scratch / f"collprobe-{version}"


def easybuild(scratch):
    modules = glob.glob("/usr/lib/*/modulecmd.tcl")
    if not modules:
        skip("environment-modules is not installed (cmake/setup.sh torch)")
    programs = install("easybuild-framework", "easybuild-easyblocks")
    source = unpack_archive(scratch)
    prefix = scratch / "easybuild"
    environment = dict(os.environ, MODULES_CMD=modules[0], PATH=f"{programs}:{os.environ['PATH']}", CXX=compiler)
    root = ["--allow-use-as-root-and-accept-consequences"] if os.geteuid() == 0 else []
    print(run(programs / "eb", source / f"cmake/packages/collprobe-{version}.eb", "--prefix", prefix, "--sourcepath", scratch,
              "--modules-tool", "EnvironmentModules", "--module-syntax", "Tcl", "--disable-mpi-tests", *root, env=environment))
    installed = prefix / f"software/collprobe/{version}"
    assert (prefix / f"modules/all/collprobe/{version}").is_file()
    # The module leads a consumer to the package.
    build = scratch / "consumer"
    shown = run("bash", "-c", f"""eval "$("$MODULES_CMD" bash use {prefix}/modules/all)"
        eval "$("$MODULES_CMD" bash load collprobe/{version})"
        cmake -S {project}/tests/consumer/find_package -B {build} && cmake --build {build} && {build}/consumer {version}
        grep '^collprobe_DIR' {build}/CMakeCache.txt""", env=environment)
    assert f"collprobe_DIR:PATH={installed}/share/cmake/collprobe" in shown, shown


def conan(scratch):
    programs = install("conan>=2")
    source = unpack_archive(scratch)
    environment = dict(os.environ, CONAN_HOME=str(scratch / "home"), PATH=f"{programs}:{os.environ['PATH']}", CXX=compiler)
    run(programs / "conan", "profile", "detect", env=environment)
    test = scratch / "tests/packages/conan" # its build folder is beside it
    shutil.copytree(project / "tests/packages/conan", test)
    shutil.copytree(project / "tests/consumer/find_package", scratch / "tests/consumer/find_package")
    shutil.copy(project / "tests/consumer/main.cpp", scratch / "tests/consumer")
    print(run(programs / "conan", "create", source / "cmake/packages", "-tf", test, "-s", "compiler.cppstd=20", env=environment))
    old = subprocess.run([programs / "conan", "create", source / "cmake/packages", "-tf=", "-s", "compiler.cppstd=17"],
                         capture_output=True, text=True, env=environment, timeout=800)
    assert old.returncode != 0 and "20" in old.stderr and "cppstd" in old.stderr, old


folder.mkdir(parents=True, exist_ok=True)
with tempfile.TemporaryDirectory() as scratch:
    {"easybuild": easybuild, "conan": conan}[tool](pathlib.Path(scratch))
