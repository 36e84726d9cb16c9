# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""The drawings of a page as inline SVG. Colours, widths and fonts are those of page.css; lengths within a drawing are
tenths of a unit, whole numbers."""
from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Callable, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from .series import (ALARM, ALARM_TO_ACT, BLAMED, NAMED, UNKNOWN, UNMARKED, USUAL, Bins, Point, RankRow, Series,
                     joined)
from .words import escaped, tick

MOST_DRAWN = 1e280  # numbers beyond are drawn as this; those below its inverse count as zero
MOST_COLUMNS = 400  # more would share a pixel


class Axis:
    """Where numbers lie on an axis, and the round ones among them."""

    def __init__(self, low: float, high: float, logarithmic: bool = False, least: float = 0, wanted: int = 5) -> None:
        self.low, self.high, self.logarithmic = low, high, logarithmic
        self.digits = 5
        if logarithmic:
            first, last = exponent_of(low), exponent_of(high)
            stride = (last - first) // wanted + 1
            self.ticks = [10.0**e for e in range(first + 1, last + 1, stride)]
            if 10.0**first >= low:
                self.ticks.insert(0, 10.0**first)
            return
        raw = max((high - low) / wanted, least)
        base = 10.0**exponent_of(raw)
        step = base * next((unit for unit in (1, 2, 5) if raw / base <= unit + 0.001), 10)
        begin = math.ceil(low / step - 1e-6)
        self.ticks = [each * step for each in range(begin, begin + 12) if each * step <= high + step * 1e-6]
        self.digits = min(max(exponent_of(max(max(abs(low), abs(high)) / step, 1)) + 2, 5), 12)

    def place(self, value: float) -> float:
        """From 0 to 1."""
        value = min(max(value, self.low), self.high)
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def exponent_of(value: float) -> int:
    """The largest e with 10^e <= value, but for rounding."""
    return math.floor(math.log10(value) + 1e-9)


def step_ticks(bins: Bins) -> List[Tuple[str, int, float]]:
    """Round steps below a drawing: label, bin, and place from 0 to 1."""
    ticks: List[Tuple[str, int, float]] = []
    begin = (bins.first[0] + bins.last[0]) / 2
    length = (bins.first[-1] + bins.last[-1]) / 2 - begin
    if bins.is_ascending and length > 0:
        at = 0
        for each in Axis(bins.first[0], bins.last[-1], least=1, wanted=6).ticks:
            while at < len(bins) - 1 and bins.last[at] < each:
                at += 1
            ticks.append((tick(each, 7), at, min(max((each - begin) / length, 0), 1)))
    else:
        for at in sorted({(len(bins) - 1) * part // 3 for part in range(4)}):
            ticks.append((tick(bins.first[at], 7), at, bins.place(at)))
    if ticks:
        ticks[0] = ("step " + ticks[0][0], *ticks[0][1:])
    return ticks


class Path:
    """The `d` of a path: each point relative to the one before."""

    def __init__(self) -> None:
        self._parts: List[str] = []
        self._at = self._start = (0, 0)

    def move(self, x: int, y: int) -> None:
        self._parts.append(f"m{x - self._at[0]} {y - self._at[1]}")
        self._at = self._start = (x, y)

    def line(self, x: int, y: int) -> None:
        self._parts.append(f" {x - self._at[0]} {y - self._at[1]}")
        self._at = (x, y)

    def polygon(self, points: Iterable[Tuple[int, int]]) -> None:
        for i, point in enumerate(points):
            (self.line if i else self.move)(*point)
        self._parts.append("z")
        self._at = self._start

    def rectangle(self, x: int, y: int, width: int, height: int) -> None:
        self.move(x, y)
        self._parts.append(f"h{width}v{height}h{-width}z")

    def svg(self, style: str) -> str:
        return f'<path class="{style}" d="{"".join(self._parts)}"/>' if self._parts else ""


def text_at(x: float, y: float, anchor: str, text: str) -> str:
    return f'<text x="{tick(x, 5)}" y="{tick(y, 5)}" text-anchor="{anchor}">{text}</text>'


def centre_of(label: str, x: float, width: int, half: float) -> float:
    """The middle of a label at `x` that must not be cut at the edges. `half`: of the width of a letter."""
    room = half * len(label) + 1
    return min(max(x, room), width - room)


def svg(name: str, title: str, description: str, width: int, height: int, content: str) -> str:
    """A drawing with its title and description for those who cannot see it."""
    return (f'<svg viewBox="0 0 {width} {height}" role="img" aria-labelledby="{name}-title {name}-desc">'
            f'<title id="{name}-title">{escaped(title)}</title><desc id="{name}-desc">{escaped(description, 20000)}</desc>'
            f"{content}</svg>")


def plot(left: int, top: int, content: str) -> str:
    return f'<g transform="translate({left} {top}) scale(.1)">{content}</g>'


class ChartLine(NamedTuple):
    track: str
    name: str
    style: str = "c1"


@dataclass
class Chart:
    """A chart over the steps."""

    id: str
    title: str
    lines: List[ChartLine]
    band: str = ""  # a track whose area from least to largest is drawn
    from_zero: bool = False
    may_be_logarithmic: bool = False  # it is, if all is positive and the largest is over 100 times the least
    has_stems: bool = False  # counts, as stems in place of lines
    series: Series = field(default_factory=Series)

    def range(self) -> Optional[Point]:
        """Of all that is drawn; None if no step has a number."""
        tracks = [line.track for line in self.lines] + ([self.band] if self.band else [])
        found = joined([self.series.whole(track) for track in tracks])
        if found is not None:
            found.low = min(max(found.low, -MOST_DRAWN), MOST_DRAWN)
            found.high = min(max(found.high, -MOST_DRAWN), MOST_DRAWN)
        return found

    def is_logarithmic(self) -> bool:
        found = self.range()
        return (self.may_be_logarithmic and found is not None and found.low > 1 / MOST_DRAWN
                and found.high / 100 > found.low)

    def axis(self) -> Axis:
        found = self.range()
        assert found is not None
        low, high = found.low, found.high
        if self.is_logarithmic():
            return Axis(low / 1.2, high * 1.2, True)
        if self.from_zero:
            low, high = min(low, 0.0), max(high, 0.0)
        largest = max(abs(low), abs(high))
        room = (high - low) * 0.05
        if not largest > 1 / MOST_DRAWN:
            low, high, room = 0.0, 0.0, 1.0
        elif not high - low > largest * 1e-9:
            room = largest * 0.1
        if low < 0 or not self.from_zero:
            low -= room
        if high > 0 or not self.from_zero or high <= low:
            high += room
        if self.has_stems:
            high = max(high, 1.05)
        return Axis(low, high, least=1 if self.has_stems else 0)

    def group(self) -> int:
        """The bins in a column of the drawing."""
        return (len(self.series.bins) - 1) // MOST_COLUMNS + 1

    def steps_a_column(self) -> int:
        return self.series.bins.width * self.group()


class Columns:
    """The bins of one track, drawn into a plot of `width` times `height` tenths: pieces without large gaps."""

    def __init__(self, chart: Chart, track: str, axis: Axis, width: int, height: int) -> None:
        bins, points, group = chart.series.bins, chart.series.points(track), chart.group()
        longest_gap = len(bins) // group // 20 + 1  # that the line crosses
        gap = 0
        self.pieces: List[List[Tuple[int, Point]]] = []
        self.height = height
        self.height_of: Callable[[float], int] = lambda value: height - int(axis.place(value) * height + 0.5)
        for first in range(0, len(bins), group):
            gap += 1
            end = min(first + group, len(bins))
            point = points[first] if group == 1 else joined(points[first:end])
            if point is None:
                continue
            if not self.pieces or gap > longest_gap:
                self.pieces.append([])
            gap = 0
            place = (bins.place(first) + bins.place(end - 1)) / 2
            self.pieces[-1].append((int(place * width + 0.5), point))

    def line(self) -> Path:
        """The means."""
        path = Path()
        for piece in self.pieces:
            wider = 40 if len(piece) == 1 else 0
            path.move(piece[0][0] - wider, self.height_of(piece[0][1].mean))
            if wider:
                path.line(piece[0][0] + wider, self.height_of(piece[0][1].mean))
            for x, point in piece[1:]:
                path.line(x, self.height_of(point.mean))
        return path

    def area(self) -> Path:
        """Between the lowest and the highest numbers."""
        path = Path()
        for piece in self.pieces:
            if len(piece) == 1:
                x, point = piece[0]
                top = self.height_of(point.high)
                path.rectangle(x - 40, top, 80, self.height_of(point.low) - top)
                continue
            path.polygon([(x, self.height_of(point.high)) for x, point in piece]
                         + [(x, self.height_of(point.low)) for x, point in reversed(piece)])
        return path

    def stems(self, shift: int, style: str, is_square: bool) -> str:
        """A stem for each column that is not zero, `shift` to the right, with a head unless there are many."""
        stems, heads = Path(), Path()
        columns = [(x + shift, self.height_of(point.high)) for piece in self.pieces for x, point in piece
                   if point.high > 0]
        for x, top in columns:
            stems.move(x, self.height)
            stems.line(x, top)
            if is_square:
                heads.rectangle(x - 28, top - 28, 56, 56)
            else:
                heads.polygon([(x, top - 38), (x + 38, top), (x, top + 38), (x - 38, top)])
        return stems.svg(f"line {style}") + (heads.svg(f"head {style}") if len(columns) <= 60 else "")


def mark_runs(series: Series, width: int) -> List[List[int]]:
    """Marked steps as [from, to, level]: those too close to tell apart are one."""
    runs: List[List[int]] = []
    for i, level in enumerate(series.marks):
        if level == UNMARKED:
            continue
        x = int(series.bins.place(i) * width)
        if runs and x - runs[-1][1] < 90:
            runs[-1][1:] = [x, max(runs[-1][2], level)]
        else:
            runs.append([x, x, level])
    return runs


def mark_heads(runs: Sequence[Sequence[int]], y: int) -> str:
    bars, small, hollow, filled = Path(), Path(), Path(), Path()
    for x, end, level in runs:
        if end > x:
            bars.rectangle(x, y, end - x, 22)
        if level == NAMED:
            small.polygon([(x, y - 12), (x + 32, y + 20), (x, y + 52), (x - 32, y + 20)])
        else:
            head = filled if level == ALARM_TO_ACT else hollow
            head.polygon([(x - 48, y), (x + 48, y), (x, y + 84)])
    return bars.svg("mark") + small.svg("hollow") + hollow.svg("hollow") + filled.svg("mark")


def chart_svg(of: Chart, description: str) -> str:
    """Precondition: it has numbers."""
    width, height, top, bottom, right = 380, 176, 18, 24, 10
    axis = of.axis()
    labels = [tick(each, axis.digits) for each in axis.ticks]
    left = 10 + 7 * max([4, *map(len, labels)])
    w, h = 10 * (width - left - right), 10 * (height - top - bottom)
    texts = ""
    grid, frame, rules = Path(), Path(), Path()
    for i, (value, label) in enumerate(zip(axis.ticks, labels)):
        y = h - int(axis.place(value) * h + 0.5)
        grid.move(0, y)
        grid.line(w, y)
        if i == 0 or label != labels[i - 1]:
            texts += text_at(left - 6, top + y / 10 + 4, "end", label)
    frame.move(0, h)
    frame.line(w, h)
    for label, _, place in step_ticks(of.series.bins):
        x = int(place * w + 0.5)
        frame.move(x, h)
        frame.line(x, h + 40)
        texts += text_at(centre_of(label, left + x / 10, width, 3.5), height - 6, "middle", label)
    marks = mark_runs(of.series, w)
    for x, _, level in marks:
        if level >= ALARM:
            rules.move(x, 0)
            rules.line(x, h)
    drawn = grid.svg("grid") + rules.svg("rule")
    if of.band:
        drawn += Columns(of, of.band, axis, w, h).area().svg("band c1")
    shift = -10 * (len(of.lines) - 1)
    for i, line in enumerate(of.lines):
        columns = Columns(of, line.track, axis, w, h)
        if of.has_stems:
            drawn += columns.stems(shift, line.style, i == 0)
            shift += 20
            continue
        if not of.band and of.steps_a_column() > 1:
            drawn += columns.area().svg(f"band {line.style}")
        drawn += columns.line().svg(f"line {line.style}")
    drawn += frame.svg("frame") + mark_heads(marks, -140)
    return svg(of.id, f"{of.title} by step", description, width, height, plot(left, top, drawn) + texts)


# A cell is as high as its state is bad, so that colour alone tells nothing.
_heights = (0, 100, 30, 55, 80, 100)


def map_svg(bins: Bins, rows: List[RankRow], description: str) -> str:
    """Ranks over steps."""
    width, left, right, top, bottom = 400, 30, 34, 4, 16
    pitch = min(max(2600 // len(rows), 25), 140)  # tenths of a unit
    gap = 10 if pitch > 40 else 0
    w, h = 10 * (width - left - right), pitch * len(rows)
    height = top + h // 10 + bottom
    known, apart, named, frame = Path(), Path(), Path(), Path()
    x = [int(i / len(bins) * w + 0.5) for i in range(len(bins) + 1)]
    for r, row in enumerate(rows):
        states = row.states + [UNKNOWN] * (len(bins) - len(row.states))
        for first, end in _equal_runs(states):
            if states[first] > USUAL:
                high = max(_heights[states[first]] * pitch // 100 - gap, 1)
                (named if states[first] == BLAMED else apart).rectangle(
                    x[first], r * pitch + pitch - gap - high, x[end] - x[first], high)
        for first, end in _equal_runs([state != UNKNOWN for state in states]):
            if states[first] != UNKNOWN:  # below all of them, in one piece
                known.rectangle(x[first], r * pitch, x[end] - x[first], max(pitch - gap, 1))
    stride = 1
    while stride * pitch < 100:
        stride *= 2
    baseline = [top + (r * pitch + pitch // 2) / 10 + 2.5 for r in range(len(rows))]
    texts = "".join(text_at(left - 4, baseline[r], "end", str(rows[r].rank)) for r in range(0, len(rows), stride))
    marked = [r for r, row in enumerate(rows) if row.named_steps + row.alarms]
    while marked:  # labels that would touch become one: "1-3", or "1 ..." if ranks between them are not named
        first = marked[0]
        touching = [r for r in marked if baseline[r] - baseline[first] < 10]
        label = str(rows[first].rank)
        if len(touching) > 1:
            is_range = touching[-1] - first + 1 == len(touching)
            label += f"-{rows[touching[-1]].rank}" if is_range else " ..."
        texts += (f'<text class="named" x="{width - right + 3}" y="{tick(baseline[first], 5)}">\u25c4 {label}</text>')
        marked = marked[len(touching):]
    frame.move(0, h)
    frame.line(w, h)
    for label, at, _ in step_ticks(bins):
        middle = (x[at] + x[at + 1]) // 2
        frame.move(middle, h)
        frame.line(middle, h + 25)
        texts += text_at(centre_of(label, left + middle / 10, width, 3), height - 4, "middle", label)
    drawn = known.svg("known") + apart.svg("apart") + named.svg("mark") + frame.svg("frame")
    return svg("map", "Ranks over the steps", description, width, height, plot(left, top, drawn) + texts)


def _equal_runs(values: Sequence[Any]) -> Iterable[Tuple[int, int]]:
    first = 0
    for i in range(1, len(values) + 1):
        if i == len(values) or values[i] != values[first]:
            yield first, i
            first = i


def growth_svg(name: str, title: str, description: str, points: Sequence[Tuple[int, float]]) -> str:
    """Numbers above 0 at some steps, on a logarithmic axis; a 0 lies on the floor. Empty: nothing to draw."""
    width, height, left, right, top, bottom = 440, 200, 52, 16, 12, 26
    positive = [value for _, value in points if math.isfinite(value) and value > 0]
    if not positive or min(positive) <= 1e-290 or max(positive) > 1e290:
        return ""
    axis = Axis(min(positive) / 3, max(positive) * 3, True)
    w, h = 10 * (width - left - right), 10 * (height - top - bottom)
    grid, line, dots = Path(), Path(), Path()
    texts = ""
    for value in axis.ticks:
        y = h - int(axis.place(value) * h + 0.5)
        grid.move(0, y)
        grid.line(w, y)
        texts += text_at(left - 6, top + y / 10 + 4, "end", tick(value, 3))
    stride = len(points) // 9 + 1  # between labels
    is_drawn = False
    for i, (step, value) in enumerate(points):
        x = int((0.5 if len(points) == 1 else i / (len(points) - 1)) * w + 0.5)
        is_last = i == len(points) - 1
        if is_last or (i % stride == 0 and len(points) - i > stride):
            anchor = "end" if is_last else "middle" if i else "start"
            texts += text_at(left + x / 10, height - 8, anchor, ("" if i else "step ") + str(step))
        if not math.isfinite(value):
            is_drawn = False
            continue
        y = h - int(axis.place(value) * h + 0.5)
        (line.line if is_drawn else line.move)(x, y)
        is_drawn = True
        dots.rectangle(x - 25, y - 25, 50, 50)
    drawn = grid.svg("grid") + line.svg("line c1") + dots.svg("band c1")
    return svg(name, title, description, width, height, plot(left, top, drawn) + texts)
