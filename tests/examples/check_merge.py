# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""check_merge.py MERGE RANK_LOG_SAMPLE COMPARE WATCH FOLDER

collprobe_merge: its files as other programs read them, files that are cut anywhere, and files that grow.
"""
import atexit
import html
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import time

merge, sample, launcher, folder = sys.argv[1:]
compare, page, watch = [(sys.executable, "-B", launcher, name) for name in ("compare", "page", "watch")]
shutil.rmtree(folder, ignore_errors=True)
os.makedirs(folder)
os.chdir(folder)


def run(*command, code=0):
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == code, (command, done)
    return done.stdout + done.stderr


def lines(path):
    return [json.loads(line) for line in open(path, encoding="utf-8")]


def made(name, *words):
    run(sample, name, *words)
    return name


# Two runs of the same program, whose communicators have other keys: compared, and shown.
made("a", "every=4")
made("b", "every=4")
made("c", "every=4", "flipped")
for name, code in ("a", 0), ("b", 0), ("c", 1):
    run(merge, name, "--jsonl", name + ".jsonl", code=code)
assert lines("a.jsonl")[0]["comm_id"] != lines("b.jsonl")[0]["comm_id"]
assert "\nidentical: 15 steps, 60 calls with equal digests, 4 ranks\n" in run(*compare, "a.jsonl", "b.jsonl")
text = run(*compare, "a.jsonl", "c.jsonl", code=1)
assert "only in B: step 40, bucket 1 'all_reduce#1 1200 bfloat16': result_differs: rank 2" in text, text
for name in "a", "c":  # a page of a run without an end has the verdict of the end
    *rest, end = open(name + ".jsonl", encoding="utf-8")
    open("endless.jsonl", "w", encoding="utf-8").writelines(rest)
    run(*page, "endless.jsonl", "-o", "endless.html")
    assert html.escape(json.loads(end)["verdict"]) in open("endless.html", encoding="utf-8").read(), end
made("d", "every=4", "seed=2")
run(merge, "d", "--jsonl", "d.jsonl")
assert "first in step 0, bucket 0 'all_reduce#0 1200 float', call 0" in run(*compare, "a.jsonl", "d.jsonl", code=1)
text = run(*watch, "--once", "c.jsonl")
assert text.startswith("sample/comm0 (4 ranks): step 56, ") and "alarm: step 40, bucket 1" in text, text
read = lines("c.jsonl")
assert [line["kind"] for line in read] == ["run"] + ["step"] * 11 + ["alarm"] + ["step"] * 4 + ["end"], read
steps = [line for line in read if line["kind"] == "step"]
assert [step["step"] for step in steps] == list(range(0, 60, 4))
assert [call["collective_seq_id"] for call in steps[2]["calls"]] == [32, 33, 34, 35]
assert steps[2]["unread_calls"] == 12 and "unread_calls" not in steps[0]
assert read[0]["settings"] == {"COLLPROBE_EVERY": "4"} and read[0]["nodes"] == 2 and read[0]["job"] == "7"
assert read[1]["time_us"] >= 1_700_000_000_000_000

# The lines of a run, judged again by other options, are those of the files judged by them; only its steps are there.
made("large", "large")
for number, options in enumerate([[], ["--tolerance", "100"], ["--groups", "0,0,1,0"], ["--false-alarms-per-run", "0"],
        ["--false-alarms", "0.2", "--lateness-floor", "1000"]]):
    code = 1 if number in (0, 4) else 0
    run(merge, "large", "--jsonl", "apart.jsonl", *options, code=code)
    for first in ("large.jsonl", "apart.jsonl") if number else ("apart.jsonl",):
        text = run(merge, "--again", first, "--jsonl", "again.jsonl", *options, code=code)
        assert text.startswith("run 'sample', communicator 'comm0': 4 ranks, 60 steps judged again\n"), text
        assert lines("again.jsonl") == lines("apart.jsonl"), (first, options)
    if number == 0:
        os.rename("apart.jsonl", "large.jsonl")
assert "is an input" in run(merge, "--again", "large.jsonl", "--jsonl", "large.jsonl", code=2)
assert "one file of JSON lines" in run(merge, "--again", "large.jsonl", "again.jsonl", code=2)
assert "no line of a step" in run(merge, "--again", "large/a-pid1001.jsonl", code=2)
old = open("large.jsonl", encoding="utf-8").read().replace('"gradient":true,', "")
open("old.jsonl", "w", encoding="utf-8").write(old)
assert "old.jsonl:2: this line cannot be judged: " in (text := run(merge, "--again", "old.jsonl", code=2)), text
assert "an older version wrote it" in text, text


def written(path, all_lines):
    open(path, "w", encoding="utf-8").writelines(json.dumps(line) + "\n" for line in all_lines)
    return path


def without_times(value):
    if isinstance(value, list):
        return [without_times(each) for each in value]
    if isinstance(value, dict):
        return {name: without_times(each) for name, each in value.items() if name not in ("lateness", "intervals")}
    return value


# Runs in one file are judged apart, also if only one has times.
def steps_again(path):
    run(merge, "--again", path, "--jsonl", "again.jsonl", code=1)
    return [line | {"time_us": 0} for line in lines("again.jsonl") if line["kind"] == "step"] # no line's is before others'


large = lines("large.jsonl")
large[55]["grad_norm"]["by_rank"][1] *= 1e6  # more numbers that are judged make its limit wider
written("large.jsonl", large)
timeless = steps_again(written("timeless.jsonl", without_times(large)))
assert timeless != without_times(steps_again("large.jsonl"))
assert steps_again(written("both.jsonl", without_times(large) + large)) == timeless + steps_again("large.jsonl")

# Of a step that is compared with no other an alarm is told once for all calls, but for each of the program's own checks.
step = next(line for line in large if line["kind"] == "step" and not line["findings"])
step |= {"repeats": False, "findings": [{"check": "of_part", "ranks": [2], "bucket": bucket, "statistic": 2, "threshold": 1,
    "own_check": {"name": name}} for bucket, name in ((0, "clip"), (1, "clip"), (1, "sign"))]}
steps_again(written("own.jsonl", [large[0], step]))
alarms = [line for line in lines("again.jsonl") if line["kind"] == "alarm"]
assert [line["own_check"]["name"] for line in alarms] == ["clip", "sign"] and "other_call" not in alarms[0], alarms

# A file for each communicator; the folder that holds them can be read again. Two have the same name.
made("groups", "groups", "flipped")
outs = ["--jsonl", "groups/merged.jsonl", "--html", "page.html", "--prometheus", "all.prom", "--trace", "all.json"]
for again in range(2):
    text = run(merge, "groups", *outs, code=1)
    assert "!" not in text, text
names = ["comm0", "half.0", "half.2"]
assert sorted(path.name for path in pathlib.Path("groups").glob("merged*")) == [f"merged.{name}.jsonl" for name in names]
for name in names:
    assert os.path.getsize(f"page.{name}.html") > 1000 and os.path.getsize(f"all.{name}.prom") > 1000
    assert json.load(open(f"all.{name}.json", encoding="utf-8"))["traceEvents"]
key = next(line["comm_id"] for line in lines("groups/merged.half.2.jsonl"))
text = run(merge, "groups", "--comm", key, "--jsonl", "half.jsonl")
assert "2 ranks, 60 steps judged" in text and "comm0" not in text and os.path.exists("half.jsonl"), text
text = run(merge, "groups", "--jsonl", "/nowhere/all.jsonl", code=2)
assert "cannot" in text and "nowhere" in text, text
text = run(merge, *[str(path) for path in pathlib.Path("a").glob("*")], "--html", "a/a-pid1000.jsonl", code=2)
assert "is an input" in text, text

# What cannot be: a rank that two processes write, a line that is none, a message of another length.
made("twice")
copy = open("twice/a-pid1001.jsonl", encoding="utf-8").read()
open("twice/other.jsonl", "w", encoding="utf-8").write(copy.replace('"pid":1001', '"pid":99'))
assert "this line is of a rank that process 1001 on 'a' writes, too" in run(merge, "twice", code=2)
made("bad")
good = open("bad/a-pid1001.jsonl", encoding="utf-8").read().split("\n")
for wrong, why in [("{\"schema\":1,", "is not JSON"), ("[]", "is no JSON object"), (good[5].replace('"schema":1', '"schema":9'), "schema 9"),
        (good[5].replace('"message":"', '"message":"AAAA'), "'message' of another length"),
        (re.sub('"message":".', '"message":"-', good[5]), "no base64"),
        (good[5].replace('"writer":1', '"writer":7'), "has no line 'comm' before"),
        (good[5].replace('"collective_seq_id"', '"sequence"'), "no member 'collective_seq_id'")]:
    assert wrong != good[5]
    open("bad/a-pid1001.jsonl", "w", encoding="utf-8").write("\n".join(good[:5] + [wrong] + good[6:]))
    text = run(merge, "bad", code=2)
    assert "bad/a-pid1001.jsonl:6: this line " in text and why in text, (why, text)

# Killed at any time: files end anywhere, and everything before is judged.
made("whole", "steps=30", "count=256")
whole = {path.name: path.read_bytes() for path in pathlib.Path("whole").glob("*")}
os.makedirs("killed")
chance = random.Random(7)
for turn in range(20):
    for name, content in whole.items():
        pathlib.Path("killed", name).write_bytes(content[:chance.randrange(len(content) // 3, len(content))])
    done = subprocess.run([merge, "killed", "--jsonl", "killed.jsonl"], capture_output=True, text=True, timeout=60)
    # A rank whose file ends more than 10 s before the others' has stopped.
    assert done.returncode in (0, 1) and not done.stderr, done
    assert done.returncode == (1 if "wrote nothing after call" in done.stdout else 0), done
    assert "alarm" not in done.stdout and "mismatch" not in done.stdout, done
    assert lines("killed.jsonl")[-1]["kind"] == "end"


class follower:
    def __init__(self, *arguments):
        self.process = subprocess.Popen([merge, "--follow", *arguments], stdout=subprocess.PIPE, text=True)
        atexit.register(self.process.kill)

    def end(self, code):
        out = self.process.communicate(timeout=60)[0]
        assert self.process.returncode == code, (self.process.returncode, out)
        return out


def await_text(path, text):
    while not os.path.exists(path) or text not in open(path, encoding="utf-8").read():
        time.sleep(0.05)


# Beside a program that runs: the alarm comes while it runs, and the end when all ranks have ended.
made("ran", "flipped")
os.makedirs("live")
live = follower("live", "--jsonl", "live.jsonl")
ran = {path.name: path.read_text(encoding="utf-8") for path in pathlib.Path("ran").glob("*")}
middle = {name: text.index("\n", text.index('"step":50,')) + 1 for name, text in ran.items()}
for name, text in ran.items():
    pathlib.Path("live", name).write_text(text[:middle[name]], encoding="utf-8")
first = live.process.stdout.readline()
assert first.startswith("communicator 'comm0': alarm: step 40, bucket 1 'all_reduce#1 1200 bfloat16': rank 2 held other bits of a result than the other ranks (result_differs)"), first
await_text("live.jsonl", '"kind":"step"')  # once a second
for name, text in ran.items():
    with open(os.path.join("live", name), "a", encoding="utf-8") as file:
        file.write(text[middle[name]:])
text = live.end(1)
assert "60 steps judged (0 to 59)" in text and lines("live.jsonl")[-1]["kind"] == "end", text

# A program that hangs or was killed has no end.
made("hangs", "unended")
assert "60 steps judged" in follower("hangs", "--timeout", "0.5").end(0)
stopped = follower("hangs", "--jsonl", "stopped.jsonl")
await_text("stopped.jsonl", '"step":58,')
stopped.process.send_signal(signal.SIGINT)
assert "60 steps judged" in stopped.end(0)

# A step is judged soon, although the next that is looked at is far away.
os.makedirs("sparse")
made("all", "unended", "nan", "steps=41")
for path in pathlib.Path("all").glob("*"):
    shutil.copy(path, "sparse")
waits = follower("sparse")
for path in pathlib.Path("sparse").glob("*"):  # the trainer has made step 40, and is in 41 now
    with open(path, "a", encoding="utf-8") as file:
        last = json.loads(path.read_text(encoding="utf-8").strip().split("\n")[-1])
        assert last["kind"] == "coverage"
        file.write(json.dumps({**last, "step": 41}, separators=(",", ":")) + "\n")
assert "alarm: step 40, bucket 1" in waits.process.stdout.readline()
waits.process.send_signal(signal.SIGTERM)
waits.end(1)
