#!/usr/bin/env python3
# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""Compiles and links the C++ of a Markdown file, and runs it.

snippets.py FILE KIND FOLDER [run] -- COMPILER ARGUMENT... [@ LINK_ARGUMENT...]

A fence says behind its language how its code is wrapped: ```cpp local, ```cpp nccl, ```diff nccl. KIND picks those of one
kind, for which snippets/KIND.txt is the rest of the program; a fence of C++ without a kind is an error. Of a diff both
sides are compiled. Each program is written to FOLDER and linked by itself: what a snippet includes must be enough."""
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).parent / "snippets"
FENCE = re.compile(r"^```(\w+)[ ]?(.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def programs(text, kind):
    """The code of each snippet of the kind, with the line of the fence."""
    known = {path.stem for path in HERE.glob("*.txt")}
    for fence in FENCE.finditer(text):
        language, of_kind, code = fence.groups()
        line = text.count("\n", 0, fence.start()) + 1
        if language not in ("cpp", "c++", "cuda", "diff"):
            continue
        if of_kind not in known:
            sys.exit(f"line {line}: a fence of C++ says how it is compiled: {language} and one of {sorted(known)}")
        if of_kind != kind:
            continue
        if language != "diff":
            yield line, "", code
            continue
        for side, sign in (("before", "-"), ("after", "+")):
            lines = [each[1:] for each in code.splitlines() if each[:1] in (sign, " ")]
            yield line, side, "\n".join(lines) + "\n"


def wrapped(code, kind):
    includes = [line for line in code.splitlines() if line.startswith("#include")]
    rest = [line for line in code.splitlines() if not line.startswith("#include")]
    frame = (HERE / f"{kind}.txt").read_text()
    return frame.replace("@INCLUDES@", "\n".join(includes)).replace("@CODE@", "\n".join(rest))


def main():
    file, kind, folder, *words = sys.argv[1 : sys.argv.index("--")]
    compiler = command = sys.argv[sys.argv.index("--") + 1 :]
    link = []
    if "@" in command:
        compiler, link = command[: command.index("@")], command[command.index("@") + 1 :]
    suffix = ".cu" if "nvcc" in pathlib.Path(compiler[0]).name else ".cpp"
    out = pathlib.Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    failed = count = 0
    for line, side, code in programs(pathlib.Path(file).read_text(), kind):
        count += 1
        source = out / f"line_{line}{side}{suffix}"
        source.write_text(wrapped(code, kind))
        program = source.with_suffix("")
        done = subprocess.run([*compiler, str(source), "-o", str(program), *link])
        if done.returncode == 0 and words == ["run"]:
            done = subprocess.run([program.resolve()], cwd=out, timeout=60)
        print(f"{file}:{line} {side}: {'ok' if done.returncode == 0 else 'FAILED'}", flush=True)
        failed += done.returncode != 0
    if count == 0:
        sys.exit(f"{file} has no snippet of the kind {kind}")
    sys.exit(failed != 0)


main()
