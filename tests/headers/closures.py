# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0

"""closures.py OBJECT...: every lambda of the headers that holds `this` holds it first.

The order in which g++ lays out what [&] captures is that of the first use. nvcc's front end writes this-> in front of
members, so that a closure of an inline function may be laid out otherwise in a .cu file than in a .cpp file of the same
program, while the linker keeps one body for both. [&, this] has one layout. Reads the objects' DWARF (g++ -g -gdwarf-4)."""

import re
import subprocess
import sys


def dump(what, path):
    return subprocess.run(["readelf", "--debug-dump=" + what, path], capture_output=True, text=True, check=True).stdout


def classes_of(path):
    """(file, line, names of the members) of each class."""
    files = dict(re.findall(r"^\s+(\d+)\s+\d+\s+\d+\s+\d+\s+(?:\(.*?\): )?(\S+)$", dump("rawline", path), re.M))
    depth_of_class = None
    for line in dump("info", path).splitlines():
        entry = re.match(r"\s*<([0-9a-f]+)><[0-9a-f]+>: Abbrev Number: \d+(?: \((\w+)\))?", line)
        if entry:
            depth, tag = int(entry[1], 16), entry[2]
            if depth_of_class is not None and depth <= depth_of_class:
                yield files.get(place["file"], "?"), place["line"], members
                depth_of_class = None
            is_member = depth_of_class is not None and depth == depth_of_class + 1 and tag == "DW_TAG_member"
            if tag in ("DW_TAG_structure_type", "DW_TAG_class_type") and depth_of_class is None:
                depth_of_class, members, place = depth, [], {"file": "?", "line": "?"}
            is_class = depth_of_class == depth and not is_member
            continue
        attribute = re.match(r"\s*<[0-9a-f]+>\s+DW_AT_(\w+)\s*:\s*(.*)", line)
        if not attribute or depth_of_class is None:
            continue
        if is_member and attribute[1] == "name":
            members.append(attribute[2].split("): ")[-1].strip())
        elif is_class and attribute[1] in ("decl_file", "decl_line"):
            place[attribute[1][5:]] = attribute[2].split()[0]


found = set()
closures = 0
for path in sys.argv[1:]:
    for file, line, members in classes_of(path):
        if "__this" not in members:
            continue
        closures += 1
        if members[0] != "__this":
            found.add(f"{file}:{line}: [&] holds {', '.join(name.lstrip('_') for name in members)}: write [&, this]")
for text in sorted(found):
    print(text)
print(f"{closures} closures hold this, {len(found)} not first")
sys.exit(1 if found or closures == 0 else 0)
