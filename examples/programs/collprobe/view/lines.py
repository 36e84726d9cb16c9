# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""The JSON lines of runs: of files that are whole, cut off, damaged or still growing, of one rank or of many."""
from __future__ import annotations

import errno
import heapq
import json
import math
import os
import stat
import sys
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from .words import printable

SCHEMA = 1
Line = Dict[str, Any]


class BadInput(Exception):
    """A file or an option that cannot be used; the text says why."""


class BadLine(ValueError):
    """A line that is no line of a run; the text says why."""


def _refuse(text: str) -> None:
    raise BadLine(f"is not JSON ({text})")


def _integer(text: str) -> Any:
    return -0.0 if text == "-0" else int(text)


def parsed(raw: bytes) -> Line:
    """A line as its members. NaN and infinities stay texts; `number` reads them."""
    try:
        text = raw.decode("utf-8")
        # A minus zero is an integer to `json`, which has none.
        line = json.loads(text, parse_constant=_refuse, parse_int=_integer if b"-0" in raw else None)
    except UnicodeDecodeError as problem:
        raise BadLine(f"is not JSON (column {problem.start + 1}: no UTF-8)") from None
    except json.JSONDecodeError as problem:
        what = "a NUL" if b"\0" in raw else problem.msg
        raise BadLine(f"is not JSON ({what}, column {problem.colno})") from None
    except RecursionError:
        raise BadLine("is nested too deeply") from None
    except ValueError as problem:  # a number of too many digits
        raise problem if isinstance(problem, BadLine) else BadLine("has a number that cannot be read") from None
    if not isinstance(line, dict):
        raise BadLine("is no JSON object")
    if "schema" not in line:
        raise BadLine("has no member 'schema'")
    if line["schema"] != SCHEMA or isinstance(line["schema"], bool):
        raise BadLine(f"has schema {printable(line['schema'])}, this program reads {SCHEMA}")
    if not isinstance(line.get("kind"), str):
        raise BadLine("has no member 'kind'")
    return line


def member(of: Line, name: str, kind: type = dict) -> Any:
    """A member that must be there, and be of that kind."""
    if not isinstance(of, dict) or name not in of:
        raise BadLine(f"has no member '{name}'")
    if not isinstance(of[name], kind):
        raise BadLine(f"has a '{name}' of another kind")
    return of[name]


def number(value: Any) -> float:
    """A number of a line: NaN where it is missing, and "nan", "inf" and "-inf" as written."""
    if value is None:
        return math.nan
    if isinstance(value, (dict, list, bool)):
        raise BadLine("has something else where a number belongs")
    try:
        return float(value)
    except (ValueError, OverflowError):
        raise BadLine("has something else where a number belongs") from None


def numbers(values: Any) -> List[float]:
    if values is None:
        return []
    try:
        if isinstance(values, list):
            return [float(value) for value in values]
    except (TypeError, ValueError, OverflowError):
        pass
    raise BadLine("has something else where a list of numbers belongs")


def count(of: Line, name: str, missing: int = 0) -> int:
    value = of.get(name, missing)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 2**64:
        raise BadLine(f"has no count as '{name}'")
    return int(value)


def index(of: Line, name: str) -> Optional[int]:
    """A rank or the index of a call; None where there is none."""
    return None if of.get(name) is None else count(of, name)


def text(of: Line, name: str) -> str:
    value = of.get(name, "")
    if not isinstance(value, str):
        raise BadLine(f"has no text as '{name}'")
    return value


def objects(of: Line, name: str) -> List[Line]:
    """A list of objects; empty where it is missing."""
    values = of.get(name, [])
    if not isinstance(values, list) or not all(isinstance(each, dict) for each in values):
        raise BadLine(f"has no list of objects as '{name}'")
    return values


def indices(of: Line, name: str) -> Tuple[int, ...]:
    values = of.get(name, [])
    if not isinstance(values, list) or not all(type(each) is int and each >= 0 for each in values):
        raise BadLine(f"has no list of ranks as '{name}'")
    return tuple(values)


def elements(call: Line, name: str) -> int:
    """Of `input_sizes` or `output_sizes`: [[elements of a rank]]."""
    try:
        return count({"size": call[name][0][0]}, "size")
    except (KeyError, TypeError, IndexError):
        raise BadLine(f"has a call without its '{name}'") from None


@dataclass
class Finding:
    """What a check found in one step, or an alarm about it."""

    kind: str
    ranks: Tuple[int, ...]  # empty: it names none
    call: Optional[int]  # None: of the whole step
    name: str  # of the call or the value
    line: str  # "train.cpp:88"
    step: int
    exact: bool
    statistic: float
    threshold: float
    rate: float  # of false alarms in a step; 0 where none is stated
    text: str  # the evidence in words; may be empty
    since: Optional[int]
    missing: str  # of `call_missing`: the name of the call that is missing
    is_alarm: bool
    other_rank: Optional[int] = None
    element: Optional[int] = None
    by_odds: bool = False  # it rests on the odds of the whole run
    damage: str = "none"
    advice: str = ""
    source: Optional[int] = None

    def place(self) -> Tuple[Any, ...]:
        """Findings of one check are of the same thing where this is the same."""
        return (self.kind, self.call, "" if self.call is not None else self.name, self.missing)


def finding(of: Line, step: int, is_alarm: bool) -> Finding:
    """A member of a step's `findings`, or an alarm: all that is read of them is read here."""
    kind = text(of, "check")
    ranks = indices(of, "ranks")
    evidence = member(of, "evidence") if "evidence" in of else {}
    statistic, threshold = number(of.get("statistic")), number(of.get("threshold"))
    other = next((member(of, key) for key in ("own_check", "other_call") if key in of), {})
    since = of.get("since", evidence.get("since"))
    return Finding(
        kind=kind, ranks=ranks, call=index(of, "bucket"), name=text(of, "name"), line=text(of, "line"), step=step,
        exact=of.get("exact", not threshold > 0 and kind not in ("quantisation", "unlike")) is True,
        statistic=statistic, threshold=threshold, rate=number(of.get("false_alarms_per_step", 0)),
        text=text(of, "text"), since=since if isinstance(since, int) else None,
        missing=f"{text(other, 'name') or text(other, 'line')}" if kind in ("call_missing", "of_part") else "",
        is_alarm=is_alarm, other_rank=index(of, "other_rank"), element=index(of, "index"),
        by_odds=kind == "unlike" and statistic == number(evidence.get("odds")),
        damage=text(of, "damage") or "none", advice=text(of, "advice"), source=index(of, "source"))


def findings_of(line: Line) -> List[Finding]:
    """What the checks found, of a line of a step."""
    step = count(line, "step")
    return [finding(of, step, False) for of in objects(line, "findings")]


class Stream(NamedTuple):
    """The lines of one communicator of a run."""

    run: str
    communicator: str
    identity: str  # tells communicators of one name apart; may be empty


@dataclass
class Entry:
    """A line with what it is about."""

    kind: str
    stream: Stream
    writer: Optional[int]
    line: Line
    attempt: int  # how often the writer had been started again
    step: int  # the last step that it wrote
    order: Tuple[int, int]  # entries of several files are in this order
    source: Source
    number: int  # of the line

    def explain(self, problem: BadLine) -> str:
        return f"{printable(self.source.path)}:{self.number}: this line {problem}"


class Told:
    """What was told last, to know what another rank or file tells too: all ranks write the same records."""

    def __init__(self, most: int = 256) -> None:
        self._tellers: Dict[Any, Any] = {}
        self._most = most

    def is_new(self, key: Any, entry: Entry) -> bool:
        teller = (entry.source.path, entry.writer)
        if self._tellers.setdefault(key, teller) != teller:
            return False
        if len(self._tellers) > self._most:
            del self._tellers[next(iter(self._tellers))]
        return True


def content_of(line: Line) -> Line:
    """What does not depend on the rank that wrote the line."""
    return {name: value for name, value in line.items() if name not in ("writer", "time_us", "records_dropped")}


class Source:
    """One file, whole or growing, or the standard input: its lines as entries."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.bad = 0  # lines that could not be read
        self.problem = ""  # the last of them
        self.has_lines = False
        self.is_cut = False  # the last line has no end, and is none
        self._file = -1
        self._forget()

    def _forget(self) -> None:
        self.number, self._offset, self._partial = 0, 0, b""
        self._identities: Dict[Tuple[str, str, Optional[int]], str] = {}
        self._last: Dict[Tuple[Stream, Optional[int]], Tuple[int, int]] = {}
        self._order = (0, -1)  # how often the file went back to a lower step, and the last step

    def _fail(self, problem: OSError) -> None:
        name = "the standard input" if self.path == "-" else f"'{printable(self.path)}'"
        raise BadInput(f"cannot read {name}: {problem.strerror}") from None

    def _open(self, must_exist: bool) -> bool:
        """Opens the file, also anew where it was emptied or replaced. False: it is not there yet."""
        if self.path == "-":
            self._file = sys.stdin.fileno()
            return True
        try:
            named = os.stat(self.path)
        except OSError as problem:
            if problem.errno == errno.ENOENT and not must_exist:
                return self._file >= 0
            return self._fail(problem)
        if stat.S_ISDIR(named.st_mode):
            raise BadInput(f"cannot read '{printable(self.path)}': Is a directory")
        if self._file >= 0:
            opened = os.fstat(self._file)
            is_same = (named.st_ino, named.st_dev) == (opened.st_ino, opened.st_dev)
            if is_same and not (stat.S_ISREG(opened.st_mode) and opened.st_size < self._offset):
                return True
            self.close()
            self._forget()
            self.has_lines, self.problem, self.bad = False, "", 0
        try:
            # Without waiting for the writer of a pipe where the file is only watched.
            self._file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | (0 if must_exist else os.O_NONBLOCK))
        except OSError as problem:
            self._fail(problem)
        return True

    def close(self) -> None:
        if self._file >= 0 and self.path != "-":
            os.close(self._file)
        self._file = -1

    def _raw_lines(self) -> Iterator[bytes]:
        """The lines up to the end that the file has now."""
        pieces = [self._partial]
        while True:
            try:
                data = os.read(self._file, 1 << 16)
            except BlockingIOError:
                data = b""
            except OSError as problem:
                self._fail(problem)
            if not data:
                self._partial = b"".join(pieces)
                return
            self._offset += len(data)
            if b"\n" not in data:
                pieces.append(data)
                continue
            pieces.append(data)
            whole = b"".join(pieces).split(b"\n")
            pieces = [whole.pop()]
            for each in whole:
                self.number += 1
                yield each

    def entries(self, growing: bool = False, strict: bool = False) -> Iterator[Entry]:
        """The lines that have not been read yet. `strict`: one that cannot be read raises BadInput."""
        if not self._open(not growing):
            return
        for raw in self._raw_lines():
            self.has_lines = True
            yield from self._entry(raw, strict)
        if not growing and self._partial:
            self.number += 1
            before = self.bad
            yield from self._entry(self._partial, False)
            if self.bad != before:  # its writer was killed, or is still writing
                self.bad, self.is_cut = before, True
            self.has_lines = True
            self._partial = b""

    def _entry(self, raw: bytes, strict: bool) -> Iterator[Entry]:
        try:
            yield self._entry_of(parsed(raw))
        except BadLine as problem:
            where = f"{printable(self.path)}:{self.number}: this line {problem}"
            if strict:
                raise BadInput(where) from None
            self.bad += 1
            self.problem = where

    def _entry_of(self, line: Line) -> Entry:
        kind, run, communicator = line["kind"], text(line, "run"), text(line, "comm")
        writer = index(line, "writer")
        key = (run, communicator, writer)
        if kind == "run":
            self._identities[key] = text(line, "comm_id")
        stream = Stream(run, communicator, self._identities.get(key, ""))
        attempt, last = self._last.get((stream, writer), (0, -1))
        if kind == "step":
            if "step" not in line:
                raise BadLine("has no member 'step'")
            step = count(line, "step")
            attempt, last = attempt + (step <= last), step
            self._last[stream, writer] = attempt, last
            self._order = (self._order[0] + (step < self._order[1]), step)
        return Entry(kind, stream, writer, line, attempt, last, self._order, self, self.number)


def merged(sources: List[Source], growing: bool = False, strict: bool = False) -> Iterator[Entry]:
    """The entries of all files, step by step. Memory: one entry a file."""
    if len(sources) == 1:
        return sources[0].entries(growing, strict)
    each = [source.entries(growing, strict) for source in sources]
    return heapq.merge(*each, key=lambda entry: entry.order)


def files_of(path: str) -> List[str]:
    """The file itself, or the files *.jsonl of a folder, by name."""
    if not os.path.isdir(path):
        return [path]
    try:
        names = sorted(name for name in os.listdir(path) if name.endswith(".jsonl"))
    except OSError as problem:
        raise BadInput(f"cannot read '{printable(path)}': {problem.strerror}") from None
    files = [each for each in (os.path.join(path, name) for name in names) if os.path.isfile(each)]
    if not files:
        raise BadInput(f"'{printable(path)}' has no file *.jsonl")
    return files


def sources_of(paths: List[str]) -> List[Source]:
    if paths.count("-") > 1:
        raise BadInput("the standard input can be read once only")
    return [Source(file) for path in paths for file in files_of(path)]
