#!/usr/bin/env python3
# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""Mutation test of the headers: changes one operator, constant or condition of include/collprobe at a time, runs the
tests that execute the changed place, and writes which test notices the change.

    cmake/mutate_headers.py --out tests/mutants.txt          # a new choice of mutants; about an hour on two cores
    cmake/mutate_headers.py --list tests/mutants.txt         # the same mutants again; prints what differs, exit status 1
    cmake/mutate_headers.py --list tests/mutants.txt --result survived    # only those that survived
    cmake/mutate_headers.py --only sum --tests '^sum'        # of one folder or file, with some of the tests

All mutants are compiled at once: in a copy of the tree (build/mutants), each is a call that asks at run time whether
COLLPROBE_MUTANT is its number. `a < b` becomes `a < op<7> < b`, `if (x)` becomes `if (flip(7, (x)))`, `8` becomes
`constant(7, 8)`. What is evaluated by the compiler stays as it is. Mutants that do not compile are dropped.

Changes, in bodies of functions:
    operators    < and <=, > and >=, == and !=, + and -, each to the other; * to +, / to *
    conditions   if (x) to if (!(x))
    constants    one larger; a floating-point number to which 1 is nothing is doubled
Sites are chosen by a hash of the seed, the file and the line's text: a folder has its share of lines. Nothing in cuda/,
nccl/, mpi/, compiled/, nor order/hooks.hpp.

Tests: the programs of the preset quick, each file of tests for itself, but for folders and labels below. A test that
computes for more than --longest seconds takes no part. For each mutant, its tests run from the cheapest on until one fails,
or takes ten times as long as without the mutant, and more than 20 s (--all-kills: all of them).

A line of the list: number, result, file (#2: the second line with the same text), what the site becomes, and the line,
with the site between @@. The result is `killed` and the test, `survived` and how many tests of each folder execute the
site, or `not reached`.
"""
import argparse
import collections
import concurrent.futures
import glob
import hashlib
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
HEADERS = os.path.join(ROOT, "include/collprobe")
COPY = os.path.join(ROOT, "build/mutants")
BUILD = os.path.join(COPY, "build/quick")
LABELS_LEFT_OUT = "headers;slow;study;mpi;gpu;trainer"
TESTS_LEFT_OUT = r"^(preload|mpi_preload|mpi|examples|view|bench|ptx|consumer|race_lab)\."
FILES_LEFT_OUT = r"(^|/)(cuda|nccl|mpi|compiled)/|^order/hooks\.hpp$"
LINES_LEFT_OUT = re.compile(r"\b(constexpr|static_assert|requires|template|case|alignas|using|operator|concept|enum"
                            r"|__builtin_shufflevector)\b")
OPERATORS = {"<": ("less", "<="), "<=": ("less_equal", "<"), ">": ("greater", ">="), ">=": ("greater_equal", ">"),
             "==": ("equal", "!="), "!=": ("unequal", "=="), "+": ("plus", "-"), "-": ("minus", "+"),
             "*": ("times", "+"), "/": ("over", "*")}
NOT_CODE = re.compile(r"""//[^\n]*|/\*.*?\*/|R"([^(\s]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<!\w)'(?:\\.|[^'\\\n])+'"""
                      r"|^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", re.S | re.M)
OPERATOR = re.compile(r"(?<=[\w)\]])\s+(<=|>=|==|!=|<|>|\+|-|\*|/) (?=[\w(!~*&:-])")
CONDITION = re.compile(r"\bif \(")
CONSTANT = re.compile(r"(?<![\w.'<])(?:0x[\da-fA-F'.]+(?:p[+-]?\d+)?|\d[\d'.]*(?:e[+-]?\d+)?)[uUlLfFzZ]*(?![\w.>])")

HELPERS = """#pragma once
#if __cplusplus >= 202002L // not where CMake tries the compiler
#include <cstdio>
#include <cstdlib>
#include <string>
#include <type_traits>
#include <unistd.h>
namespace collprobe_mutants {
inline const int active = std::getenv("COLLPROBE_MUTANT") != nullptr ? std::atoi(std::getenv("COLLPROBE_MUTANT")) : 0;
struct reached_sites {
    bool at[%(most)d] = {};
    ~reached_sites()
    {
        const char* const folder = std::getenv("COLLPROBE_MUTANT_LOG");
        if (folder == nullptr) return;
        std::FILE* const file = std::fopen((std::string(folder) + "/" + std::to_string(getpid())).c_str(), "a");
        for (int m = 0; file != nullptr && m < %(most)d; ++m) if (at[m]) std::fprintf(file, "%%d\\n", m);
        if (file != nullptr) std::fclose(file);
    }
};
inline reached_sites reached;
[[gnu::always_inline]] constexpr bool on(int m) noexcept
{
    if (std::is_constant_evaluated()) return false;
    reached.at[m] = true;
    return active == m;
}
template <class T> constexpr bool flip(int m, const T& x) { return static_cast<bool>(x) != on(m); }
template <class T> constexpr T constant(int m, T x) noexcept
{
    if (!on(m)) return x;
    return static_cast<T>(static_cast<T>(x + 1) == x ? x * 2 : x + 1);
}
template <class A, class B> concept same = std::is_same_v<std::remove_cvref_t<A>, std::remove_cvref_t<B>>;
"""
HELPER = """template <int M> struct NAME_at {};
template <int M> inline constexpr NAME_at<M> NAME{};
template <int M, class A> struct NAME_left { A&& a; };
template <class A, int M> constexpr NAME_left<M, A> operator OLD(A&& a, NAME_at<M>) noexcept { return {static_cast<A&&>(a)}; }
template <class A, int M, class B> requires requires(A&& a, B&& b) { { a OLD b } -> same<decltype(a NEW b)>; }
constexpr auto operator OLD(NAME_left<M, A> left, B&& b)
{
    if (on(M)) return static_cast<A&&>(left.a) NEW static_cast<B&&>(b);
    return static_cast<A&&>(left.a) OLD static_cast<B&&>(b);
}
"""


class Mutant:
    def __init__(self, file, number, column, length, becomes, line, occurrence):
        self.file, self.number, self.column, self.length = file, number, column, length
        self.becomes, self.line, self.occurrence = becomes, line, occurrence
        self.id, self.result = 0, ""
        self.old = line[column : column + length]
        self.marked = (line[:column] + "@@" + self.old + "@@" + line[column + length :]).strip()
        self.key = "\t".join((file + ("#%d" % occurrence if occurrence > 1 else ""), becomes, self.marked))

    def edits(self):
        """(column, order among edits of one column, text)"""
        begin, end, call = self.column, self.column + self.length, "::collprobe_mutants::"
        if self.becomes == "!":
            return [(begin, 2, "%sflip(%d, (" % (call, self.id)), (end, 1, "))")]
        if self.becomes == "+1":
            return [(begin, 3, "%sconstant(%d, " % (call, self.id)), (end, 0, ")")]
        return [(end, 0, " %s%s<%d> %s" % (call, OPERATORS[self.old][0], self.id, self.old))]


def say(text):
    print(text, file=sys.stderr, flush=True)


def in_bodies(code):
    """For each character of code without comments and strings: whether it stands in the body of a function."""
    inside, stack, start = bytearray(len(code)), [], 0
    for at, character in enumerate(code):
        if character == "{":
            head = code[start:at].strip()
            outer = stack[-1] if stack else "scope"
            if re.search(r"\brequires\s*(\([^()]*\))?$", head) or outer == "none":
                kind = "none"
            elif outer == "body":
                kind = "body"
            else:
                head = re.sub(r"^(\w+:\s*)*template <[^()]*?>(?=\s*[\w\[])", "", head, flags=re.S)
                word = re.search(r"\b(namespace|class|struct|union|enum|extern|concept)\b", head)
                parenthesis = head.find("(")
                if word and (parenthesis < 0 or word.start() < parenthesis):
                    kind = "none" if word.group() in ("enum", "concept") else "scope"
                else:
                    kind = "body" if parenthesis >= 0 or not head or head.startswith(",") else "none"
            stack.append(kind)
        elif character == "}":
            stack.pop()
        if character in "{};":
            start = at + 1
        inside[at] = bool(stack) and stack[-1] == "body"
    return inside


def sites_of(file, text):
    code = NOT_CODE.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)
    inside, lines = in_bodies(code), text.split("\n")
    begins, seen, occurrence = [0], collections.Counter(), []
    for line in lines:
        begins.append(begins[-1] + len(line) + 1)
        seen[line.strip()] += 1
        occurrence.append(seen[line.strip()])
    found = [(each.start(1), each.end(1), OPERATORS[each.group(1)][1]) for each in OPERATOR.finditer(code)]
    found += [(each.start(), each.end(), "+1") for each in CONSTANT.finditer(code)]
    for each in CONDITION.finditer(code):
        end, depth = each.end(), 1
        while depth:
            depth += {"(": 1, ")": -1}.get(code[end], 0)
            end += 1
        condition = code[each.end() : end - 1]
        if not re.search(r"[;\n{]|[^=!<>]=[^=]", condition):
            found.append((each.end(), end - 1, "!"))
    for begin, end, becomes in sorted(found):
        number = code.count("\n", 0, begin)
        line = code[begins[number] : begins[number + 1]]
        if inside[begin] and not LINES_LEFT_OUT.search(line):
            yield Mutant(file, number, begin - begins[number], end - begin, becomes, lines[number], occurrence[number])


def choose(sites, lines, seed, count):
    """A folder's share of `count` is that of its lines; its operators, conditions and constants take turns."""
    total, chosen = sum(lines.values()), []
    for folder in sorted(lines):
        kinds = collections.defaultdict(list)
        for each in sites:
            if each.file.split("/")[0] == folder:
                kinds[each.becomes if each.becomes in ("!", "+1") else ""].append(each)
        ranked = []
        for kind, each in kinds.items():
            each.sort(key=lambda m: hashlib.sha256(("%s\t%s" % (seed, m.key)).encode()).digest())
            ranked += [(rank, kind, mutant) for rank, mutant in enumerate(each)]
        ranked.sort(key=lambda each: each[:2])
        chosen += [mutant for _, _, mutant in ranked[: round(count * lines[folder] / total)]]
    return sorted(chosen, key=lambda each: (each.file, each.number, each.column))


def write(file, data, keep_time=False):
    path = os.path.join(COPY, file)
    if os.path.exists(path):
        times = os.stat(path)
        with open(path, encoding="utf-8") as opened:
            if opened.read() == data:
                return # nothing is compiled anew
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as opened:
        opened.write(data)
    if keep_time:
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def mutated(text, mutants):
    lines = text.split("\n")
    for number, column, _, added in sorted(((m.number,) + edit for m in mutants for edit in m.edits()), reverse=True):
        lines[number] = lines[number][:column] + added + lines[number][column:]
    return "\n".join(lines)


def read_headers():
    """All files below include/collprobe that are text of C++, by their names there."""
    headers = {}
    for folder, _, names in os.walk(HEADERS):
        for path in (os.path.join(folder, name) for name in names):
            with open(path, encoding="utf-8") as opened:
                headers[os.path.relpath(path, HEADERS)] = opened.read()
    return headers


def write_tree(headers, mutants):
    """The copy: headers with the mutants, and links to all else."""
    os.makedirs(COPY, exist_ok=True)
    for name in set(os.listdir(ROOT)) - set(os.listdir(COPY)) - {"build", "include", ".git"}:
        os.symlink(os.path.join(ROOT, name), os.path.join(COPY, name))
    for path in glob.glob(COPY + "/include/collprobe/**/*.*", recursive=True):
        if os.path.relpath(path, COPY + "/include/collprobe") not in headers:
            os.remove(path)
    for file, text in headers.items():
        write("include/collprobe/" + file, mutated(text, [each for each in mutants if each.file == file]))
    helpers = HELPERS % {"most": max(each.id for each in mutants) // 1000 * 1000 + 1000}
    for old, (name, new) in OPERATORS.items():
        helpers += HELPER.replace("NAME", name).replace("OLD", old).replace("NEW", new)
    write("mutants.hpp", helpers + "}\n#endif\n")
    subprocess.run(["cmake", "--preset", "quick", "-DCMAKE_COMPILE_WARNING_AS_ERROR=OFF",
                    "-DCMAKE_CXX_FLAGS=-w -include %s/mutants.hpp" % COPY,
                    "-DCOLLPROBE_TEST_LABELS_LEFT_OUT=" + LABELS_LEFT_OUT],
                   cwd=COPY, stdout=subprocess.DEVNULL, check=True)


def find_tests(pattern):
    """name: command"""
    found = {}
    for file in glob.glob(BUILD + "/tests/*/CTestTestfile.cmake"):
        with open(file, encoding="utf-8") as opened:
            for name, program, source in re.findall(r'^add_test\((\S+) "([^"]+_tests)" "(--source-file=[^"]+)"\)',
                                                    opened.read(), re.M):
                name = re.sub(r"^\[=*\[|\]=*\]$", "", name)
                if re.search(pattern, name) and not re.search(TESTS_LEFT_OUT, name):
                    found[name] = [program, source]
    return found


def faulty(mutants, output):
    """Those of lines in which, or in whose instances, the compiler finds an error."""
    by_line = collections.defaultdict(list)
    for each in mutants:
        by_line[each.file, each.number + 1].append(each)
    found, context = [], []
    for line in output.split("\n"):
        of_header = re.match(re.escape(COPY + "/include/collprobe/") + r"(\S+?):(\d+):\d+: +(error|required from)", line)
        place = (of_header.group(1), int(of_header.group(2))) if of_header else None
        context += [place] if place else []
        if ": error: " in line:
            found += [each for at in ([place] if place in by_line else context) if at in by_line for each in by_line[at]]
            context = []
    return set(found)


def compile_all(headers, mutants, programs):
    """Those that compile. One unit with all headers finds most of the others soon. What was compiled with one that is
    dropped stays, as it is never switched on: its header keeps its time."""
    write("build/all.cpp", "".join("#include <collprobe/%s>\n" % file for file in sorted({each.file for each in mutants})))
    for command in (["c++", "-std=c++20", "-fsyntax-only", "-w", "-include", COPY + "/mutants.hpp", "-I%s/include" % COPY,
                     COPY + "/build/all.cpp"], ["ninja", "-k", "0", "-j", "2"] + programs):
        while True:
            ran = subprocess.run(["nice", "-n", "5"] + command, cwd=BUILD, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            if ran.returncode == 0:
                break
            output = ran.stdout.decode(errors="replace")
            wrong = faulty(mutants, output)
            if not wrong:
                sys.exit("mutate_headers.py: the build fails\n" + output[-4000:])
            mutants = [each for each in mutants if each not in wrong]
            with open(COPY + "/build/dropped", "a", encoding="utf-8") as file:
                file.writelines(each.key + "\n" for each in wrong)
            for file in {each.file for each in wrong}:
                write("include/collprobe/" + file, mutated(headers[file], [m for m in mutants if m.file == file]), True)
            say("do not compile:\n" + "\n".join(each.key for each in wrong))
    return mutants


def limits():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))


def run(command, longest, **environment):
    """Whether it fails, how long it takes, and what of that it computes. In a folder of its own: two may run at once."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        child = subprocess.Popen(command, env=dict(os.environ, TMPDIR=scratch, **environment), cwd=scratch,
                                 stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                 start_new_session=True, preexec_fn=limits)
        ended = 0
        while not ended and time.monotonic() < begin + longest:
            time.sleep(0.01)
            ended, child.returncode, usage = os.wait4(child.pid, os.WNOHANG)
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        if not ended:
            _, child.returncode, usage = os.wait4(child.pid, 0)
    return child.returncode != 0, time.monotonic() - begin, usage.ru_utime + usage.ru_stime


def coverage(tests, longest):
    """The tests that take part, cheapest first: name, seconds, numbers of the mutants that it executes."""
    def measure(name):
        with tempfile.TemporaryDirectory() as log:
            fails, took, computed = run(tests[name], 300, COLLPROBE_MUTANT_LOG=log)
            reached = {int(number) for file in os.listdir(log) for number in open(os.path.join(log, file))}
        if fails or computed > longest:
            say("takes no part: %s, %.1f s%s" % (name, computed, ", fails" if fails else ""))
        return computed, name, took, reached, fails or computed > longest

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        measured = sorted(pool.map(measure, tests), key=lambda each: each[:2])
    return [(name, took, reached) for _, name, took, reached, is_out in measured if not is_out]


def judge(mutant, tests, parts, all_kills):
    reaching = [(name, took) for name, took, reached in parts if mutant.id in reached]
    killers = []
    for name, took in reaching:
        if run(tests[name], max(20, 10 * took), COLLPROBE_MUTANT=str(mutant.id))[0]:
            killers.append(name)
            if not all_kills:
                break
    folders = collections.Counter(name.split(".")[0] for name, _ in reaching)
    if killers:
        mutant.result = "killed " + " ".join(killers)
    elif reaching:
        mutant.result = "survived " + " ".join("%s:%d" % each for each in sorted(folders.items()))
    else:
        mutant.result = "not reached"
    say("%d\t%s\t%s" % (mutant.id, mutant.result, mutant.key))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=330, help="of mutants, before those are dropped that do not compile")
    parser.add_argument("--only", default="", help="a folder or file below include/collprobe")
    parser.add_argument("--tests", default="", help="an expression: only tests whose names it matches")
    parser.add_argument("--longest", type=float, default=10, help="seconds that a test may compute for")
    parser.add_argument("--all-kills", action="store_true")
    parser.add_argument("--list", help="an earlier result, whose mutants are tried again")
    parser.add_argument("--result", default="", help="an expression: only mutants of such a result; others keep theirs")
    parser.add_argument("--out", help="where the result is written; not given: standard output")
    given = parser.parse_args()

    headers = read_headers()
    files = {name: text for name, text in headers.items()
             if name.startswith(given.only) and name.endswith(".hpp") and not re.search(FILES_LEFT_OUT, name)}
    sites = [site for name, text in sorted(files.items()) for site in sites_of(name, text)]
    earlier, dropped = {}, set()
    if given.list:
        by_key, mutants = {each.key: each for each in sites}, []
        with open(given.list, encoding="utf-8") as opened:
            for number, result, key in (line.split("\t", 2) for line in opened.read().split("\n")[1:] if line):
                if key in by_key:
                    by_key[key].id, by_key[key].result, earlier[key] = int(number), result, result
                    mutants.append(by_key[key])
                elif key.startswith(given.only):
                    print("not there any more: %s %s" % (number, key))
    else:
        lines = collections.Counter()
        for name, text in files.items():
            lines[name.split("/")[0]] += text.count("\n")
        mutants = choose(sites, lines, given.seed, given.count)
        for number, each in enumerate(mutants):
            each.id = number + 1
        if os.path.exists(COPY + "/build/dropped"): # the headers are those of the last run
            with open(COPY + "/build/dropped", encoding="utf-8") as opened:
                dropped = set(opened.read().split("\n"))
    tried = len(mutants)
    mutants = [each for each in mutants if each.key not in dropped]
    say("%d sites, %d mutants" % (len(sites), len(mutants)))

    write_tree(headers, mutants)
    tests = find_tests(given.tests)
    mutants = compile_all(headers, mutants, sorted({os.path.relpath(command[0], BUILD) for command in tests.values()}))
    parts = coverage(tests, given.longest)
    say("%d tests, %.0f s" % (len(parts), sum(took for _, took, _ in parts)))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        again = [each for each in mutants if re.search(given.result, each.result)]
        list(pool.map(lambda each: judge(each, tests, parts, given.all_kills), again))

    counts = collections.Counter(each.result.split()[0] for each in mutants)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    arguments = " ".join("--%s %s" % (name, getattr(given, name)) for name in ("seed", "count", "only", "tests", "longest")
                         if getattr(given, name) != parser.get_default(name) or name in ("seed", "count"))
    result = ["# mutate_headers.py %s; commit %s; %d mutants: %d killed, %d survived, %d not reached; %d did not compile" % (
        arguments, commit.stdout.decode().strip(), len(mutants), counts["killed"], counts["survived"], counts["not"],
        tried - len(mutants))]
    result += ["%d\t%s\t%s" % (each.id, each.result, each.key) for each in mutants]
    if given.out:
        with open(given.out, "w", encoding="utf-8") as opened:
            opened.write("\n".join(result) + "\n")
    elif not given.list:
        print("\n".join(result))
    else:
        print(result[0])
    changed = [each for each in mutants if each.key in earlier and earlier[each.key].split()[0] != each.result.split()[0]]
    for each in changed:
        print("%d\t%s\tnow: %s\t%s" % (each.id, earlier[each.key], each.result, each.key))
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
