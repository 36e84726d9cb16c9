#!/usr/bin/env python3
# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""check_wheel.py [--newest-glibc VERSION] <wheel>

Checks what a wheel of examples/programs has in it: the files that it should have and no others, programs that can be
executed, both licence files, the version of version.hpp, and no path of the machine that built it. With --newest-glibc
also the platform in the wheel's name: manylinux of that version of glibc or an older one. Prints the contents. Exit
status 1 if something is wrong.
"""
import argparse
import pathlib
import re
import sys
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCRIPTS = {"collprobe-check", "collprobe-run"}
PROGRAMS = SCRIPTS | {"collprobe_merge", "collprobe_verify", "summation_order"}
LIBRARIES = {"libcollprobe.so", "libcollprobe_preload.so", "libcollprobe_proxy.so"}
OTHER_LIBRARIES = {"libcollprobe_engine.so", "libcollprobe_mpi_openmpi.so", "libcollprobe_mpi_mpich.so"}  # where CUDA, MPI is
LICENCES = {"LICENSE", "THIRD_PARTY_NOTICES"}
# Folders in which somebody builds, or any path of these headers: those of the system's compiler may be named.
BUILDERS_PATH = re.compile(rb"(?<![\w.+@-])/(?:(?:home|root|tmp|work|build|mnt|srv)/[\w.+@/-]{3,}|[\w.+@/-]*include/collprobe/[\w./-]+)")


def version():
    text = (ROOT / "include/collprobe/core/version.hpp").read_text()
    return ".".join(re.search(r"VERSION_%s (\d+)" % part, text)[1] for part in ("MAJOR", "MINOR", "PATCH"))


def problems_of(path, newest_glibc):
    named = re.fullmatch(r"collprobe-([\d.]+)-py3-none-(.+)\.whl", path.name)
    if not named:
        yield f"its name is {path.name}, not collprobe-<version>-py3-none-<platform>.whl"
        return
    if named[1] != version():
        yield f"it is version {named[1]}, and version.hpp has {version()}"
    if newest_glibc:
        for platform in named[2].split("."):
            glibc = re.fullmatch(r"manylinux_(\d+)_(\d+)_\w+|manylinux(?:1|2010|2014)_\w+", platform)
            if not glibc or glibc[1] and (int(glibc[1]), int(glibc[2])) > newest_glibc:
                yield f"its platform is {platform}"

    info = f"collprobe-{version()}.dist-info/"
    package = {str(each.relative_to(ROOT / "examples/programs"))
               for each in (ROOT / "examples/programs/collprobe").rglob("*") if each.suffix in (".py", ".typed", ".css", ".txt")}
    wanted = package | {"collprobe/bin/" + name for name in PROGRAMS} | {"collprobe/lib/" + name for name in LIBRARIES}
    wanted |= {info + "licenses/" + name for name in LICENCES}
    wanted |= {info + name for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt")}
    with zipfile.ZipFile(path) as wheel:
        found = {each.filename: each for each in wheel.infolist() if not each.is_dir()}
        for name in sorted(wanted - set(found)):
            yield "it lacks " + name
        for name in sorted(set(found) - wanted - {"collprobe/lib/" + each for each in OTHER_LIBRARIES}):
            yield "it has " + name
        for name, each in sorted(found.items()):
            data = wheel.read(name)
            print(f"{len(data):>10}  {name}")
            if name.startswith("collprobe/bin/") and not each.external_attr >> 16 & 0o111:
                yield name + " cannot be executed"
            if data[:4] == b"\x7fELF":
                for place in sorted(set(BUILDERS_PATH.findall(data)))[:3]:
                    yield f"{name} has the path {place.decode()}"
        for name in ("LICENSE", "THIRD_PARTY_NOTICES"):
            own = (ROOT / "examples/programs" / name).read_bytes()
            if info + "licenses/" + name in found and wheel.read(info + "licenses/" + name) != own:
                yield f"its {name} is another"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=pathlib.Path)
    parser.add_argument("--newest-glibc", type=lambda text: tuple(int(part) for part in text.split(".")))
    given = parser.parse_args()
    problems = list(problems_of(given.wheel, given.newest_glibc))
    print(f"{given.wheel.stat().st_size:>10}  {given.wheel.name}")
    for problem in problems:
        print(f"check_wheel: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
