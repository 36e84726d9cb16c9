# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""The numbers of a run by step and by rank, in memory that does not grow with the steps."""
from __future__ import annotations

import math
from statistics import median
from typing import Dict, List, Optional, Sequence, Set, Tuple


class Bins:
    """The steps of a run in bins of equal numbers of records. Full bins are merged in pairs."""

    def __init__(self, most: int) -> None:
        self.most = most  # even
        self.first: List[int] = []  # the first step of each bin
        self.last: List[int] = []
        self.steps: List[int] = []  # records
        self.width = 1  # records in a full bin
        self.records = 0
        self.is_ascending = True

    def __len__(self) -> int:
        return len(self.first)

    def add(self, step: int) -> bool:
        """Adds a step to the last bin or to a new one. True: bins 2 i and 2 i + 1 have become bin i before that."""
        self.records += 1
        if self.last and step <= self.last[-1]:
            self.is_ascending = False
        if self.first and self.steps[-1] < self.width:
            self.first[-1] = min(self.first[-1], step)
            self.last[-1] = max(self.last[-1], step)
            self.steps[-1] += 1
            return False
        merges = len(self.first) == self.most
        if merges:
            self.first = [min(self.first[i:i + 2]) for i in range(0, self.most, 2)]
            self.last = [max(self.last[i:i + 2]) for i in range(0, self.most, 2)]
            self.steps = [sum(self.steps[i:i + 2]) for i in range(0, self.most, 2)]
            self.width *= 2
        self.first.append(step)
        self.last.append(step)
        self.steps.append(1)
        return merges

    def find(self, step: int) -> Optional[int]:
        """The last bin with this step."""
        for i in range(len(self.first) - 1, -1, -1):
            if self.first[i] <= step <= self.last[i]:
                return i
        return None

    def place(self, i: int) -> float:
        """From 0 to 1: by the step or, if steps came in another order, by the number of the bin."""
        if len(self) < 2:
            return 0.5
        if not self.is_ascending:
            return i / (len(self) - 1)
        begin, end = (self.first[0] + self.last[0]) / 2, (self.first[-1] + self.last[-1]) / 2
        return ((self.first[i] + self.last[i]) / 2 - begin) / (end - begin)


class Point:
    """One number over the steps of a bin. A spike of one step stays in `low` or `high`."""

    __slots__ = ("low", "high", "total", "count")

    def __init__(self, low: float, high: float, total: float, count: int) -> None:
        self.low, self.high, self.total, self.count = low, high, total, count

    @property
    def mean(self) -> float:
        return self.total / self.count


def joined(points: Sequence[Optional[Point]]) -> Optional[Point]:
    known = [each for each in points if each is not None]
    if not known:
        return None
    return Point(min(each.low for each in known), max(each.high for each in known),
                 sum(each.total for each in known), sum(each.count for each in known))


# How much a step deserves attention.
UNMARKED, NAMED, ALARM, ALARM_TO_ACT = range(4)
_most_summed = 1e290  # the sum stays finite


class Series:
    """The numbers of the steps by name, and the marks of steps with findings."""

    def __init__(self, most: int = 2000) -> None:
        self.bins = Bins(most)
        self.tracks: Dict[str, List[Optional[Point]]] = {}
        self.counts: Dict[str, int] = {}  # steps in which the number is finite
        self.marks: List[int] = []

    def add(self, step: int, values: Dict[str, Tuple[float, float]]) -> None:
        """`values`: the least and the largest of each number in the step."""
        bins = self.bins
        if bins.add(step):
            for name, points in self.tracks.items():
                self.tracks[name] = [joined(points[i:i + 2]) for i in range(0, bins.most, 2)]
            self.marks = [max(self.marks[i:i + 2]) for i in range(0, bins.most, 2)]
        size = len(bins)
        if len(self.marks) < size:
            self.marks.append(UNMARKED)
        for name, (low, high) in values.items():
            if not (math.isfinite(low) and math.isfinite(high)):
                continue
            points = self.tracks.setdefault(name, [])
            if len(points) < size:
                points.extend([None] * (size - len(points)))
            total = min(max(low / 2 + high / 2, -_most_summed), _most_summed)
            point = points[-1]
            if point is None:
                points[-1] = Point(low, high, total, 1)
            else:
                if low < point.low:
                    point.low = low
                if high > point.high:
                    point.high = high
                point.total += total
                point.count += 1
            self.counts[name] = self.counts.get(name, 0) + 1

    def mark(self, step: int, level: int) -> None:
        at = self.bins.find(step)
        if at is not None:
            self.marks[at] = max(self.marks[at], level)

    def count(self, name: str) -> int:
        return self.counts.get(name, 0)

    def points(self, name: str) -> List[Optional[Point]]:
        """By bin."""
        known = self.tracks.get(name, [])
        return known[:len(self.bins)] + [None] * (len(self.bins) - len(known))

    def whole(self, name: str) -> Optional[Point]:
        return joined(self.points(name))


class Thinned:
    """The ranks' numbers of at most `most` steps, at equal distances."""

    most = 128

    def __init__(self) -> None:
        self.rows: List[List[float]] = []
        self._stride, self._seen = 1, 0

    def add(self, by_rank: List[float]) -> None:
        self._seen += 1
        if (self._seen - 1) % self._stride != 0:
            return
        if len(self.rows) == self.most:
            self.rows = self.rows[::2]
            self._stride *= 2
        self.rows.append(by_rank)

    def median_of(self, rank: int) -> float:
        values = [row[rank] for row in self.rows if rank < len(row) and math.isfinite(row[rank])]
        return median(values) if values else math.nan


# A rank in a bin, the worst of its steps: how far its loss or gradient norm is from the median rank's, in robust
# deviations of the ranks (4, 8, 16), or named by a check.
UNKNOWN, USUAL, APART_4, APART_8, APART_16, BLAMED = range(6)
STATES = ("-", "usual", "over 4", "over 8", "over 16", "named")


class RankRow:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.states: List[int] = []  # by bin; those behind its end are unknown
        self.named_steps = 0
        self.alarms = 0
        self._last_named = -1

    def at(self, bin_: int) -> int:
        return self.states[bin_] if bin_ < len(self.states) else UNKNOWN

    def worst(self, first: int, end: int) -> int:
        return max(self.states[first:end], default=UNKNOWN)

    def set(self, bin_: int, state: int) -> None:
        states = self.states
        if len(states) <= bin_:
            states.extend([UNKNOWN] * (bin_ + 1 - len(states)))
        if states[bin_] < state:
            states[bin_] = state

    def name_in(self, record: int) -> None:
        self.named_steps += self._last_named != record
        self._last_named = record

    def halve(self) -> None:
        self.states = [max(self.states[i:i + 2]) for i in range(0, len(self.states), 2)]


class RankSteps:
    """The ranks of a run over its steps."""

    most_rows = 4096  # ranks; others are left out
    most_shown = 256  # with more rows, only the worst `worst_shown`
    worst_shown = 64
    metrics = ("loss", "norm", "cosine", "late_ms")

    def __init__(self, most: int = 200) -> None:
        self.bins = Bins(most)
        self.rows: Dict[int, RankRow] = {}
        self.thinned = {name: Thinned() for name in self.metrics}
        self._usual: Dict[str, float] = {}  # the running deviation of the ranks

    def _row(self, rank: int) -> Optional[RankRow]:
        row = self.rows.get(rank)
        if row is None and len(self.rows) < self.most_rows:
            row = self.rows[rank] = RankRow(rank)
        return row

    def add(self, step: int, by_rank: Dict[str, List[float]], named: Set[int]) -> None:
        if self.bins.add(step):
            for row in self.rows.values():
                row.halve()
        for name, values in by_rank.items():
            if not values:
                continue
            if name in ("loss", "norm"):
                self._judge(name, values)
            self.thinned.setdefault(name, Thinned()).add(values)
            if len(self.rows) < len(values):
                for rank in range(len(values)):
                    self._row(rank)
        for rank in named:
            row = self._row(rank)
            if row is not None:
                row.set(len(self.bins) - 1, BLAMED)
                row.name_in(self.bins.records)

    def add_alarm(self, step: int, ranks: Sequence[int]) -> None:
        at = self.bins.find(step)
        for row in map(self._row, ranks):
            if row is not None:
                row.alarms += 1
                if at is not None:
                    row.set(at, BLAMED)

    def _judge(self, name: str, values: List[float]) -> None:
        finite = [value for value in values if math.isfinite(value)]
        if len(finite) < 3:
            return
        middle = median(finite)
        # Halves, so that distances of the largest numbers stay finite.
        distances = [abs(value / 2 - middle / 2) * 2 for value in values]
        # The deviation of one step's few ranks is now and then near zero by chance: the running one is not.
        known = [each for each in distances if math.isfinite(each)]
        deviation = 1.4826 * median(known) + 1e-9 * abs(middle) if known else math.inf
        scale = 0.0
        if math.isfinite(deviation):
            before = self._usual.get(name, deviation)
            self._usual[name] = usual = before + (deviation - before) / 16
            scale = max(deviation, usual)
        at = len(self.bins) - 1
        for rank, distance in enumerate(distances):
            if math.isnan(values[rank]):
                continue
            row = self._row(rank)
            if row is not None:
                row.set(at, USUAL if distance <= 4 * scale else APART_4 if distance <= 8 * scale
                        else APART_8 if distance <= 16 * scale else APART_16)

    def shown(self) -> List[RankRow]:
        """By rank; of very many the worst."""
        rows = sorted(self.rows.values(), key=lambda row: row.rank)
        if len(rows) <= self.most_shown:
            return rows

        def badness(row: RankRow) -> Tuple[int, int, int]:
            return (-row.named_steps - row.alarms, -sum(16**state for state in row.states), row.rank)

        return sorted(sorted(rows, key=badness)[:self.worst_shown], key=lambda row: row.rank)
