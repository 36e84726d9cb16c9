# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""A run as one HTML page: the verdict, the findings and what to do, charts over the steps, the ranks, settings and
coverage. It has no script and nothing outside of itself; light and dark, on paper and on a telephone. Each drawing has
a description in words and its numbers in a table."""
from __future__ import annotations

import dataclasses
import pathlib
from typing import Any, List, Optional, Sequence, Tuple

from .drawing import Chart, ChartLine, chart_svg, map_svg
from .lines import index, number, text
from .run import BAND, MOST, OWN_OF_RANKS, Run, call_place
from .series import ALARM, BLAMED, STATES, USUAL, RankRow, Series, Thinned, joined
from .words import (DAMAGE, advise, counted, duration, escaped, evidence, false_alarms, phrase, place_of, printable,
                    short, step_range, subject, utc)

MOST_ROWS = 50  # of findings
_number_rows = 40  # below a drawing
_map_groups = 12
_levels = {"none": ("No data", "\u2013"), "fine": ("Fine", "\u2713"), "look": ("Look", "?"), "act": ("Act", "!")}


class Raw(str):
    """Text that is HTML already."""


def table(label: str, headings: Sequence[str], rows: Sequence[Sequence[Any]], style: str = "") -> str:
    """A table in a box that scrolls. A heading that begins with ">" is of numbers, aligned right."""
    kinds = [' class="n"' if heading.startswith(">") else "" for heading in headings]
    out = [f'<div class="scroll {style}" role="region" tabindex="0" aria-label="{escaped(label)}"><table><thead><tr>']
    out += [f'<th{kind} scope="col">{escaped(heading[len(kind) > 0:])}</th>' for kind, heading in zip(kinds, headings)]
    out.append("</tr></thead><tbody>")
    for row in rows:
        out.append("<tr>")
        for i, (kind, cell) in enumerate(zip(kinds, row)):
            content = cell if isinstance(cell, Raw) else escaped(cell)
            out.append(f"<td{kind}>{content}</td>" if i else f'<th scope="row"{kind}>{content}</th>')
        out.append("</tr>")
    out.append("</tbody></table></div>\n")
    return "".join(out)


def note(content: str) -> str:
    return f'<p class="note">{content}</p>\n' if content else ""


def key(style: str, content: str) -> str:
    return f'<span class="key"><i class="{style}"></i></span>{escaped(content)} '


def document(title: str, kind: str, heading: str, facts: Sequence[str], body: str) -> str:
    style = pathlib.Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="generator" content="collprobe"><title>{escaped(title)} - collprobe {kind}</title>'
        f'<style>\n{style}</style></head>\n<body>\n<header><p class="kind">collprobe {kind}</p>'
        f'<h1>{escaped(heading)}</h1><ul class="facts">{"".join(f"<li>{escaped(fact)}</li>" for fact in facts)}</ul>'
        f"</header>\n{body}</body></html>\n")


def verdict_box(tag: str, level: str, word: str, sign: str, verdict: str, attributes: str = "") -> str:
    return (f'<{tag} class="verdict {level}"{attributes}><div class="sign"><i aria-hidden="true">{sign}</i>{word}</div>'
            f"<p>{escaped(verdict)}</p></{tag}>\n")


def page(run: Run, unread_lines: int = 0) -> str:
    """`unread_lines`: lines of the files that could not be read."""
    level = run.level()
    name = printable(run.stream.run) or "run"
    remarks = ""
    if run.end is None and run.steps:
        remarks += note(f"The run has no end: it was killed, or goes on. Its last line is of {utc(run.time_us / 1e6)} UTC."
                        if run.time_us else "The run has no end: it was killed, or goes on.")
    if unread_lines:
        remarks += note(f"{counted(unread_lines, 'line')} could not be read, and what they say is missing here.")
    word, sign = _levels[level]
    box = verdict_box("section", level, word, sign, run.verdict(), ' aria-label="Verdict"')
    over_steps = charts(run.series, own_charts(run), [run.unequal_losses, run.late_ranks, run.more_numbers()])
    main = findings(run) + over_steps + ranks(run) + audits(run) + quantised(run)
    return document(f"{name}: {level}", "report", name, facts(run),
                    box + remarks + "<main>\n" + main + inspections(run) + about(run) + "</main>\n")


def facts(run: Run) -> List[str]:
    head = run.head
    ranks = run.ranks if run.steps else index(head, "ranks") or 0
    nodes = index(head, "nodes") or 0
    found = [counted(ranks, "rank") + (f" on {counted(nodes, 'node')}" if nodes else "")]
    if run.steps:
        found.append(f"{counted(run.steps, 'step')}: {step_range(run.first_step, run.last_step)}")
    if text(head, "host"):
        found.append(f"written by rank {head.get('writer')} on {printable(head['host'])}")
    if text(head, "job"):
        found.append(f"job {printable(head['job'])}")
    started = index(head, "started_us") or 0
    if started:
        length = (run.time_us - started) / 1e6
        found.append(utc(started / 1e6) + " UTC" + (f", {duration(length)}" if length > 0 else ""))
    return found


def host_of(run: Run, ranks: Sequence[int]) -> str:
    """The host of some ranks; empty if the run's record does not show it."""
    is_known = run.head.get("nodes") == 1 or list(ranks) == [run.head.get("writer")]
    return text(run.head, "host") if ranks and is_known else ""


def findings(run: Run) -> str:
    rows = run.rows()
    out = "<section><h2>Findings</h2>\n"
    if not rows:
        words = "No check named a rank or a call." if run.steps else "No step was recorded."
        return out + f"<p>{words}</p></section>\n"
    remark = "The gravest first. A row is one check with the same ranks and call, in one step or many."
    if len(rows) > MOST_ROWS:
        remark += f" The table has {MOST_ROWS} of {counted(len(rows), 'row')}."
    if MOST in (len(run.alarms), len(run.findings)):
        remark += f" There were more than {MOST}; those behind are not listed."
    cells = []
    for row in rows[:MOST_ROWS]:
        of = row.first
        host = host_of(run, of.ranks)
        seen = evidence(of)
        if of.is_alarm and of.damage in DAMAGE:
            seen += f"; {DAMAGE[of.damage]}"
        if not of.is_alarm and not of.text and of.other_rank is not None:
            seen += f"; other rank: {of.other_rank}"
        if not of.is_alarm and not of.text and of.element is not None:
            seen += f"; first at element {of.element}"
        rate = false_alarms(dataclasses.replace(of, exact=run.is_exact(row)))
        cells.append([
            Raw(escaped(subject(of)) + (f' <span class="note">on {escaped(printable(host))}</span>' if host else "")),
            Raw(f'{escaped(phrase(of.kind, bool(of.ranks)))} <span class="note">({escaped(printable(of.kind))})</span>'),
            advise(of) if of.is_alarm else "no alarm was raised: watch it", place_of(of), seen,
            f"{row.steps} of {run.steps}: {step_range(row.first_step, row.last_step)}", rate])
    headings = ["Rank", "What happened", "What to do", "Where", "Evidence", "Steps", "False alarms"]
    return out + note(remark) + table("Findings", headings, cells, "wide") + "</section>\n"


def charts_of(series: Series) -> List[Chart]:
    # A pairwise cosine needs all gradients; where no step has one, the pooled one stands for it.
    cosine = (ChartLine("cosine_pairwise", "mean over pairs") if series.count("cosine_pairwise")
              else ChartLine("cosine_pooled", "all ranks, pooled"))
    all_ = [
        Chart("loss", "Loss", [ChartLine("loss", "mean of the ranks")], "loss_of_ranks", may_be_logarithmic=True),
        Chart("norm", "Gradient norm", [ChartLine("norm", "mean of the ranks")], "norm_of_ranks",
              may_be_logarithmic=True),
        Chart("cv", "Spread of the gradient norm", [ChartLine("norm_cv", "standard deviation over mean")],
              from_zero=True),
        Chart("cosine", "Cosine between the ranks' gradients",
              [cosine, ChartLine("cosine_predicted", "predicted by the noise scale", "c2")]),
        Chart("noise", "Gradient noise scale", [ChartLine("noise_scale", "in batches of one rank")], from_zero=True,
              may_be_logarithmic=True),
        Chart("lateness", "Lateness of the last rank, ms",
              [ChartLine("behind_ms", "behind the median of the other ranks")], from_zero=True),
        Chart("evidence", "Evidence that a rank is unlike the others",
              [ChartLine("evidence", "odds against chance of the strongest rank, power of ten")], from_zero=True),
        Chart("faults", "Damaged calls in a step",
              [ChartLine("wrong_calls", "wrong, or not the same for all", "c3"),
               ChartLine("nonfinite_calls", "NaN or infinity", "c2")], from_zero=True, has_stems=True)]
    for chart in all_:
        chart.series = series
        if chart.band and not series.count(chart.band):
            chart.band = ""
    return all_


def own_charts(run: Run) -> List[Chart]:
    """Of the numbers that the program's own parts measured."""
    charts = []
    for i, (track, title) in enumerate(run.own.items()):
        of_ranks = track.startswith(OWN_OF_RANKS)
        line = ChartLine(track, "mean of the ranks" if of_ranks else "all ranks together")
        charts.append(Chart(f"own{i}", title, [line], BAND + track if of_ranks else "", may_be_logarithmic=True,
                            series=run.series))
    return charts


def in_words(of: Chart) -> str:
    """A chart for those who cannot see it."""
    bins = of.series.bins
    words = f"Steps {step_range(bins.first[0], bins.last[-1])}."
    for track, name in [(line.track, line.name) for line in of.lines] + [(of.band, "least to largest rank")]:
        points = [(i, point) for i, point in enumerate(of.series.points(track)) if point is not None]
        if not points:
            words += f" {name}: no number." if track else ""
            continue
        low, high = min(points, key=lambda each: each[1].low), max(points, key=lambda each: each[1].high)
        words += (f" {name}: from {short(points[0][1].mean)} to {short(points[-1][1].mean)}; lowest "
                  f"{short(low[1].low)} in step {step_range(bins.first[low[0]], bins.last[low[0]])}, highest "
                  f"{short(high[1].high)} in step {step_range(bins.first[high[0]], bins.last[high[0]])}.")
    marked = [step_range(bins.first[i], bins.last[i]) for i, level in enumerate(of.series.marks) if level >= ALARM]
    if marked:
        words += f" Alarms in steps {', '.join(marked[:10])}" + (" and others." if len(marked) > 10 else ".")
    return words


def numbers_of(of: Chart) -> str:
    """The numbers of a chart."""
    bins = of.series.bins
    group = -(-len(bins) // _number_rows)
    is_single = group == 1 and bins.width == 1
    columns: List[Tuple[str, bool, bool]] = []  # track, with its mean, with least and largest
    headings = ["Step"]
    for line in of.lines:
        if of.series.count(line.track):
            # The band goes beyond the mean's least and largest.
            columns.append((line.track, True, not (is_single or of.band)))
            headings += [f">{line.name}"] + ([">least", ">largest"] if columns[-1][2] else [])
    if of.band:
        columns.append((of.band, False, True))
        headings += [">least rank", ">largest rank"]
    points = [of.series.points(track) for track, _, _ in columns]
    rows = []
    for first in range(0, len(bins), group):
        end = min(first + group, len(bins))
        row = [step_range(bins.first[first], bins.last[end - 1])]
        for (_, has_mean, has_ends), each in zip(columns, points):
            found = joined(each[first:end])
            if has_mean:
                row.append(short(found.mean) if found else "-")
            if has_ends:
                row += [short(found.low), short(found.high)] if found else ["-", "-"]
        rows.append(row)
    remark = ""
    if not is_single:
        remark = (f"<p>{counted(len(rows), 'row')} for {counted(len(bins), 'point')}: the mean, the least and the "
                  "largest of the steps of a row.</p>")
    return f"<details><summary>Numbers</summary>{remark}{table(of.title, headings, rows)}</details>"


def charts(series: Series, own: Sequence[Chart], remarks: Sequence[str]) -> str:
    out = "<section><h2>Over the steps</h2>\n"
    bins = series.bins
    if not len(bins):
        return out + "<p>No step was recorded.</p></section>\n"
    glyphs = (("\u25c7", "a check named a rank, without an alarm;"), ("\u25bd", "alarm to look at;"),
              ("\u25bc", "alarm that asks to act;"))
    marks = [f'<span class="key"><span class="glyph" aria-hidden="true">{glyph}</span> {words}</span> '
             for level, (glyph, words) in enumerate(glyphs, 1) if level in series.marks]
    legend = "".join(reversed(marks)) + ("a bar joins several in a row. " if marks else "")
    steps = Chart("", "", [], series=series).steps_a_column()
    if steps > 1:
        legend += (f"Each point stands for up to {steps} steps: the line is their mean, the area goes from the least to "
                   "the largest, so no single step is lost. ")
    if not bins.is_ascending:
        legend += "Steps came more than once or went back: points are in the order of arrival. "
    out += note(legend) + '<div class="charts">\n'
    missing, none = [], ""
    for each in [*charts_of(series), *own]:
        if each.range() is None:
            missing.append(each.title)
            continue
        wholes = [(line, series.whole(line.track)) for line in each.lines]
        if each.has_stems and not any(whole and whole.high > 0 for _, whole in wholes):
            none += f"{each.title}: none. "
            continue
        caption = "".join(key("k" + line.style[1:], line.name) for line, whole in wholes if whole)
        caption += key("kb", "least to largest rank") if each.band else ""
        caption += "(logarithmic) " if each.is_logarithmic() else ""
        known = series.count(each.lines[0].track)
        if 0 < known < bins.records:
            caption += f"in {known} of {counted(bins.records, 'step')}"
        out += (f"<figure><figcaption><b>{escaped(each.title)}</b><span>{caption}</span></figcaption>\n"
                f"{chart_svg(each, in_words(each))}\n{numbers_of(each)}</figure>\n")
    if missing:
        none += f"Not recorded in this run: {'; '.join(missing)}."
    return out + "</div>\n" + "".join(map(note, map(escaped, remarks))) + note(escaped(none)) + "</section>\n"


def rank_map(run: Run, rows: List[RankRow]) -> str:
    """The map of the ranks; empty if there is nothing to show."""
    bins = run.rank_steps.bins
    states = {state for row in rows for state in row.states}
    if not any(state >= USUAL for state in states):
        return ""
    named = "".join(f" Rank {row.rank}: named in {counted(row.named_steps, 'step')}." for row in rows if row.named_steps)
    words = f"Rows are ranks, columns are steps {step_range(bins.first[0], bins.last[-1])}."
    words += named or " No rank was named."
    legend = ("", "loss and gradient norm near the median of the ranks", "over 4 times the usual distance from it",
              "over 8 times the usual distance", "over 16 times the usual distance",
              "named by a check, with \u25c4 and its number")
    keys = ", ".join(f'<span class="key"><i class="cell h{state - 1}"></i>{legend[state]}</span>'
                     for state in range(USUAL, BLAMED + 1) if state in states)
    wide = f" A cell is the worst of up to {counted(bins.width, 'step')}." if bins.width > 1 else ""
    group = -(-len(bins) // _map_groups)
    ranges = [(first, min(first + group, len(bins))) for first in range(0, len(bins), group)]
    headings = ["Rank"] + [step_range(bins.first[first], bins.last[end - 1]) for first, end in ranges]
    cells = [[row.rank] + [STATES[row.worst(first, end)] for first, end in ranges] for row in rows]
    return (
        '<figure class="map"><figcaption><b>Ranks over the steps</b><span>Each row is a rank. '
        f"{keys}.{wide}</span></figcaption>\n{map_svg(bins, rows, words)}\n<details><summary>Numbers</summary><p>The "
        "worst of the steps in each column. Distances are in robust deviations of the ranks.</p>"
        f"{table('Ranks over the steps', headings, cells)}</details></figure>\n")


def rank_table(run: Run, rows: List[RankRow]) -> str:
    titles = {"loss": ">Loss", "norm": ">Gradient norm", "cosine": ">Cosine with the others", "late_ms": ">Lateness, ms"}
    titles.update((track, ">" + title) for track, title in run.own.items())
    known = [(title, thinned) for name, title in titles.items()
             for thinned in [run.rank_steps.thinned.get(name)] if thinned is not None and thinned.rows]
    remark = f"Medians over the steps, of up to {Thinned.most} at equal distances." if known else ""
    if run.rank_steps.thinned["late_ms"].rows:
        remark += " Lateness: after the median of the other ranks."
    sign = ' <span class="glyph" role="img" aria-label="named">\u25c4</span>'
    cells = [[Raw(f"{row.rank}{sign if row.named_steps + row.alarms else ''}"),
              *(short(thinned.median_of(row.rank)) for _, thinned in known), row.named_steps, row.alarms]
             for row in rows]
    headings = ["Rank", *(title for title, _ in known), ">Steps named", ">Alarms"]
    return "<h3>Rank by rank</h3>\n" + note(remark) + table("Rank by rank", headings, cells)


def ranks(run: Run) -> str:
    out = "<section><h2>The ranks</h2>\n"
    rows = run.rank_steps.shown()
    if run.is_summary:
        out += ("<p>In summary mode the ranks' own numbers do not travel: only ranks that a check named are "
                "here.</p>\n")
    if not rows or not run.steps:
        return out + f"<p>{'None was named.' if run.is_summary else 'No numbers of single ranks were recorded.'}</p></section>\n"
    if len(rows) < len(run.rank_steps.rows):
        out += (f"<p>These are the {len(rows)} ranks of {len(run.rank_steps.rows)} that were named, or stood apart, "
                "most.</p>\n")
    return out + rank_map(run, rows) + rank_table(run, rows) + "</section>\n"


def audits(run: Run) -> str:
    of = run.audits
    if not of.calls:
        return ""
    rows = [["calls whose results were compared", of.calls],
            ["of them without a result that most ranks hold", of.without_majority],
            ["sums checked", of.sums], ["of them wrong", of.wrong_sums]]
    if of.worst[0] >= 0:
        rows.append(["largest residual, as a share of its limit",
                     f"{short(100 * of.worst[0])} %, step {of.worst[1]}, {of.worst[2]}"])
    return ("<section><h2>Audits</h2>\n" + note("Results are compared between ranks, bit by bit; sums by a checksum of "
                                                "inputs and result.")
            + table("Audits", ["Audited", "Number"], rows, "list") + "</section>\n")


def quantised(run: Run) -> str:
    if not run.quantised:
        return ""
    rows = []
    for bucket, of in sorted(run.quantised.items()):
        worst = of.worst
        place = call_place(bucket, worst)
        if not of.quantised:
            rows.append([place, f"not quantised: {printable(worst.get('unquantised', 'unknown'))}"] + ["-"] * 6)
            continue
        codes = printable(worst.get("within"))
        if worst.get("levels", 1) != 1:
            codes += f", then {printable(worst.get('across'))}"
        plain, sent = number(worst.get("bytes_plain")), number(worst.get("bytes_sent"))
        rows.append([place, printable(worst["verdict"]), printable(worst.get("advice", "")) or "-",
                     f"{of.with_worst} of {of.quantised}", f"{codes} in blocks of {printable(worst.get('block'))}",
                     short(number(worst.get("sqnr_db"))), short(number(worst.get("noise_ratio"))),
                     f"{short(100 * sent / plain)} %" if plain > 0 else "-"])
    headings = ["Call", "Verdict", "Advice", ">Steps with it", "Codes", ">Error, dB", ">Noise ratio", ">Bytes"]
    return ("<section><h2>Quantised calls</h2>\n"
            + note("Each call with its worst verdict of all steps, and the numbers of that step.")
            + table("Quantised calls", headings, rows, "wide") + "</section>\n")


def inspections(run: Run) -> str:
    if not run.inspections:
        return ""
    remark = "How the library adds. Same bits: for what the result keeps its bits."
    if run.more_inspections:
        remark += f" Not shown: {run.more_inspections} more."
    types = {4: "float8_e4m3", 3: "float8_e5m2", 8: "bfloat16", 11: "half", 24: "float", 53: "double"}
    rows = []
    for of in run.inspections:
        bits = of.get("partial_sum_precision")
        is_least = of.get("partial_sum_precision_or_more") is True
        accumulator = types.get(bits) if isinstance(bits, int) and not is_least else None
        precision = "-" if bits is None else f"{'>=' if is_least else ''}{printable(bits)}"
        same = ", ".join(words for name, words in (("run_stable", "each call"), ("size_stable", "other sizes"),
                                                   ("permutation_stable", "values dealt otherwise"))
                         if of.get(name) is True)
        if of.get("ranks_agree") is False:
            same += "; the ranks differ" if same else "the ranks differ"
        rows.append([*(printable(of.get(name)) for name in ("communicator", "element", "count", "ranks", "order_class")),
                     precision + (f" ({accumulator})" if accumulator else ""), same or "none",
                     *(short(number(of.get(name))) for name in ("max_ulp", "median_us", "busbw_gbs"))])
    headings = ["Communicator", "Type", ">Elements", ">Ranks", "Order", "Partial sums, bits", "Same bits", ">Error, ulp",
                ">Time, us", ">Bus, GB/s"]
    return ("<section><h2>Inspected all-reduces</h2>\n" + note(remark)
            + table("Inspected all-reduces", headings, rows) + "</section>\n")


def about(run: Run) -> str:
    """Settings, coverage and versions."""
    out = "<section><h2>Settings</h2>\n"
    settings = run.head.get("settings")
    if settings:
        out += table("Settings", ["Setting", "Value"], list(settings.items()), "list")
    else:
        out += "<p>None were recorded (<code>run_record::settings</code>).</p>\n"
    rows = [
        ["steps recorded", run.steps, "summary mode: sums and extrema, no numbers of single ranks" if run.is_summary
         else ""],
        ["steps with findings", run.suspicious_steps, ""], ["alarms, with repetitions", run.alarm_count, ""],
        ["calls made", run.calls, ""], ["calls looked at", run.calls - run.unprobed - run.unread, ""],
        ["calls not looked at: no room", run.unprobed, "there was no room: raise probe_options::calls of a captured "
         "step, or largest_step" if run.unprobed else ""],
        ["calls not looked at: not read", run.unread, "they carry integers, which are not read, or the step takes no "
         "statistics" if run.unread else ""],
        ["records dropped", run.dropped, "the writer fell behind: raise sinks_options::room. These steps are missing "
         "above." if run.dropped else ""]]
    out += "</section>\n<section><h2>Coverage</h2>\n"
    out += table("Coverage", ["What", ">Number", "Remark"], rows, "list")
    head = run.head
    identity = text(head, "comm_id")
    versions: List[Tuple[str, Optional[str]]] = [
        ("collprobe", text(head, "version") or "unknown"),
        ("communicator", printable(run.stream.communicator) + (f" ({printable(identity)})" if identity else "")),
        ("device", text(head, "device")), ("process", str(head["pid"]) if head.get("pid") else ""),
        ("last line", f"{utc(run.time_us / 1e6)} UTC" if run.time_us else "")]
    out += "</section>\n<section><h2>Versions</h2>\n"
    return out + table("Versions", ["What", "Value"], [row for row in versions if row[1]], "list") + "</section>\n"
