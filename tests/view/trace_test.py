# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""`collprobe trace` and `collprobe inspector`: what viewers and readers of these formats rely on."""
import collections
import json
import pathlib
import random
import unittest
from decimal import Decimal

import made_up
from made_up import ViewTest, alarm, made_up_run, finding, run_line, step_line
from trace_check import check, check_events, load

TICK = 256


def timed_run(times, ranks=None, **more):
    """A run of steps, each of calls, each of (entered, left) by rank."""
    lines = [run_line(ranks or len(times[0][0]), **more)]
    sequence = 0
    for step, calls in enumerate(times):
        line = step_line(step, ranks or len(calls[0]), times=False)
        line["calls"] = []
        for bucket, readings in enumerate(calls):
            line["calls"].append({
                "bucket": bucket, "call": "all_reduce", "type": "float", "collective_seq_id": sequence,
                "input_sizes": [[1000]], "output_sizes": [[1000]], "result_norm": 1, "cosine": 0.5, "nonfinite": 0,
                "results_agree": True, "times": readings, "inputs": {"sum_of_squares": [4.0] * len(readings)}})
            sequence += 1
        lines.append(line)
    return lines


class TraceTest(ViewTest):
    def trace(self, lines, *options):
        self.write("of.jsonl", lines)
        self.view("trace", "of.jsonl", "-o", "of.json", *options)
        return load(pathlib.Path("of.json").read_text(encoding="utf-8"))

    @staticmethod
    def slices(trace, rank=None):
        return [(each["ts"], each["dur"]) for each in trace["traceEvents"]
                if each["ph"] == "X" and each["name"].startswith("nccl:") and rank in (None, each["args"]["Rank"])]

    def test_the_trace_of_the_made_up_run(self):
        self.assertEqual(check(self.trace(made_up_run(2, 3, faults=True, inspected=True))), [])

    def test_what_a_viewer_relies_on_holds_for_random_runs_alone_and_joined(self):
        randomly = random.Random(1)
        traces = []
        for seed, names in ((1, {}), (2, {"comm": 'a"b\\\n</script>\x01', "writer": 2, "global_rank": 7})):
            clocks = [randomly.randrange(1 << 32) for _ in range(4)]
            times = []
            for _ in range(200):
                calls = []
                for _ in range(randomly.randrange(5)):
                    length = randomly.randrange(10_000) if randomly.randrange(4) else 0
                    gap = randomly.randrange(3000)
                    back = randomly.randrange(3) == 0
                    readings = []
                    for rank, clock in enumerate(clocks):
                        entered = clock + (-gap if back else gap) - randomly.randrange(200)
                        clocks[rank] = clock + gap + length + randomly.randrange(10)
                        readings.append([entered & 0xffffffff, clocks[rank] & 0xffffffff])
                    calls.append(readings)
                times.append(calls)
                pause = randomly.randrange(2_000_000)
                clocks = [clock + pause + randomly.randrange(20) for clock in clocks]
            lines = timed_run(times, ranks=4, **names)
            for line in list(lines[1:]):
                for call in line["calls"]:
                    call["call"] = randomly.choice(["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast"])
                    if not randomly.randrange(5):
                        del call["times"]
                line["comm"], line["writer"] = names.get("comm", "world"), names.get("writer", 0)
                if not randomly.randrange(3):
                    lines.append({**alarm(line["step"], finding(randomly.choice([None, 0, 3]), "stale", 0)),
                                  "comm": line["comm"], "writer": line["writer"]})
            lines[1:] = sorted(lines[1:], key=lambda line: line["step"])
            traces.append(self.trace(lines))
            self.assertEqual(check(traces[-1]), [], seed)
        self.assertEqual(check_events([event for trace in traces for event in trace["traceEvents"]]), [])

    def test_all_ranks_leave_the_first_common_call_at_the_same_time_whatever_their_clocks_show(self):
        calls = [[[1000, 5000], [4_000_000_900, 4_000_004_900]], [[6000, 7000], [4_000_006_000, 4_000_006_900]]]
        trace = self.trace(timed_run([calls]))
        ends = {rank: [ts + dur for ts, dur in self.slices(trace, rank)] for rank in (0, 1)}
        self.assertEqual(ends[0][0], ends[1][0])
        self.assertEqual(ends[0][1] - ends[0][0], Decimal(2000 * TICK) / 1000)
        late = [each["args"]["lateness_ns"] for each in trace["traceEvents"] if each["ph"] == "X" and "Seq" in each["args"]]
        self.assertEqual(late[:2], [0, 0])

    def test_the_clock_runs_on_over_its_turns_and_over_gaps_of_several_turns(self):
        turn_us = (TICK << 32) // 1000
        near = (1 << 32) - 100
        lines = timed_run([[[[near - 50, near]]], [[[150, 200]]], [[[300, 350]]]])
        lines[3]["time_us"] = lines[2]["time_us"] + 3 * turn_us
        at = [ts for ts, _ in self.slices(self.trace(lines))]
        self.assertEqual(at[1] - at[0], Decimal(300 * TICK) / 1000)
        self.assertAlmostEqual(float(at[2] - at[1]), 3 * turn_us, delta=1000)

    def test_a_clock_that_is_wrong_by_more_than_a_second_is_set_anew_and_no_track_runs_backwards(self):
        ticks = 1_250_000_000 // TICK  # of a step
        times = [[[[at * ticks, at * ticks + 100]] * 2] for at in range(200)]
        lines = timed_run(times)
        for line in lines[3:]:
            line["time_us"] += 5_000_000
        trace = self.trace(lines)
        self.assertEqual(check(trace), [])
        at = [float(ts) for ts, _ in self.slices(trace, 0)]
        self.assertLess(at[50] - at[1], 62e6)  # the records' delay is not believed at once,
        self.assertGreater(at[199] - at[1], 251e6)  # and after 64 steps it is
        for line in lines[100:]:
            line["time_us"] -= 20_000_000  # a step cannot end after its record came
        trace = self.trace(lines)
        self.assertEqual(check(trace), [])
        self.assertEqual(sorted(self.slices(trace, 0)), self.slices(trace, 0))

    def test_a_call_that_begins_before_another_one_ended_is_asynchronous(self):
        trace = self.trace(timed_run([[[[100, 500]], [[300, 900]], [[1000, 1100]]]]))
        phases = collections.Counter(each["ph"] for each in trace["traceEvents"])
        self.assertEqual((phases["b"], phases["e"], len(self.slices(trace))), (1, 1, 2))

    def test_names_and_counts_are_those_of_pytorch(self):
        lines = timed_run([[[[0, 9]]] * 5])
        kinds = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast")
        for call, kind in zip(lines[1]["calls"], kinds):
            call.update(call=kind, type="float8_e4m3", input_sizes=[[8]], output_sizes=[[2]], digest="0x1f", name="wte")
        events = [each for each in self.trace(lines)["traceEvents"] if each["name"].startswith("nccl:") and each["ph"] in "Xb"]
        self.assertEqual([each["name"] for each in events],
                         ["nccl:all_reduce", "nccl:_reduce_scatter_base", "nccl:_all_gather_base", "nccl:all_to_all",
                          "nccl:broadcast"])
        args = events[1]["args"]
        self.assertEqual((args["Collective name"], args["In msg nelems"], args["Out msg nelems"], args["dtype"], args["Seq"]),
                         ("_reduce_scatter_base", 8, 2, "Float8_e4m3fn", 1))
        self.assertEqual((args["Group size"], args["Process Group Name"], args["Process Group Ranks"], args["norm"],
                          args["digest"], args["name"]), (1, "world", "[0]", 2, "0x1f", "wte"))
        self.assertNotIn("lateness_ns", events[4]["args"])

    def test_calls_without_times_are_in_a_slice_from_record_to_record(self):
        lines = made_up_run(2, 3, times=False)
        steps = [each for each in self.trace(lines)["traceEvents"] if each["name"].startswith("step ")]
        self.assertEqual([each["name"] for each in steps], ["step 0", "step 1", "step 2"])
        self.assertEqual([each["dur"] for each in steps[1:]], [1_250_000] * 2)
        self.assertEqual(steps[2]["args"]["calls"][0], "bucket 0 'wte': all_reduce of 262144 Float")

    def test_an_alarm_is_a_slice_an_instant_and_an_arrow_from_the_call_of_the_first_rank_that_it_names(self):
        lines = timed_run([[[[0, 100]] * 3] * 2] * 12)
        for old, has_arrow in ((8, True), (0, False)):  # after eight further steps there is no arrow
            about = finding(2, "stale", 1)
            events = self.trace(lines + [alarm(old, about)])["traceEvents"]
            found = {each["ph"]: each for each in events if each.get("cat") == "alarm"}
            self.assertEqual(set(found), set("Xisf") if has_arrow else set("Xi"))
            self.assertIn("stale: rank 2", found["X"]["name"])
            self.assertIn("drop the step's update", found["X"]["args"]["text"])
            self.assertIn(found["X"]["args"]["advice"], found["X"]["args"]["text"])
            if has_arrow:
                self.assertEqual(found["s"]["pid"], 10_000_002)

    def test_communicators_and_several_ranks_files_are_in_one_trace(self):
        for writer in range(3):
            lines = made_up_run(3, 8, writer=writer) + made_up_run(3, 8, writer=writer, comm="tensor")
            self.write(f"rank{writer}.jsonl", [line for line in lines if line.get("step") != writer])
        self.view("trace", "rank0.jsonl", "rank1.jsonl", "rank2.jsonl", "-o", "all.json")
        trace = load(pathlib.Path("all.json").read_text(encoding="utf-8"))
        self.assertEqual(check(trace), [])
        self.assertEqual(len(self.slices(trace)), 2 * 8 * 3 * 3)  # communicators, steps, calls, ranks
        self.assertEqual(len({each["tid"] for each in trace["traceEvents"] if each["name"] == "nccl:all_reduce"}), 2)
        self.view("trace", "rank0.jsonl", "rank1.jsonl", "-o", "some.json", "--steps", "2:4", "--comm", "tensor")
        some = load(pathlib.Path("some.json").read_text(encoding="utf-8"))
        self.assertEqual({each["args"]["step"] for each in some["traceEvents"] if each["name"] == "nccl:all_reduce"}, {2, 3, 4})
        self.assertIn("no range of steps", self.view("trace", "rank0.jsonl", "-o", "x", "--steps", "a:b", status=2))

    def test_foreign_texts_cannot_end_a_string_or_leave_their_member(self):
        evil = 'a\\"}],"x":</script>\n\x00\u202e\ud800'
        lines = made_up_run(2, 3, faults=False, comm=evil)
        lines[0].update(host=evil, device=evil, settings={evil: evil})
        lines[1]["calls"][0]["name"] = lines[1]["calls"][1]["line"] = evil
        self.assertEqual(check(self.trace(lines + [{**alarm(1, finding(1, evil, 0, text=evil)), "comm": evil}])), [])


class InspectorTest(ViewTest):
    def inspector(self, lines):
        self.write("of.jsonl", lines)
        self.view("inspector", "of.jsonl", "-o", "of.inspector.jsonl")
        return [json.loads(line) for line in pathlib.Path("of.inspector.jsonl").read_text(encoding="utf-8").splitlines()]

    def test_each_call_has_a_line_with_the_keys_of_inspectors_code(self):
        lines = self.inspector([run_line(2, comm_id="c0ffee", device="GPU-1")] + made_up_run(2, 2)[1:]
                               + [alarm(1, finding(1, "stale", 0)), made_up.INSPECTION])
        self.assertEqual([list(line)[-1] for line in lines],
                         (["coll_values"] * 3 + ["step"]) * 2 + ["alarm", "inspection"])
        self.assertEqual(lines[0]["header"], {"id": "c0ffee", "comm_name": "world", "rank": 0, "n_ranks": 2, "nnodes": 1})
        self.assertEqual(set(lines[0]["metadata"]), {"inspector_output_format_version", "git_rev", "rec_mechanism",
                                                     "dump_timestamp_us", "hostname", "pid"})
        self.assertEqual(lines[0]["metadata"]["inspector_output_format_version"], "v4.0")
        self.assertEqual(set(lines[0]["coll_perf"]), {"coll", "coll_sn", "coll_msg_size_bytes", "coll_exec_time_us",
                                                      "coll_timing_source", "coll_algobw_gbs", "coll_busbw_gbs"})
        self.assertEqual((lines[0]["coll_perf"]["coll"], lines[0]["coll_perf"]["coll_timing_source"]),
                         ("AllReduce", "kernel_gpu"))
        self.assertEqual(lines[1]["coll_values"]["name"], "blocks")
        self.assertNotIn("calls", lines[3]["step"])

    def test_bytes_and_bandwidths_are_those_of_nccl_tests(self):
        # (kind, elements sent and got, bytes, busbw / algbw) of 4 ranks.
        for kind, sent, got, size, factor in (("all_reduce", 1000, 1000, 4000, 1.5), ("all_gather", 1000, 4000, 4000, 0.75),
                                              ("reduce_scatter", 4000, 1000, 4000, 0.75),
                                              ("all_to_all", 4000, 4000, 16000, 0.75), ("broadcast", 1000, 1000, 4000, 1)):
            lines = timed_run([[[[0, 1000]] * 4]])
            lines[1]["calls"][0].update(call=kind, input_sizes=[[sent]], output_sizes=[[got]])
            found = self.inspector(lines)[0]["coll_perf"]
            whole = 4 * size if kind in ("all_gather", "reduce_scatter") else size
            self.assertEqual((found["coll_msg_size_bytes"], found["coll_exec_time_us"]), (size, 256))
            self.assertAlmostEqual(found["coll_algobw_gbs"], whole / 256_000)
            self.assertAlmostEqual(found["coll_busbw_gbs"], whole / 256_000 * factor)
        lines = timed_run([[[[0, 1000]] * 4]])
        del lines[1]["calls"][0]["times"]
        self.assertNotIn("coll_perf", self.inspector(lines)[0])


if __name__ == "__main__":
    unittest.main()
