# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the JSON lines of examples/studies/world_size strictly, and requires of all files together that the contracts gave
one digest, and the native order several.

check_world_size.py ELEMENT RUNS FILE...    RUNS: lines of a file, as reduction:ranksxleaves,...
"""
import sys

from json_lines import summaries

NAMES = {"reduction", "element", "ranks", "leaves", "weights_digest", "test_accuracy"}


element, runs, paths = sys.argv[1], sys.argv[2].split(","), sys.argv[3:]
digests = {}
for path in paths:
    lines = summaries(path, NAMES)
    if runs != ["any"]:
        assert ["%s:%dx%d" % (line["reduction"], line["ranks"], line["leaves"]) for line in lines] == runs, lines
    assert lines
    for line in lines:
        assert line["element"] == element and 0 < line["test_accuracy"] <= 1, line
        assert len(line["weights_digest"]) == 16 and int(line["weights_digest"], 16) > 0, line
        digests.setdefault(line["reduction"], set()).add(line["weights_digest"])
assert len(digests["order_invariant"]) == 1, digests
assert len(digests["correctly_rounded"]) == 1, digests
assert len(digests["native"]) > 1, digests
print("as it should be")
