#!/usr/bin/env python3
# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""check_headers.py <include/collprobe> [layers.txt]

Names every line of a header that includes what it may not: a folder above its own (layers.txt), another
folder's detail/, a vendor's header outside the folders cuda, nccl and mpi, what only nvcc compiles from a
.hpp, or a standard header that is costly to include; and every #if on compiler or device
outside detail/target.hpp, core/config.hpp and simd/; and what a compiler of the next year refuses or warns of: builtins
that are private to a compiler, and sorts with a temporary buffer. Also names what the umbrella of a folder lacks, headers whose
COLLPROBE_ABI no include of theirs defines, lines of more than 120 columns (but where clang-format is off), public
comments of more than 15 lines beside their tables, and folders with more lines than layers.txt allows. Exit status 1 if
there is any.
"""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
table = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else pathlib.Path(__file__).with_name("layers.txt")

HEAVY = set("cmath memory thread functional immintrin.h iostream sstream chrono regex map unordered_map".split())
HEAVY_BUT_NEEDED = {("order/detail", "map")}  # the checker is included by its users only
VENDOR = re.compile(r"^(cuda[^/]*|cuda/.*|nvtx3/.*|nccl[^/]*|mpi\.h)$")
VENDOR_FOLDERS = {"cuda", "nccl", "mpi"}
TARGET = re.compile(r"\s*#\s*(if|elif|ifdef|ifndef)\b.*\b__(CUDA_ARCH|CUDACC|NVCC|clang|GNUC|SSE|AVX|x86_64|aarch64)")
TARGET_PLACES = ("core/config.hpp", "detail/target.hpp", "simd/")
SHORT_LIVED = re.compile(r"\b(__builtin_ia32_\w+|std::(?:stable_sort|stable_partition|inplace_merge))\b")
KERNELS = re.compile(r"^(cub/.*|thrust/.*|cooperative_groups.*|device_launch_parameters\.h|.*\.cuh)$")

MOST_COLUMNS = 120
MOST_COMMENT_LINES = 15

allowed = {}
groups = {}
most_lines = {}
for line in table.read_text().splitlines():
    line = line.split("#")[0].strip()
    if not line:
        continue
    if "=" in line:
        folder, number = line.split("=")
        most_lines[folder.strip()] = int(number)
        continue
    places, may = line.split(":")
    for place in places.split():
        allowed[place] = set(may.split()) | set(places.split())
        groups[place] = places.split()[0]


def place_of(path):
    """The longest entry of the table that the path begins with; None for the umbrellas."""
    parts = path.split("/")
    for length in range(len(parts), 0, -1):
        if "/".join(parts[:length]) in allowed:
            return "/".join(parts[:length])
    return None


findings = []
includes = {}
for file in sorted(root.rglob("*")):
    if file.suffix not in (".hpp", ".cuh", ".ipp"):
        continue
    path = file.relative_to(root).as_posix()
    own = place_of(path)
    includes[path] = set()
    text = file.read_text()
    formatted = True
    comment = 0
    for number, line in enumerate(text.splitlines() + [""], 1):
        if "clang-format o" in line:
            formatted = "clang-format on" in line
        if formatted and len(line) > MOST_COLUMNS:
            findings.append(f"{path}:{number}: has {len(line)} columns: at most {MOST_COLUMNS}")
        if line.lstrip().startswith("///"):
            comment += not line.lstrip().startswith("/// |")
        else:
            if comment > MOST_COMMENT_LINES:
                findings.append(f"{path}:{number}: ends a comment of {comment} lines: at most {MOST_COMMENT_LINES}")
            comment = 0
        if TARGET.match(line) and not path.startswith(TARGET_PLACES):
            findings.append(f"{path}:{number}: asks for the compiler or the device: detail/target.hpp does that")
        for name in SHORT_LIVED.findall(line):
            findings.append(f"{path}:{number}: {name} is refused, or warned of, by new compilers")
        match = re.match(r'\s*#\s*include\s*([<"])([^>"]*)[>"]', line)
        if not match:
            continue

        def finding(text):
            close = ">" if match.group(1) == "<" else '"'
            findings.append(f"{path}:{number}: {match.group(1)}{match.group(2)}{close} {text}")

        name = match.group(2)
        if match.group(1) == '"':
            finding("is no <collprobe/...>: headers are named from the include folder")
        if name in HEAVY and (path.rpartition("/")[0], name) not in HEAVY_BUT_NEEDED:
            finding("is too costly to include")
        if VENDOR.match(name) and not VENDOR_FOLDERS & set(path.split("/")[:-1]) and file.suffix != ".cuh":
            finding("may be included only in the folders " + ", ".join(sorted(VENDOR_FOLDERS)))
        if KERNELS.match(name) and file.suffix != ".cuh":
            finding("may be included only by a .cuh")
        if not name.startswith("collprobe/"):
            continue
        target = name.removeprefix("collprobe/")
        includes[path].add(target)
        folder, detail, _ = target.rpartition("/detail/")
        if detail and not path.startswith(folder + "/"):
            finding("is private to " + folder)
        if own is None:
            continue
        there = place_of(target)
        if there is None:
            finding("is an umbrella: headers include what they use")
        elif there != own and not ({there, groups[there]} & allowed[own]):
            finding(f"is not below {own}: see layers.txt")
    if own is None and "/" in path:
        findings.append(f"{path}: its folder is not in layers.txt")

lines = dict.fromkeys(most_lines, 0)
for file in root.rglob("*"):
    if file.suffix in (".hpp", ".cuh", ".ipp", ".cpp", ".cu") and file.parent != root:
        folder = file.relative_to(root).parts[0]
        lines[folder] = lines.get(folder, 0) + file.read_text().count("\n")
for folder, number in sorted(lines.items()):
    if folder not in most_lines:
        findings.append(f"{folder}: has no number of lines in layers.txt")
    elif number > most_lines[folder]:
        findings.append(f"{folder}: has {number} lines: at most {most_lines[folder]}")

# Where nothing has defined COLLPROBE_ABI, that is the name of another namespace. What a header includes without a guard
# is a piece of that header.
reached = {"core/config.hpp"}
while more := {path for path, targets in includes.items() if path not in reached and targets & reached}:
    reached |= more
for path in includes:
    text = (root / path).read_text()
    if "COLLPROBE_ABI" in text and "#pragma once" in text and path not in reached:
        findings.append(f"{path}: nothing that it includes defines COLLPROBE_ABI")

# Every public header of a folder with an umbrella is in it; vendors' folders have umbrellas of their own.
for umbrella in sorted(root.glob("*.hpp")):
    folder = umbrella.stem
    for path in includes:
        if path.startswith(folder + "/") and path.endswith(".hpp") and "/detail/" not in path:
            if not VENDOR_FOLDERS & set(path.split("/")[:-1]) and path not in includes[umbrella.name]:
                findings.append(f"{path} is missing from {umbrella.name}")

print("\n".join(findings), end="\n" if findings else "")
sys.exit(1 if findings else 0)
