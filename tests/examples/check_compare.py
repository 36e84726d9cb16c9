# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""check_compare.py COMPARE LOG_SAMPLE FOLDER

Damages logs of log_sample in many ways and checks what collprobe_compare says of them.
"""
import copy
import json
import math
import os
import random
import shutil
import subprocess
import sys

compare, sample, folder = sys.argv[1:]
os.makedirs(folder, exist_ok=True)
os.chdir(folder)
SEQUENCE = {(step, bucket): 3 * step + bucket for step in range(6) for bucket in range(3)}


def run(*arguments, code):
    done = subprocess.run([compare, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, (arguments, done)
    assert (code == 0) == ("identical" in done.stdout), done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    return done.stdout if code < 2 else done.stdout + done.stderr


def write_log(path, *arguments):
    subprocess.run([sample, path, *arguments], check=True, timeout=60)
    return read(path)


def read(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def write(path, lines):
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def steps(lines):
    return [line for line in lines if line["kind"] == "step"]


def changed(lines, change):
    lines = copy.deepcopy(lines)
    change(lines)
    write("changed.jsonl", lines)
    return lines


good = write_log("good.jsonl", "good", "4", "none", "sampled")
run("good.jsonl", "good.jsonl", code=0)

# Every call, with one bit of its digest flipped.
for (step, bucket), sequence in SEQUENCE.items():
    def flip(lines):
        call = steps(lines)[step]["calls"][bucket]
        call["digest"] = hex(int(call["digest"], 16) ^ 1 << random.randrange(64))
    changed(good, flip)
    out = run("good.jsonl", "changed.jsonl", "--jsonl", "out.jsonl", code=1)
    name = ["wte", "wpe", "head"][bucket]
    assert f"first in step {step}, bucket {bucket} '{name}', call {sequence}, all_reduce of 1000 float" in out, out
    line, = read("out.jsonl")
    first = line["first_difference"]
    assert (line["kind"], line["outcome"], line["differing"], line["calls"]) == ("comparison", "differ", 1, 18)
    assert (first["step"], first["bucket"], first["collective_seq_id"], first["name"]) == (step, bucket, sequence, name)
    assert bin(int(first["digest_a"], 16) ^ int(first["digest_b"], 16)).count("1") == 1
    assert [at["step"] for at in line["growth"]][0] == step

# The distance of sampled elements, computed here too.
def move(lines):
    for at, line in enumerate(steps(lines)[2:]):
        call = line["calls"][1]
        call["digest"] = "0x1"
        call["result_sample"] = [value * (1 + 2.0 ** -(10 - at)) for value in call["result_sample"]]
lines = changed(good, move)
run("good.jsonl", "changed.jsonl", "--jsonl", "out.jsonl", code=1)
growth = read("out.jsonl")[0]["growth"]
assert [at["step"] for at in growth] == [2, 3, 4, 5]
for at in growth:
    a = [value for call in steps(good)[at["step"]]["calls"] for value in call["result_sample"]]
    b = [value for call in steps(lines)[at["step"]]["calls"] for value in call["result_sample"]]
    assert at["basis"] == "samples" and at["elements"] == len(a) == 24
    relative = math.dist(a, b) / math.hypot(*a)
    cosine = math.fsum(x * y for x, y in zip(a, b)) / math.hypot(*a) / math.hypot(*b)
    assert math.isclose(at["relative"], relative, rel_tol=1e-12), (at, relative)
    assert abs(at["cosine_distance"] - (1 - cosine)) < 1e-15, (at, 1 - cosine)

# Other calls and missing steps.
def expect(change, text, code=1):
    changed(good, change)
    out = run("good.jsonl", "changed.jsonl", code=code)
    assert text in out, out
expect(lambda l: steps(l)[4]["calls"].pop(), "other calls first in step 4, bucket 2 'head', call 14: 3 calls in A, 2 in B")
expect(lambda l: steps(l)[1]["calls"][0].update(type="bfloat16"), "first in step 1, bucket 0 'wte', call 3: all_reduce of 1000 float in A")
expect(lambda l: l.remove(steps(l)[3]), "! steps 3 to 3 are missing")
expect(lambda l: l.remove(steps(l)[5]), "other calls first in step 5: only A has this step")
expect(lambda l: l.pop(), "! the log of rank 0 has no end", code=0)
expect(lambda l: steps(l)[3]["findings"].append({"check": "stale", "ranks": [2], "other_rank": None, "bucket": 1, "statistic": 1,
           "threshold": 0, "false_alarms_per_step": 0, "damage": "input", "advice": "skip", "source": None}),
       "other findings, or other numbers of ranks or calls, in 1 step, first in step 3")
expect(lambda l: steps(l)[3]["calls"][1].update(results_agree=False), "in 1 step, first in step 3")
expect(lambda l: steps(l)[3]["loss"]["by_rank"].__setitem__(2, 9), "in 1 step, first in step 3")
expect(lambda l: steps(l)[5].update(records_dropped=3), "! rank 0 dropped 3 records", code=2)
expect(lambda l: steps(l)[2]["loss"].update(mean=0.25), "loss, mean of ranks")
expect(lambda l: steps(l)[2]["loss"].update(mean="nan"), "undefined in one run in 1 step")

# Alarms, and names that would move the cursor of a terminal.
alarm = {"schema": 1, "kind": "alarm", "run": "good", "comm": "world", "writer": 0, "records_dropped": 0, "step": 3, "bucket": 1,
    "name": "\x1b[2Jwpe\u009b\n\u202e", "check": "result_differs", "damage": "broadcast", "ranks": [2], "statistic": 1,
    "threshold": 0, "false_alarms_per_step": 0, "advice": "resync", "source": 0}
expect(lambda l: l.insert(5, alarm), "alarm only in B: step 3, bucket 1 '?[2Jwpe???': result_differs: rank 2\n")
expect(lambda l: l.insert(5, dict(alarm, check="late")), "alarm only in B: step 3", code=0)

# Bad lines are named by their number.
def spoil(number, text):
    with open("good.jsonl", "rb") as file:
        all_lines = file.read().split(b"\n")
    all_lines[number - 1] = text
    with open("changed.jsonl", "wb") as file:
        file.write(b"\n".join(all_lines))
    return run("good.jsonl", "changed.jsonl", code=2)
assert "changed.jsonl:4: this line is not JSON" in spoil(4, b'{"schema":1,')
assert "changed.jsonl:3: this line is not JSON" in spoil(3, b'{"schema":1,"run":"\xff"}')
with open("good.jsonl", "rb") as file:
    third, fourth = file.read().split(b"\n")[2:4]
assert "changed.jsonl:3: this line is not JSON (a NUL" in spoil(3, third + bytes(16) + fourth)
assert "changed.jsonl:3: this line is no JSON object" in spoil(3, b"[]")
assert "changed.jsonl:2: this line has no member 'kind'" in spoil(2, b'{"schema":1,"run":"good"}')
assert "changed.jsonl:2: this line has no member 'loss'" in spoil(2, b'{"schema":1,"kind":"step","run":"good","step":1,"ranks":1}')
assert "changed.jsonl:2: this line has no member 'schema'" in spoil(2, b"{}")
assert "changed.jsonl:2: this line has schema 7" in spoil(2, b'{"schema":7}')
assert "changed.jsonl:2: this line has 'sort' as 'check', which is unknown" in spoil(2, json.dumps(dict(alarm, check="sort")).encode())

# Random bytes: an answer or a message, never a crash.
with open("good.jsonl", "rb") as file:
    data = file.read()
random.seed(4)
for _ in range(60):
    at = random.randrange(len(data))
    with open("changed.jsonl", "wb") as file:
        file.write(data[:at] + bytes([random.randrange(256)]) + data[at + 1:])
    done = subprocess.run([compare, "good.jsonl", "changed.jsonl", "--run-b", "good"], capture_output=True, timeout=60)
    assert done.returncode in (0, 1, 2), done

assert "'good.jsonl' is an input" in run("good.jsonl", "good.jsonl", "--jsonl", "good.jsonl", code=2)

# A file that ends within a line, as that of a killed writer.
with open("changed.jsonl", "wb") as file:
    file.write(data[:data.rindex(b'"kind":"step"') + 200])
out = run("good.jsonl", "changed.jsonl", code=1)
assert "! 'changed.jsonl': the last line is cut off" in out and "other calls first in step 5: only A has this step" in out, out

# Several runs in a file, and a run that was started again.
write_log("two.jsonl", "good", "4", "none", "sampled")
write_log("two.jsonl", "other one", "4", "7", "sampled", "append")
out = run("good.jsonl", "two.jsonl", code=2)
assert "'two.jsonl' has several runs: choose one with --run-b: 'good', 'other one'" in out, out
run("good.jsonl", "two.jsonl", "--run-b", "good", code=0)
out = run("two.jsonl", "two.jsonl", "--run-a", "good", "--run-b", "other one", code=1)
assert "first in step 2, bucket 1 'wpe', call 7" in out, out
assert "has no run 'none', only 'good', 'other one'" in run("good.jsonl", "two.jsonl", "--run-b", "none", code=2)
write_log("again.jsonl", "good", "4", "7", "sampled")
write_log("again.jsonl", "good", "4", "none", "sampled", "append")
assert "! it was started again at step 0" in run("good.jsonl", "again.jsonl", code=0)

# The files of all ranks: one that lies is named, one that lacks steps does no harm.
shutil.rmtree("ranks", ignore_errors=True)
os.mkdir("ranks")
subprocess.run([sample, "ranks", "good", "4", "none", "sampled", "all"], check=True, timeout=60)
run("good.jsonl", "ranks", code=0)
lines = read("ranks/rank0.jsonl")
lines = [line for line in lines if line["kind"] != "step" or line["step"] not in (1, 2)]
write("ranks/rank0.jsonl", lines)
run("good.jsonl", "ranks", code=0)
lines = read("ranks/rank2.jsonl")
steps(lines)[4]["calls"][0]["digest"] = "0x1"
write("ranks/rank2.jsonl", lines)
out = run("good.jsonl", "ranks", code=1)
assert "! rank 2 tells other things of step 4 than rank 0" in out, out
os.rename("ranks/rank3.jsonl", "ranks/rank3.txt")
assert "written by ranks 0, 1 and 2" in run("good.jsonl", "ranks", code=1)

# Two communicators of a run, one of which parts.
def doubled(change):
    both = copy.deepcopy(good)
    for line in copy.deepcopy(good):
        line["comm"] = "tensor"
        change(line)
        both.append(line)
    write("changed.jsonl", both)
doubled(lambda line: None)
run("changed.jsonl", "changed.jsonl", code=0)
assert "only B has a communicator 'tensor'" in subprocess.run([compare, "good.jsonl", "changed.jsonl"], capture_output=True, text=True).stdout
shutil.copy("changed.jsonl", "both.jsonl")
doubled(lambda line: line["kind"] == "step" and line["step"] == 5 and line["calls"][2].update(digest="0x2"))
out = subprocess.run([compare, "both.jsonl", "changed.jsonl"], capture_output=True, text=True)
assert out.returncode == 1 and "communicator 'tensor': the runs differ: first in step 5, bucket 2" in out.stdout, out
assert "communicator 'world': identical" in out.stdout, out
print("as it should be")
