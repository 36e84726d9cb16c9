# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""check_lines.py LOG_SAMPLE FOLDER: the viewer on lines that the library has written."""
import json
import os
import pathlib
import shutil
import subprocess
import sys

import made_up
from page_test import checked, verdict_of
from trace_check import check, load

sample, folder = sys.argv[1:]
shutil.rmtree(folder, ignore_errors=True)
os.makedirs(folder + "/all")
os.chdir(folder)


def write(*words):
    subprocess.run([sample, *words], check=True, timeout=60)


def view(*words, code=0):
    done = made_up.program(*words)
    assert done.returncode == code, (words, done)
    return (done.stdout + done.stderr).decode()


write("clean.jsonl", "clean", "4")
write("flipped.jsonl", "flipped", "4", "10", "sampled")
write("sampled.jsonl", "sampled", "4", "none", "sampled")
write("8_ranks.jsonl", "8 ranks", "8")
write("8_flipped.jsonl", "8 ranks", "8", "0")
write("unread.jsonl", "unread", "4", "none", "unread")
write("all", "all", "4", "none", "all")
write("killed.jsonl", "killed", "4", "10", "killed")

assert "\nidentical: 6 steps, 18 calls with equal digests, 4 ranks\n" in view("compare", "clean.jsonl", "clean.jsonl")
assert "\nidentical: 6 steps, 18 calls with equal digests, 4 and 8 ranks\n" in view("compare", "clean.jsonl", "8_ranks.jsonl")
assert "first in step 0, bucket 0 'wte', call 0, all_reduce of 1000 float; other results in 1 of 18 calls" in view(
    "compare", "clean.jsonl", "8_flipped.jsonl", code=1)
text = view("compare", "sampled.jsonl", "flipped.jsonl", code=1)
assert "first in step 3, bucket 1 'wpe', call 10, all_reduce of 1000 float; other results in 1 of 18 calls" in text, text
text = view("compare", "all", "clean.jsonl")
assert "written by ranks 0, 1, 2 and 3" in text and "\nidentical: 6 steps, 18 calls" in text, text
assert "\nnothing to compare: no result has a digest" in view("compare", "unread.jsonl", "unread.jsonl", code=2)
assert "has no end" in view("compare", "flipped.jsonl", "killed.jsonl", code=0)

# The verdict of a page is that of the run's end, and without an end the viewer says the same in its own words.
for name in ("clean", "flipped", "8_ranks"):
    lines = pathlib.Path(name + ".jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    verdict = json.loads(lines[-1])["verdict"]
    pathlib.Path("endless.jsonl").write_text("".join(lines[:-1]), encoding="utf-8")
    for path in (name, "endless"):
        view("page", path + ".jsonl", "-o", "page.html")
        page = pathlib.Path("page.html").read_text(encoding="utf-8")
        checked(page)
        assert verdict_of(page) == verdict, (verdict_of(page), verdict)

view("trace", "all", "-o", "all.json")
trace = load(pathlib.Path("all.json").read_text(encoding="utf-8"))
assert check(trace) == [], check(trace)[:5]
calls = [each for each in trace["traceEvents"] if each["name"] == "nccl:all_reduce" and each["ph"] in "Xb"]
assert len(calls) == 6 * 3 * 4 and {each["args"]["name"] for each in calls} == {"wte", "wpe", "head"}, len(calls)
assert all(each["args"]["norm"] > 0 for each in calls)
found = view("inspector", "clean.jsonl").splitlines()
assert len(found) == 6 * 4 and all("coll_perf" in json.loads(line) for line in found[:3])
assert view("watch", "--once", "clean.jsonl").startswith("clean (4 ranks): step 5, alarms 0, loss 0.1667, ")
