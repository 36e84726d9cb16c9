# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""`collprobe page`: what a page says, and that a browser, a telephone, a printer and a screen reader can use it."""
import html.parser
import math
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import unittest

import made_up
from made_up import ViewTest, alarm, finding, made_up_run
from collprobe.view import drawing, words
from collprobe.view.series import ALARM, ALARM_TO_ACT, APART_4, APART_16, BLAMED, NAMED, USUAL, RankSteps, Series

VOID = set("area base br col embed hr img input link meta source track wbr path".split())
REFERENCES = set("src href srcset action data poster cite background xlink:href".split())


class Page(html.parser.HTMLParser):
    """A page as a browser reads it: elements with attributes, children and text."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.root = {"tag": "", "attributes": {}, "children": [], "text": ""}
        self.open = [self.root]
        self.feed(text)
        self.close()
        assert len(self.open) == 1, f"not closed: {self.open[-1]['tag']}"

    def handle_starttag(self, tag, attributes):
        names = [name for name, _ in attributes]
        assert len(names) == len(set(names)), f"an attribute of {tag} comes twice"
        element = {"tag": tag, "attributes": dict(attributes), "children": [], "text": ""}
        self.open[-1]["children"].append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open[-1]["tag"] == tag, f"</{tag}> closes <{self.open[-1]['tag']}>, at {self.getpos()}"
        self.open.pop()

    def handle_data(self, text):
        self.open[-1]["text"] += text


def walk(element):
    for child in element["children"]:
        yield child, element
        yield from walk(child)


def text_of(element):
    return element["text"] + "".join(text_of(child) for child in element["children"])


def luminance(colour):
    parts = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    """WCAG 2.1."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def check_style(style):
    schemes = [dict(re.findall(r"(--[a-z0-9-]+):\s*(#[0-9a-f]{6})", block))
               for block in re.findall(r":root\s*\{([^}]*)\}", style)]
    assert len(schemes) == 2, "a light and a dark scheme"
    assert re.search(r"@media screen and \(prefers-color-scheme: dark\) \{\s*:root", style), "dark is for screens only"
    for scheme in schemes:
        assert scheme.keys() == schemes[0].keys(), "the schemes have the same names"
        for name, colour in scheme.items():
            for surface in ("--page", "--box", "--known"):
                ratio = contrast(colour, scheme[surface])
                assert not name.startswith("--text") or ratio >= 4.5, f"{name} on {surface}: {ratio:.2f}"
                if name.startswith("--mark") and (surface == "--page" or name in ("--mark-1", "--mark-2")):
                    assert ratio >= 3, f"{name} on {surface}: {ratio:.2f}"
    rest = re.sub(r":root\s*\{[^}]*\}", "", style)
    assert not re.search(r"#[0-9a-f]{3,8}\b|rgb\(", rest), "all colours are properties of :root"
    assert not re.search(r"(?<![-\w])color:(?!\s*var\(--(text|page|mark-2))", rest), "text has a colour of text"
    assert "@media print" in style
    assert not re.search(r"@import|url\(|@font-face|animation|transition", style)


def checked(text):
    """A page whose tags nest and that refers to nothing outside of it: no script, a text and numbers for each drawing, text
    of at least 10 pixels on a telephone, contrast in both schemes."""
    assert text.startswith("<!DOCTYPE html>") and "http" not in text
    root = Page(text).root
    elements = list(walk(root))
    tags = [element["tag"] for element, _ in elements]
    assert not set(tags) & {"script", "link", "iframe", "img", "object", "embed", "base", "form", "use", "image", "animate"}
    ids = [element["attributes"]["id"] for element, _ in elements if "id" in element["attributes"]]
    assert len(ids) == len(set(ids)), "an id comes twice"
    assert tags.count("h1") == 1 and root["children"][0]["attributes"]["lang"] == "en"
    for element, parent in elements:
        attributes = element["attributes"]
        for name in attributes:
            assert name not in REFERENCES and not name.startswith("on"), f"{element['tag']} has {name}"
        if element["tag"] == "svg":
            assert attributes["role"] == "img"
            named = {child["attributes"]["id"]: child for child in element["children"] if child["tag"] in ("title", "desc")}
            assert list(named) == attributes["aria-labelledby"].split()
            assert [child["tag"] for child in named.values()] == ["title", "desc"]
            assert all(child["text"].strip() for child in named.values())
            below = parent["children"][parent["children"].index(element) + 1]
            assert below["tag"] == "details" and len([e for e, _ in walk(below) if e["tag"] == "tr"]) >= 2
            assert parent["tag"] == "figure" and any(child["tag"] == "figcaption" for child in parent["children"])
            size = 10.5 if parent["attributes"].get("class") == "map" else 11.5
            assert size * 368 / float(attributes["viewbox"].split()[2]) >= 9.5, "text of a drawing at 400 pixels"
        if element["tag"] == "table":
            rows = [inner for inner, _ in walk(element) if inner["tag"] == "tr"]
            assert len({len(row["children"]) for row in rows}) == 1, "rows of different lengths"
            assert all(cell["tag"] == "th" and cell["attributes"]["scope"] == "col" for cell in rows[0]["children"])
        if element["tag"] == "path":
            assert re.fullmatch(r"(m-?\d+ -?\d+|( -?\d+ -?\d+)|[hv]-?\d+|z)+", attributes["d"]), attributes["d"]
        if element["tag"] == "style":
            check_style(element["text"])
    return root


def verdict_of(text):
    return next(text_of(child) for element, _ in walk(Page(text).root)
                if "verdict" in element["attributes"].get("class", "").split()
                for child in element["children"] if child["tag"] == "p")


def rows_of(text, label):
    """The cells of a table."""
    table = next(element for element, _ in walk(Page(text).root) if element["attributes"].get("aria-label") == label
                 and element["tag"] == "div")
    return [[text_of(cell) for cell in row["children"]] for row, _ in walk(table) if row["tag"] == "tr"]


class PageTest(ViewTest):
    def test_the_page_of_the_made_up_run(self):
        text = self.page_of(made_up_run(8, 60, faults=True, quantised=True, inspected=True))
        root = checked(text)
        for label, *row in (
                ("Findings", "rank 6 on gpu-a12", "sent NaN or infinity (non_finite)", "drop the step's update", "bucket 2 'head'",
                 "1,234 elements are NaN or infinite; damage: in the rank's own data, before the call", "1 of 60: 48", "none: exact"),
                ("Loss", "0 to 1", "2.276", "2.109", "2.45"), ("Gradient norm", "36 to 37", "0.9823", "0.8073", "2.952"),
                ("Spread of the gradient norm", "36 to 37", "0.324", "0.02012", "0.6279"),
                ("Cosine between the ranks' gradients", "10 to 11", "0.4399", "0.4397", "0.44", "0.4358", "0.4358", "0.4358"),
                ("Gradient noise scale", "0 to 1", "0.9841", "0.9674", "1.001"),
                ("Lateness of the last rank, ms", "30 to 31", "2.195", "0.5828", "3.807"),
                ("Evidence that a rank is unlike the others", "0 to 1", "0", "0", "0"),
                ("Damaged calls in a step", "18 to 19", "0.5", "0", "1", "0", "0", "0"),
                ("Rank by rank", "3 \u25c4", "0.5194", "0.9198", "0.3844", "0.3748", "38.5", "2", "2"),
                ("Clipped, bucket 1 'blocks'", "0 to 1", "11", "0", "22"), ("Temperature", "0 to 1", "100.5", "100", "101"),
                ("Audits", "largest residual, as a share of its limit", "39.01 %, step 44, bucket 0 'wte'"),
                ("Quantised calls", "bucket 2 'head'", "harmful", "heavy tails: rotate, or halve the block", "12 of 60",
                 "int4, then int8 in blocks of 128", "17", "0.13", "12.5 %"),
                ("Inspected all-reduces", "world", "float", "1048576", "8", "ring", "24 (float)", "each call, other sizes", "2.4",
                 "212.5", "34.5"),
                ("Settings", "parts", "audit, quantisation_probe"), ("Versions", "last line", "2026-03-04 10:01:15 UTC")):
            self.assertIn(row, rows_of(text, label), (label, rows_of(text, label)))
        self.assertIn("Rank 3: named in 2 steps. Rank 5: named in 2 steps.", text_of(root))
        self.assertNotIn("that were named, or stood apart", text)  # all ranks are shown
        self.assertIn("lowest 0.01377 in step 31, highest 0.6279 in step 37. Alarms in steps 18, 20, 27, 28, 35, 37, 48.", text_of(root))

    def test_every_kind_of_run_makes_a_page(self):
        summary = made_up_run(4, 5)
        for line in summary:
            if line["kind"] == "step":
                line.update(mode="summary", evidence=[])
                for name in ("loss", "grad_norm"):
                    del line[name]["by_rank"]
                line["cosine"]["leave_one_out"] = []
        many = made_up_run(2, 3)
        for line in many:
            if line["kind"] == "step":
                line["numbers"] = [{"name": f"number {i}", "bucket": None, "by_rank": [i, "nan"]} for i in range(40)]
        self.assertIn("Not shown: 16 more numbers that parts of the program measured.", self.page_of(many))
        for line in many:
            if line["kind"] == "step":
                line["numbers"] = [{"name": f"number {i}", "bucket": None, "by_rank": [i]} for i in range(24 + 5000)]
        self.assertIn("Not shown: at least 4096 more numbers that parts of the program measured.", self.page_of(many))
        for name, lines, drawings in (("healthy", made_up_run(8, 40), 8), ("one step", made_up_run(8, 1), 6),
                                      ("no step", made_up_run(8, 0), 0), ("one rank", made_up_run(1, 20), 6),
                                      ("summary", summary, 5)):
            with self.subTest(name):
                text = self.page_of(lines)
                checked(text)
                self.assertGreaterEqual(text.count("<svg"), drawings)
                self.assertIn("No step was recorded" if name == "no step" else "Nothing was found", verdict_of(text))

    def test_numbers_of_parts_keep_apart_whatever_their_names_are(self):
        lines = made_up_run(4, 3)
        for line in lines:
            if line["kind"] == "step":
                line["numbers"] = [{"name": "share", "bucket": None, "by_rank": [1, 2, 3, 4]},
                                   {"name": "share of ranks", "bucket": None, "by_rank": [10, 20, 30, 40]},
                                   {"name": "share", "bucket": None, "by_rank": [50]}]
        text = self.page_of(lines)
        self.assertIn("mean of the ranks: from 2.5 to 2.5; lowest 2.5 in step 0, highest 2.5 in step 0. least to largest "
                      "rank: from 2.5 to 2.5; lowest 1 in step 0, highest 4 in step 0.", text)
        self.assertIn("mean of the ranks: from 25 to 25; lowest 25 in step 0, highest 25 in step 0. least to largest "
                      "rank: from 25 to 25; lowest 10 in step 0, highest 40 in step 0.", text)
        self.assertIn("Steps 0 to 2. all ranks together: from 50 to 50; lowest 50 in step 0, highest 50 in step 0.</desc>", text)

    def test_the_verdict_is_that_of_the_end_and_else_the_same_from_the_lines(self):
        lines = made_up_run(8, 60, faults=True)
        own = ("Rank 3 held other bits of a result than the other ranks in 2 of 60 steps, first in step 18, bucket 1 "
               "'blocks': resync from rank 0. 4 other alarms in the run.")
        text = self.page_of(lines)
        self.assertEqual(verdict_of(text), own)
        self.assertIn("The run has no end: it was killed, or goes on.", text)
        text = self.page_of(lines + [made_up.end_line(60, "The verdict of the end.")])
        self.assertEqual(verdict_of(text), "The verdict of the end.")
        self.assertNotIn("no end", text)

    def test_the_level_is_look_for_statistics_and_act_for_exact_findings_or_alarms_that_ask_to_act(self):
        def level(named=None, **raised):
            lines = made_up_run(8, 3)
            if named is not None:
                lines[2]["findings"] = [named]
                if raised:
                    lines.append(alarm(1, named, **raised))
            return re.search(r"<title>pretraining: (\w+) ", self.page_of(lines))[1]

        statistical = finding(2, "loss", exact=False, threshold=3)
        self.assertEqual(level(), "fine")
        self.assertEqual(level(statistical), "look")
        self.assertEqual(level(finding(2, "stale", 0)), "act")
        self.assertEqual(level(finding(2, "stale", 0), advice="recheck"), "look")
        self.assertEqual(level(statistical, advice="skip"), "act")
        blind = made_up_run(8, 2)
        for line in blind[1:]:
            line.update(calls=[], unread_calls=3)
        self.assertIn("<title>pretraining: look ", self.page_of(blind))

    def test_alarms_come_first_and_a_finding_that_an_alarm_tells_is_not_told_again(self):
        lines = made_up_run(8, 10)
        lines[4]["findings"] = [finding(1, "stale", 0), finding(4, "loss", exact=False, threshold=2)]
        lines[5]["findings"] = [finding(1, "stale", 0), finding(7, "result_differs", 2)]
        lines += [alarm(4, lines[5]["findings"][1], advice="resync", source=2), alarm(3, lines[4]["findings"][0])]
        rows = rows_of(self.page_of(lines), "Findings")
        self.assertEqual([row[0] for row in rows], ["Rank", "rank 7 on gpu-a12", "rank 1 on gpu-a12", "rank 4 on gpu-a12"])
        self.assertEqual(rows[1][2:4], ["resync from rank 2", "bucket 2 'head'"])
        self.assertEqual(rows[3][2], "no alarm was raised: watch it")

    def test_evidence_false_alarms_and_places_are_told(self):
        lines = made_up_run(8, 4)
        lines[2]["findings"] = [
            finding(None, "overflow", 1, text="3 elements of the result are NaN"), finding(2, "a_new_check", text="so."),
            finding(3, "sum_differs", 0, exact=False, threshold=6, statistic=7, false_alarms_per_step=1e-5),
            finding(1, "unlike", exact=False, statistic=1e6, threshold=1e4, text="1 : 1,000,000 against chance",
                    evidence={"odds": 1e6, "since": 4}), finding(5, "duplicate", 1, other_rank=2, index=9)]
        rows = {row[0]: row for row in rows_of(self.page_of(lines), "Findings")}
        self.assertEqual(rows["the ranks"][4], "3 elements of the result are NaN")
        self.assertIn("was named by the check a_new_check", rows["rank 2 on gpu-a12"][1])
        self.assertIn("about 1e-05 a step, unless", rows["rank 3 on gpu-a12"][6])
        self.assertEqual(rows["rank 1 on gpu-a12"][6], "in a run, 1 in 10,000")
        self.assertEqual(rows["rank 5 on gpu-a12"][4], "bits compared; other rank: 2; first at element 9")

    def test_unequal_tokens_and_what_is_missing_are_told(self):
        lines = made_up_run(8, 3)
        lines[2]["loss"]["mean_of_tokens"] = 9.25
        for line in lines[1:]:
            del line["lateness"]
        text = self.page_of(lines)
        self.assertIn("In step 1 the mean loss over ranks is", text)
        self.assertIn("over tokens 9.25: the ranks have unequal tokens", text)
        self.assertIn("Not recorded in this run: Lateness of the last rank, ms.", text)
        lines.append({**lines[-1], "step": 7, "records_dropped": 3, "unprobed_calls": 2})
        rows = {row[0]: row for row in rows_of(self.page_of(lines), "Coverage")}
        self.assertEqual(rows["records dropped"][1], "3")
        self.assertEqual(rows["calls not looked at: no room"][1], "2")
        self.assertEqual(rows["calls looked at"][1], "12")

    def test_several_ranks_files_are_one_run(self):
        for writer in range(3):
            lines = made_up_run(3, 30, writer=writer, faults=True)
            dropped = [line for line in lines if not (line["kind"] == "step" and line["step"] % 3 == writer)]
            self.write(f"rank{writer}.jsonl", dropped)
        whole = self.page_of(made_up_run(3, 30, faults=True))
        self.view("page", "rank0.jsonl", "rank1.jsonl", "rank2.jsonl", "-o", "all.html")
        self.view("page", ".", "-o", "folder.html")  # of.jsonl of the whole run among them
        # Every step and alarm is there once.
        for name in ("all.html", "folder.html"):
            found = pathlib.Path(name).read_text(encoding="utf-8")
            self.assertEqual(verdict_of(found), verdict_of(whole))
            self.assertEqual(rows_of(found, "Coverage"), rows_of(whole, "Coverage"))
            self.assertEqual(rows_of(found, "Loss"), rows_of(whole, "Loss"))

    def test_several_runs_have_a_page_each(self):
        self.write("two.jsonl", made_up_run(2, 3, run="strict") + made_up_run(2, 4, run="mi/ld") +
                   made_up_run(2, 5, run="mi/ld", comm="tensor"))
        out = self.view("page", "two.jsonl")
        self.assertEqual(out, "two.strict.html\ntwo.mi_ld_world.html\ntwo.mi_ld_tensor.html\n")
        self.assertIn("5 steps: 0 to 4", pathlib.Path("two.mi_ld_tensor.html").read_text(encoding="utf-8"))
        self.assertEqual(self.view("page", "two.jsonl", "--run", "strict", "-o", "one.html"), "one.html\n")
        self.assertIn("there is no run 'none', only 'strict', 'mi/ld'",
                      self.view("page", "two.jsonl", "--run", "none", status=2))
        self.assertIn("several runs", self.view("page", "two.jsonl", "-o", "-", status=2))
        self.assertIn("'two.jsonl' is an input", self.view("page", "two.jsonl", "-o", "two.jsonl", status=2))

    def test_the_standard_input_is_read_and_the_standard_output_written(self):
        done = made_up.program("page", "-", input=made_up.as_text(made_up_run(2, 3)).encode())
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        checked(done.stdout.decode())

    def test_a_run_that_went_back_is_drawn_in_the_order_of_arrival(self):
        lines = made_up_run(2, 9)
        text = self.page_of(lines[:8] + lines[4:])
        self.assertIn("Steps came more than once or went back", text)
        self.assertIn("13 steps: 0 to 8", text)

    def test_a_page_that_follows_is_written_until_the_run_ends(self):
        lines = made_up_run(2, 6, end="It is over.")
        self.write("slow.jsonl", lines[:3])
        environment = {**os.environ, "PYTHONPATH": str(made_up.PROGRAMS)}
        words_ = [sys.executable, "-m", "collprobe.view", "page", "slow.jsonl", "--follow", "0.05"]
        with subprocess.Popen(words_, env=environment) as follower:
            self.addCleanup(follower.kill)
            self.wait_for(lambda: "2 steps: 0 to 1" in self.read("slow.html"))
            self.write("slow.jsonl", made_up.as_text(lines[3:5]) + '{"schema":1,"ki', "a")
            self.wait_for(lambda: "4 steps: 0 to 3" in self.read("slow.html"))
            self.write("slow.jsonl", 'nd":"other"}\n' + made_up.as_text(lines[5:]), "a")
            self.assertEqual(follower.wait(60), 0)
        self.assertIn("It is over.", self.read("slow.html"))
        with subprocess.Popen(words_[:-1] + ["5", "-o", "open.html"], env=environment) as follower:
            self.addCleanup(follower.kill)
            self.write("slow.jsonl", lines[:2])
            self.wait_for(lambda: self.read("open.html"))
            follower.send_signal(signal.SIGINT)
            self.assertEqual(follower.wait(60), 130)

    @staticmethod
    def read(name):
        return pathlib.Path(name).read_text(encoding="utf-8") if os.path.exists(name) else ""

    def wait_for(self, happens):
        deadline = time.monotonic() + 60
        while not happens():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)

    def test_foreign_text_stays_text(self):
        evil = "</style><script>alert(1)</script>\"'><svg onload=x>\x1b[31m\x00\u202e" + "\ud800" + "http:"
        lines = made_up_run(2, 3, run=evil.replace("http:", ""), faults=False)
        lines[0].update(host=evil[:40], job=evil[:40], settings={evil[:60]: evil[:60]})
        for line in lines[1:]:
            line["findings"] = [{**finding(1, evil[:40], 0, text=evil[:40]), "name": evil[:40]}]
        text = self.page_of(lines).replace("http", "")
        root = checked(text)
        self.assertIn("alert(1)", text_of(root))
        self.assertNotIn("\x1b", text)
        self.assertNotIn("\x00", text)


class SeriesTest(unittest.TestCase):
    def test_a_spike_of_one_step_stays_visible_in_a_series_of_any_length(self):
        for steps in (10, 2000, 2001, 40_000):
            series = Series()
            for step in range(steps):
                value = 100.0 if step == steps * 2 // 3 else 1.0
                series.add(step, {"loss": (value, value)})
            whole = series.whole("loss")
            self.assertEqual((whole.low, whole.high, whole.count), (1, 100, steps))
            self.assertLessEqual(len(series.bins), 2000)
            at = series.bins.find(steps * 2 // 3)
            self.assertEqual(series.points("loss")[at].high, 100)
            chart = drawing.Chart("loss", "Loss", [drawing.ChartLine("loss", "mean")], series=series)
            self.assertIn("<svg", drawing.chart_svg(chart, "words"))

    def test_marks_stay_at_their_steps_while_bins_are_merged(self):
        series = Series(100)
        for step in range(1000):
            series.add(step, {})
            if step == 700:
                series.mark(step, NAMED)
        series.mark(333, ALARM)
        series.mark(333, ALARM_TO_ACT)
        marked = {i: level for i, level in enumerate(series.marks) if level}
        self.assertEqual(marked, {series.bins.find(333): ALARM_TO_ACT, series.bins.find(700): NAMED})

    def test_a_rank_apart_is_shown_at_its_distance_and_one_that_a_check_names_as_named(self):
        ranks = RankSteps()
        for step in range(50):
            losses = [1 + 0.01 * made_up.noise(step, rank) for rank in range(8)]
            losses[3] += {20: 0.05, 30: 100}.get(step, 0)
            ranks.add(step, {"loss": losses}, {6} if step == 40 else set())
        rows = ranks.shown()
        self.assertEqual([rows[3].at(20), rows[3].at(30), rows[6].at(40)], [rows[3].at(20), APART_16, BLAMED])
        self.assertGreaterEqual(rows[3].at(20), APART_4)
        self.assertEqual({rows[2].at(step) for step in (5, 15, 25)} - {USUAL, APART_4}, set())
        self.assertEqual((rows[6].named_steps, rows[3].named_steps), (1, 0))

    def test_of_many_ranks_the_worst_are_shown_and_named_ranks_among_them(self):
        ranks = RankSteps()
        for step in range(3):
            ranks.add(step, {"loss": [1 + 1e-3 * made_up.noise(step, rank) + (rank == 77) for rank in range(1000)]}, {999})
        rows = ranks.shown()
        self.assertEqual(len(rows), 64)
        self.assertTrue({77, 999} <= {row.rank for row in rows})

    def test_numbers_on_axes_are_short_and_exact(self):
        self.assertEqual([words.tick(value, 5) for value in (1e6, 0.1 + 0.2, 1e-7, 250000, 1234567)],
                         ["1e6", "0.3", "1e-7", "2.5e5", "1.2346e6"])
        for low, high in ((0, 1), (0.2, 0.23), (-3, 5), (1e-300, 2e-300), (-1e280, 1e280), (1000, 1001)):
            ticks = drawing.Axis(low, high).ticks
            self.assertTrue(2 <= len(ticks) <= 12 and all(low - 1e-6 * (high - low) <= each <= high + 1e-6 * (high - low)
                                                          for each in ticks), (low, high, ticks))
        self.assertEqual(len(drawing.Axis(1e-250, 1e250, True).ticks), 6)
        self.assertEqual([words.short(value) for value in (9999.5, 1e7, 0.12345, math.nan, -math.inf)],
                         ["10000", "1e+07", "0.1235", "-", "-inf"])


if __name__ == "__main__":
    unittest.main()
