# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""`collprobe watch` beside writers that write slowly, in parts, or what would move a terminal's cursor."""
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import unittest

import made_up
from made_up import ViewTest, as_text, made_up_run

WATCH = [sys.executable, "-m", "collprobe.view", "watch"]


def line(kind, run="run", writer=0, **members):
    return json.dumps({"schema": 1, "kind": kind, "run": run, "comm": "world", "writer": writer,
                       "time_us": int(time.time() * 1e6), "records_dropped": 0, **members}) + "\n"


def step(number, named=(), ranks=2, **more):
    part = {"mean": 0.5, "std": 0, "std_sample": 0, "range": 0, "cv": 0.25, "by_rank": [0.25, 0.75]}
    return line("step", step=number, ranks=ranks, loss=part, grad_norm=part, noise_scale=0,
                cosine={"mean_pairwise": 0.125, "pooled": 0, "predicted": 0, "leave_one_out": [0.5, "nan"]},
                findings=[{"ranks": [rank], "check": "loss"} for rank in named], **more)


def alarm(number, writer=0, name="wte", **more):
    return line("alarm", writer=writer, step=number, bucket=0, name=name, check="stale", damage="input", ranks=[1],
                statistic=0, threshold=0, false_alarms_per_step=0, advice="skip", source=None, **more)


def begin(writer=0):
    return line("run", writer=writer, comm_id="", global_rank=writer, ranks=2, started_us=1)


def end(writer=0, **more):
    return line("end", writer=writer, steps=1, suspicious_steps=0, alarms=0, verdict="It is over.", **more)


class Terminal:
    """The watcher in a terminal of its own."""

    def __init__(self, *words):
        self.all = b""
        self.process, self.file = pty.fork()
        if self.process == 0:
            os.environ["PYTHONPATH"] = str(made_up.PROGRAMS)
            os.execv(WATCH[0], [*WATCH, *words])

    def until(self, text, seconds=60):
        """What was drawn up to and with the text."""
        deadline = time.monotonic() + seconds
        while text not in self.all:
            assert time.monotonic() < deadline, (text, self.all[-2000:])
            if select.select([self.file], [], [], 0.1)[0]:
                try:
                    self.all += os.read(self.file, 65536)
                except OSError:  # it has ended
                    assert text in self.all, (text, self.all[-2000:])
        return self.all

    def end(self):
        try:
            while data := os.read(self.file, 65536):
                self.all += data
        except OSError:
            pass
        _, status = os.waitpid(self.process, 0)
        os.close(self.file)
        return os.waitstatus_to_exitcode(status)


class WatchTest(ViewTest):
    def once(self, *paths, status=0):
        out = self.view("watch", "--once", *paths, status=status)
        self.assertNotIn("\x1b", out)
        return out

    def test_a_run_that_is_written_slowly_is_followed_to_its_end(self):
        whole = made_up_run(4, 6, run="slow", end="Nothing was found.")
        environment = {**os.environ, "PYTHONPATH": str(made_up.PROGRAMS)}
        with subprocess.Popen([*WATCH, "slow.jsonl", "--timeout", "60"], env=environment, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) as follower:
            self.addCleanup(follower.kill)
            out = ""
            for first, last, awaited in (0, 2, ": step 0,"), (2, 4, ": step 2,"):
                self.write("slow.jsonl", whole[first:last], "a")
                while awaited not in out:
                    shown = follower.stdout.readline()
                    self.assertTrue(shown, out)
                    out += shown
            self.write("slow.jsonl", whole[4:], "a")
            rest, error = follower.communicate(timeout=60)
        out += rest
        self.assertEqual((follower.returncode, error), (0, ""), out)
        self.assertNotIn("\x1b", out)
        self.assertGreaterEqual(len(set(re.findall(r"^slow \(4 ranks\): step (\d)", out, re.M))), 2)
        self.assertTrue(out.endswith("ended: Nothing was found.\n"), out)

    def test_in_a_terminal_the_table_is_drawn_again_and_again_and_the_cursor_comes_back(self):
        shown = Terminal("screen.jsonl")
        shown.until(b"waiting for 'screen.jsonl'")
        self.write("screen.jsonl", step(1)[:50])
        self.write("screen.jsonl", step(1)[50:] + step(2)[:80], "a")  # a line comes in parts
        shown.until(b": step 1,")
        self.assertTrue(b"step 2" not in shown.all and b"not read" not in shown.all)
        self.write("screen.jsonl", step(2)[80:], "a")
        shown.until(b": step 2,")
        self.assertTrue(shown.all.startswith(b"\x1b[?25l\x1b[2J\x1b[H"))
        self.write("screen.jsonl", end(), "a")
        self.assertEqual(shown.end(), 0)
        self.assertTrue(b"ended: It is over." in shown.all and shown.all.endswith(b"\x1b[J\x1b[?25h"), shown.all[-200:])
        self.write("open.jsonl", step(1))  # Ctrl-C
        shown = Terminal("open.jsonl")
        shown.until(b": step 1,")
        os.kill(shown.process, signal.SIGINT)
        self.assertEqual(shown.end(), 130)
        self.assertTrue(shown.all.endswith(b"\x1b[?25h"))

    def test_foreign_text_cannot_reach_the_terminals_controls(self):
        evil = "\x1b[31m\x07\x9b2J\r\n\u202e\x00red"
        lines = step(1) + alarm(1, name=evil) + end()
        lines = lines.replace('"run": "run"', '"run": ' + json.dumps(evil)).replace("over", "\\u001b]0;title\\u0007")
        self.write("evil.jsonl", lines)
        out = self.once("evil.jsonl")
        self.assertTrue(out.startswith("?[31m??2J????red (2 ranks): step 1"), out)
        self.assertIn("bucket 0 '?[31m??2J????red': rank 1 sent the same data as in the last such call (stale)", out)
        self.assertIn("It is ?]0;title?.", out)
        self.assertTrue(all(character >= " " or character == "\n" for character in out))
        shown = Terminal("evil.jsonl")
        self.assertEqual(shown.end(), 0)
        rest = re.sub(rb"\x1b\[(H|K|J|2J|\?25[lh])", b"", shown.all)
        self.assertIsNone(re.search(rb"[\x00-\x09\x0b\x0c\x0e-\x1f\x7f]|\xc2[\x80-\x9f]", rest), rest)

    def test_the_last_alarms_how_often_a_rank_was_named_and_two_writers_of_one_run(self):
        for writer in range(2):
            text = begin(writer)
            for number in range(10):
                text += step(number, [1, 1] if number > 5 else []).replace('"writer": 0', f'"writer": {writer}')
                text += alarm(number, writer)
            self.write(f"rank{writer}.jsonl", text)
        out = self.once("rank0.jsonl", "rank1.jsonl")
        self.assertEqual(out.count("alarm: "), 5)
        self.assertIn("alarm: step 9, bucket 0 'wte': rank 1 sent the same data as in the last such call (stale)", out)
        self.assertNotIn("step 4,", out)
        self.assertIn(": step 9, alarms 10, loss 0.5, grad norm 0.5 (std / mean 0.25), cosine 0.125, records dropped 0\n", out)
        self.assertRegex(out, r"(?m)^0 +0.25 +0.25 +0.5 +0$")
        self.assertRegex(out, r"(?m)^1 +0.75 +0.75 +- +4$")
        self.assertRegex(out, r"(?m)^last line [0-9.]+ s ago$")
        self.write("many.jsonl", step(0, ranks=33))
        self.assertNotIn("\nrank ", self.once("many.jsonl"))

    def test_what_was_seen_is_said_with_the_alarm(self):
        self.write("found.jsonl", step(30) + alarm(30, text="since step 30 without all_reduce 'head'"))
        self.assertIn("(stale): since step 30 without all_reduce 'head'; damage: in the rank's own data, before the call; "
                      "what to do: drop the step's update\n", self.once("found.jsonl"))

    def test_a_run_that_starts_again_in_the_same_file_and_a_line_that_is_none(self):
        shown = Terminal("again.jsonl")
        self.write("again.jsonl", begin() + step(7) + alarm(7))
        shown.until(b"step 7, alarms 1, loss 0.5, grad norm 0.5")
        self.write("again.jsonl", begin() + step(3))
        shown.until(b"step 3, alarms 0, loss 0.5, grad norm 0.5")
        self.write("again.jsonl", "nonsense\n" + step(4), "a")
        shown.until(b"not read: again.jsonl:3: this line is not JSON")
        shown.until(b": step 4,")
        self.write("again.jsonl", end(), "a")
        self.assertEqual(shown.end(), 0)

    def test_what_is_not_there_is_said(self):
        self.assertEqual(self.once("none.jsonl", status=2), "waiting for 'none.jsonl'\n")
        self.assertIn("'.': Is a directory", self.view("watch", ".", status=2))
        self.assertIn("nothing was written for 0.3 seconds", self.view("watch", "none.jsonl", "--timeout", "0.3", status=1))
        self.write("whole.jsonl", as_text(made_up_run(4, 6, run="clean", end="Nothing was found.")))
        self.assertRegex(self.once("whole.jsonl"), r"(?s)^clean \(4 ranks\): step 5, alarms 0, .*\nended: Nothing was found.\n$")


if __name__ == "__main__":
    unittest.main()
