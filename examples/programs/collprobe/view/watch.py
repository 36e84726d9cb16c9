# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""Shows runs while they are written: the newest step by rank, and the last alarms."""
from __future__ import annotations

import math
import os
import sys
import time
from typing import Callable, Dict, List, Optional

from .lines import BadLine, Entry, Line, Source, Stream, count, finding, findings_of, member, number, numbers, text
from .run import KINDS
from .words import counted, describe_alarm, printable, short, text_table

_shown_alarms, _kept_alarms = 5, 64
_most_rows = 32  # ranks in a table


class Writer:
    """A rank that writes about a communicator."""

    def __init__(self) -> None:
        self.has_begun = self.has_ended = False  # it wrote the beginning of the run, or a step; and the end
        self.last_step: Optional[int] = None
        self.alarms = self.dropped = 0


class Watched:
    """A communicator of a run, from the lines of all its writers."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._forget()

    def _forget(self) -> None:
        self.ranks = self.time_us = 0
        self.step = -1
        self.metrics = [math.nan] * 4  # loss, norm, its cv, cosine
        self.by_rank: List[List[float]] = [[], [], []]
        self.named: Dict[int, int] = {}  # steps in which a check named the rank
        self.recent: Dict[str, None] = {}  # alarms in words: the last, to know those that another rank writes too
        self.writers: Dict[Optional[int], Writer] = {}
        self.verdict = ""

    def add(self, entry: Entry) -> None:
        line, kind = entry.line, entry.kind
        time_us = count(line, "started_us" if kind == "run" else "time_us")
        ranks = count(line, "ranks") if isinstance(line.get("ranks"), int) else 0  # an alarm has a list
        raised = describe_alarm(finding(line, count(line, "step"), True)) if kind == "alarm" else ""
        by = self.writers.get(entry.writer, Writer())
        if (kind == "run" and by.has_begun) or (kind == "step" and entry.step <= (-1 if by.last_step is None
                                                                                 else by.last_step)):
            self._forget()  # it starts again
            by = Writer()
        if kind == "step":
            if entry.step > self.step:
                self._add_step(line, entry.step)
            by.last_step = entry.step
        elif kind == "alarm":
            by.alarms += 1
            if raised not in self.recent:
                self.recent[raised] = None
                if len(self.recent) > _kept_alarms:
                    del self.recent[next(iter(self.recent))]
        elif kind == "end":
            self.verdict = printable(text(line, "verdict"), 2000)
            by.has_ended = True
        by.has_begun = True
        by.dropped = max(by.dropped, count(line, "records_dropped"))
        self.writers[entry.writer] = by
        self.time_us = max(self.time_us, time_us)
        self.ranks = max(self.ranks, ranks)

    def _add_step(self, line: Line, step: int) -> None:
        loss, norm, cosine = member(line, "loss"), member(line, "grad_norm"), member(line, "cosine")
        pairwise = number(cosine.get("mean_pairwise"))
        metrics = [number(loss.get("mean")), number(norm.get("mean")), number(norm.get("cv")),
                   number(cosine.get("pooled")) if math.isnan(pairwise) else pairwise]
        by_rank = [numbers(loss.get("by_rank")), numbers(norm.get("by_rank")), numbers(cosine.get("leave_one_out"))]
        named = {rank for each in findings_of(line) for rank in each.ranks}
        self.step, self.metrics, self.by_rank = step, metrics, by_rank
        for rank in named:
            self.named[rank] = self.named.get(rank, 0) + 1

    def has_ended(self) -> bool:
        return bool(self.writers) and all(by.has_ended for by in self.writers.values())

    def line(self) -> str:
        """A terminal may cut the line: what matters most comes first."""
        name, communicator = printable(self.stream.run), printable(self.stream.communicator)
        title = name + ("" if communicator in ("", "world") else f"/{communicator}")
        loss, norm, cv, cosine = map(short, self.metrics)
        alarms = max((by.alarms for by in self.writers.values()), default=0)
        dropped = sum(by.dropped for by in self.writers.values())
        return (f"{title} ({counted(self.ranks, 'rank')}): step {'-' if self.step < 0 else self.step}, alarms {alarms}, "
                f"loss {loss}, grad norm {norm} (std / mean {cv}), cosine {cosine}, records dropped {dropped}\n")

    def table(self) -> str:
        words = self.line()
        if self.step >= 0 and self.ranks <= _most_rows and (self.by_rank[0] or self.by_rank[1]):
            rows = [["rank", "loss", "grad norm", "cosine", "steps named"]]
            for rank in range(self.ranks):
                cells = [short(values[rank]) if rank < len(values) else "-" for values in self.by_rank]
                rows.append([str(rank), *cells, str(self.named.get(rank, 0))])
            words += text_table(rows)
        words += "".join(f"alarm: {each}\n" for each in list(self.recent)[-_shown_alarms:])
        if self.has_ended():
            return words + f"ended: {self.verdict}\n"
        if not self.time_us:
            return words
        age = max(time.time() - self.time_us / 1e6, 0)
        return words + f"last line {short(int(10 * age) / 10)} s ago\n"


class Watcher:
    def __init__(self, sources: List[Source]) -> None:
        self.sources = sources
        self.runs: Dict[Stream, Watched] = {}

    def read(self) -> bool:
        """Reads what is new. Returns whether there was anything."""
        any_ = False
        for source in self.sources:
            before = source.number
            for entry in source.entries(growing=True):
                any_ = True
                if entry.kind not in KINDS:
                    continue
                try:
                    self.runs.setdefault(entry.stream, Watched(entry.stream)).add(entry)
                except BadLine as problem:
                    source.problem = entry.explain(problem)
            any_ = any_ or source.number != before
        return any_

    def has_ended(self) -> bool:
        """Whether every file has lines, and every run an end."""
        return (bool(self.runs) and all(source.has_lines for source in self.sources)
                and all(run.has_ended() for run in self.runs.values()))

    def table(self) -> str:
        words = "\n".join(run.table() for run in self.runs.values())
        for source in self.sources:
            if not source.has_lines:
                words += f"waiting for '{printable(source.path)}'\n"
            if source.problem:
                words += f"not read: {source.problem}\n"
        return words

    def lines(self) -> str:
        return "".join(run.line() for run in self.runs.values())


class Screen:
    """The terminal while a table is redrawn in it; restored at the end."""

    def __enter__(self) -> Screen:
        self._put("\033[?25l\033[2J")  # no cursor, empty
        return self

    def __exit__(self, *_: object) -> None:
        self._put("\033[?25h")

    def draw(self, words: str) -> None:
        """From the upper left corner, cut to the size of the terminal."""
        try:
            columns, rows = os.get_terminal_size(sys.stdout.fileno())
        except OSError:
            columns, rows = 80, 24
        if columns < 2 or rows < 2:
            columns, rows = 80, 24
        lines = [line[:columns] + "\033[K\r\n" for line in words.splitlines()[:rows - 1]]  # clears the rest of the line
        self._put("\033[H" + "".join(lines) + "\033[J")  # and what is below

    @staticmethod
    def _put(words: str) -> None:
        sys.stdout.write(words)
        sys.stdout.flush()


def watch(sources: List[Source], once: bool, timeout: Optional[float]) -> int:
    """The exit status: 0 every run has ended, 1 timeout, 2 nothing is there, 130 interrupted."""
    watcher = Watcher(sources)
    if once:
        while watcher.read():
            pass
        sys.stdout.write(watcher.table())
        return 0 if watcher.runs else 2
    if sys.stdout.isatty():
        with Screen() as screen:
            status = _follow(watcher, timeout, lambda: screen.draw(watcher.table()), True)
            screen.draw(watcher.table())
    else:
        def show() -> None:
            sys.stdout.write(watcher.lines())
            sys.stdout.flush()

        status = _follow(watcher, timeout, show, False)
        sys.stdout.write(watcher.table())
        sys.stdout.flush()
    if status == 1:
        print(f"collprobe watch: nothing was written for {timeout:g} seconds", file=sys.stderr)
    return status


def _follow(watcher: Watcher, timeout: Optional[float], show: Callable[[], None], always: bool) -> int:
    last_news = time.monotonic()
    last_shown = -math.inf
    has_news = False
    try:
        while True:
            now = time.monotonic()
            if watcher.read():
                last_news, has_news = now, True
            if watcher.has_ended() and now - last_news >= 1:  # a run may follow another in the same file
                return 0
            if timeout and now - last_news >= timeout:
                return 1
            if now - last_shown >= 1 and (always or has_news):
                show()
                last_shown, has_news = now, False
            time.sleep(0.1)
    except KeyboardInterrupt:
        return 130
