# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""Numbers, names and findings in words."""
from __future__ import annotations

import html
import math
import re
import time
from typing import Any, Optional, Sequence

# What a finding says of the ranks that it names: as the table of kinds in core/record/finding_kind.hpp.
PHRASES = {
    "non_finite": "sent NaN or infinity",
    "duplicate": "sent the data of another rank",
    "stale": "sent the same data as in the last such call",
    "result_differs": "held other bits of a result than the other ranks",
    "shard_differs": "held other bits of a shard than its owner sent",
    "value_differs": "held another value than the other ranks, where all must have the same",
    "sum_differs": "received a result that is not the sum of the inputs",
    "loss": "had a loss that stands out",
    "gradient_norm": "had a gradient norm that stands out",
    "cosine": "had a gradient in a direction that stands out",
    "late": "came later to the calls than usual",
    "quantisation": "lost too much by quantisation",
    "codes_differ": "received other codes than were sent",
    "unlike": "was unlike the other ranks over many steps",
    "weights": "entered the average with another weight than is expected",
    "largest_magnitude": "had a gradient element whose size stands out",
    "overflow": "received NaN or infinity as the result of finite inputs",
    "zeros": "sent zeros only, where others did not",
    "call_missing": "left out calls that all steps before had",
    "other_call": "made another call than the other ranks",
    "value_repeats": "held the value of another rank, where each must have its own",
    "norm_differs": "computed a gradient norm that is not that of the reduced gradient",
    "unexplained": "received a result, a part of which comes from no rank's input",
    "of_part": "did not pass a check of the program's own",
}
# The subject of findings that name no rank, where it is not "some rank".
SUBJECTS = {"non_finite": "most ranks", **dict.fromkeys(
    ("overflow", "call_missing", "value_repeats", "norm_differs", "unexplained"), "the ranks")}
DAMAGE = {
    "input": "damage: in the rank's own data, before the call",
    "reduce": "damage: in the sum, alike for all ranks",
    "broadcast": "damage: on the result's way to the ranks, or in their memory",
    "duplicated_data": "ranks have the same data and should have their own",
    "unknown": "the evidence does not show where the damage happened",
}
ADVICE = {
    "none": "note it",
    "recheck": "look closer, or repeat the step",
    "skip": "drop the step's update",
    "resync": "resync from elsewhere: no rank is known to hold what is right",
    "quarantine": "take out of the job",
}
GRAVITY = {name: level for level, name in enumerate(ADVICE)}
GRAVE = GRAVITY["skip"]  # from here on an alarm asks to act

_turns = "\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069"  # the direction of text, and lines
_unprintable = re.compile(f"[\x00-\x1f\x7f-\x9f{_turns}\ud800-\udfff]")
_not_html = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


def shortened(text: str, most: int = 200) -> str:
    return text if len(text) <= most else text[:most] + "..."


def printable(text: Any, most: int = 200) -> str:
    """Foreign text for a terminal: no character moves the cursor, turns the direction or begins a line."""
    return _unprintable.sub("?", shortened(str(text), most))


def escaped(text: Any, most: int = 2000) -> str:
    """Foreign text for HTML, within and outside of attributes."""
    return html.escape(_not_html.sub("\ufffd", shortened(str(text), most)))


def short(value: float) -> str:
    """Four significant digits, from 10,000 to 10 million to the next whole number; "-" if it is undefined."""
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return f"{value:.0f}" if 9999.5 <= abs(value) < 1e7 else f"{value:.4g}"


def tick(value: float, digits: int) -> str:
    """A number on an axis: "1e6"."""
    text = f"{value:.{digits}g}"
    base, letter, exponent = text.partition("e")
    return f"{base}e{int(exponent)}" if letter else text


def round_count(value: float) -> str:
    """Two significant digits, rounded down: "340,000"; beyond 10^15 "1.2e+20"."""
    if not value < 1e15:
        return f"{value:.1e}" if math.isfinite(value) else short(value)
    whole, unit = int(max(value, 0)), 1
    while whole // unit >= 100:
        unit *= 10
    return f"{whole // unit * unit:,}"


def counted(number: int, thing: str) -> str:
    return f"{number} {thing}" + ("" if number == 1 else "s")


def step_range(first: int, last: int) -> str:
    return f"{first}" if first == last else f"{first} to {last}"


def utc(seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))
    except (ValueError, OverflowError, OSError):
        return "unknown"


def duration(seconds: float) -> str:
    """ "3 h 12 min", "12.5 s" """
    if seconds < 60:
        return f"{short(int(seconds * 1e3) / 1e3)} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min {int(seconds) % 60} s"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes // 1440} days {minutes % 1440 // 60} h"


def list_ranks(ranks: Sequence[int], none: str = "some rank") -> str:
    """ "rank 3", "ranks 1, 2 and 5"; of more than ten the first ten and the number of the others."""
    if not ranks:
        return none
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 10:
        return "ranks " + ", ".join(map(str, ranks[:10])) + f" and {len(ranks) - 10} others"
    return "ranks " + ", ".join(map(str, ranks[:-1])) + f" and {ranks[-1]}"


def subject(of: Any) -> str:
    """The ranks of a finding, or what stands for them where it names none."""
    return list_ranks(of.ranks, SUBJECTS.get(of.kind, "some rank"))


def phrase(kind: str, has_rank: bool) -> str:
    if kind == "value_repeats" and not has_rank:
        return "together did not draw the samples that are expected"
    return PHRASES.get(kind, f"was named by the check {printable(kind)}")


def describe_place(call: Optional[int], name: str, line: str) -> str:
    """ "bucket 1 'wte'", "bucket 1 (train.cpp:88)"; of no call the name of the value, or "whole step"."""
    quoted = f"'{printable(name)}'" if name else ""
    if call is None:
        return quoted or "whole step"
    rest = quoted or (f"({printable(line)})" if line else "")
    return f"bucket {call} {rest}".rstrip()


def place_of(of: Any) -> str:
    return describe_place(of.call, of.name, of.line)


def evidence(of: Any) -> str:
    """What was seen, in words."""
    text = printable(of.text, 1000)
    if not text and not of.threshold > 0:
        text = f"value {short(of.statistic)}" if of.kind == "quantisation" else "bits compared"
    return text or f"{short(of.statistic)}, limit {short(of.threshold)}"


def false_alarms(of: Any) -> str:
    """How often a healthy step, or run, has such a finding."""
    if of.by_odds:
        return f"in a run, 1 in {round_count(of.threshold)}"
    if of.kind == "sum_differs" and not of.exact and of.rate > 0:
        return f"about {short(of.rate)} a step, unless a rank is far larger than the others"
    if of.rate > 0:
        return f"at most {short(of.rate)} a step"
    return "none: exact" if of.exact else "not stated"


def advise(of: Any) -> str:
    if of.advice == "resync" and of.source is not None:
        return f"resync from rank {of.source}"
    return ADVICE.get(of.advice, printable(of.advice) or "watch it")


def describe_alarm(of: Any) -> str:
    """An alarm as one line."""
    text = f"step {of.step}, {place_of(of)}: {subject(of)} {phrase(of.kind, bool(of.ranks))} ({printable(of.kind)})"
    if of.text or of.threshold > 0:
        text += f": {evidence(of)}"
    if of.rate > 0 and not of.by_odds:
        text += f"; false alarms: {false_alarms(of)}"
    if of.damage in DAMAGE:
        text += f"; {DAMAGE[of.damage]}"
    return text + f"; what to do: {advise(of)}"


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as text, the first of which is the heading: the first column left, the others right."""
    widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(max(map(len, rows)))]
    lines = ["  ".join(f"{cell:{'<>'[i > 0]}{widths[i]}}" for i, cell in enumerate(row)) + "\n" for row in rows]
    return "".join([lines[0], "-" * (sum(widths) + 2 * len(widths) - 2) + "\n", *lines[1:]])
