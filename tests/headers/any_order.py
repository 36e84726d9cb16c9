#!/usr/bin/env python3
# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""any_order.py --root DIR --work DIR [--orders N] COMPILER FLAGS... -- HEADERS...

Compiles units that include the same headers of DIR in different orders, until each of two headers stood before the
other once (where neither includes the other), or N orders were seen: four hold 96 of 100 such pairs of 300 headers, all
of them take sixteen. Every inline function and variable must have the same code in all of them, else a program of two
such files breaks the one-definition rule. The code is not optimised, so a call stands in it by the name of the overload
that was chosen. Exit status 1 if any differs.
"""
import argparse
import collections
import hashlib
import itertools
import pathlib
import re
import subprocess
import sys

at = sys.argv.index("--", 1) if "--" in sys.argv else len(sys.argv)
options = argparse.ArgumentParser(usage=__doc__)
options.add_argument("--work", type=pathlib.Path, required=True)
options.add_argument("--root", type=pathlib.Path, required=True)
options.add_argument("--orders", type=int)
settings, command = options.parse_known_args(sys.argv[1:at])
headers = sys.argv[at + 1:]

LABEL = re.compile(r'^("?[A-Za-z_.$][\w.$]*"?):')
LOCAL = re.compile(r"\.L[\w.$]*")
STANDARD = re.compile(r"_ZN?K?(S[tabsiod]|9__gnu_cxx)")  # what the compiler makes of those varies, harmlessly
# Bounds of the exception table's ranges, which depend on whether the compiler has seen by then that a standard function
# does not throw.
RANGE = re.compile(r"\.LEH[BE]\d")
IGNORED = re.compile(r"\s*\.(cfi_|loc\b|file\b|ident|type|size|p2align|align|globl|weak|hidden|section \.note)")


def code_of(assembly):
    """What each symbol stands for, with the compiler's own labels replaced by what they stand for, or counted."""
    bodies, name, section = collections.defaultdict(list), None, ""
    local = collections.defaultdict(list)
    data = None
    for line in assembly.splitlines():
        line = line.split("\t#")[0].rstrip()
        label = LABEL.match(line)
        if RANGE.match(line):
            continue
        if re.match(r"\s*\.(section|text|data|bss|rodata)", line):
            section, data = line, None
            if "gcc_except_table" in section:
                name = None
            continue
        if not line or IGNORED.match(line) or "gcc_except_table" in section or ".debug" in section:
            continue
        if label and not label.group(1).startswith(".L"):
            name, data = label.group(1), None
            continue
        if label and ".text" not in section:
            data = label.group(1)
            continue
        if data is not None:
            local[data].append(line)
        elif name is not None:
            bodies[name].append(line)

    contents = {}

    def content(label):
        """What stands at a label of data, shortened; a table of jumps names places in the function and itself."""
        if label not in local:
            return "?"
        if label not in contents:
            contents[label] = "itself"
            text = ";".join(LOCAL.sub(lambda m: content(m.group(0)), line) for line in local[label])
            contents[label] = text if len(text) < 80 else hashlib.sha256(text.encode()).hexdigest()[:16]
        return contents[label]

    code = {}
    for name, lines in bodies.items():
        numbers = {}

        def stands_for(match):
            label = match.group(0)
            return f"<{content(label)}>" if label in local else f"L{numbers.setdefault(label, len(numbers))}"

        code[name] = "\n".join(LOCAL.sub(stands_for, line) for line in lines)
    return code


def readable(text):
    return subprocess.run(["c++filt"], input=text, capture_output=True, text=True).stdout.strip()


def read_first(headers):
    """Which of the headers the compiler has read before each one's own text, whatever the order."""
    includes = {header: re.findall(r"^\s*#\s*include <([^>]*)>", (settings.root / header).read_text(), re.M)
        for header in headers}
    first = {}

    def visit(header, above):
        if header not in first:
            found = set()
            for each in includes[header]:
                if each in includes and each not in above:
                    found |= {each} | visit(each, above | {header})
            first[header] = found - {header}
        return first[header]

    for header in headers:
        visit(header, frozenset({header}))
    return first


def orders_of(headers):
    """Orders in which, together, each of two headers stands before the other, unless one includes the other."""
    first = read_first(headers)
    after = {one: {other for other in headers if other not in first[one] and one not in first[other]} - {one}
        for one in headers}
    while any(after.values()):
        order, left = [], set(headers)
        while left:
            # What still has to stand before most of the rest, with what it includes.
            chosen = max(sorted(left), key=lambda one: len(after[one] & left) / (1 + len(first[one] & left)))
            order += sorted(first[chosen] & left, key=lambda one: (len(first[one]), one)) + [chosen]
            left -= {chosen} | first[chosen]
        yield order
        for place, one in enumerate(order):
            after[one] -= set(order[place:])


settings.work.mkdir(parents=True, exist_ok=True)
seen, differing, compared = {}, {}, 0
# What has no guard is a piece of the header that includes it.
headers = [header for header in headers if "#pragma once" in (settings.root / header).read_text()]
orders = list(itertools.islice(orders_of(headers), settings.orders)) or [headers]
for number, included in enumerate(orders, 1):
    order = f"order_{number}"
    unit = settings.work / f"{order}.cpp"
    unit.write_text("".join(f"#include <{header}>\n" for header in included))
    flags = ["-I", str(settings.root), "-O0", "-S", "-w", "-g0", "-fkeep-inline-functions", "-o", "-"]
    made = subprocess.run(command + flags + [str(unit)], capture_output=True, text=True)
    if made.returncode != 0:
        sys.exit(f"{order}.cpp does not compile:\n{made.stderr[:2000]}")
    for name, text in code_of(made.stdout).items():
        if STANDARD.match(name) and "collprobe" not in name:
            continue
        first = seen.setdefault(name, (order, text))
        compared += first[0] != order
        if first[1] != text and name not in differing:
            differing[name] = (first[0], order, first[1], text)

for name, (one, other, text, other_text) in sorted(differing.items()):
    print(f"{readable(name)} is another in {other}.cpp than in {one}.cpp:")
    for line, other_line in zip(text.splitlines(), other_text.splitlines()):
        if line != other_line:
            print(f"    {readable(line)} | {readable(other_line)}")
            break
print(f"{len(orders)} orders of {len(headers)} headers: {compared} comparisons of {len(seen)} symbols, "
    f"{len(differing)} differ")
sys.exit(1 if differing or not compared else 0)
