# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""What the lines of a run say, whatever its length."""
from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

from .lines import (BadInput, BadLine, Entry, Finding, Line, Stream, Told, content_of, count, finding, findings_of, index,
                    member, number, numbers, objects, text)
from .series import ALARM, ALARM_TO_ACT, NAMED, RankSteps, Series
from .words import GRAVE, GRAVITY, advise, counted, list_ranks, phrase, place_of, printable, short, subject

MOST = 4096  # different findings, and alarms, that are kept
# How the tracks of what parts measured begin: a name may have numbers by rank and of all ranks together.
OWN_OF_RANKS, OWN_OF_ALL = "own ", "all "
BAND = "ranks of "  # and that of the least and largest rank, before the track
KINDS = {"run", "step", "alarm", "inspection", "end"}  # of lines; others are not of one communicator of a run


class Repeated:
    """A finding or an alarm in one step or in many."""

    def __init__(self, first: Finding) -> None:
        self.first = first  # of an alarm with the strongest evidence and the gravest advice of all
        self.first_step = self.last_step = first.step
        self.steps = 1

    def again(self, of: Finding) -> None:
        self.steps += of.step != self.last_step
        self.last_step = of.step
        if not of.is_alarm:
            return
        if GRAVITY.get(of.advice, 0) > GRAVITY.get(self.first.advice, 0):
            self.first = replace(self.first, advice=of.advice, source=of.source)

        def strength(each: Finding) -> float:
            return abs(each.statistic) / (each.threshold if each.threshold > 0 else 1)

        if strength(of) > strength(self.first):
            self.first = replace(of, advice=self.first.advice, source=self.first.source, step=self.first.step)


class Findings:
    """The findings of a run, or its alarms: by their first step."""

    def __init__(self) -> None:
        self.all: Dict[Tuple[Any, ...], Repeated] = {}

    def add(self, of: Finding) -> None:
        key = (of.place(), of.ranks, of.damage, None if of.is_alarm else of.other_rank)
        known = self.all.get(key)
        if known is not None:
            known.again(of)
        elif len(self.all) < MOST:
            self.all[key] = Repeated(of)

    def __iter__(self) -> Iterator[Repeated]:
        return iter(self.all.values())

    def __len__(self) -> int:
        return len(self.all)


class Audits:
    """The checks of results, together."""

    def __init__(self) -> None:
        self.calls = self.without_majority = self.sums = self.wrong_sums = 0
        self.worst: Tuple[float, int, str] = (-1.0, 0, "")  # residual over its limit, step, place

    def add(self, step: int, bucket: int, call: Line) -> None:
        audit = member(call, "audit")
        self.calls += 1
        self.without_majority += audit.get("majority") is False
        if audit.get("sum_checked") is not True:
            return
        self.sums += 1
        self.wrong_sums += audit.get("conserved") is False
        residual, limit = number(audit.get("residual")), number(audit.get("residual_limit"))
        if limit > 0 and residual / limit > self.worst[0]:
            self.worst = (residual / limit, step, call_place(bucket, call))


class Quantised:
    """A quantised call over the steps, with its worst verdict."""

    order = ("unknown", "corrupt", "non_finite_hidden", "biased", "harmful", "degenerate_blocks", "visible",
             "negligible")
    numbers = ("bytes_plain", "bytes_sent", "sqnr_db", "noise_ratio")

    def __init__(self) -> None:
        self.worst: Line = {}
        self.quantised = self.with_worst = 0  # steps

    def add(self, of: Line) -> None:
        verdict = of.get("verdict")
        if verdict not in self.order:  # the call was made with the elements as they are
            if not self.quantised:
                self.worst = of
            return
        if not self.quantised or self.order.index(verdict) < self.order.index(self.worst["verdict"]):
            self.worst, self.with_worst = of, 0
        self.quantised += 1
        self.with_worst += verdict == self.worst["verdict"]


def call_place(bucket: int, call: Line) -> str:
    return place_of(Finding("", (), bucket, text(call, "name"), text(call, "line"), 0, True, 0, 0, 0, "", None, "",
                            False))


def finite(values: List[float]) -> List[float]:
    return [value for value in values if math.isfinite(value)]


class Run:
    """One communicator of a run. Memory: bounded, whatever the number of steps."""

    most_quantised = 256
    most_own = 24  # numbers of the program's own parts: a name, in a call or in the whole step
    most_inspections = 64

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.head: Line = {}
        self.end: Optional[Line] = None
        self.ranks = 0
        self.steps = self.suspicious_steps = self.alarm_count = 0
        self.calls = self.unprobed = self.unread = 0
        self.first_step = self.last_step = 0
        self.is_summary = False
        self.unequal_losses = self.late_ranks = ""  # of the last step that tells of them
        self.time_us = 0  # of the last line
        self.findings, self.alarms = Findings(), Findings()
        self.series, self.rank_steps = Series(), RankSteps()
        self.audits = Audits()
        self.quantised: Dict[int, Quantised] = {}
        self.own: Dict[str, str] = {}  # the track of each number of a part, and its title
        self.more_own: Set[str] = set()
        self.inspections: List[Line] = []
        self.more_inspections = 0
        self._dropped: Dict[Optional[int], int] = {}
        self._last = (0, -1)  # attempt and step
        self._told = Told()

    @property
    def dropped(self) -> int:
        return max(self._dropped.values(), default=0)

    def add(self, entry: Entry) -> None:
        """Another line, of one of the KINDS. Several ranks write the same records: each counts once. A line that cannot be
        read raises BadLine, and does not count."""
        line = entry.line
        time_us, dropped = count(line, "time_us"), count(line, "records_dropped")
        getattr(self, "_add_" + entry.kind)(entry, line)
        self.time_us = max(self.time_us, time_us)
        self._dropped[entry.writer] = max(self._dropped.get(entry.writer, 0), dropped)

    def _add_run(self, entry: Entry, line: Line) -> None:
        for name in ("job", "host", "device", "version", "comm_id"):
            text(line, name)
        for name in ("ranks", "nodes", "pid", "started_us", "writer"):
            index(line, name)
        member({"settings": line.get("settings", {})}, "settings")
        self.head = self.head or line
        self.end = None

    def _add_end(self, entry: Entry, line: Line) -> None:
        text(line, "verdict")
        self.end = line

    def _add_inspection(self, entry: Entry, line: Line) -> None:
        for name in ("max_ulp", "median_us", "busbw_gbs"):
            number(line.get(name))
        if not self._told.is_new(str(content_of(line)), entry):
            return
        if len(self.inspections) < self.most_inspections:
            self.inspections.append(line)
        else:
            self.more_inspections += 1

    def _add_alarm(self, entry: Entry, line: Line) -> None:
        raised = finding(line, count(line, "step"), True)
        if not self._told.is_new((entry.attempt, raised.step, raised.place(), raised.ranks, raised.damage), entry):
            return
        self.alarm_count += 1
        self.alarms.add(raised)
        self.rank_steps.add_alarm(raised.step, raised.ranks)
        self.series.mark(raised.step, ALARM_TO_ACT if GRAVITY.get(raised.advice, 0) >= GRAVE else ALARM)

    def _add_step(self, entry: Entry, line: Line) -> None:
        step = entry.step
        if (entry.attempt, step) <= self._last:
            return
        # All that may be wrong with the line is read before anything is counted.
        found = findings_of(line)
        ranks = count(line, "ranks")
        calls = objects(line, "calls")
        loss, norm, cosine = member(line, "loss"), member(line, "grad_norm"), member(line, "cosine")
        late = member(line, "lateness") if "lateness" in line else {}
        by_rank = {"loss": numbers(loss.get("by_rank")), "norm": numbers(norm.get("by_rank")),
                   "cosine": numbers(cosine.get("leave_one_out")),
                   "late_ms": [each / 1e6 for each in numbers(late.get("latest"))]}
        values = self._values(line, loss, norm, cosine, late, by_rank, calls)
        own, more_own = self._own(line, calls, ranks)
        for track, (_, of_ranks) in own.items():
            known = finite(of_ranks)
            if track.startswith(OWN_OF_RANKS):
                by_rank[track] = of_ranks
            if known:
                mean = sum(each / len(known) for each in known)
                values[track], values[BAND + track] = (mean, mean), (min(known), max(known))
        unprobed, unread = count(line, "unprobed_calls"), count(line, "unread_calls")
        quantised = [(count(each, "bucket"), each) for each in objects(line, "quantisation")]
        for _, each in quantised:
            _ = (text(each, "name"), text(each, "line"), *(number(each.get(name)) for name in Quantised.numbers))
        audited = [(count(each, "bucket"), each) for each in calls if "audit" in each]
        audits = Audits()
        for bucket, each in audited:
            audits.add(step, bucket, each)
        of_tokens = number(loss.get("mean_of_tokens"))
        behind, gain = number(late.get("behind")), number(late.get("gain"))
        last = index(late, "last")

        self.first_step = min(self.first_step, step) if self.steps else step
        self.last_step = max(self.last_step, step)
        self._last = (entry.attempt, step)
        self.steps += 1
        self.ranks = ranks
        self.is_summary = line.get("mode") == "summary"
        self.suspicious_steps += bool(found)
        self.calls += len(calls) + unprobed + unread
        self.unprobed += unprobed
        self.unread += unread
        for each in found:
            self.findings.add(each)
        self.series.add(step, values)
        if found:
            self.series.mark(step, NAMED)
        self.own.update((track, title) for track, (title, _) in own.items())
        self.more_own.update(more_own[:MOST - len(self.more_own)])
        self.rank_steps.add(step, by_rank, {rank for each in found for rank in each.ranks})
        for bucket, each in audited:
            self.audits.add(step, bucket, each)
        for bucket, each in quantised:
            if bucket < self.most_quantised:
                self.quantised.setdefault(bucket, Quantised()).add(each)
        if late.get("stands_out") is True:
            shorter = gain / 1e6 if 0 < gain < math.inf else 0
            self.late_ranks = (
                f"In step {step} last to the calls: rank {last} came {short(behind / 1e6)} ms after the median of the other "
                "ranks; they waited for it" + (f"; a step would be {short(shorter)} ms shorter if rank {last} came with the next"
                                               if shorter else "") + ".")
        if not math.isnan(of_tokens):
            self.unequal_losses = (
                f"In step {step} the mean loss over ranks is {short(number(loss.get('mean')))}, over tokens "
                f"{short(of_tokens)}: the ranks have unequal tokens. The chart has the mean over ranks.")

    def _own(self, line: Line, calls: List[Line], ranks: int) -> Tuple[Dict[str, Tuple[str, List[float]]], List[str]]:
        """What the program's own parts measured: track, title and numbers of those for which there is room, and the tracks
        of others."""
        found: Dict[str, Tuple[str, List[float]]] = {}
        more = []
        room = self.most_own - len(self.own)
        places = {count(each, "bucket"): each for each in calls} if "numbers" in line else {}
        for each in objects(line, "numbers"):
            bucket = index(each, "bucket")
            title = printable(text(each, "name"))
            if bucket is not None:
                title += ", " + call_place(bucket, places.get(bucket, {}))
            of_ranks = numbers(each.get("by_rank"))
            track = (OWN_OF_RANKS if len(of_ranks) == ranks else OWN_OF_ALL) + title
            if track not in self.own and track not in found:
                if room == 0:
                    if track not in self.more_own:
                        more.append(track)
                    continue
                room -= 1
            found[track] = (capital(title), of_ranks)
        return found, more

    @staticmethod
    def _values(line: Line, loss: Line, norm: Line, cosine: Line, late: Line, by_rank: Dict[str, List[float]],
                calls: List[Line]) -> Dict[str, Tuple[float, float]]:
        single = {"loss": loss.get("mean"), "norm": norm.get("mean"), "norm_cv": norm.get("cv"),
                  "cosine_pairwise": cosine.get("mean_pairwise"), "cosine_pooled": cosine.get("pooled"),
                  "cosine_predicted": cosine.get("predicted"), "noise_scale": line.get("noise_scale")}
        values = {name: (number(value), number(value)) for name, value in single.items()}
        for name, spread in ("loss", loss), ("norm", norm):
            ends = [number(spread.get("min")), number(spread.get("max"))] if "min" in spread else finite(by_rank[name])
            if ends:
                values[name + "_of_ranks"] = (min(ends), max(ends))
        behind = number(late.get("behind")) / 1e6
        values["behind_ms"] = (behind, behind)
        if "evidence" in line:
            odds = max([1.0] + finite([number(each.get("odds")) for each in objects(line, "evidence")]))
            values["evidence"] = (math.log10(odds), math.log10(odds))
        if calls:
            wrong = nonfinite = 0
            for call in calls:
                audit = call.get("audit")
                is_wrong = isinstance(audit, dict) and (
                    audit.get("majority") is False or (audit.get("sum_checked") is True
                                                       and audit.get("conserved") is False))
                wrong += is_wrong or call.get("results_agree") is False
                nonfinite += count(call, "nonfinite") != 0
            values["wrong_calls"] = (wrong, wrong)
            values["nonfinite_calls"] = (nonfinite, nonfinite)
        return values

    def more_numbers(self) -> str:
        more = len(self.more_own)
        least = "at least " if more == MOST else ""
        return f"Not shown: {least}{counted(more, 'more number')} that parts of the program measured." if more else ""

    def level(self) -> str:
        """How much the run deserves attention: the word beside its verdict."""
        if not self.steps:
            return "none"
        acts = any(GRAVITY.get(each.first.advice, 0) >= GRAVE for each in self.alarms)
        if not len(self.alarms):  # perhaps nobody judged the findings
            acts = any(each.first.exact for each in self.findings)
        if acts:
            return "act"
        is_blind = self.calls != 0 and self.calls == self.unprobed + self.unread
        return "look" if len(self.alarms) or len(self.findings) or is_blind else "fine"

    def verdict(self) -> str:
        """The run in one sentence: that of its end or, as long as it has none, the same from what is known."""
        if self.end is not None and self.end.get("steps") == self.steps and self.end.get("verdict"):
            return printable(self.end["verdict"], 2000)
        if not self.steps:
            return "No step was recorded."
        if len(self.alarms) or len(self.findings):
            return self._gravest()
        text_ = f"Nothing was found in {counted(self.steps, 'step')} of {counted(self.ranks, 'rank')}"
        if self.unprobed + self.unread:
            text_ += f"; {self.unprobed + self.unread} of {counted(self.calls, 'call')} were not looked at"
        return text_ + "."

    def _gravest(self) -> str:
        """Of the alarms or, without any, of the findings."""
        are_alarms = bool(len(self.alarms))
        all_ = list(self.alarms if are_alarms else self.findings)

        def gravity(each: Repeated) -> Tuple[int, int]:
            return (GRAVITY.get(each.first.advice, 0) if are_alarms else each.first.exact, each.steps)

        gravest = max(all_, key=gravity)
        found = gravest.first
        if found.kind == "call_missing" and found.text:
            result = capital(printable(found.text, 1000))
        else:
            result = f"{capital(subject(found))} {phrase(found.kind, bool(found.ranks))}{self._where(gravest)}"
        result += f": {advise(found)}." if are_alarms else "."
        others = len(all_) - 1
        # Of alarms that were raised before, in their order, the first that names the ranks.
        before = [each for each in all_[:all_.index(gravest)]
                  if are_alarms and not found.ranks and each.first.ranks and each.first.kind == found.kind]
        if before:
            begin = before[0]
            result += f" It began with {list_ranks(begin.first.ranks)} in step {begin.first_step}"
            result += f", {place_of(begin.first)}." if begin.first.call is not None else "."
            others -= 1
        return result + (f" {counted(others, 'other alarm' if are_alarms else 'other finding')} in the run." if others else "")

    def _where(self, of: Repeated) -> str:
        """ " in 2 of 300 steps, first in step 17, bucket 0 'wte'"; ", since step 17" of what is told once."""
        first = of.first
        result = (f" in {of.steps} of {counted(self.steps, 'step')}"
                  f"{', first in step' if of.steps > 1 else ', step'} {of.first_step}")
        if first.kind in ("zeros", "unlike") and first.since is not None:
            result = f", since step {first.since}"
        return result + (f", {place_of(first)}" if first.call is not None or first.name else "")

    def rows(self) -> List[Repeated]:
        """Alarms, the gravest first; then findings that no alarm tells of, exact ones first."""
        alarms = sorted(self.alarms, key=lambda each: (-GRAVITY.get(each.first.advice, 0), -each.steps))
        rest = [each for each in self.findings if not self._is_told(each)]
        return alarms + sorted(rest, key=lambda each: (not each.first.exact, -each.steps))

    def _is_told(self, each: Repeated) -> bool:
        named = each.first
        for alarm in self.alarms:
            raised = alarm.first
            if raised.call != named.call:
                continue
            has_rank = set(named.ranks) <= set(raised.ranks)
            is_same = raised.kind == named.kind and (has_rank or not raised.ranks)
            is_within = (has_rank and raised.call is not None and alarm.first_step <= each.first_step
                         and each.last_step <= alarm.last_step)
            if is_same or is_within:
                return True
        return False

    def is_exact(self, row: Repeated) -> bool:
        """Of an alarm: as the findings that it is about."""
        about = [each.first.exact for each in self.findings
                 if (each.first.kind, each.first.call) == (row.first.kind, row.first.call)]
        return about[-1] if about and row.first.is_alarm else row.first.exact


class Runs:
    """The runs and communicators of some files."""

    def __init__(self, kind: Any = Run, only_run: Optional[str] = None, only_communicator: Optional[str] = None,
                 strict: bool = False) -> None:
        self.all: Dict[Stream, Any] = {}
        self.bad = 0  # lines with other members than they should have
        self.names: Dict[str, None] = {}  # of all runs in the files
        self._kind, self._only_run, self._only_communicator, self._strict = kind, only_run, only_communicator, strict

    def add(self, entry: Entry) -> None:
        """Counts a line that cannot be read as bad or, if `strict`, raises BadInput."""
        stream = entry.stream
        if entry.kind not in KINDS:
            return
        self.names[stream.run] = None
        if self._only_run not in (None, stream.run) or self._only_communicator not in (None, stream.communicator):
            return
        if not stream.identity:  # the line of its beginning is missing
            alike = (each for each in self.all if each[:2] == stream[:2])
            stream = next(alike, stream)
        run = self.all.get(stream) or self._kind(stream)
        try:
            run.add(entry)
            self.all[stream] = run
        except BadLine as problem:
            if self._strict:
                raise BadInput(entry.explain(problem)) from None
            self.bad += 1


def capital(words: str) -> str:
    return words[:1].upper() + words[1:]
