# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""Two runs side by side: are they the same, bit for bit? If not: the first step and call in which they part, how the
difference grows, the metrics that moved beyond their noise, and the alarms that only one of them has."""
from __future__ import annotations

import bisect
import json
import math
import struct
from dataclasses import dataclass, field
from operator import mul
from sys import intern
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from .lines import (SCHEMA, BadInput, BadLine, Entry, Finding, Line, Stream, count, elements, finding, findings_of, member,
                    merged, number, numbers, objects, sources_of, text)
from .run import Runs
from .words import counted, describe_place, list_ranks, printable, short, subject, text_table

METRICS = (
    "loss, mean of ranks", "loss, mean of tokens", "loss, std", "loss, sample std", "loss, range",
    "gradient norm, mean of ranks", "gradient norm, std", "gradient norm, std / mean", "cosine, mean over pairs",
    "cosine, pooled", "cosine, predicted by noise scale", "noise scale, in batches of a rank")
# The limit of `MetricDifference.score`. The differences of a metric, step by step, are cut into 8 blocks of equal length.
# If the runs do not differ in truth, the score of the blocks' means has Student's distribution with 7 degrees of
# freedom, and one of the 11 metrics of most runs exceeds the limit in one of 1000 comparisons. That needs blocks longer
# than the memory of the noise. So no verdict is given on fewer than 40 steps, or on fewer than 30 for each integrated
# autocorrelation time of the differences. Simulated, 40 to 2000 steps: AR(1) noise of any memory, random walks and noise
# that falls with the loss exceed it in at most 2 of 1000 comparisons. White noise above an equal part that is remembered
# for n / 20 steps does so in 5, for n / 4 steps in 180: in so few steps that is what a shift looks like. A shift by half
# the deviation of white noise is found in 41 % of runs of 200 steps, in 83 % of 400 and in all of 1000.
MOVED = 8.0033
IDENTICAL, DIFFER, NOTHING = "identical", "differ", "nothing_to_compare"
# Findings of a rank's own data: with another number of ranks they are others by nature.
_of_ranks = {"loss", "gradient_norm", "cosine", "largest_magnitude", "duplicate", "stale", "zeros", "value_repeats",
             "unlike", "quantisation"}
_of_time = {"late"}


class Call(NamedTuple):
    """One call of a step."""

    kind: str
    type: str
    elements: int  # that each rank got; of a reduce-scatter those that it sent
    name: str
    line: str
    digest: Optional[int]
    norm: float  # of the result
    sample: Tuple[float, ...]


@dataclass
class Step:
    step: int
    first_call: int  # sequence number of its first call; unknown if it has no calls
    unseen: int  # calls that no probe looked at
    facts: int  # a hash of what else it tells: numbers by rank, norms, agreement, findings but `late`
    ranks: int
    writer: Optional[int]  # the rank whose record this is
    attempt: int  # how often the run had been started again
    metrics: Tuple[float, ...]
    calls: Tuple[Call, ...]


@dataclass
class Writer:
    """A rank whose records are in the log."""

    last_step: Optional[int] = None
    dropped: int = 0  # records that it lost before it could write them
    has_ended: bool = False
    attempt: int = 0


@dataclass
class Alarm:
    """An alarm with its steps."""

    what: Finding
    steps: List[int]  # ascending

    def key(self) -> Tuple[Any, ...]:
        return (self.what.kind, self.what.call, self.name if self.what.call is None else "", self.what.ranks)

    @property
    def name(self) -> str:
        """Of the call or the value; of `call_missing` that of the missing call."""
        return self.what.missing or self.what.name

    def place(self) -> str:
        return describe_place(self.what.call, self.name, self.what.line)


def bits(value: float) -> bytes:
    return struct.pack("<d", value)


def same(a: float, b: float) -> bool:
    """The same bits, or both undefined."""
    return (a == b and (a != 0 or bits(a) == bits(b))) or (a != a and b != b)


class Log:
    """The records of one communicator of a run, of one rank or of several: the ranks' records are equal, so one rank's
    suffice, and those that one rank lost come from another. A rank that writes a step at or before its last one has
    started again, from a checkpoint for instance: from that step on only the new records count."""

    most = 4096  # different alarms that are kept

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.steps: List[Step] = []  # ascending
        self.alarms: Dict[Any, Alarm] = {}
        self.writers: Dict[Optional[int], Writer] = {}
        self.disagreements: List[Tuple[int, Optional[int], Optional[int]]] = []  # step, writer, whose record was there
        self.disagreement_count = 0
        self.restarts: List[int] = []  # steps, by attempt from 1
        self.lowest_rank: Optional[int] = None  # of the job, of those that wrote
        self.has_beginning = False

    @property
    def ranks(self) -> int:
        return self.steps[-1].ranks if self.steps else 0

    def add(self, entry: Entry) -> None:
        line = entry.line
        by = self.writers.setdefault(entry.writer, Writer())
        by.dropped = max(by.dropped, count(line, "records_dropped"))
        if entry.kind == "run":
            self.has_beginning = True
            rank = count(line, "global_rank") if line.get("global_rank") is not None else None
            if rank is not None and (self.lowest_rank is None or rank < self.lowest_rank):
                self.lowest_rank = rank
        elif entry.kind == "step":
            self._add_step(_step_of(line, entry.writer), by)
        elif entry.kind == "alarm":
            self._add_alarm(finding(line, count(line, "step"), True))
        elif entry.kind == "end":
            by.has_ended = True

    def _add_step(self, record: Step, by: Writer) -> None:
        if by.last_step is not None and record.step <= by.last_step:
            by.attempt += 1
            if len(self.restarts) < by.attempt:
                self.restarts.append(record.step)
            self.restarts[by.attempt - 1] = min(self.restarts[by.attempt - 1], record.step)
            self.steps = [each for each in self.steps if each.step < record.step or each.attempt >= by.attempt]
        by.last_step = record.step
        record.attempt = by.attempt
        if any(step <= record.step for step in self.restarts[by.attempt:]):
            return  # the run went back to a step before this one
        if not self.steps or self.steps[-1].step < record.step:
            self.steps.append(record)
            return
        at = self._place_of(record.step)
        if at == len(self.steps) or self.steps[at].step != record.step:
            self.steps.insert(at, record)
            return
        known = self.steps[at]
        if not _agree(known, record):
            self.disagreement_count += 1
            if len(self.disagreements) < 16:
                self.disagreements.append((record.step, record.writer, known.writer))

    def _place_of(self, step: int) -> int:
        """The index of the first step from that one on. Files are merged by step, so it is near the end."""
        at = len(self.steps)
        while at > 0 and self.steps[at - 1].step >= step:
            at -= 1
        return at

    def _add_alarm(self, raised: Finding) -> None:
        added = Alarm(raised, [raised.step])
        known = self.alarms.get(added.key())
        if known is None:
            if len(self.alarms) < self.most:
                self.alarms[added.key()] = added
        elif raised.step not in known.steps[-8:]:
            at = bisect.bisect_left(known.steps, raised.step)
            if known.steps[at:at + 1] != [raised.step]:
                known.steps.insert(at, raised.step)

    def missing_steps(self) -> List[Tuple[int, int]]:
        """Ranges of steps that are missing between others: the sequence numbers of the calls show it or, where calls are
        missing, the numbers of the steps."""
        missing = []
        for before, now in zip(self.steps, self.steps[1:]):
            if now.step == before.step + 1:
                continue
            # The caller may number its steps by tens, or record one of ten: then that one counts the calls between.
            end = before.first_call + len(before.calls)
            counts_calls_between = now.unseen and end <= now.first_call <= end + before.unseen + now.unseen
            if (before.calls and now.calls and now.attempt == before.attempt
                    and (now.first_call == end + before.unseen or counts_calls_between)):
                continue
            missing.append((before.step + 1, now.step - 1))
        return missing


def _agree(a: Step, b: Step) -> bool:
    """Whether both tell the same, and not only of the parts that `compare` looks at one by one."""
    return (a.ranks, a.facts, repr(a.metrics), repr(a.calls)) == (b.ranks, b.facts, repr(b.metrics), repr(b.calls))


def _call_of(of: Line) -> Call:
    kind = text(of, "call")
    size = elements(of, "input_sizes" if kind == "reduce_scatter" else "output_sizes")
    digest = None
    if "digest" in of:
        try:
            digest = int(member(of, "digest", str), 16)
        except ValueError:
            raise BadLine("has something else where a digest belongs") from None
    return Call(intern(kind), intern(text(of, "type")), size, intern(text(of, "name")), intern(text(of, "line")), digest,
                number(of.get("result_norm")), tuple(numbers(of.get("result_sample"))))


def _step_of(line: Line, writer: Optional[int]) -> Step:
    loss, norm, cosine = member(line, "loss"), member(line, "grad_norm"), member(line, "cosine")
    metrics = (loss.get("mean"), loss.get("mean_of_tokens"), loss.get("std"), loss.get("std_sample"), loss.get("range"),
               norm.get("mean"), norm.get("std"), norm.get("cv"), cosine.get("mean_pairwise"), cosine.get("pooled"),
               cosine.get("predicted"), line.get("noise_scale"))
    if "findings" not in line:
        raise BadLine("has no member 'findings'")
    calls = objects(line, "calls")
    first_call = count(calls[0], "collective_seq_id") if calls else 0
    for i, call in enumerate(calls):
        if (call.get("bucket"), call.get("collective_seq_id")) != (i, first_call + i):
            raise BadLine("has its calls in another order than they were made, or some are missing")
    facts: List[Any] = [numbers(loss.get("by_rank")), numbers(norm.get("by_rank")), numbers(cosine.get("leave_one_out"))]
    for call in calls:
        audit = member(call, "audit") if "audit" in call else {}
        facts.append((number(call.get("result_norm")), number(call.get("cosine")), count(call, "nonfinite"),
                      call.get("results_agree") is True, text(audit, "damage")))
    facts += [(each.ranks, each.other_rank, each.call, each.kind) for each in findings_of(line)
              if each.kind not in _of_time]
    return Step(count(line, "step"), first_call, count(line, "unprobed_calls") + count(line, "unread_calls"),
                hash(repr(facts)), count(line, "ranks"), writer, 0, tuple(map(number, metrics)),
                tuple(map(_call_of, calls)))


class Place(NamedTuple):
    """A call of both runs, described as the first run has it; without a bucket a whole step."""

    step: int
    bucket: Optional[int] = None
    sequence: int = 0
    call: Optional[Call] = None

    def describe(self) -> str:
        if self.bucket is None:
            return f"step {self.step}"
        name, line = (self.call.name, self.call.line) if self.call else ("", "")
        return f"step {self.step}, {describe_place(self.bucket, name, line)}, call {self.sequence}"

    def json(self) -> Line:
        line: Line = {"step": self.step, "bucket": self.bucket}
        if self.bucket is not None:
            line["collective_seq_id"] = self.sequence
        if self.call is not None:
            line.update({key: value for key, value in (("name", self.call.name), ("line", self.call.line)) if value})
        return line


@dataclass
class StepDifference:
    """How far the results of one step are apart."""

    step: int
    calls: int = 0  # with a digest in both runs
    differing: int = 0
    basis: str = "none"  # "samples": of each result; "norms": of the results only, a lower bound of the distance
    elements: int = 0  # sampled elements, or norms, that are finite in both runs
    nonfinite: int = 0  # that are not, and differ
    max_ulp: int = 0  # of an element, in units of its call's type; 0 without samples
    max_ulp_bucket: Optional[int] = None
    relative: float = math.nan  # |b - a| / |a| over the elements, Euclidean norms
    cosine_distance: float = math.nan  # 1 - cosine of the elements; undefined for norms
    relative_loss: float = math.nan  # |b - a| / |a| of the mean loss


@dataclass
class MetricDifference:
    """A metric in the steps that both runs have, from the first in which it differs."""

    name: str
    verdict: str = "equal"
    first_step: int = 0  # in which it differs
    steps: int = 0  # in which it is finite in both runs
    one_sided: int = 0  # steps in which it is finite in one run only
    mean_a: float = math.nan
    mean_b: float = math.nan
    mean_difference: float = math.nan  # b - a
    standard_error: float = math.nan  # of the mean difference, if there was a test
    score: float = math.nan  # their quotient


_verdicts = {"equal": "equal", "within_noise": "within noise", "moved": "moved",
             "slow_noise": "differs; its noise is too slow for a test", "few_steps": "differs; too few steps for a test",
             "one_sided": "only in one run"}


@dataclass
class Comparison:
    run_a: str
    run_b: str
    communicator: str
    ranks_a: int
    ranks_b: int
    outcome: str = NOTHING
    steps: int = 0  # that both runs have
    steps_only_a: int = 0
    steps_only_b: int = 0
    calls: int = 0  # that both runs have, with a digest in both
    differing: int = 0  # of these
    undecided: int = 0  # calls of both without digests that could be compared
    one_sided: int = 0  # of the undecided: only one run has a digest
    first_difference: Optional[Place] = None
    digests: Tuple[int, int] = (0, 0)  # there
    first_structure: Optional[Place] = None  # the first place with other calls, or a missing step
    structure: str = ""  # in words
    # With equal numbers of ranks: steps that tell other numbers by rank, norms, non-finite elements or findings.
    steps_with_other_facts: int = 0
    first_other_facts: int = 0  # step
    # From the first step in which a result, a norm or the loss differs: 0, 1, 2, 4, ... steps later, and the last.
    growth: List[StepDifference] = field(default_factory=list)
    metrics: List[MetricDifference] = field(default_factory=list)
    new_alarms: List[Alarm] = field(default_factory=list)  # only the second run has them
    gone_alarms: List[Alarm] = field(default_factory=list)
    disagreements: int = 0  # steps of which the log of one run tells different things

    def verdict(self) -> str:
        """The outcome in one sentence."""
        steps = counted(self.steps, "step")
        if self.outcome == IDENTICAL:
            undecided = (f"; {counted(self.undecided, 'other call')} without digests that can be compared"
                         if self.undecided else "")
            ranks = (counted(self.ranks_a, "rank") if self.ranks_a == self.ranks_b
                     else f"{self.ranks_a} and {self.ranks_b} ranks")
            return f"identical: {steps}, {counted(self.calls, 'call')} with equal digests, {ranks}{undecided}"
        if self.outcome == NOTHING:
            return (f"nothing to compare: no result has a digest in both runs ({steps}, of which the metrics are equal)"
                    + ("; were results read?" if self.undecided else ""))
        words = "the runs differ: "
        first, other = self.first_difference, self.first_structure
        if first is not None and first.call is not None:
            words += (f"first in {first.describe()}, {_kind(first.call)}; other results in {self.differing} of "
                      f"{counted(self.calls, 'call')}")
        elif self.calls:
            words += f"all {counted(self.calls, 'digest')} that both have are equal"
        else:
            words += "no result has a digest in both runs"
        if other is not None:
            is_first = first is None or (other.step, -1 if other.bucket is None else other.bucket) <= (
                first.step, first.bucket or 0)
            words += "; other calls first in " if is_first else "; later other calls, first in "
            words += f"{other.describe()}: {self.structure}"
        if self.one_sided:
            words += f"; {counted(self.one_sided, 'call')} with a digest in one run only"
        if self.disagreements:
            words += f"; the ranks' own logs disagree about {counted(self.disagreements, 'step')}"
        if self.steps_with_other_facts:
            words += (f"; other findings, or other numbers of ranks or calls, in "
                      f"{counted(self.steps_with_other_facts, 'step')}, first in step {self.first_other_facts}")
        elif first is None and other is None and not self.one_sided and not self.disagreements:
            words += "; metrics or alarms differ"
        return words


def _kind(of: Call) -> str:
    return f"{printable(of.kind)} of {of.elements} {printable(of.type)}"


def _form_difference(a: Call, b: Call) -> str:
    """What is different about a call's form; empty if nothing is."""
    if (a.kind, a.type, a.elements) != (b.kind, b.type, b.elements):
        return f"{_kind(a)} in A, {_kind(b)} in B"
    if a.name == b.name or not a.name or not b.name:
        return ""
    return f"'{printable(a.name)}' in A, '{printable(b.name)}' in B"


def _matching_calls(a: Step, b: Step) -> int:
    """The number of calls at the beginning of a step that have the same form in both runs."""
    for i, (of_a, of_b) in enumerate(zip(a.calls, b.calls)):
        if _form_difference(of_a, of_b):
            return i
    return min(len(a.calls), len(b.calls))


def _compare_call(a: Call, b: Call, same_ranks: bool) -> str:
    if (a.digest is None) != (b.digest is None):
        return "one_sided"
    if a.digest is None or (a.kind in ("reduce_scatter", "all_to_all") and not same_ranks):
        return "undecided"
    return "equal" if a.digest == b.digest else "differs"


def _e4m3() -> Dict[float, int]:
    values = {}
    for code in range(0x7f):
        exponent, rest = code >> 3, code & 7
        values[math.ldexp(rest + 8, exponent - 10) if exponent else math.ldexp(rest, -9)] = code
    return values


_formats = {"float": ("<f", "<I", 0), "half": ("<e", "<H", 0), "bfloat16": ("<f", "<I", 16), "float8_e5m2": ("<e", "<H", 8)}
_e4m3_codes = _e4m3()


def _steps_from_zero(kind: str, value: float) -> int:
    """The number of elements of the type between 0 and a number that is one."""
    if kind == "float8_e4m3":
        return _e4m3_codes.get(value, 0)
    packed, unsigned, shift = _formats.get(kind, ("<d", "<Q", 0))
    try:
        return int(struct.unpack(unsigned, struct.pack(packed, value))[0]) >> shift
    except OverflowError:
        return 0


def ulp_between(kind: str, a: float, b: float) -> int:
    """The distance of two finite elements, in steps from a number of the type to the next."""
    x, y = _steps_from_zero(kind, abs(a)), _steps_from_zero(kind, abs(b))
    return x + y if math.copysign(1, a) != math.copysign(1, b) else abs(x - y)


def _measure(a: Sequence[float], b: Sequence[float], with_angle: bool, out: StepDifference) -> None:
    """Distance and angle of two vectors of finite numbers."""
    largest = max(max(map(abs, a)), max(map(abs, b)))
    scale = math.ldexp(1, min(max(-math.frexp(largest)[1], -1022), 1022)) if largest else 1.0
    a, b = [x * scale for x in a], [y * scale for y in b]
    aa, bb = math.fsum(map(mul, a, a)), math.fsum(map(mul, b, b))
    dd = math.fsum((y - x) ** 2 for x, y in zip(a, b))
    out.relative = 0.0 if dd <= 0 else math.sqrt(dd / aa) if aa > 0 else math.inf
    if with_angle and aa > 0 and bb > 0:
        # The distance of the unit vectors keeps the digits that 1 - cosine would lose.
        length_a, length_b = math.sqrt(aa), math.sqrt(bb)
        out.cosine_distance = math.fsum((x / length_a - y / length_b) ** 2 for x, y in zip(a, b)) / 2


def _relative(a: float, b: float) -> float:
    if not (math.isfinite(a) and math.isfinite(b)):
        return math.nan
    if a == b:
        return 0.0
    return abs(b - a) / abs(a) if abs(a) > 0 else math.inf


def _difference_of(a: Step, b: Step) -> StepDifference:
    out = StepDifference(a.step, relative_loss=_relative(a.metrics[0], b.metrics[0]))
    of_a: List[float] = []
    of_b: List[float] = []

    def add(x: float, y: float) -> bool:
        if math.isfinite(x) and math.isfinite(y):
            of_a.append(x)
            of_b.append(y)
            return True
        out.nonfinite += not same(x, y)
        return False

    calls = list(zip(a.calls, b.calls))[:_matching_calls(a, b)]
    for bucket, (x, y) in enumerate(calls):
        state = _compare_call(x, y, a.ranks == b.ranks)
        out.calls += state in ("equal", "differs")
        out.differing += state == "differs"
        if not x.sample or len(x.sample) != len(y.sample):
            continue
        out.basis = "samples"
        for one, other in zip(x.sample, y.sample):
            if add(one, other):
                distance = ulp_between(x.type, one, other)
                if distance > out.max_ulp:
                    out.max_ulp, out.max_ulp_bucket = distance, bucket
    if out.basis == "none":
        for x, y in calls:
            if not (math.isnan(x.norm) and math.isnan(y.norm)):
                out.basis = "norms"
                add(x.norm, y.norm)
    out.elements = len(of_a)
    if of_a:
        _measure(of_a, of_b, out.basis == "samples", out)
    return out


def autocorrelation_time(values: Sequence[float], mean: float, most: float) -> float:
    """So many steps a sample of the noise weighs in its mean: 1 + 2 x the sum of its autocorrelations, up to a lag of
    five times that. For noise of slow decay in few steps that sum is too small, so the time of AR(1) noise with the
    measured first autocorrelation, whose bias is known, is a lower limit. Stops above `most`.
    Sources: Sokal, "Monte Carlo Methods in Statistical Mechanics" (1997), section 3; Kendall, Biometrika 41 (1954) 403.
    """
    n = len(values)
    centred = [value - mean for value in values]
    squares = sum(map(mul, centred, centred))
    if squares <= 1e-18 * n * mean * mean or squares == 0:
        return 1.0  # the same number but for rounding
    time = at_least = 1.0
    lag = 1
    while lag < n and time <= most and lag <= 5 * time:
        correlation = sum(map(mul, centred[lag:], centred)) / squares
        time += 2 * correlation
        if lag == 1:
            unbiased = (correlation + 1 / n) / (1 - 3 / n)
            if unbiased >= 1:
                return math.inf
            at_least = (1 + unbiased) / (1 - unbiased)
        lag += 1
    return max(time, at_least)


def compare_metric(name: str, pairs: Sequence[Tuple[int, float, float]]) -> MetricDifference:
    """`pairs`: step, and the number of either run."""
    least_steps, blocks, steps_per_time = 40, 8, 30
    out = MetricDifference(name)
    first = next((i for i, (_, a, b) in enumerate(pairs) if not same(a, b)), None)
    if first is None:
        return out
    out.first_step = pairs[first][0]
    known = [(a, b) for _, a, b in pairs[first:] if math.isfinite(a) and math.isfinite(b)]
    out.one_sided = sum(math.isfinite(a) != math.isfinite(b) for _, a, b in pairs[first:])
    out.steps = n = len(known)
    if not known:
        out.verdict = "one_sided"
        return out
    differences = [b - a for a, b in known]
    out.mean_a, out.mean_b = sum(a for a, _ in known) / n, sum(b for _, b in known) / n
    out.mean_difference = mean = sum(each / n for each in differences)
    out.verdict = "few_steps"
    largest = max(map(abs, differences))
    if n < least_steps or not math.isfinite(largest):
        return out
    # The unit in which squares neither overflow nor vanish.
    unit = math.ldexp(1, min(max(-math.frexp(largest)[1], -1022), 1022)) if largest else 1.0
    differences = [each * unit for each in differences]
    mean *= unit
    out.verdict = "slow_noise"
    if autocorrelation_time(differences, mean, n / steps_per_time) > n / steps_per_time:
        return out
    length = n // blocks
    begin = n - length * blocks
    means = [sum(differences[begin + i * length:begin + (i + 1) * length]) / length for i in range(blocks)]
    centre = sum(means) / blocks
    error = math.sqrt(sum((each - centre) ** 2 for each in means) / (blocks * (blocks - 1)))
    out.standard_error = error / unit
    out.score = centre / error if error > 0 else math.copysign(math.inf, centre) if centre else 0.0
    out.verdict = "moved" if abs(out.score) > MOVED else "within_noise"
    return out


def compare(a: Log, b: Log) -> Comparison:
    """Compares two runs of one communicator, step by step and call by call.

    `identical`: both have the same steps and calls (kind, type, elements, name), every digest that one has the other has
    too, and all are equal. With equal numbers of ranks all metrics, numbers by rank and norms are equal, bit for bit,
    and so are all findings and alarms but `late`, which is of time. What the program's own parts measured (`numbers`) is
    not compared: it may be of time, too. With other numbers of ranks the metrics by rank are
    others by nature: results alone decide, and alarms about results. A reduce-scatter's digest depends on the number of
    ranks, so it is undecided then. Errors of a log make the runs differ.
    Cost: linear in the calls; a metric that differs costs its steps times the memory of its noise.
    """
    out = Comparison(a.stream.run, b.stream.run, a.stream.communicator, a.ranks, b.ranks,
                     disagreements=a.disagreement_count + b.disagreement_count)
    pairs = _pair_steps(a, b, out)
    first = None  # step in which a result, a norm or the loss differs
    for i, (x, y) in enumerate(pairs):
        same_ranks = x.ranks == y.ranks
        matching = _matching_calls(x, y)
        _note_structure(x, y, matching, out)
        if same_ranks and x.facts != y.facts:
            if not out.steps_with_other_facts:
                out.first_other_facts = x.step
            out.steps_with_other_facts += 1
        any_ = same_ranks and not same(x.metrics[0], y.metrics[0])
        for bucket, (of_a, of_b) in enumerate(zip(x.calls[:matching], y.calls)):
            state = _compare_call(of_a, of_b, same_ranks)
            if state in ("undecided", "one_sided"):
                out.undecided += 1
                out.one_sided += state == "one_sided"
                any_ = any_ or (same_ranks and not same(of_a.norm, of_b.norm))
                continue
            out.calls += 1
            if state == "differs":
                out.differing += 1
                any_ = True
                if out.first_difference is None:
                    out.first_difference = Place(x.step, bucket, x.first_call + bucket, of_a)
                    out.digests = (of_a.digest or 0, of_b.digest or 0)
        if any_ and first is None:
            first = i
    later = 0
    while first is not None:
        at = min(first + later, len(pairs) - 1)
        out.growth.append(_difference_of(*pairs[at]))
        if at == len(pairs) - 1:
            break
        later = 2 * later or 1
    for which, name in enumerate(METRICS):
        out.metrics.append(compare_metric(name, [(x.step, x.metrics[which], y.metrics[which]) for x, y in pairs]))
    out.new_alarms = _missing_in(a, b)
    out.gone_alarms = _missing_in(b, a)
    same_ranks = out.ranks_a == out.ranks_b
    ignored = _of_time if same_ranks else _of_time | _of_ranks
    alarms_differ = any(each.what.kind not in ignored for each in out.new_alarms + out.gone_alarms)
    metrics_differ = same_ranks and any(each.verdict != "equal" for each in out.metrics)
    if (out.first_difference or out.first_structure or out.one_sided or out.disagreements or out.steps_with_other_facts
            or alarms_differ or metrics_differ):
        out.outcome = DIFFER
    else:
        out.outcome = IDENTICAL if out.calls else NOTHING
    return out


def _pair_steps(a: Log, b: Log, out: Comparison) -> List[Tuple[Step, Step]]:
    """The steps of both runs; notes the first that only one has."""
    in_a, in_b = {each.step: each for each in a.steps}, {each.step: each for each in b.steps}
    only_a, only_b = sorted(in_a.keys() - in_b.keys()), sorted(in_b.keys() - in_a.keys())
    out.steps_only_a, out.steps_only_b = len(only_a), len(only_b)
    lone = sorted([(step, "A") for step in only_a[:1]] + [(step, "B") for step in only_b[:1]])
    if lone:
        out.first_structure = Place(lone[0][0])
        out.structure = f"only {lone[0][1]} has this step"
    pairs = [(each, in_b[each.step]) for each in a.steps if each.step in in_b]
    out.steps = len(pairs)
    return pairs


def _note_structure(a: Step, b: Step, matching: int, out: Comparison) -> None:
    """The first structural difference within a step, if it comes before the one that is known."""
    is_whole = matching == len(a.calls) == len(b.calls)
    if is_whole and a.unseen == b.unseen:
        return
    if out.first_structure is not None and out.first_structure.step <= a.step:
        return
    if is_whole:
        out.first_structure = Place(a.step)
        out.structure = f"{counted(a.unseen, 'call')} not looked at in A, {b.unseen} in B"
        return
    owner = a if matching < len(a.calls) else b
    out.first_structure = Place(owner.step, matching, owner.first_call + matching, owner.calls[matching])
    if matching < len(a.calls) and matching < len(b.calls):
        out.structure = _form_difference(a.calls[matching], b.calls[matching])
    else:
        out.structure = f"{counted(len(a.calls), 'call')} in A, {len(b.calls)} in B"


def _missing_in(other: Log, of: Log) -> List[Alarm]:
    """The alarms of `of` that `other` lacks."""
    return sorted((each for key, each in of.alarms.items() if key not in other.alarms), key=lambda each: each.steps[0])


def describe(of: Comparison) -> str:
    """The comparison as text for people: the verdict, then tables of what differs."""
    words = of.verdict() + "\n"
    if of.first_difference is not None:
        words += f"digests there: {of.digests[0]:#x} in A, {of.digests[1]:#x} in B\n"
    if of.steps_only_a + of.steps_only_b:
        words += f"steps: {of.steps} in both, {of.steps_only_a} only in A, {of.steps_only_b} only in B\n"
    if of.growth:
        rows = [["difference in", "calls", "max ulp", "relative", "1 - cosine", "not finite", "loss, relative"]]
        for at in of.growth:
            ulp = "-" if at.basis != "samples" else str(at.max_ulp) + (
                "" if at.max_ulp_bucket is None else f" in {at.max_ulp_bucket}")
            rows.append([f"step {at.step}", f"{at.differing} of {at.calls}", ulp,
                         short(at.relative) + (" *" if at.basis == "norms" else ""), short(at.cosine_distance),
                         str(at.nonfinite), short(at.relative_loss)])
        words += "\n" + text_table(rows)
        if any(at.basis == "samples" for at in of.growth):
            words += 'of the elements that both runs sampled; max ulp: "3 in 1" is in bucket 1\n'
        if any(at.basis == "norms" for at in of.growth):
            words += "* of the results' norms: no elements were sampled (probe_options::order_sample)\n"
    if any(each.verdict != "equal" for each in of.metrics):
        rows = [["mean over steps", "A", "B", "B - A", "standard error", "score", "from step", "verdict"]]
        for each in of.metrics:
            if each.verdict == "equal":
                continue
            verdict = _verdicts[each.verdict]
            if each.one_sided and each.verdict != "one_sided":
                verdict += f"; undefined in one run in {counted(each.one_sided, 'step')}"
            rows.append([each.name, *map(short, (each.mean_a, each.mean_b, each.mean_difference, each.standard_error,
                                                 each.score)), str(each.first_step), verdict])
        words += ("\n" + text_table(rows) + f"moved: beyond a score of {short(MOVED)}, which chance reaches in about one "
                  "of 1000 comparisons\n")
        if of.ranks_a != of.ranks_b:
            words += "metrics by rank depend on the number of ranks\n"
    if of.new_alarms or of.gone_alarms:
        words += "\n"
    for title, alarms in ("alarm only in B", of.new_alarms), ("alarm only in A", of.gone_alarms):
        for each in alarms[:20]:
            more = f" and {counted(len(each.steps) - 1, 'more step')}" if len(each.steps) > 1 else ""
            words += (f"{title}: step {each.steps[0]}{more}, {each.place()}: {printable(each.what.kind)}: "
                      f"{subject(each.what)}\n")
        if len(alarms) > 20:
            words += f"... and {len(alarms) - 20} more\n"
    return words


def verdict_in_words(of: MetricDifference) -> str:
    return _verdicts[of.verdict]


def _finite(value: float) -> Any:
    """As the lines have numbers: JSON has neither NaN nor infinities."""
    return value if math.isfinite(value) else "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def json_line(of: Comparison) -> str:
    """The comparison as a JSON line, of kind "comparison"."""
    line: Line = {
        "schema": SCHEMA, "kind": "comparison", "run": of.run_b, "with": of.run_a, "comm": of.communicator,
        "outcome": of.outcome, "verdict": of.verdict(),
        **{name: getattr(of, name) for name in (
            "ranks_a", "ranks_b", "steps", "steps_only_a", "steps_only_b", "calls", "differing", "undecided", "one_sided",
            "disagreements", "steps_with_other_facts")}}
    if of.first_difference is not None and of.first_difference.call is not None:
        call = of.first_difference.call
        line["first_difference"] = {**of.first_difference.json(), "call": call.kind, "type": call.type,
                                    "elements": call.elements, "digest_a": f"{of.digests[0]:#x}",
                                    "digest_b": f"{of.digests[1]:#x}"}
    if of.first_structure is not None:
        line["structure"] = {**of.first_structure.json(), "text": of.structure}
    line["growth"] = [{name: _finite(value) if isinstance(value, float) else value for name, value in vars(at).items()}
                      for at in of.growth]
    line["metrics"] = []
    for each in of.metrics:
        members: Line = {"metric": each.name, "outcome": each.verdict}
        if each.verdict != "equal":
            members.update({name: _finite(value) if isinstance(value, float) else value
                            for name, value in vars(each).items() if name not in ("name", "verdict")})
        line["metrics"].append(members)
    for title, alarms in ("new_alarms", of.new_alarms), ("gone_alarms", of.gone_alarms):
        line[title] = [
            {"first_step": each.steps[0], "steps": len(each.steps), "bucket": each.what.call,
             **{name: value for name, value in (("name", each.name), ("line", each.what.line)) if value},
             "check": each.what.kind, "damage": each.what.damage, "ranks": list(each.what.ranks)} for each in alarms]
    return json.dumps(line, separators=(",", ":")) + "\n"


@dataclass
class Files:
    """What the files say of a run."""

    path: str
    name: str
    logs: List[Log]
    notes: List[str]  # what is wrong with the files

    def lacks_lines(self) -> bool:
        return bool(self.notes) or any(log.missing_steps() or any(by.dropped for by in log.writers.values())
                                       for log in self.logs)

    def describe(self, letter: str) -> str:
        """One line about the run, one about each thing that its files lack."""
        words = f"{letter}: run '{printable(self.name)}' of '{printable(self.path)}'\n"
        has_beginning = any(log.has_beginning for log in self.logs)
        for log in self.logs:
            who = f"   communicator '{printable(log.stream.communicator)}'"
            if not log.steps:
                words += f"{who}: no steps\n"
                continue
            ranks = sorted(rank for rank in log.writers if rank is not None)
            words += (f"{who}: {counted(log.ranks, 'rank')}, {counted(len(log.steps), 'step')} ({log.steps[0].step} to "
                      f"{log.steps[-1].step}), written by {list_ranks(ranks, 'a rank')}\n")
            for first, last in log.missing_steps():
                words += f"   ! steps {first} to {last} are missing\n"
            for writer, by in log.writers.items():
                rank = "a rank" if writer is None else f"rank {writer}"
                if by.dropped:
                    words += f"   ! {rank} dropped {counted(by.dropped, 'record')}\n"
                if has_beginning and not by.has_ended:
                    words += f"   ! the log of {rank} has no end: the run was killed, or goes on\n"
            for step in log.restarts:
                words += f"   ! it was started again at step {step}\n"
            for step, writer, other in log.disagreements:
                words += f"   ! rank {writer} tells other things of step {step} than rank {other}\n"
        return words + "".join(f"   ! {each}\n" for each in self.notes)


def read_files(path: str, only_run: Optional[str], option: str) -> Files:
    sources = sources_of([path])
    logs = Runs(Log, only_run, strict=True)
    for entry in merged(sources, strict=True):
        logs.add(entry)
    known = ", ".join(f"'{printable(name)}'" for name in logs.names)
    if only_run is None and len(logs.names) > 1:
        raise BadInput(f"'{printable(path)}' has several runs: choose one with {option}: {known}")
    if not any(log.steps for log in logs.all.values()):
        if only_run is not None and only_run not in logs.names:
            raise BadInput(f"'{printable(path)}' has no run '{printable(only_run)}'" + (f", only {known}" if known else ""))
        raise BadInput(f"'{printable(path)}' has no steps")
    # Communicators of one name are told apart by their ranks; their identities are of one run only.
    ordered = sorted(logs.all.values(), key=lambda log: (log.stream.communicator,
                                                         -1 if log.lowest_rank is None else log.lowest_rank))
    notes = [f"'{printable(source.path)}': the last line is cut off" for source in sources if source.is_cut]
    return Files(path, only_run if only_run is not None else next(iter(logs.names)), ordered, notes)


class Result(NamedTuple):
    status: int
    text: str
    lines: str  # JSON
    comparisons: List[Comparison]


def compare_files(a: str, b: str, run_a: Optional[str], run_b: Optional[str]) -> Result:
    in_a, in_b = read_files(a, run_a, "--run-a"), read_files(b, run_b, "--run-b")
    incomplete = in_a.lacks_lines() or in_b.lacks_lines()
    words = in_a.describe("A") + in_b.describe("B")
    several = len(in_a.logs) + len(in_b.logs) > 2
    differ = unknown = False
    comparisons: List[Comparison] = []
    of_a, of_b = list(in_a.logs), list(in_b.logs)
    while of_a or of_b:
        names = [logs[0].stream.communicator for logs in (of_a, of_b) if logs]
        which = next((letter for letter, logs in (("A", of_a), ("B", of_b))
                      if logs and (len(names) == 1 or logs[0].stream.communicator < max(names))), None)
        if which is not None:
            lone = (of_a if which == "A" else of_b).pop(0)
            differ = True
            words += f"\nthe runs differ: only {which} has a communicator '{printable(lone.stream.communicator)}'\n"
            continue
        found = compare(of_a.pop(0), of_b.pop(0))
        differ = differ or found.outcome == DIFFER
        unknown = unknown or found.outcome == NOTHING
        described = describe(found)
        if incomplete and found.outcome == IDENTICAL:
            unknown = True
            described = "no difference, but lines are missing" + described[described.index(":"):]
        words += "\n" + (f"communicator '{printable(found.communicator)}': " if several else "") + described
        comparisons.append(found)
    return Result(1 if differ else 2 if unknown else 0, words, "".join(map(json_line, comparisons)), comparisons)
