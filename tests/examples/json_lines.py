# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""Lines of JSON, read strictly: NaN is none."""
import json


def refuse(word):
    raise ValueError(word + " is not JSON")


def lines_of(path, *kinds):
    """Those of these kinds, or all."""
    with open(path, encoding="utf-8", newline="\n") as file:
        lines = [json.loads(line, parse_constant=refuse) for line in file]
    return [line for line in lines if not kinds or line["kind"] in kinds]


def summaries(path, names):
    """The lines of a study that have its results, by exactly these names."""
    lines = lines_of(path, "summary")
    for line in lines:
        assert set(line) == {"schema", "kind", *names} and line["schema"] == 1, line
    return lines
