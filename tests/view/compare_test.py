# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""`collprobe compare`: logs that are damaged in many ways, and what is said of them."""
import copy
import json
import math
import os
import pathlib
import random
import struct
import unittest

from made_up import ViewTest, alarm, finding, made_up_run
from page_test import checked, rows_of, text_of
from collprobe.view.compare import METRICS, MOVED, autocorrelation_time, compare_metric, ulp_between

NAMES = ("wte", "blocks", "head")


def steps(lines):
    return [line for line in lines if line["kind"] == "step"]


def log(ranks=4, run="good", sampled=True, **more):
    """6 steps with 18 calls, whose results do not depend on the ranks."""
    lines = made_up_run(ranks, 6, run=run, times=False, end="Nothing was found.", **more)
    for line in steps(lines):
        for call in line["calls"]:
            call.update(input_sizes=[[1000]], output_sizes=[[1000]])
            if sampled:
                call["result_sample"] = [math.sin(line["step"] + call["bucket"] + i) for i in range(8)]
    return json.loads(json.dumps(lines))


class CompareTest(ViewTest):
    def setUp(self):
        super().setUp()
        self.good = log()
        self.write("good.jsonl", self.good)

    def compare(self, a, b, *options, status):
        out = self.view("compare", a, b, *options, status=status)
        self.assertEqual(status == 0, "identical" in out, out)
        self.assertNotIn("\x1b", out)
        return out

    def changed(self, change):
        lines = copy.deepcopy(self.good)
        change(lines)
        self.write("changed.jsonl", lines)
        return lines

    def expect(self, change, text, status=1):
        self.changed(change)
        self.assertIn(text, self.compare("good.jsonl", "changed.jsonl", status=status))

    def json(self, name="out.jsonl"):
        return [json.loads(line) for line in pathlib.Path(name).read_text(encoding="utf-8").splitlines()]

    def test_equal_runs_are_identical_undefined_and_infinite_numbers_included(self):
        self.assertIn("\nidentical: 6 steps, 18 calls with equal digests, 4 ranks\n",
                      self.compare("good.jsonl", "good.jsonl", status=0))
        odd = copy.deepcopy(self.good)
        steps(odd)[2]["loss"].update(mean="nan", std="inf", by_rank=["-inf", "nan", 1, 2])
        self.write("odd.jsonl", odd)
        self.compare("odd.jsonl", "odd.jsonl", status=0)
        self.write("other.jsonl", log(run="other name"))
        self.compare("good.jsonl", "other.jsonl", status=0)

    def test_each_bit_of_a_digest_that_is_flipped_is_named_with_its_step_and_call(self):
        randomly = random.Random(1)
        for step in range(6):
            for bucket, name in enumerate(NAMES):
                def flip(lines):
                    call = steps(lines)[step]["calls"][bucket]
                    call["digest"] = hex(int(call["digest"], 16) ^ 1 << randomly.randrange(64))
                self.changed(flip)
                out = self.compare("good.jsonl", "changed.jsonl", "--jsonl", "out.jsonl", status=1)
                sequence = 3 * step + bucket
                self.assertIn(f"first in step {step}, bucket {bucket} '{name}', call {sequence}, all_reduce of 1000 float", out)
                line, = self.json()
                first = line["first_difference"]
                self.assertEqual((line["kind"], line["outcome"], line["differing"], line["calls"]),
                                 ("comparison", "differ", 1, 18))
                self.assertEqual((first["step"], first["bucket"], first["collective_seq_id"], first["name"]),
                                 (step, bucket, sequence, name))
                self.assertEqual(bin(int(first["digest_a"], 16) ^ int(first["digest_b"], 16)).count("1"), 1)
                self.assertEqual(line["growth"][0]["step"], step)

    def test_distances_are_those_of_the_sampled_elements(self):
        def move(lines):
            for at, line in enumerate(steps(lines)[2:]):
                call = line["calls"][1]
                call["digest"] = "0x1"
                call["result_sample"] = [value * (1 + 2.0 ** -(10 - at)) for value in call["result_sample"]]
        lines = self.changed(move)
        self.compare("good.jsonl", "changed.jsonl", "--jsonl", "out.jsonl", status=1)
        growth = self.json()[0]["growth"]
        self.assertEqual([at["step"] for at in growth], [2, 3, 4, 5])
        for at in growth:
            a = [value for call in steps(self.good)[at["step"]]["calls"] for value in call["result_sample"]]
            b = [value for call in steps(lines)[at["step"]]["calls"] for value in call["result_sample"]]
            self.assertEqual((at["basis"], at["elements"]), ("samples", 24))
            cosine = math.fsum(x * y for x, y in zip(a, b)) / math.hypot(*a) / math.hypot(*b)
            self.assertTrue(math.isclose(at["relative"], math.dist(a, b) / math.hypot(*a), rel_tol=1e-12))
            self.assertLess(abs(at["cosine_distance"] - (1 - cosine)), 1e-15)

    def test_the_distance_of_two_elements_counts_the_numbers_of_their_type_between_them(self):
        for kind, one, step in (("float", 1.0, 2**-23), ("double", 1.0, 2**-52), ("half", 1.0, 2**-10),
                                ("bfloat16", 1.0, 2**-7), ("float8_e4m3", 1.0, 2**-3), ("float8_e5m2", 1.0, 2**-2)):
            with self.subTest(kind):
                self.assertEqual(ulp_between(kind, one, one + 3 * step), 3)
                self.assertEqual(ulp_between(kind, -one, -one - step), 1)
                self.assertEqual(ulp_between(kind, 0.0, -0.0), 0)
                self.assertEqual(ulp_between(kind, one, -one), 2 * ulp_between(kind, one, 0.0))
        self.assertEqual(ulp_between("float", 0.0, struct.unpack("<f", b"\1\0\0\0")[0]), 1)
        self.assertEqual(ulp_between("float8_e4m3", 0.0, 448.0), 0x7e)
        self.assertEqual(ulp_between("double", 1e300, 1e300), 0)

    def test_without_samples_the_norms_tell_the_distance_and_the_steps_shown_double(self):
        lines = made_up_run(4, 41, times=False, end=".")
        self.write("a.jsonl", lines)
        for line in steps(lines)[4:]:
            line["calls"][0].update(digest="0x7", result_norm=line["calls"][0]["result_norm"] * 1.5)
        self.write("b.jsonl", lines)
        out = self.compare("a.jsonl", "b.jsonl", "--jsonl", "out.jsonl", status=1)
        growth = self.json()[0]["growth"]
        self.assertEqual([at["step"] for at in growth], [4, 5, 6, 8, 12, 20, 36, 40])
        self.assertEqual({at["basis"] for at in growth}, {"norms"})
        self.assertIn("* of the results' norms", out)
        norms = [call["result_norm"] for call in steps(lines)[4]["calls"]]
        expected = norms[0] / 3 / math.hypot(norms[0] / 1.5, *norms[1:])
        self.assertTrue(math.isclose(growth[0]["relative"], expected, rel_tol=1e-12))

    def test_other_calls_missing_steps_and_other_findings_are_named(self):
        expect = self.expect
        expect(lambda l: steps(l)[4]["calls"].pop(),
               "other calls first in step 4, bucket 2 'head', call 14: 3 calls in A, 2 in B")
        expect(lambda l: steps(l)[1]["calls"][0].update(type="bfloat16"),
               "first in step 1, bucket 0 'wte', call 3: all_reduce of 1000 float in A")
        expect(lambda l: l.remove(steps(l)[3]), "! steps 3 to 3 are missing")
        expect(lambda l: l.remove(steps(l)[5]), "other calls first in step 5: only A has this step")
        expect(lambda l: l.pop(), "! the log of rank 0 has no end", status=0)
        expect(lambda l: steps(l)[3]["findings"].append(finding(2, "stale", 1)),
               "other findings, or other numbers of ranks or calls, in 1 step, first in step 3")
        expect(lambda l: steps(l)[3]["findings"].append(finding(2, "late")), "identical", status=0)  # of time
        expect(lambda l: steps(l)[3]["calls"][1].update(results_agree=False), "in 1 step, first in step 3")
        expect(lambda l: steps(l)[3]["loss"]["by_rank"].__setitem__(2, 9), "in 1 step, first in step 3")
        expect(lambda l: steps(l)[5].update(records_dropped=3), "! rank 0 dropped 3 records", status=2)
        expect(lambda l: steps(l)[2]["loss"].update(mean=0.25), "loss, mean of ranks")
        expect(lambda l: steps(l)[2]["loss"].update(mean="nan"), "undefined in one run in 1 step")
        expect(lambda l: steps(l)[2]["calls"][1].pop("digest"), "1 call with a digest in one run only")
        expect(lambda l: steps(l)[2].update(unread_calls=2), "0 calls not looked at in A, 2 in B")

    def test_runs_of_other_numbers_of_ranks_are_identical_if_their_results_are(self):
        self.write("eight.jsonl", log(8))
        self.assertIn("\nidentical: 6 steps, 18 calls with equal digests, 4 and 8 ranks\n",
                      self.compare("good.jsonl", "eight.jsonl", status=0))
        lines = log(8)
        lines.insert(3, alarm(1, finding(1, "stale", 0), run="good"))
        self.write("eight.jsonl", lines)
        self.compare("good.jsonl", "eight.jsonl", status=0)
        lines.insert(3, alarm(1, finding(1, "result_differs", 0), run="good"))
        self.write("eight.jsonl", lines)
        self.compare("good.jsonl", "eight.jsonl", status=1)
        for name, ranks in ("a", 4), ("b", 8):
            lines = log(ranks)
            for line in steps(lines):
                line["calls"][0].update(call="reduce_scatter", digest=hex(ranks))
            self.write(name, lines)
        self.assertIn("; 6 other calls without digests that can be compared", self.compare("a", "b", status=0))

    def test_without_digests_nothing_is_said_to_be_identical(self):
        lines = log()
        for line in steps(lines):
            for call in line["calls"]:
                del call["digest"]
        self.write("unread.jsonl", lines)
        self.assertIn("\nnothing to compare: no result has a digest in both runs",
                      self.compare("unread.jsonl", "unread.jsonl", status=2))

    def test_alarms_that_one_run_alone_has_are_listed_and_count_unless_they_are_of_time(self):
        raised = {**alarm(3, finding(2, "result_differs", 1), run="good"), "name": "\x1b[2Jwpe\u009b\n\u202e"}
        self.expect(lambda l: l.insert(5, raised), "alarm only in B: step 3, bucket 1 '?[2Jwpe???': result_differs: rank 2\n")
        self.expect(lambda l: l.insert(5, {**raised, "check": "late"}), "alarm only in B: step 3", status=0)
        self.expect(lambda l: l.extend([raised, {**raised, "step": 4}]),
                    "step 3 and 1 more step, bucket 1")

    def test_bad_lines_are_named_by_their_number(self):
        data = pathlib.Path("good.jsonl").read_bytes().split(b"\n")

        def spoil(number, text):
            self.write("changed.jsonl", b"\n".join([*data[:number - 1], text, *data[number:]]))
            return self.compare("good.jsonl", "changed.jsonl", status=2)

        step = b'{"schema":1,"kind":"step","run":"good","step":1,"ranks":1}'
        for number, line, text in (
                (4, b'{"schema":1,', "changed.jsonl:4: this line is not JSON"),
                (3, b'{"schema":1,"run":"\xff"}', "changed.jsonl:3: this line is not JSON"),
                (3, data[2] + bytes(16) + data[3], "changed.jsonl:3: this line is not JSON (a NUL"),
                (3, b"[]", "changed.jsonl:3: this line is no JSON object"),
                (2, b'{"schema":1,"run":"good"}', "changed.jsonl:2: this line has no member 'kind'"),
                (2, step, "changed.jsonl:2: this line has no member 'loss'"),
                (2, b"{}", "changed.jsonl:2: this line has no member 'schema'"),
                (2, b'{"schema":7}', "changed.jsonl:2: this line has schema 7, this program reads 1"),
                (2, b'{"schema":1,"kind":"step","step":NaN}', "changed.jsonl:2: this line is not JSON (NaN)"),
                (2, b'{"schema":1,"kind":' + b"[" * 100_000, "changed.jsonl:2: this line is nested too deeply")):
            self.assertIn(text, spoil(number, line))
        self.write("changed.jsonl", b"\n".join(data)[:-700])
        cut = self.compare("good.jsonl", "changed.jsonl", status=1)
        self.assertIn("! 'changed.jsonl': the last line is cut off", cut)
        self.assertIn("other calls first in step 5: only A has this step", cut)

    def test_files_and_options_that_cannot_be_used_are_told(self):
        self.write("empty.jsonl", b"")
        os.mkdir("folder")
        for a, b, text in (("none.jsonl", "good.jsonl", "cannot read 'none.jsonl': No such file or directory"),
                           ("good.jsonl", "empty.jsonl", "'empty.jsonl' has no steps"),
                           ("good.jsonl", "folder", "'folder' has no file *.jsonl")):
            self.assertIn(text, self.compare(a, b, status=2))
        self.assertIn("'good.jsonl' is an input", self.compare("good.jsonl", "good.jsonl", "--jsonl", "good.jsonl", status=2))
        self.assertIn("usage", self.view("compare", "a", status=2))

    def test_of_several_runs_in_a_file_one_is_chosen(self):
        other = log(run="other one")
        steps(other)[2]["calls"][1]["digest"] = "0x3"
        self.write("two.jsonl", self.good + other)
        self.assertIn("'two.jsonl' has several runs: choose one with --run-b: 'good', 'other one'",
                      self.compare("good.jsonl", "two.jsonl", status=2))
        self.compare("good.jsonl", "two.jsonl", "--run-b", "good", status=0)
        self.assertIn("first in step 2, bucket 1 'blocks', call 7",
                      self.compare("two.jsonl", "two.jsonl", "--run-a", "good", "--run-b", "other one", status=1))
        self.assertIn("has no run 'none', only 'good', 'other one'",
                      self.compare("good.jsonl", "two.jsonl", "--run-b", "none", status=2))

    def test_a_run_that_went_back_counts_from_there_on_anew(self):
        first = copy.deepcopy(self.good)
        for line in steps(first)[2:]:
            line["calls"][1]["digest"] = "0x3"
        self.write("again.jsonl", first[:6] + self.good[3:])
        self.assertIn("! it was started again at step 2", self.compare("good.jsonl", "again.jsonl", status=0))

    def test_a_rank_that_disagrees_is_named_and_one_that_lacks_steps_does_no_harm(self):
        os.mkdir("ranks")
        for writer in range(4):
            lines = log(writer=writer)
            self.write(f"ranks/rank{writer}.jsonl",
                       [line for line in lines if writer or line["kind"] != "step" or line["step"] not in (1, 2)])
        self.assertIn("written by ranks 0, 1, 2 and 3", self.compare("good.jsonl", "ranks", status=0))
        lines = log(writer=2)
        steps(lines)[4]["calls"][0]["digest"] = "0x1"
        self.write("ranks/rank2.jsonl", lines)
        self.assertIn("! rank 2 tells other things of step 4 than rank 0", self.compare("good.jsonl", "ranks", status=1))

    def test_communicators_are_compared_one_by_one(self):
        tensor = log(comm="tensor")
        self.write("both.jsonl", self.good + tensor)
        self.compare("both.jsonl", "both.jsonl", status=0)
        self.assertIn("only B has a communicator 'tensor'", self.view("compare", "good.jsonl", "both.jsonl", status=1))
        steps(tensor)[5]["calls"][2]["digest"] = "0x2"
        self.write("changed.jsonl", self.good + tensor)
        out = self.view("compare", "both.jsonl", "changed.jsonl", status=1)
        self.assertIn("communicator 'tensor': the runs differ: first in step 5, bucket 2", out)
        self.assertIn("communicator 'world': identical", out)

    def test_a_page_shows_where_the_runs_part(self):
        def move(lines):
            for line in steps(lines)[2:]:
                line["calls"][1].update(digest="0x1", result_sample=[x * 1.01 for x in line["calls"][1]["result_sample"]])
            lines.insert(5, {**alarm(3, finding(2, "stale", 1), run="good"), "name": "</script>"})
        self.changed(move)
        self.compare("good.jsonl", "changed.jsonl", "--html", "page.html", status=1)
        text = pathlib.Path("page.html").read_text(encoding="utf-8")
        root = checked(text)
        self.assertEqual(text.count("<svg"), 1)
        self.assertIn("first in step 2, bucket 1", text_of(root))
        self.assertEqual(rows_of(text, "Alarms only in B")[1][:2], ["rank 2", "sent the same data as in the last such call"])
        self.compare("good.jsonl", "good.jsonl", "--html", "page.html", status=0)
        text = pathlib.Path("page.html").read_text(encoding="utf-8")
        checked(text)
        self.assertEqual(text.count("<svg"), 0)
        self.assertIn("All are equal, bit for bit.", text)
        for value in ("nan", "inf", 1e-310, 1e308):  # that cannot be drawn
            self.changed(lambda lines: [call.update(digest="0x2", result_sample=[value] * 8)
                                        for line in steps(lines) for call in line["calls"]])
            self.compare("good.jsonl", "changed.jsonl", "--html", "page.html", status=1)
            checked(pathlib.Path("page.html").read_text(encoding="utf-8"))


class MetricTest(unittest.TestCase):
    def compared(self, differences):
        return compare_metric("loss", [(step, 1.0, 1.0 + each) for step, each in enumerate(differences)])

    def test_noise_moves_no_metric_and_shifts_do(self):
        randomly = random.Random(7)
        moved = found = 0
        for _ in range(150):
            for memory in (0, 0.5, 0.9, 1):
                state, noise = 0.0, []
                for _ in range(400):
                    state = memory * state + randomly.gauss(0, 1)
                    noise.append(state)
                moved += self.compared(noise).verdict == "moved"
            found += self.compared([randomly.gauss(1, 1) for _ in range(400)]).verdict == "moved"
        self.assertLessEqual(moved, 2)  # of 600: about one of 11,000 is expected
        self.assertGreaterEqual(found, 145)

    def test_the_limit_of_a_score_is_that_of_students_distribution_for_11_metrics(self):
        steps_, width, total = 200_000, 40, 0.0  # the tail beyond the limit, by integration with 7 degrees of freedom
        for i in range(steps_):
            t = MOVED + math.tan((i + 0.5) / steps_ * math.pi / 2) * width
            slope = width * math.pi / 2 / math.cos((i + 0.5) / steps_ * math.pi / 2) ** 2
            total += (1 + t * t / 7) ** -4 * slope / steps_
        density = math.gamma(4) / math.sqrt(7 * math.pi) / math.gamma(3.5)
        self.assertAlmostEqual(2 * 11 * total * density, 1e-3, delta=2e-5)

    def test_verdicts_at_the_edges(self):
        self.assertEqual(self.compared([0.0] * 100).verdict, "equal")
        self.assertEqual(self.compared([0.0] * 61 + [1.0] * 39).verdict, "few_steps")
        self.assertEqual(self.compared([0.5] * 40).score, math.inf)
        self.assertEqual(self.compared([i / 100 for i in range(100)]).verdict, "slow_noise")
        one_sided = compare_metric("loss", [(step, 1.0, math.nan) for step in range(50)])
        self.assertEqual((one_sided.verdict, one_sided.one_sided), ("one_sided", 50))
        self.assertEqual(compare_metric("loss", [(0, 0.0, -0.0)]).verdict, "few_steps")  # other bits
        self.assertEqual(self.compared([1e308 * (-1) ** i for i in range(50)]).verdict, "within_noise")
        self.assertLess(autocorrelation_time([(-1.0) ** i for i in range(100)], 0, 1e9), 1)
        self.assertEqual(len(METRICS), 12)


if __name__ == "__main__":
    unittest.main()
