# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""Every command on files that are cut off, damaged, hostile or very long."""
import copy
import json
import pathlib
import random
import re
import subprocess
import sys
import time
import unittest

import made_up
from made_up import ViewTest, alarm, as_text, made_up_run, finding, run_line, step_line
from page_test import checked, verdict_of
from trace_check import check, load

from collprobe.view import words
from collprobe.view.lines import finding as finding_of


class RobustTest(ViewTest):
    def test_every_kind_of_finding_has_the_words_of_the_headers(self):
        table = (made_up.PROGRAMS.parents[1] / "include/collprobe/core/record/finding_kind.hpp").read_text(encoding="utf-8")
        rows = dict(re.findall(r'\.name = "(\w+)",\s*\.sentence = \{?\s*"([^"]*)"', table))
        self.assertGreater(len(rows), 20)
        self.assertEqual(rows, words.PHRASES)
        subjects = dict(re.findall(r'\.name = "(\w+)"(?:(?!\.name = ).)*?\.subject = "([^"]*)"', table, re.DOTALL))
        self.assertEqual(subjects, words.SUBJECTS)

    def test_checks_of_the_programs_own_are_told_apart_by_their_names(self):
        for key in "own_check", "other_call":  # as lines have it, and had it
            found = finding_of({"check": "of_part", "ranks": [2], "bucket": 0, key: {"name": "clip"}}, 1, True)
            self.assertIn("clip", found.place())

    def test_what_the_members_of_lines_mean(self):
        everything = self.view("members")
        for record in "step_record", "call_record", "finding", "inspection":
            self.assertIn(f"\n{record}\n", "\n" + everything)
            self.assertIn(f"\n\n{self.view('members', record).strip()}\n", "\n\n" + everything)
        for member, shown in ("sqnr_db", "sqnr_db"), ("late", "lateness.late?"), ("line", "name, line"):
            self.assertIn(f"\n    {shown} ", self.view("members", member))
        self.view("members", "no such member", status=2)

    def test_a_file_may_end_anywhere(self):
        data = as_text(made_up_run(2, 2, end="Over.")).encode()
        for length in list(range(0, len(data), 401)) + [len(data) - 1]:
            self.write("cut.jsonl", data[:length])
            has_line = data[:length].count(b"\n") > 0
            self.view("page", "cut.jsonl", "-o", "cut.html", status=0 if has_line else 2)
            self.view("trace", "cut.jsonl", "-o", "cut.json", status=0 if has_line else 2)
            self.view("inspector", "cut.jsonl", "-o", "cut.inspector", status=0 if has_line else 2)
            if has_line:
                checked(pathlib.Path("cut.html").read_text(encoding="utf-8"))
                self.assertEqual(check(load(pathlib.Path("cut.json").read_text(encoding="utf-8"))), [])

    def test_bad_lines_are_skipped_and_counted(self):
        data = as_text(made_up_run(2, 3)).encode().split(b"\n")
        bad = [b"no JSON", b"[]", b"{}", b'{"schema":2,"kind":"step"}', b'{"schema":1,"kind":"step"}', b"\xff\xfe", bytes(9),
               b'{"schema":1,"kind":"step","step":-1}', b'{"schema":1,"kind":"step","step":7,"ranks":2,"loss":[]}',
               b'{"schema":1,"kind":"alarm","step":0,"ranks":{}}', b'{"schema":true,"kind":"end"}', b"[" * 200_000]
        self.write("bad.jsonl", b"\n".join(data[:2] + bad + data[2:]))
        self.view("page", "bad.jsonl", "-o", "bad.html")
        text = pathlib.Path("bad.html").read_text(encoding="utf-8")
        checked(text)
        self.assertIn("lines could not be read, and what they say is missing here.", text)
        self.assertIn("3 steps: 0 to 2", text)
        self.view("trace", "bad.jsonl", "-o", "bad.json")
        self.assertEqual(check(load(pathlib.Path("bad.json").read_text(encoding="utf-8"))), [])

    def test_members_of_another_kind_never_stop_a_command(self):
        randomly = random.Random(3)
        good = made_up_run(3, 4, faults=True, quantised=True, inspected=True)
        good[2:2] = [alarm(0, finding(1, "stale", 0, evidence={"odds": 3, "since": 1}, other_call={"name": "x"}))]
        values = [None, True, -1, 1e400, 10**400, "x", "nan", "-inf", 1e308, 5e-324, [], [[]], {}, [{}], {"a": 1}, 3.5, "\ud800", 2**70]

        def places(of, path=()):
            items = of.items() if isinstance(of, dict) else enumerate(of) if isinstance(of, list) else ()
            for key, value in items:
                yield path + (key,)
                yield from places(value, path + (key,))

        every = [(i, path) for i, line in enumerate(good) for path in places(line)]
        for _ in range(120):
            lines = copy.deepcopy(good)
            for i, path in randomly.sample(every, 2):
                of = lines[i]
                try:
                    for key in path[:-1]:
                        of = of[key]
                    of[path[-1]] = copy.deepcopy(randomly.choice(values))
                except (KeyError, TypeError, IndexError):
                    continue
            self.write("odd.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
            self.view("page", "odd.jsonl", "-o", "odd.html")
            self.view("trace", "odd.jsonl", "-o", "odd.json")
            self.view("inspector", "odd.jsonl", "-o", "odd.inspector")
            self.view("watch", "--once", "odd.jsonl")
            try:
                self.view("compare", "odd.jsonl", "odd.jsonl", status=0)
            except AssertionError as problem:
                self.assertRegex(str(problem), "^[12] != 0")

    def test_names_of_ten_megabytes_are_shortened(self):
        lines = made_up_run(2, 3)
        long = "n" * 10_000_000
        lines[0].update(run=long, host=long, settings={"a": long})
        for line in lines[1:]:
            line["run"] = long
        lines[1]["calls"][0]["name"] = long
        lines[1]["findings"] = [{**finding(1, "stale", 0), "name": long}]
        self.write("long.jsonl", lines)
        self.view("page", "long.jsonl", "-o", "long.html")
        text = pathlib.Path("long.html").read_text(encoding="utf-8")
        self.assertLess(len(text), 100_000)
        self.assertIn("nnn...", text)
        self.assertLess(len(self.view("watch", "--once", "long.jsonl")), 5000)

    def test_memory_does_not_grow_with_the_steps(self):
        code = ("import resource, sys; from collprobe.view.command import main; main(sys.argv[1:]); "
                "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)")
        used = []
        for steps in (2000, 16_000):
            with open("many.jsonl", "w", encoding="utf-8") as file:
                file.write(as_text([run_line(2)]))
                line = as_text([step_line(7, 2)])
                for step in range(steps):
                    file.write(line.replace('"step":7', f'"step":{step}'))
            most = 0
            for words in ("page", "many.jsonl", "-o", "many.html"), ("trace", "many.jsonl", "-o", "many.json", "--steps", "0:9"):
                done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True,
                                      timeout=300, env={"PYTHONPATH": str(made_up.PROGRAMS)})
                most = max(most, int(done.stdout.split()[-1]))
            used.append(most)
        self.assertLess(used[1] - used[0], 10_000)  # kB; the longer file has 27 MB
        self.assertEqual(verdict_of(pathlib.Path("many.html").read_text(encoding="utf-8")),
                         "Nothing was found in 16000 steps of 2 ranks.")

    def test_a_run_of_eight_ranks_takes_half_a_millisecond_a_step(self):
        line = as_text([step_line(7, 8)])
        with open("many.jsonl", "w", encoding="utf-8") as file:
            file.write(as_text([run_line(8)]))
            for step in range(4000):
                file.write(line.replace('"step":7', f'"step":{step}'))
        begin = time.process_time()
        self.view("page", "many.jsonl", "-o", "many.html")
        self.assertLess(time.process_time() - begin, 4)  # half of that is asked for; the test's machine may be slow

    def test_the_viewer_loads_neither_the_library_nor_anything_but_pythons_own(self):
        code = ("import sys; before = set(sys.modules); import collprobe.view.command; "
                "print(*{name.split('.')[0] for name in set(sys.modules) - before})")
        done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True, timeout=60,
                              env={"PYTHONPATH": str(made_up.PROGRAMS)})
        loaded = set(done.stdout.split()) - {"collprobe"}
        self.assertEqual({name for name in loaded if name not in getattr(sys, "stdlib_module_names", loaded)}, set())
        self.assertNotIn("ctypes", loaded)
        folder = made_up.PROGRAMS / "collprobe" / "view"
        for path in folder.glob("*.py"):
            compile(path.read_text(encoding="utf-8"), str(path), "exec", dont_inherit=True)
            self.assertFalse(re.search(r"^\s*match |removeprefix_|zip\(.*strict=", path.read_text(encoding="utf-8"), re.M))


if __name__ == "__main__":
    unittest.main()
