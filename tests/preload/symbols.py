#!/usr/bin/env python3
# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""Compares symbols.def with what wheels of NCCL export, and with the built libraries:
symbols.py DEFINITIONS EXPORTS PRELOAD PROXY"""
import os
import re
import sys

from elf_reader import Elf


def arguments(text):
    """Of a macro's or a function's parentheses: split at the commas that are in no others."""
    parts, depth, part = [], 0, ""
    for character in text:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append(part.strip())
            part = ""
        else:
            part += character
    return parts + [part.strip()]


def kind_of(parameter):
    """As in nccl_exports.txt."""
    if parameter in ("", "void"):
        return ""
    if "*" in parameter:
        return "s" if parameter.endswith("stream") else "p"
    if "unique_id" in parameter:
        return "d"
    return "z" if "size_t" in parameter else "i"


def read_definitions(path):
    """By name: the macro, the code of the version, the kinds of the parameters (none: not known)."""
    with open(path) as file:
        text = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)
    found = {}
    for entry in re.finditer(r"^COLLPROBE_(\w+)\((.*?)\)$(?=\n(?:COLLPROBE|\n|#))", text, re.S | re.M):
        words = arguments(entry.group(2))
        macro, name = entry.group(1), "nccl" + words[0]
        parameters = {"DATA": 3, "COUNT": 3, "STATE": 2}.get(macro)
        kinds = None
        if parameters is not None:
            kinds = "".join(kind_of(each) for each in arguments(words[parameters][1:-1])) or "0"
        assert name not in found, name + " is there twice"
        found[name] = macro, int(words[1]), kinds
    return found


def read_exports(path):
    with open(path) as file:
        rows = [line.split() for line in file if not line.startswith("#")]
    return {name: (int(first), kinds) for name, first, kinds in rows}


def compare_exports(definitions, exports):
    for name in sorted(set(definitions) | set(exports)):
        if name not in definitions:
            yield name + " is exported, but not in symbols.def"
        elif name not in exports:
            yield name + " is in symbols.def, but no NCCL exports it"
        elif definitions[name][1] != exports[name][0]:
            yield "%s first came with %d, not %d" % (name, exports[name][0], definitions[name][1])
        elif ("s" in exports[name][1]) != (definitions[name][0] in ("DATA", "COUNT")):
            yield "%s takes a stream, or does not, but is a COLLPROBE_%s" % (name, definitions[name][0])
        elif definitions[name][2] not in (None, exports[name][1]):
            yield "%s has parameters of kinds %s, not %s" % (name, exports[name][1], definitions[name][2])


def compare_library(path, wanted):
    elf = Elf(path)
    exported = elf.exported()
    for name in sorted(exported ^ wanted):
        yield "%s %s %s" % (os.path.basename(path), "exports" if name in exported else "does not export", name)


def findings(definitions, exports, preload, proxy):
    wrapped = {name for name, entry in definitions.items() if entry[0] != "FORWARD"}
    own = {"collprobe_mark_step"}
    yield from compare_exports(definitions, exports)
    yield from compare_library(preload, wrapped | own)
    yield from compare_library(proxy, set(definitions) | {"p" + name for name in definitions} | own)


def main(words):
    definitions, exports = read_definitions(words[0]), read_exports(words[1])
    assert len(definitions) > 90, "symbols.def was not understood"
    found = list(findings(definitions, exports, *words[2:]))
    for each in found:
        print(each)
    print("%d functions, %d wrapped, %d findings" % (
        len(definitions), sum(entry[0] != "FORWARD" for entry in definitions.values()), len(found)))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
