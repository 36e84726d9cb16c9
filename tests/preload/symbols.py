#!/usr/bin/env python3
# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""Compares symbols.def with what wheels of NCCL export, with a header of NCCL, and with the built libraries:
symbols.py DEFINITIONS EXPORTS PRELOAD PROXY [HEADER]"""
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
    if "*" in parameter or re.search(r"ncclComm_t|ncclWindow_t|ncclParamHandle_t|cudaStream_t", parameter):
        return "p"
    if "ncclUniqueId" in parameter or "unique_id" in parameter:
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


def read_header(path):
    """By name: the kinds of the parameters, the declarations of them."""
    with open(path) as file:
        text = re.sub(r"/\*.*?\*/|//[^\n]*", "", file.read(), flags=re.S)
    found = {}
    for name, parameters in re.findall(r"\b(nccl[A-Z]\w*)\s*\(([^()]*)\)\s*;", text):
        declared = [" ".join(each.split()) for each in parameters.split(",")]
        found[name] = "".join(kind_of(each) for each in declared) or "0", declared
    return found


def compare_exports(definitions, exports):
    for name in sorted(set(definitions) | set(exports)):
        if name not in definitions:
            yield name + " is exported, but not in symbols.def"
        elif name not in exports:
            yield name + " is in symbols.def, but no NCCL exports it"
        elif definitions[name][1] != exports[name][0]:
            yield "%s first came with %d, not %d" % (name, exports[name][0], definitions[name][1])
        elif definitions[name][2] not in (None, exports[name][1]):
            yield "%s has parameters of kinds %s, not %s" % (name, exports[name][1], definitions[name][2])


def compare_header(definitions, header):
    """That each wrapper passes on and tells all its arguments is tested with a model of NCCL (loader.py)."""
    for name, (kinds, parameters) in sorted(header.items()):
        streams = any("cudaStream_t" in each for each in parameters)
        if name not in definitions:
            yield "%s is not in symbols.def%s" % (name, ": it takes a stream" if streams else "")
            continue
        macro, _, own = definitions[name]
        if streams != (macro in ("DATA", "COUNT")):
            yield "%s %s a stream, but is a COLLPROBE_%s" % (name, "takes" if streams else "takes not", macro)
        if own not in (None, kinds):
            yield "%s has parameters of kinds %s, not %s" % (name, kinds, own)


def compare_library(path, wanted):
    elf = Elf(path)
    exported = elf.exported()
    for name in sorted(exported ^ wanted):
        yield "%s %s %s" % (os.path.basename(path), "exports" if name in exported else "does not export", name)


def findings(definitions, exports, preload, proxy, header=None):
    wrapped = {name for name, entry in definitions.items() if entry[0] != "FORWARD"}
    own = {"collprobe_mark_step"}
    yield from compare_exports(definitions, exports)
    yield from compare_library(preload, wrapped | own)
    yield from compare_library(proxy, set(definitions) | {"p" + name for name in definitions} | own)
    if header:
        yield from compare_header(definitions, read_header(header))


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
