#!/usr/bin/env python3
# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""check_names.py <include/collprobe>

Lists every name that two headers declare in the same namespace. Which of the two another header's inline function
calls may depend on the order of the includes, and then a program of two files breaks the one-definition rule.
Overloads are allowed where each one's parameters name a class or concept of the library (or a vendor's type), and not
the same ones. Forward declarations, specialisations and operators are not counted. Exit status 1 if there is any such name.
"""
import collections
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
TOKEN = re.compile(r'[A-Za-z_]\w*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|::|->|\d[\w\'.]*|\S')
CLOSING = {"(": ")", "[": "]", "{": "}"}
CONTINUING = set("; , ( ) > & | = ? :".split())  # behind a braced initialiser
WORDS = set("""alignas auto bool char class concept const consteval constexpr constinit decltype double enum explicit
    extern float for friend inline int long mutable namespace noexcept operator register requires short signed sizeof
    static struct template this typedef typename union unsigned using void volatile
    COLLPROBE_HD __global__ __device__ __host__ __attribute__ __launch_bounds__""".split())
MACROS = {"COLLPROBE_BEGIN_VECTORS", "COLLPROBE_END_VECTORS"}  # around namespaces
BEGINNINGS = set("""class struct inline constexpr consteval static COLLPROBE_HD __global__ void auto concept using bool int
    double const T template""".split())  # of a declaration, behind a requires-clause


def without_other_branch(text, stream_order):
    """The text without the branches that another value of COLLPROBE_STREAM_ORDER selects, and without directives."""
    kept, taken = [], []
    for line in text.split("\n"):
        directive = re.match(r"\s*#\s*(if|else|endif)\w*\s*(.*)", line)
        if directive and directive.group(1) == "if":
            switch = re.fullmatch(r"(!?)COLLPROBE_STREAM_ORDER", directive.group(2).strip())
            taken.append(None if not switch else stream_order != bool(switch.group(1)))
        elif directive and directive.group(1) == "else":
            taken[-1] = None if taken[-1] is None else not taken[-1]
        elif directive:
            taken.pop()
        kept.append("" if line.lstrip().startswith("#") or False in taken else line)
    return "\n".join(kept)


def tokens_of(path, stream_order):
    """(token, line) of all that the compiler reads; where other conditions stand, of all their branches."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", lambda m: "\n" * m.group(0).count("\n"), path.read_text(), flags=re.S)
    text = re.sub(r"((?:[^\n]*\\\n)+)([^\n]*)",
        lambda m: m.group(0).replace("\\\n", " ") + "\n" * m.group(1).count("\n"), text)
    for number, line in enumerate(without_other_branch(text, stream_order).split("\n"), 1):
        for match in TOKEN.finditer(line):
            if match.group(0) not in MACROS:
                yield match.group(0), number


def bracket_end(words, at):
    """The place behind the bracket that closes the one at `at`."""
    opened, depth = words[at], 0
    while at < len(words):
        depth += (words[at] == opened) - (words[at] == CLOSING[opened])
        at += 1
        if depth == 0:
            break
    return at


def angle_end(words, at):
    """The place behind the > that closes the < at `at`."""
    depth = 0
    while at < len(words):
        if words[at] in CLOSING:
            at = bracket_end(words, at)
            continue
        depth += (words[at] == "<") - (words[at] == ">")
        at += 1
        if depth == 0:
            break
    return at


def declared(words, has_body):
    """(kind, name, the words between a function's parentheses) of one declaration; None if it is none of these."""
    at, special = 0, False
    while at < len(words) and words[at] == "template":
        special = special or words[at + 1:at + 3] == ["<", ">"]
        at = angle_end(words, at + 1)
        if at < len(words) and words[at] == "requires":
            while at < len(words) and words[at] not in BEGINNINGS:
                at = bracket_end(words, at) if words[at] in CLOSING else at + 1
    words = words[at:]
    if not words or words[0] in ("static_assert", "extern", "asm", "friend", "COLLPROBE_INSTANCE") or special:
        return None
    for kind in ("class", "struct", "union", "enum"):
        if words[0] == kind:
            rest = [w for w in words[1:] if w not in ("class", "struct", "final")]
            if rest and rest[0] == "alignas":
                rest = rest[rest.index(")") + 1:]
            if not rest or not has_body or rest[1:2] == ["<"]:
                return None
            return (kind, rest[0], None)
    if words[0] == "using":
        return ("alias", words[1], None) if "=" in words else None
    if words[0] == "concept":
        return ("concept", words[1], None)
    # A function, or a variable.
    at, last = 0, None
    while at < len(words):
        word = words[at]
        if word == "operator":
            return None
        if word == "<" and last is not None:
            at = angle_end(words, at)
            continue
        if word == "(":
            if words[max(at - 2, 0)] == "::":
                return None  # a member, outside its class
            if last is None or words[at - 1] in ("__attribute__", "noexcept", "requires", "decltype", "explicit",
                    "alignas", "__launch_bounds__"):
                at = bracket_end(words, at)
                continue
            end = bracket_end(words, at)
            if "->" in words[end:] and at and words[0] == last:
                return None  # a deduction guide
            return ("function", last, words[at + 1:end - 1])
        if word in ("=", "{", ";"):
            return ("variable", last, None) if last else None
        if word == "::":
            last = None
        elif re.match(r"[A-Za-z_]", word) and word not in WORDS:
            last = word
        at += 1
    return ("variable", last, None) if last else None


def read(path, stream_order):
    """Yields (namespace, kind, name, parameters, line) of each declaration at namespace scope."""
    tokens = list(tokens_of(path, stream_order))
    words = [word for word, _ in tokens]
    at, space = 0, []
    while at < len(words):
        start = at
        if words[at] == "namespace":
            while words[at] not in ("{", ";"):
                at += 1
            if words[at] == "{":
                space.append([w for w in words[start + 1:at] if w not in ("inline", "COLLPROBE_ABI", "::")])
            at += 1
            continue
        if words[at] in (";", "}"):
            if words[at] == "}" and space:
                space.pop()
            at += 1
            continue
        has_body = False
        while at < len(words) and words[at] not in (";", "}"):
            has_body = has_body or words[at] == "{"
            ends = words[at] == "{"
            at = bracket_end(words, at) if words[at] in CLOSING else at + 1
            if ends and words[at:at + 1] and words[at] not in CONTINUING:
                break
        found = declared(words[start:at], has_body)
        if found:
            yield "::".join(part for parts in space for part in parts), *found, tokens[start][1]


def telling(parameters, classes):
    """The classes among the types of a function's parameters: an overload can be chosen by them."""
    found = set()
    for parameter in re.split(r" , ", " ".join(parameters or ())):
        words = re.findall(r"[A-Za-z_]\w*", parameter.split(" = ")[0])
        types = words[:-1] if len(words) > 1 else words  # what comes last is the parameter's name
        found |= {word for word in types if word in classes or re.match(r"(nccl|cuda|MPI_)[A-Z]\w*", word)}
    return found


# What a header includes at its end has definitions of that header's functions.
owner = {}
for file in root.rglob("*.hpp"):
    for piece in re.findall(r"#include <collprobe/(\S*/detail/\S*)>", file.read_text().rpartition("\n}")[2]):
        owner[piece] = file.relative_to(root).as_posix()


def owner_of(path):
    while path in owner:
        path = owner[path]
    return path


findings = set()
for stream_order in (False, True):
    definitions = collections.defaultdict(list)
    for file in sorted(root.rglob("*")):
        if file.suffix in (".hpp", ".cuh", ".ipp"):
            for space, kind, name, parameters, line in read(file, stream_order):
                definitions[space, name].append((file.relative_to(root).as_posix(), line, kind, parameters))
    classes = {name for (_, name), places in definitions.items()
        if {"class", "struct", "enum", "concept"} & {kind for _, _, kind, _ in places}}
    for (space, name), places in definitions.items():
        for i, (path, line, kind, parameters) in enumerate(places):
            for other_path, other_line, other_kind, other_parameters in places[:i]:
                one, other = telling(parameters, classes), telling(other_parameters, classes)
                overloads = kind == other_kind == "function" and one and other and one != other
                if owner_of(path) != owner_of(other_path) and not overloads:
                    findings.add(f"{path}:{line}: {space}::{name} is declared in {other_path}:{other_line}, too")

print("\n".join(sorted(findings)), end="\n" if findings else "")
sys.exit(1 if findings else 0)
