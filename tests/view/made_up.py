# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""A training run as it could have been, as JSON lines: the loss falls, ranks differ by noise. With faults rank 5 repeats
its data in a few steps, rank 3 gets wrong bits twice, rank 6 sends NaN, rank 2 is late from the middle on, and rank 1 has
a large norm once."""
import hashlib
import io
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import unittest
import zlib

PROGRAMS = pathlib.Path(__file__).resolve().parents[2] / "examples" / "programs"
sys.path.insert(0, str(PROGRAMS))
from collprobe.view import command  # noqa: E402

BEGIN_US = 1_772_618_400_000_000  # 2026-03-04 10:00:00
NAMES = ("wte", "blocks", "head")


def noise(*key):
    """From -1 to 1, nearly Gaussian; it depends on its arguments alone."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=16).digest()
    return sum(int.from_bytes(digest[i:i + 4], "big") / 2**31 - 1 for i in range(0, 16, 4)) / 4


def spread(values, **more):
    mean = statistics.fmean(values)
    std = statistics.pstdev(values)
    return {"mean": mean, "std": std, "range": max(values) - min(values), "min": min(values),
            "min_rank": values.index(min(values)), "max": max(values), "max_rank": values.index(max(values)),
            "by_rank": values, **more}


def finding(ranks, check, bucket=None, **more):
    """`ranks`: one, several or None."""
    of = {"check": check, "ranks": [] if ranks is None else [ranks] if isinstance(ranks, int) else ranks, "other_rank": None,
          "bucket": bucket, "exact": True, "statistic": 1, "threshold": 0, "index": None, "false_alarms_per_step": 0,
          "damage": "unknown", "advice": "none", "source": None, **more}
    return {**of, "name": NAMES[bucket]} if bucket is not None else of


def alarm(step, named, writer=0, run="pretraining", comm="world", **more):
    return {"schema": 1, "kind": "alarm", "run": run, "comm": comm, "writer": writer, "time_us": BEGIN_US + step * 1_250_000,
            "records_dropped": 0, "step": step, **named, "damage": "input", "false_alarms_per_step": 0, "advice": "skip",
            "source": None, **more}


def step_line(step, ranks=8, steps=300, faults=False, quantised=False, times=True, run="pretraining", comm="world", writer=0):
    done = step / steps
    level = 0.35 + 2 * math.exp(-5 * done)

    def is_at(rank, at):
        return faults and rank < ranks and step == int(at * steps)

    losses = [level * (1 + 0.06 * noise(step, rank, 1)) + 0.03 * noise(step, 2) for rank in range(ranks)]
    norms = [(3.5 if is_at(1, 0.62) and rank == 1 else 1) * (0.4 + level) * (1 + 0.1 * noise(step, rank, 3))
             for rank in range(ranks)]
    cosines = [0.55 - 0.35 * done + 0.06 * noise(step, rank, 5) for rank in range(ranks)]
    late = [4e5 * (1 + noise(step, rank, 6)) + (3.5e6 if faults and rank == 2 and 2 * step > steps else 0)
            for rank in range(ranks)]
    calls = []
    for bucket, name in enumerate(NAMES):
        count = 1 << (18 + bucket)
        call = {"bucket": bucket, "name": name, "call": "all_reduce", "type": "float", "collective_seq_id": 3 * step + bucket,
                "input_sizes": [[count]], "output_sizes": [[count]], "digest": hex(zlib.crc32(f"{step} {name}".encode())),
                "result_norm": norms[0] * (bucket + 1), "grad_norm": {"mean": norms[0], "cv": 0.1}, "cosine": cosines[0],
                "nonfinite": 0, "results_agree": True,
                "audit": {"damage": "none", "sum_checked": True, "residual": 1.5 + noise(step, bucket, 9),
                          "residual_limit": 6, "bins": 64, "majority": True, "conserved": True, "ranks": []}}
        if times:
            begin = (1000 * rank + 4_000_000 * step + 9000 * bucket for rank in range(ranks))
            call["times"] = [[(at + int(late[rank] / 256)) & 0xffffffff, (at + 8000) & 0xffffffff]
                             for rank, at in enumerate(begin)]
            call["inputs"] = {"sum_of_squares": [norm**2 for norm in norms]}
        calls.append(call)
    findings = []
    if is_at(3, 0.3) or is_at(3, 0.34):
        calls[1].update(results_agree=False)
        calls[1]["audit"].update(damage="broadcast", ranks=[3])
        findings.append(finding(3, "result_differs", 1))
    if is_at(6, 0.8):
        calls[2]["nonfinite"] = 1234
        losses[6] = math.nan
        findings.append(finding(6, "non_finite", 2, statistic=1234, text="1,234 elements are NaN or infinite"))
    if is_at(1, 0.62):
        findings.append(finding(1, "gradient_norm", statistic=19.2, threshold=7.4, exact=False,
                                text="the norm of its whole gradient, 3.5, is 2.5 above the 1 expected"))
    if is_at(5, 0.45) or is_at(5, 0.47) or is_at(5, 0.48):
        findings.append(finding(5, "stale", 0))
    if faults and ranks > 2 and step == steps // 2 + 5:
        findings.append(finding(2, "late", statistic=3.6e6, threshold=1.1e6, exact=False, false_alarms_per_step=1e-5,
                                text="the delay of its arrival, 3.6 ms, is 3.5 ms above the 0.1 ms expected"))
    finite = [loss for loss in losses if math.isfinite(loss)]
    line = {"schema": 1, "kind": "step", "run": run, "comm": comm, "writer": writer,
            "time_us": BEGIN_US + (step + 1) * 1_250_000, "records_dropped": 0, "step": step, "ranks": ranks,
            "loss": {**spread(finite), "by_rank": ["nan" if math.isnan(loss) else loss for loss in losses]},
            "grad_norm": spread(norms, cv=statistics.pstdev(norms) / statistics.fmean(norms)),
            "cosine": {"mean_pairwise": statistics.fmean(cosines) - 0.05, "pooled": statistics.fmean(cosines) - 0.045,
                       "predicted": 0.5 - 0.35 * done if step > 10 else "nan", "leave_one_out": cosines},
            "noise_scale": 1 / (statistics.fmean(cosines) - 0.045) - 1, "calls": calls,
            "lateness": {"calls": 3, "last": late.index(max(late)), "behind": max(late), "latest": late},
            "evidence": [], "findings": findings}
    if faults:
        line["numbers"] = [{"name": "clipped", "line": "own.cpp:7", "bucket": 1, "by_rank": [3 * rank + step for rank in range(ranks)]},
                           {"name": "temperature", "line": "own.cpp:8", "bucket": None, "by_rank": [100 + step]}]
    if quantised:
        line["quantisation"] = [
            {"bucket": 0, "name": "wte", "bytes_plain": 7 << 18, "bytes_sent": 7 << 18, "unquantised": "small"}] + [
            {"bucket": bucket, "name": NAMES[bucket], "bytes_plain": 7 << (18 + bucket), "bytes_sent": 7 << 17,
             "verdict": "negligible" if bucket == 1 else "harmful" if noise(step, 8) > 0.3 else "visible",
             "within": "int8" if bucket == 1 else "int4", "across": "int8", "block": 128, "levels": bucket,
             "sqnr_db": 39 - 11 * bucket, "noise_ratio": 0.13, "advice": "heavy tails: rotate, or halve the block"}
            for bucket in (1, 2)]
    return line


def alarms_of(line):
    """An alarm for each finding, with the advice that `alarms` would give."""
    advice = {"result_differs": {"damage": "broadcast", "advice": "resync", "source": 0},
              "gradient_norm": {"advice": "recheck", "false_alarms_per_step": 2.9e-7},
              "late": {"damage": "none", "advice": "none", "false_alarms_per_step": 1e-5}}
    return [alarm(line["step"], each, line["writer"], line["run"], line["comm"], **advice.get(each["check"], {}))
            for each in line["findings"]]


def run_line(ranks=8, run="pretraining", comm="world", writer=0, **more):
    return {"schema": 1, "kind": "run", "run": run, "job": "481516", "comm": comm, "comm_id": "", "host": "gpu-a12",
            "device": "", "writer": writer, "global_rank": writer, "ranks": ranks, "nodes": 1, "pid": 20817,
            "started_us": BEGIN_US, "version": "0.2.0",
            "settings": {"false_alarms_per_step": "1e-4", "parts": "audit, quantisation_probe"}, **more}


def end_line(steps, verdict, run="pretraining", comm="world", writer=0):
    return {"schema": 1, "kind": "end", "run": run, "comm": comm, "writer": writer,
            "time_us": BEGIN_US + (steps + 1) * 1_250_000, "records_dropped": 0, "steps": steps, "suspicious_steps": 0,
            "alarms": 0, "verdict": verdict}


INSPECTION = {"schema": 1, "kind": "inspection", "run": "pretraining", "comm": "world", "writer": 0, "time_us": BEGIN_US + 1,
              "records_dropped": 0, "communicator": "world", "element": "float", "count": 1 << 20, "ranks": 8,
              "roundings_per_element": 7, "partial_sum_precision": 24, "partial_sum_precision_or_more": False,
              "order_class": "ring", "orders": 8, "run_stable": True, "size_stable": True, "permutation_stable": False,
              "ranks_agree": True, "max_ulp": 2.4, "rms_ulp": 0.6, "reproduced": 1, "median_us": 212.5, "algbw_gbs": 19.7,
              "busbw_gbs": 34.5}


def made_up_run(ranks=8, steps=60, faults=False, quantised=False, inspected=False, end="", **more):
    lines = [run_line(ranks, **{name: more[name] for name in ("run", "comm", "writer") if name in more})]
    for step in range(steps):
        lines.append(step_line(step, ranks, steps, faults, quantised, **more))
        lines += alarms_of(lines[-1])
    if inspected:
        lines.append(INSPECTION)
    names = {name: more[name] for name in ("run", "comm", "writer") if name in more}
    return lines + ([end_line(steps, end, **names)] if end else [])


def as_text(lines):
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)


class ViewTest(unittest.TestCase):
    """A test in a folder of its own."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        before = os.getcwd()
        self.addCleanup(os.chdir, before)
        os.chdir(folder.name)

    def assertIn(self, member, container, msg=None):  # a page is too long to be shown
        self.assertTrue(member in container, msg or f"{member!r} is not in {container[:2000]!r} ...")

    def write(self, name, lines, how="w"):
        """Lines, text or bytes."""
        data = lines if isinstance(lines, (str, bytes)) else as_text(lines)
        with open(name, how + "b") as file:
            file.write(data if isinstance(data, bytes) else data.encode())
        return name

    def view(self, *words, status=0):
        """What `collprobe` prints, on both streams."""
        out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
        before = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = out, err
        try:
            found = command.main(list(words))
        except SystemExit as end:
            found = end.code
        finally:
            sys.stdout, sys.stderr = before
        out.flush()
        err.flush()
        text = (out.buffer.getvalue() + err.buffer.getvalue()).decode()
        self.assertEqual(found, status, text)
        return text

    def page_of(self, lines, *options):
        self.write("of.jsonl", lines)
        self.view("page", "of.jsonl", "-o", "of.html", *options)
        return pathlib.Path("of.html").read_text(encoding="utf-8")


def program(*words, **more):
    """The command as a process."""
    environment = {**os.environ, "PYTHONPATH": str(PROGRAMS), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([sys.executable, "-m", "collprobe.view", *words], env=environment, capture_output=True, timeout=300,
                          check=False, **more)
