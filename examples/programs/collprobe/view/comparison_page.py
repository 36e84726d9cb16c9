# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""Comparisons of two runs, one for each communicator, as one HTML page: the verdict, where the runs part, how the
difference grows, metrics and alarms."""
from __future__ import annotations

from typing import List

from .compare import DIFFER, IDENTICAL, MOVED, Alarm, Comparison, verdict_in_words
from .drawing import growth_svg
from .page import document, note, table, verdict_box
from .words import counted, escaped, phrase, printable, short, subject

_most_alarms = 50


def comparison_page(all_: List[Comparison]) -> str:
    a, b = (printable(all_[0].run_a), printable(all_[0].run_b)) if all_ else ("A", "B")
    facts = []
    if all_:
        first = all_[0]
        for run, ranks, more in ("A", first.ranks_a, first.steps_only_a), ("B", first.ranks_b, first.steps_only_b):
            facts.append(f"{run}: {counted(ranks, 'rank')}"
                         + (f", {counted(more, 'step')} that the other lacks" if more else ""))
        facts.append(f"{counted(first.steps, 'step')} in both")
    body = "".join(section(each, f"growth-{i}") for i, each in enumerate(all_))
    return document(f"{a} and {b}", "comparison", f"{a} and {b}", facts, f"<main>\n{body}</main>\n")


def section(of: Comparison, identity: str) -> str:
    level, word, sign = {IDENTICAL: ("fine", "Equal", "="), DIFFER: ("look", "Differ", "?")}.get(
        of.outcome, ("none", "No data", "\u2013"))
    out = f"<section><h2>Communicator {escaped(printable(of.communicator))}</h2>\n"
    out += verdict_box("div", level, word, sign, of.verdict())
    if of.first_difference is not None:
        title = "The first result that differs"
        digests = [f"{digest:#x}" for digest in of.digests]
        out += f"<h3>{title}</h3>\n" + table(title, ["What", "A", "B"], [["digest", *digests]], "list")
    if of.growth:
        out += growth(of, identity)
    out += "<h3>Metrics</h3>\n"
    if all(each.verdict == "equal" for each in of.metrics):
        out += "<p>All are equal, bit for bit.</p>\n"
    else:
        out += note(f"Means over the steps from the first that differs. Moved: beyond a score of {short(MOVED)}, which "
                    "chance reaches in about one of 1000 comparisons."
                    + (" Metrics by rank depend on the number of ranks." if of.ranks_a != of.ranks_b else ""))
        rows = [[each.name, *map(short, (each.mean_a, each.mean_b, each.mean_difference, each.standard_error,
                                         each.score)),
                 "-" if each.verdict == "equal" else each.first_step, verdict_in_words(each)] for each in of.metrics]
        out += table("Metrics", ["Metric", ">A", ">B", ">B - A", ">Standard error", ">Score", ">From step", "Verdict"],
                     rows)
    return out + alarms("Alarms only in B", of.new_alarms) + alarms("Alarms only in A", of.gone_alarms) + "</section>\n"


def growth(of: Comparison, identity: str) -> str:
    title = "How the difference grows"
    first, last = of.growth[0], of.growth[-1]
    words = (f"Relative difference of the results, logarithmic: {short(first.relative)} in step {first.step}, "
             f"{short(last.relative)} in step {last.step}.")
    drawing = growth_svg(identity, title, words, [(at.step, at.relative) for at in of.growth])
    if not drawing:
        return ""
    rows = [[at.step, f"{at.differing} of {at.calls}", at.max_ulp if at.basis == "samples" else "-",
             short(at.relative) + (" (of norms)" if at.basis == "norms" else ""), short(at.cosine_distance),
             short(at.relative_loss)] for at in of.growth]
    headings = [">Step", ">Calls that differ", ">Largest, ulp", ">Relative", ">1 - cosine", ">Loss, relative"]
    return (f"<h3>{title}</h3>\n<figure><figcaption><span>relative difference of the results, 0, 1, 2, 4 and more steps "
            f"after the first</span></figcaption>{drawing}\n<details><summary>Numbers</summary>"
            f"{table(title, headings, rows)}</details></figure>\n")


def alarms(title: str, of: List[Alarm]) -> str:
    if not of:
        return ""
    more = note(f"The first {_most_alarms} of {len(of)}.") if len(of) > _most_alarms else ""
    rows = [[subject(each.what), phrase(each.what.kind, bool(each.what.ranks)), each.place(), len(each.steps),
             each.steps[0]] for each in of[:_most_alarms]]
    return f"<h3>{title}</h3>\n" + more + table(title, ["Ranks", "What happened", "Where", ">Steps", ">First step"], rows)
