#!/usr/bin/env python3
# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""Mutation test of the kernels: changes one instruction of a kernel's PTX at a time, runs the tests that launch the
kernel, and tells the changes that no run notices.

    cmake --preset emulated -DCMAKE_CUDA_FLAGS="--no-compress -lineinfo"   # -lineinfo: for lines of the source
    cmake --build --preset emulated --target scan.kernels_gpu.cu
    cmake/mutate_kernels.py build/emulated [--kernels EXPRESSION] [--seeds 3] [--more] >table.md

Changes, of each instruction of its kind:
    bar.sync, bar.warp.sync, membar, fence   taken out
    shfl.sync       each lane keeps its own value; only half of the lanes are members
    atom, red       taken out; a load or a store that is not atomic
    ld with a cache modifier, volatile, relaxed or acquire   without it
    predicate of a barrier, store, atomic operation or fence   executed by all; by none
    conditional branch around such an instruction or a shuffle, or back over one   never taken
Other predicates and branches are left out: they decide what is computed, not by which threads.

A change is noticed if a program of tests fails, or takes longer than 20 s. The runs stop at the first that notices:
plain, then checked, then random schedules of some seeds, every second checked. `--more` goes on with the longer tests
for what the small ones do not notice. Exit status: 0 all noticed, 1 not all, 2 a program or kernel is missing.
"""
import argparse
import collections
import functools
import os
import re
import subprocess
import sys

SMALL = "tests/scan/scan.kernels_gpu.cu"
STATISTICS = "tests/scan/scan.statistics_gpu.cu"
# What is launched; part of the mangled name; cases of the small program; longer tests, each a program and its cases.
KERNELS = [
    ("statistics", r"reduce_kernelI.*statistics_reducerIf.*10statisticsEE", "small: statistics of float",
     [(STATISTICS, "*definitions say - NaN*,*number of blocks*,captured*")]),
    ("statistics, double", r"reduce_kernelI.*statistics_reducerId.*10statisticsEE", "small: statistics of double",
     [(STATISTICS, "*definitions say - NaN*")]),
    ("statistics, bfloat16", r"reduce_kernelI.*statistics_reducerI.*small_floatItLi8E.*10statisticsEE",
     "small: statistics of bfloat16", [(STATISTICS, "*definitions say - NaN*")]),
    ("result", r"reduce_kernelI.*result_reducerIf", "small: what a result*", [(STATISTICS, "*definitions say*")]),
    ("digest", r"reduce_kernelI.*digest_reducerIf", "small: digests*",
     [("tests/replica/replica.agreement_gpu.cu", "a GPU gives the digest*")]),
    ("general reduction", r"reduce_kernelI.*13sum_and_range", "small: a reducer*", []),
    ("sum_each", r"sum_each_kernelI.*pair_dotsIf", "small: sums of blocks*",
     [("tests/device/device.cuda_kernels_gpu.cu", "sum_each*")]),
]
LONGEST_RUN = 20  # seconds

SYNCHRONISING = re.compile(r"^(bar\.|barrier\.|membar|fence)")
GUARDED = re.compile(r"^(bar\.|barrier\.|membar|fence|st\.|atom|red\.)")
AROUND = re.compile(r"^(bar\.|barrier\.|membar|fence|st\.global|st\.shared|atom|red\.|shfl|vote)")

Statement = collections.namedtuple("Statement", "text guard operation places")
Mutation = collections.namedtuple("Mutation", "what old number new places")


def ptx_of(program):
    """The texts in a program that nvcc did not compress."""
    with open(program, "rb") as file:
        data = file.read()
    return [found.group().decode() for found in re.finditer(rb"\.version \d+\.\d+\s+\.target [^\0]*", data)]


def read_kernels(text):
    """Name: its statements and labels, in order. A label is a string."""
    files = dict(re.findall(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', text, re.M))
    kernels = {}
    for entry in re.finditer(r"\.entry\s+([\w$]+)\s*\(", text):
        begin = text.index("{", entry.end())
        depth, end = 0, begin
        while True:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
            if depth == 0:
                break
        kernels[entry.group(1)] = read_body(text[begin + 1 : end - 1], files)
    return kernels


def read_body(body, files):
    items, places, callers, pending = [], (), {}, ""
    for line in body.split("\n"):
        line = line.split("//")[0].strip()
        if re.match(r"\.loc\s", line):
            found = re.match(r"\.loc\s+(\d+)\s+(\d+)\s+(\d+)(?:.*inlined_at\s+(\d+)\s+(\d+)\s+(\d+))?", line)
            here, caller = found.groups()[:3], found.groups()[3:]
            if caller[0] is not None:
                callers[here] = caller
            places = ["%s:%s" % (files.get(here[0], "?"), here[1])]
            while caller is not None and caller[0] is not None and len(places) < 20:
                places.append("%s:%s" % (files.get(caller[0], "?"), caller[1]))
                caller = callers.get(caller)
            continue
        label = re.match(r"([$\w]+):$", line)
        if label and not pending:
            items.append(label.group(1))
            continue
        pending = (pending + "\n" + line).strip() if pending else line.lstrip("{").strip()
        while ";" in pending:
            text, pending = (part.strip() for part in pending.split(";", 1))
            text = text.lstrip("{}").strip()
            pending = pending.lstrip("}").strip()
            if text and not text.startswith("."):
                guard = re.match(r"@(!?%\w+)\s+", text)
                operation = text[guard.end():] if guard else text
                items.append(Statement(text, guard.group(1) if guard else None, operation, places))
        if not pending.strip("{} "):
            pending = ""
    return items


def passes_over(items, at, label):
    """Whether a jump from `at` leaves out, or repeats, something that threads have in common."""
    to = items.index(label)
    between = items[at + 1 : to] if to > at else items[to:at]
    return any(not isinstance(each, str) and AROUND.match(each.operation) for each in between)


def mutations_of(items):
    for at, item in enumerate(items):
        if isinstance(item, str):
            continue
        # As the engine counts: texts that contain this one.
        number = sum(not isinstance(each, str) and item.text in each.text for each in items[:at])
        opcode = item.operation.split()[0]
        arguments = [each.strip() for each in item.operation[len(opcode):].split(",")]

        def made(what, new):
            return Mutation(what, item.text, number, new, item.places)

        prefix = "@" + item.guard + " " if item.guard else ""
        if SYNCHRONISING.match(opcode):
            yield made(opcode + " taken out", "")
        elif opcode.startswith("shfl"):
            own = arguments[0].split("|")[0]
            yield made("shfl: own value", prefix + "mov.b32 " + own + ", " + arguments[1])
            yield made("shfl: other members", prefix + opcode + " " + ", ".join(arguments[:-1] + ["65535"]))
        elif opcode.startswith(("atom", "red")):
            space, kind = opcode.split(".")[1], opcode.split(".")[-1]
            yield made(opcode + " taken out", "")
            has_result = opcode.startswith("atom") and arguments[0] != "_"
            address = next(each for each in arguments if each.startswith("["))
            value = arguments[arguments.index(address) + 1]
            if has_result and not is_unused(items, arguments[0]):
                yield made(opcode + " is a load", prefix + "ld.%s.%s %s, %s" % (space, kind, arguments[0], address))
            else:
                yield made(opcode + " is a store", prefix + "st.%s.%s %s, %s" % (space, kind, address, value))
        elif opcode.startswith("ld.") and re.search(r"\.(cg|cv|volatile|relaxed|acquire)\b", opcode):
            plain = re.sub(r"\.(cg|cv|volatile|relaxed|acquire|gpu|sys|cta)\b", "", opcode)
            yield made(opcode + " is " + plain, prefix + plain + item.operation[len(opcode):])
        if item.guard and GUARDED.match(opcode):
            yield made("guard of " + opcode + ": by all", item.operation)
            if not (SYNCHRONISING.match(opcode) or opcode.startswith(("atom", "red"))):
                yield made("guard of " + opcode + ": by none", "")
        if item.guard and opcode.startswith("bra") and passes_over(items, at, arguments[-1].split()[-1]):
            yield made("branch never taken", "")


def is_unused(items, register):
    return sum(not isinstance(each, str) and re.search(re.escape(register) + r"\b", each.text) is not None
               for each in items) == 1


class Runner:
    def __init__(self, build, seeds):
        self.build = build
        self.modes = [("plain", {}), ("check", {"CHECK": "1"})]
        for seed in range(1, seeds + 1):
            self.modes.append(("seeds", {"SEED": str(1000 * seed), "CHECK": str((seed + 1) % 2)}))

    def fails(self, program, cases, kernel, mutation, mode):
        """Why; none if it passes."""
        environment = dict(os.environ, COLLPROBE_EMULATED_DROP="%s|%s|%d" % (kernel, mutation.old, mutation.number),
                           COLLPROBE_EMULATED_PUT=mutation.new)
        environment.update({"COLLPROBE_EMULATED_" + key: value for key, value in mode.items()})
        try:
            ran = subprocess.run([os.path.join(self.build, program), "-tc=" + cases, "-aa=1"], env=environment,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LONGEST_RUN)
        except subprocess.TimeoutExpired:
            return "time"
        text = ran.stdout.decode(errors="replace")
        if "dropped" not in text or ": ptx: " in text:
            sys.exit("mutate_kernels.py: %s: %s\n%s" % (kernel, mutation, text[-2000:]))
        if ran.returncode == 0:
            return None
        fault = re.search(r"emulated: [^:]*: (.*?): block", text)
        return fault.group(1) if fault else "result"

    def noticed(self, runs, number):
        """The mode and the reason. `runs`: programs, their cases, the kernel's name, and its mutations: the labels of
        the same kernel differ."""
        for program, cases, kernel, mutations in runs:
            for name, mode in self.modes:
                why = self.fails(program, cases, kernel, mutations[number], mode)
                if why is not None:
                    return name, why
        return None, None


def place(of):
    """The lines of this project, from the innermost."""
    ours = re.compile(r".*/(?:include/collprobe|tests)/")
    own = [ours.sub("", each) for each in of if ours.match(each)]
    return " < ".join(own[:3]) or "?"


@functools.lru_cache(None)
def programs(build, program):
    """The kernels of a program."""
    kernels = {}
    path = os.path.join(build, program)
    if os.path.exists(path):
        for text in ptx_of(path):
            kernels.update(read_kernels(text))
    return kernels


def names_of(kernels, pattern):
    return [name for name in kernels if re.search(pattern, name)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--kernels", default="", help="only kernels whose label this expression matches")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="only changes with this in their description")
    parser.add_argument("--more", action="store_true", help="the longer tests, too")
    parser.add_argument("--list", action="store_true", help="print the changes alone")
    given = parser.parse_args()

    runner = Runner(given.build, given.seeds)
    print("| kernel | changes | plain | check | seeds | unnoticed |\n|---|---|---|---|---|---|", flush=True)
    unnoticed = []
    for label, pattern, cases, longer in KERNELS:
        if not re.search(given.kernels, label):
            continue
        runs = []
        for program, its_cases in [(SMALL, cases)] + (longer if given.more else []):
            names = names_of(programs(given.build, program), pattern)
            if len(names) != 1:
                print("mutate_kernels.py: %s: kernels %s in %s" % (label, names, program), file=sys.stderr)
                return 2
            its_kernel = programs(given.build, program)[names[0]]
            runs.append((program, its_cases, names[0], list(mutations_of(its_kernel))))
        if any([each.what for each in run[3]] != [each.what for each in runs[0][3]] for run in runs):
            print("mutate_kernels.py: %s: another kernel in another program: build all anew" % label, file=sys.stderr)
            return 2
        counts = collections.Counter()
        for number, mutation in enumerate(runs[0][3]):
            if given.only not in mutation.what:
                continue
            if given.list:
                print(label, "|", mutation.what, "|", mutation.old, mutation.number, "|", mutation.new, "|",
                      place(mutation.places))
                continue
            by, why = runner.noticed(runs, number)
            counts[by] += 1
            print("%s; %s; %s; %s; %s" % (label, mutation.what, place(mutation.places), by, why), file=sys.stderr,
                  flush=True)
            if by is None:
                unnoticed.append((label, mutation))
        print("| %s | %d | %d | %d | %d | %d |" % (label, sum(counts.values()), counts["plain"], counts["check"],
                                                counts["seeds"], counts[None]), flush=True)
    if unnoticed:
        print("\n| unnoticed | source, and its callers | kernels, and how many of their instructions |\n|---|---|---|")
        groups = collections.defaultdict(collections.Counter)
        for label, mutation in unnoticed:
            groups[mutation.what, place(mutation.places)][label] += 1
        for (what, where), labels in sorted(groups.items(), key=lambda each: each[0][::-1]):
            print("| %s | %s | %s |" % (what, where, "; ".join("%s: %d" % each for each in labels.items())))
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
