#!/usr/bin/env python3
# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""record_members.py <include/collprobe> <members.txt> [--write]

The reference of the members of JSON lines, which `collprobe members` shows: from the tables in
report/detail/record_fields.hpp and the comments beside the members in core/record/. Says whether it is out of date,
which members of a record no table has, and which ones have no comment; exit status 1 if there is any. `--write` writes
it.
"""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
reference = pathlib.Path(sys.argv[2])
NO_MEMBERS = {("statistics", "padding")}
UNITS = {"none": "", "positive": "", "index": "element", "bits": "bits", "sizes": "elements", "columns": "by rank", "rows": "by rank", "us": "µs",
         "db": "dB", "gbs": "GB/s"}


def structs_of(text):
    """{struct: {member: (type, comment)}}"""
    found, open_structs, comment, depth, shared = {}, [], [], 0, ""
    for line in re.sub(r"\n\s+= ", " = ", text).split("\n"):
        line = line.strip()
        if line.startswith("/// "):
            comment.append(line[4:])
            continue
        if match := re.fullmatch(r"struct (\w+) \{", line):
            open_structs.append((match.group(1), depth + 1))
            found[match.group(1)] = {}
        elif open_structs and depth == open_structs[-1][1]:
            match = re.fullmatch(r"([\w:<>]+(?: \w+)?) (\w+)(?: = [^;]+)?;(?: ///< (.*))?", line)
            if match and match.group(1) != "using":
                words = " ".join(comment) or match.group(3) or shared
                found[open_structs[-1][0]][match.group(2)] = (match.group(1), words)
            # A comment above several members is about all of them.
            shared = "" if not match else f"As `{match.group(2)}`: {' '.join(comment)}" if comment else shared
        depth += line.count("{") - line.count("}")
        if open_structs and depth < open_structs[-1][1]:
            open_structs.pop()
        comment = []
    return found


def tables_of(text):
    """[(struct, [(name, path, is rare, unit, words)])]"""
    tables = []
    for block in re.split(r"^template <>\ninline field_table fields_of<", text, flags=re.M)[1:]:
        struct, body = block.split(">", 1)
        body = body.split("\n}\n", 1)[0]
        aliases = {"of": struct.split("::")[-1]}
        aliases.update(re.findall(r"using (\w+) = (\w+);", body.split(";", 1)[1]))
        rows = []
        entry = re.compile(r'(?:/// ([^\n]*)\n\s*)?\b(member|rare|follows)\("([^"]+)"(?:, \{?(&\w+::\w+)(?:, (&\w+::\w+))?\}?)?'
                           r"(, nullptr)?(?:, unit::(\w+))?(?=([^\n]*(?:\n\s*\.[^\n]*)?))")
        for match in entry.finditer(body):
            words, kind, name, first, second, is_always, unit, rest = match.groups()
            rest = re.split(r", (?:member|rare|follows)\(", rest)[0]
            path = [each[1:].split("::") for each in (first, second) if each]
            path = [(aliases.get(of, of), member) for of, member in path] if kind != "follows" else []
            is_rare = kind == "rare" or ".only_if(" in rest or ".if_set(" in rest or (kind == "follows" and not is_always)
            rows.append((name, path, is_rare, unit, words or "", "in_step" in rest))
        flags = set(re.findall(r"if_set\(\{?&\w+::(\w+)(?:, &\w+::(\w+))?", body))
        tables.append((aliases["of"], rows, flags))
    return tables


structs, enumerations = {}, set()
for file in sorted((root / "core").glob("**/*.hpp")):
    structs.update(structs_of(file.read_text()))
    enumerations.update(re.findall(r"enum class (\w+)", file.read_text()))
tables = tables_of((root / "report/detail/record_fields.hpp").read_text())
problems = []
has_table = {struct for struct, _, _ in tables}
known = {step for _, rows, _ in tables for _, path, *_ in rows for step in path}
flags = {flag for _, _, flags in tables for pair in flags for flag in pair}
for struct in {of for of, _ in known} | has_table:
    for member, (_, words) in structs[struct].items():
        if (struct, member) not in known and member not in flags and (struct, member) not in NO_MEMBERS:
            problems.append(f"{struct}::{member} is in no table of report/detail/record_fields.hpp")

text = ""
for struct, rows, _ in reversed(tables):
    text += f"{struct}\n"
    for name, path, is_rare, unit, words, is_elsewhere in rows:
        kind = ""
        if path:
            kind, of_member = structs[path[-1][0]].get(path[-1][1], ("", ""))
            words = words or of_member
        if not words:
            problems.append("::".join(path[-1] if path else (struct, name)) + " has no comment")
        if is_elsewhere:
            continue
        words = re.split(r"\. (?=[A-Z(`])", words[:1].upper() + words[1:])[0].rstrip(".")
        inner = re.sub(r"std::vector<(.*)>", r"\1", kind).split("::")[-1]
        words += f" → {inner}" if inner in has_table else f" (`{inner}`)" if inner in enumerations else ""
        shown = (name.removesuffix("name") + "name, line" if inner == "call_site" else name) + "?" * is_rare
        text += f"    {shown:29} {UNITS.get(unit, unit or ''):8} {words}\n"
    text += "\n"

if "--write" in sys.argv:
    reference.write_text(text)
elif not reference.exists() or reference.read_text() != text:
    problems.append(f"{reference.name} is out of date: cmake/record_members.py --write")
print("\n".join(sorted(problems)), end="\n" if problems else "")
sys.exit(1 if problems else 0)
