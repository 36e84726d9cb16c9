# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""The calls of a run on a time line: a Chrome trace, which Perfetto (ui.perfetto.dev) and chrome://tracing show.

Each rank is a process, "rank 3", with the number 10,000,000 + its rank in the job, which is nobody's process id or
device, so that the file can be joined with a profiler's. (Of a communicator that is a part of the job only the writer's
rank in the job is known; the others have 20,000,000 + their rank in the communicator.) Each call with times is a slice
`nccl:all_reduce`, `nccl:_reduce_scatter_base` ... with PyTorch's arguments and the probe's. A call that begins before an
earlier one of its rank ended is an asynchronous slice. Calls without times (integers, empty ones, audited all-gathers,
in `summary` mode, without `probe_options::times`) are listed in a slice for the step, from its predecessor's record to
its own. Counters: loss, gradient norm, its spread, cosine. An alarm is a slice on the track "alarms", an instant through
all tracks, and an arrow from the call. Times are microseconds since `baseTimeNanoseconds`, which is PyTorch's for runs
that began in the same quarter.

Places on the time line. Each rank notes times by the clock of its own device, and these clocks have nothing to do with
each other. But all ranks leave a call that waits for all of them at about the same time. So in each step the first such
call sets the clocks: its end is the same moment on all tracks. Ends of calls are thus comparable to a few microseconds,
and begins tell who came late. Rank 0's clock runs through from step to step. The clock wraps around after 18 minutes; if
two steps are farther apart, the times of their records tell how often it did. The end of the first step is set to the
time at which its record came, which is a little later than the truth. After that, records correct the time line only if
it is wrong by more than a second: at once if a step seems to end after its record came, and if the records of 64 steps
all came later. Nothing on a track runs backwards: if a correction would let a rank's step begin before its previous one
ended, the step moves forward as a whole on that rank.
"""
from __future__ import annotations

import hashlib
import json
import math
from collections import deque
from typing import Any, Deque, Dict, Iterable, Iterator, List, Optional, Tuple

from .lines import (BadInput, BadLine, Entry, Finding, Line, Stream, Told, content_of, count, elements, finding, index, member,
                    number, objects, text)
from .words import advise, describe_alarm, describe_place, printable, shortened, subject

SECOND = 1_000_000_000
TICK = 256  # the clock's resolution in nanoseconds
TURN = TICK << 32
QUARTER = 7_889_238 * SECOND  # of a mean year: PyTorch's profiler counts from there, so that times need few digits
ALARM_LENGTH = 100_000  # of its slice: enough to be seen and hit
MOST_BYTES = 1 << 30  # viewers hold a trace in memory: beyond, steps are left out
FIRST_PROCESS, FIRST_UNKNOWN = 10_000_000, 20_000_000  # Linux has less than 2^22 process ids
CALLS, STEPS, ALARMS = 1, 2, 3  # threads
_most_listed_calls = 32
# As PyTorch's profiler names the calls on its time line, and as its `record_param_comms` does.
_names = {"all_reduce": ("nccl:all_reduce", "allreduce"),
          "reduce_scatter": ("nccl:_reduce_scatter_base", "_reduce_scatter_base"),
          "all_gather": ("nccl:_all_gather_base", "_allgather_base"), "all_to_all": ("nccl:all_to_all", "all_to_all"),
          "broadcast": ("nccl:broadcast", "broadcast")}
_types = {"int8": "Char", "uint8": "Byte", "int32": "Int", "uint32": "UInt32", "int64": "Long", "uint64": "UInt64",
          "half": "Half", "bfloat16": "BFloat16", "float": "Float", "double": "Double", "float8_e4m3": "Float8_e4m3fn",
          "float8_e5m2": "Float8_e5m2"}

Point = Tuple[int, int, Optional[int]]  # process, thread, nanoseconds since 1970


def interval(entered: int, left: int) -> int:
    """From one reading of a rank's clock to the next, which may have turned, in nanoseconds."""
    ticks = (left - entered) & 0xffffffff
    return TICK * (ticks - (1 << 32) if ticks >> 31 else ticks)


def times_of(call: Line, ranks: int) -> List[Tuple[int, int]]:
    """By rank the readings of its clock when it entered and left the call; empty if they are not known. Only the read of an
    input tells when a rank entered."""
    times = call.get("times")
    if not isinstance(times, list) or len(times) != ranks or not ranks:
        return []
    if not isinstance(call.get("inputs"), dict) or elements(call, "input_sizes") == 0:
        return []
    for each in times:
        if not (isinstance(each, list) and len(each) == 2 and all(type(tick) is int for tick in each)):
            raise BadLine("has a call whose times are none")
    return [(entered & 0xffffffff, left & 0xffffffff) for entered, left in times]


def waits_for_all(call: Line) -> bool:
    """Whether no rank can leave it before all have entered it."""
    return call.get("call") != "broadcast"


def steps_of(words: Optional[str]) -> Tuple[float, float]:
    """ "FIRST:LAST" of an option."""
    first, _, last = (words or ":").partition(":")
    try:
        return (int(first) if first else 0, int(last) if last else math.inf)
    except ValueError:
        raise BadInput(f"'{printable(words)}' is no range of steps: FIRST:LAST") from None


def _hash(words: str) -> int:
    return int.from_bytes(hashlib.blake2b(words.encode("utf-8", "replace"), digest_size=8).digest(), "big")


def _finite(name: str, value: float) -> Line:
    """Viewers draw no strings, so an undefined number is left out."""
    return {name: value} if math.isfinite(value) else {}


class _Track:
    """The last slice of a rank, and its clock: at `tick` it was `ns`."""

    __slots__ = ("begin", "end", "tick", "ns")

    def __init__(self, at: int) -> None:
        self.begin = self.end = at
        self.tick = self.ns = 0

    def time_of(self, tick: int) -> int:
        return self.ns + interval(self.tick, tick)


class _Places:
    """Points in the slices of a step, for the alarms that come after it."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.in_call: Dict[Tuple[int, int], int] = {}  # call and rank
        self.in_step: Optional[int] = None


class Trace:
    """The events of one communicator of a run."""

    def __init__(self, stream: Stream, head: Line, base: int) -> None:
        self.stream, self.base = stream, base
        rank, job_rank = index(head, "writer"), index(head, "global_rank")
        self.rank = rank or 0
        self.job_rank = self.rank if job_rank is None else job_rank
        self.host, self.device = text(head, "host"), text(head, "device")
        hashed = _hash(stream.identity or stream.communicator)
        self.first_thread = hashed % 1_000_000 * 10  # communicators of one process have different threads in it
        self._id_base = _hash(f"{hashed} {self._process_of(self.rank)}") & 0xffffffff00000000
        self._ids = 0
        self._named = 0  # ranks whose tracks have names
        self._tracks: List[_Track] = []
        self._has_clocks, self._clock_count = False, 0
        self._arrived = 0  # the record of the last step with times
        self._least_lag: Optional[int] = None
        self._lag_steps = 0
        self._steps_end = self._alarms_end = self._counted = base
        self._recent: Deque[_Places] = deque(maxlen=8)
        self._events: List[str] = []
        self._last = (0, -1)  # attempt and step
        self._told = Told()
        self._name_tracks(count(head, "ranks") if head.get("ranks") is not None else 0)

    def take(self) -> List[str]:
        events, self._events = self._events, []
        return events

    def add(self, entry: Entry, is_full: bool) -> None:
        """Another line. Several ranks write the same records: each counts once."""
        line = entry.line
        arrived = min(count(line, "time_us") * 1000, 1 << 62)
        if entry.kind == "step":
            if (entry.attempt, entry.step) > self._last:
                if not is_full:
                    self._add_step(line, entry.step, arrived)
                self._last = (entry.attempt, entry.step)
        elif entry.kind == "alarm":
            raised = finding(line, count(line, "step"), True)
            if self._told.is_new((entry.attempt, raised.step, raised.place(), raised.ranks, raised.damage), entry):
                self._add_alarm(line, raised, arrived)
        elif entry.kind == "inspection":
            if self._told.is_new(str(content_of(line)), entry):
                self._event("collprobe:inspection", "i", self._own(STEPS, arrived), cat="collprobe", s="p",
                            args=content_of(line))

    def tell_left_out(self, step: int, at_us: int) -> None:
        self._event("collprobe: the trace is full", "i", self._own(STEPS, at_us * 1000), cat="collprobe", s="g",
                    args={"left_out_from_step": step, "most_bytes": MOST_BYTES})

    def _process_of(self, rank: int) -> int:
        if rank == self.rank:
            return FIRST_PROCESS + self.job_rank
        return (FIRST_PROCESS if self.job_rank == self.rank else FIRST_UNKNOWN) + rank

    def _own(self, thread: int, at: Optional[int]) -> Point:
        return (self._process_of(self.rank), self.first_thread + thread, at)

    def _calls_of(self, rank: int, at: Optional[int]) -> Point:
        return (self._process_of(rank), self.first_thread + CALLS, at)

    def _next_id(self) -> str:
        self._ids += 1
        return f"{self._id_base | self._ids:#x}"

    def _microseconds(self, ns: int) -> str:
        return f"{ns // 1000}.{ns % 1000:03}"

    def _event(self, name: str, phase: str, on: Point, dur: Optional[int] = None, **members: Any) -> None:
        """An event, with times in microseconds, which need more digits than a double has."""
        words = json.dumps({"name": name, "ph": phase, "pid": on[0], "tid": on[1]}, separators=(",", ":"))[:-1]
        if on[2] is not None:
            words += f',"ts":{self._microseconds(max(on[2] - self.base, 0))}'
        if dur is not None:
            words += f',"dur":{self._microseconds(dur)}'
        rest = json.dumps(members, separators=(",", ":"))[1:]
        self._events.append(words + ("," if members else "") + rest)

    def _name_tracks(self, ranks: int) -> None:
        """Names the tracks of ranks that have no name yet."""
        most = max(ranks, self.rank + 1)
        communicator = shortened(self.stream.communicator)
        is_part = self.job_rank != self.rank
        for rank in range(self._named, most):
            on = self._calls_of(rank, None)
            is_own = rank == self.rank
            title = f"rank {self.job_rank if is_own else rank}"
            if is_own:
                title += f" ({', '.join(each for each in map(shortened, (self.host, self.device)) if each)})"
            elif is_part:
                title += f" of {communicator}"
            self._event("process_name", "M", on, args={"name": title})
            self._event("process_sort_index", "M", on, args={"sort_index": on[0] - FIRST_PROCESS})
            self._event("thread_name", "M", on, args={"name": communicator + (f", rank {rank}" if is_part else "")})
        if not self._named:
            for thread, name in (STEPS, "steps"), (ALARMS, "alarms"):
                self._event("thread_name", "M", self._own(thread, None), args={"name": f"{communicator}, {name}"})
        self._named = max(self._named, most)
        while len(self._tracks) < most:
            self._tracks.append(_Track(self.base))

    def _add_step(self, line: Line, step: int, arrived: int) -> None:
        ranks = count(line, "ranks")
        calls = objects(line, "calls")
        times = [times_of(call, ranks) for call in calls]
        counters = self._counters_of(line)
        arguments = [self._arguments(line, call, ranks) for call in calls]
        if ranks > 1 << 16:
            raise BadLine("has more ranks than a trace can show")
        self._name_tracks(ranks)
        noted = _Places(step)
        self._recent.append(noted)
        at = arrived
        if any(times):
            self._set_clocks(calls, times, arrived)
            self._write_calls(calls, times, arguments, noted)
            at = self._tracks[0].end
        untimed = [(i, call) for i, (call, known) in enumerate(zip(calls, times)) if not known]
        if untimed or not calls:
            self._write_step(step, ranks, untimed, arrived, noted)
        self._steps_end = max(self._steps_end, arrived)
        self._counted = max(self._counted, at)
        for name, value in counters:
            self._event(name, "C", self._calls_of(self.rank, self._counted), args={"value": value})

    @staticmethod
    def _counters_of(line: Line) -> List[Tuple[str, float]]:
        loss, norm, cosine = member(line, "loss"), member(line, "grad_norm"), member(line, "cosine")
        values = (("loss", loss.get("mean")), ("gradient norm", norm.get("mean")),
                  ("gradient norm, std / mean", norm.get("cv")), ("cosine", cosine.get("mean_pairwise")))
        return [(name, number(value)) for name, value in values if math.isfinite(number(value))]

    def _arguments(self, line: Line, call: Line, ranks: int) -> Line:
        """Of a call's slices: alike for all ranks. With what is each rank's own, by rank."""
        kind = text(call, "call")
        sizes = [elements(call, name) for name in ("input_sizes", "output_sizes")]
        shown = list(range(ranks)) if ranks <= 30 else [*range(29), "...", ranks - 1]
        arguments = {
            "Collective name": _names.get(kind, ("", "other"))[1], "In msg nelems": sizes[0], "Out msg nelems": sizes[1],
            "Group size": ranks, "dtype": _types.get(text(call, "type"), "Undefined"),
            "Process Group Name": shortened(self.stream.communicator),
            "Process Group Ranks": f"[{', '.join(map(str, shown))}]", "Seq": count(call, "collective_seq_id"),
            "step": count(line, "step"), "bucket": count(call, "bucket"),
            **{name: shortened(text(call, name)) for name in ("name", "line", "digest") if call.get(name)},
            "agree": call.get("results_agree") is True, **_finite("cosine", number(call.get("cosine")))}
        inputs = member(call, "inputs") if "inputs" in call else {}
        squares = inputs.get("sum_of_squares")
        norms = [math.nan] * ranks
        if isinstance(squares, list) and len(squares) == ranks:
            norms = [math.sqrt(each) if each >= 0 else math.nan for each in map(number, squares)]
        nonfinite = [0] * ranks
        for name in ("nan", "positive_infinity", "negative_infinity"):
            if isinstance(inputs.get(name), list):
                for rank, each in enumerate(inputs[name][:ranks]):
                    nonfinite[rank] += count({name: each}, name)
        arguments["by rank"] = list(zip(norms, nonfinite))
        return arguments

    def _set_clocks(self, calls: List[Line], times: List[List[Tuple[int, int]]], arrived: int) -> None:
        """Places the clocks of all ranks on the time line, by the calls of a step whose record came at `arrived`."""
        timed = [(call, known) for call, known in zip(calls, times) if known]
        ranks = len(timed[0][1])
        is_anchored = self._has_clocks
        common = next((known for call, known in timed if waits_for_all(call)), None)
        if common is None and (not is_anchored or self._clock_count != ranks):
            common = timed[0][1]
        first = self._tracks[0]
        if common is not None:
            tick = common[0][1]
            now = first.time_of(tick) if is_anchored else arrived
            if is_anchored:  # turns of the clock that its ticks do not show
                missing = arrived - self._arrived - (now - first.ns)
                if missing > TURN // 2:
                    now += (missing + TURN // 2) // TURN * TURN
            for track, (_, left) in zip(self._tracks, common):
                track.tick, track.ns = left, now
            self._has_clocks, self._clock_count = True, ranks
        end = max(first.time_of(known[0][1]) for _, known in timed)
        shift = self._correction(end, arrived) if is_anchored else arrived - end
        for track in self._tracks[:ranks]:
            track.ns += shift
        self._arrived = arrived

    def _correction(self, end: int, arrived: int) -> int:
        lag = arrived - end
        result = lag if lag < -SECOND else 0
        self._least_lag = lag if self._least_lag is None else min(self._least_lag, lag)
        if result == 0:
            self._lag_steps += 1
            if self._lag_steps < 64:
                return 0
        if self._least_lag > SECOND:
            result = self._least_lag
        self._least_lag, self._lag_steps = None, 0
        return result

    def _write_calls(self, calls: List[Line], times: List[List[Tuple[int, int]]], arguments: List[Line],
                     noted: _Places) -> None:
        ranks = max(map(len, times))
        # What moves a rank's step behind its previous one.
        moved = []
        for rank, track in enumerate(self._tracks[:ranks]):
            begin = min(track.time_of(tick) for known in times if known for tick in known[rank])
            moved.append(max(track.end - begin, 0))
        for i, (call, known, common) in enumerate(zip(calls, times, arguments)):
            if not known:
                continue
            longest = max(interval(*each) for each in known)
            own = common.pop("by rank")
            name = _names.get(text(call, "call"), ("nccl:other", ""))[0]
            for rank, (entered, left_at) in enumerate(known):
                track = self._tracks[rank]
                begin, left = track.time_of(entered) + moved[rank], track.time_of(left_at) + moved[rank]
                if track.end - TICK < begin < track.end:
                    begin = track.end  # the same tick
                left = max(left, begin + 1)  # viewers take a slice of no length for an instant
                overlaps = begin < track.end
                args = {**common, "Rank": rank, **_finite("norm", own[rank][0]), "nonfinite": own[rank][1]}
                if waits_for_all(call):
                    args["lateness_ns"] = max(longest, 0) - max(interval(entered, left_at), 0)
                on = self._calls_of(rank, begin)
                if overlaps:
                    identity = self._next_id()
                    self._event(name, "b", on, cat="collprobe", id=identity, args=args)
                    self._event(name, "e", (on[0], on[1], left), cat="collprobe", id=identity)
                    # An arrow needs a slice of the track: that in which the call begins.
                    noted.in_call[i, rank] = max(begin, track.begin)
                else:
                    self._event(name, "X", on, left - begin, cat="collprobe", args=args)
                    track.begin, track.end = begin, left
                    noted.in_call[i, rank] = begin + (left - begin) // 2

    def _write_step(self, step: int, ranks: int, untimed: List[Tuple[int, Line]], arrived: int, noted: _Places) -> None:
        """A slice for the calls without times."""
        # Of the first step nobody knows when it began.
        begin = self._steps_end if self._steps_end > self.base else max(arrived - 1000, self.base)
        length = max(arrived - begin, 1)
        noted.in_step = begin + length // 2
        self._steps_end = begin + length
        listed = []
        for i, call in untimed[:_most_listed_calls]:
            listed.append(f"{describe_place(i, text(call, 'name'), text(call, 'line'))}: {printable(call.get('call'))} of "
                          f"{elements(call, 'input_sizes')} {_types.get(text(call, 'type'), 'Undefined')}")
        args: Line = {"step": step, "ranks": ranks, "calls": listed}
        if len(listed) < len(untimed):
            args["calls_left_out"] = len(untimed) - len(listed)
        self._event(f"step {step}", "X", self._own(STEPS, begin), length, cat="collprobe", args=args)

    def _point_of(self, raised: Finding) -> Optional[Point]:
        """The begin of an arrow: the call of the first rank that the alarm names; of the whole step the last call."""
        for noted in self._recent:
            if noted.step == raised.step:
                rank = raised.ranks[0] if raised.ranks else 0
                found = [call for call, of in noted.in_call if of == rank and raised.call in (None, call)]
                if found:
                    return self._calls_of(rank, noted.in_call[max(found), rank])
                return None if noted.in_step is None else self._own(STEPS, noted.in_step)
        return None

    def _add_alarm(self, line: Line, raised: Finding, arrived: int) -> None:
        begin = self._point_of(raised)
        at = max(arrived, self._alarms_end, begin[2] or 0 if begin else 0)  # an arrow does not go backwards
        self._alarms_end = at + ALARM_LENGTH
        on = self._own(ALARMS, at)
        title = f"{printable(raised.kind)}: {subject(raised)}"
        args = {"text": describe_alarm(raised), "advice": advise(raised), "record": line}
        self._event(title, "X", on, ALARM_LENGTH, cat="alarm", args=args)
        self._event(title, "i", on, cat="alarm", s="g", args=args)
        if begin is not None:
            identity = self._next_id()
            self._event("alarm", "s", begin, cat="alarm", id=identity)
            self._event("alarm", "f", self._own(ALARMS, at + ALARM_LENGTH // 2), cat="alarm", id=identity, bp="e")


def trace_lines(entries: Iterable[Entry], steps: Tuple[float, float] = (0, math.inf)) -> Iterator[str]:
    """A trace in parts, one behind the other. Memory: the last 8 steps' places, for each call of each rank."""
    traces: Dict[Stream, Trace] = {}
    heads: Dict[Stream, Line] = {}
    size = 0
    base: Optional[int] = None
    is_full = False
    for entry in entries:
        stream, line = entry.stream, entry.line
        try:
            if entry.kind == "run":
                heads.setdefault(stream, line)
            if base is None:
                started = count(line, "started_us") if "started_us" in line else count(line, "time_us")
                base = min(started * 1000, 1 << 62) // QUARTER * QUARTER
                yield _document_head(line, stream, started, base)
            if stream not in traces:
                traces[stream] = Trace(stream, heads.get(stream, {}), base)
            if entry.kind in ("step", "alarm") and not steps[0] <= count(line, "step") <= steps[1]:
                continue
            if size > MOST_BYTES and not is_full and entry.kind == "step":
                is_full = True
                traces[stream].tell_left_out(entry.step, count(line, "time_us"))
            traces[stream].add(entry, is_full)
        except BadLine:
            continue
        for event in traces[stream].take():
            yield ("\n" if size == 0 else ",\n") + event  # so that the file ends with an event at any time
            size += len(event) + 2
    if base is not None:
        yield "\n]}\n"


def _document_head(line: Line, stream: Stream, started_us: int, base: int) -> str:
    of = line if line["kind"] == "run" else {}
    settings = member(of, "settings") if "settings" in of else {}
    other = {
        "schema": line["schema"], "kind": "trace", "run": stream.run, "job": text(of, "job"),
        "communicator": stream.communicator, "communicator_id": stream.identity, "host": text(of, "host"),
        "device": text(of, "device"), "rank": index(line, "writer"), "ranks": of.get("ranks"),
        "process": str(of.get("pid", "")), "started_ns": str(started_us * 1000), "library": text(of, "version"),
        "settings": settings}
    head = {"displayTimeUnit": "ns", "baseTimeNanoseconds": base, "otherData": other}
    return json.dumps(head, separators=(",", ":"))[:-1] + ',"traceEvents":['
