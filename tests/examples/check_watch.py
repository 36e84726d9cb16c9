# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""check_watch.py WATCH LOG_SAMPLE FOLDER

collprobe_watch beside writers that write slowly, in parts, or what would move a terminal's cursor.
"""
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

watch, sample, folder = sys.argv[1:]
os.makedirs(folder, exist_ok=True)
os.chdir(folder)
for name in os.listdir("."):
    if name.startswith("watch_"):
        os.remove(name)


def line(kind, run="run", writer=0, **members):
    return json.dumps({"schema": 1, "kind": kind, "run": run, "comm": "world", "writer": writer,
        "time_us": int(time.time() * 1e6), "records_dropped": 0, **members}) + "\n"


def step(number, named=(), ranks=2, **more):
    part = {"mean": 0.5, "std": 0, "std_sample": 0, "range": 0, "cv": 0.25, "by_rank": [0.25, 0.75]}
    return line("step", step=number, ranks=ranks, loss=part, grad_norm=part, noise_scale=0, cosine={"mean_pairwise": 0.125,
        "pooled": 0, "predicted": 0, "leave_one_out": [0.5, "nan"]}, findings=[{"check": "loss", "ranks": [rank],
        "other_rank": None, "bucket": None, "exact": False, "statistic": 1, "threshold": 1, "index": None,
        "false_alarms_per_step": 1e-4, "damage": "input", "advice": "recheck", "source": None} for rank in named], **more)


def alarm(number, writer=0, name="wte", **more):
    return line("alarm", writer=writer, step=number, bucket=0, name=name, check="stale", damage="input", ranks=[1],
        statistic=0, threshold=0, false_alarms_per_step=0, advice="skip", source=None, **more)


def end(writer=0, **more):
    return line("end", writer=writer, steps=1, suspicious_steps=0, alarms=0, verdict="It is over.", **more)


def write(path, text, how="a"):
    with open(path, how, encoding="utf-8") as file:
        file.write(text)


def once(*paths, code=0):
    done = subprocess.run([watch, "--once", *paths], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done
    assert "\x1b" not in done.stdout
    return done.stdout


class terminal:
    """The watcher in a terminal of its own."""

    def __init__(self, *arguments):
        self.all = b""
        self.process, self.file = pty.fork()
        if self.process == 0:
            os.execv(watch, [watch, *arguments])

    def until(self, text, seconds=60):
        """What was drawn up to and with the text."""
        deadline = time.time() + seconds
        while text not in self.all:
            assert time.time() < deadline, (text, self.all[-2000:])
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
        return os.waitstatus_to_exitcode(status)


# A real run that is written slowly: the watcher waits for the file, follows it and ends with it.
subprocess.run([sample, "watch_whole.jsonl", "slow", "4"], check=True, timeout=60)
whole = open("watch_whole.jsonl", encoding="utf-8").readlines()
follower = subprocess.Popen(
    [watch, "watch_slow.jsonl", "--timeout", "60"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
time.sleep(0.3)
out = ""
for count, awaited in (2, ": step 0,"), (2, ": step 2,"):
    write("watch_slow.jsonl", "".join(whole[:count]))
    del whole[:count]
    while awaited not in out:
        shown = follower.stdout.readline()
        assert shown, out
        out += shown
write("watch_slow.jsonl", "".join(whole))
rest, error = follower.communicate(timeout=60)
out += rest
assert follower.returncode == 0 and error == "", (out, error)
assert "\x1b" not in out
assert len(set(re.findall(r"^slow \(4 ranks\): step (\d)", out, re.M))) >= 2, out
assert out.endswith("ended: Nothing was found in 6 steps of 4 ranks.\n"), out

# In a terminal the table is drawn again and again, and the cursor comes back.
shown = terminal("watch_screen.jsonl")
shown.until(b"waiting for 'watch_screen.jsonl'")
write("watch_screen.jsonl", step(1)[:50])
write("watch_screen.jsonl", step(1)[50:] + step(2)[:80])  # a line comes in parts
shown.until(b": step 1,")
assert b"step 2" not in shown.all and b"not read" not in shown.all
write("watch_screen.jsonl", step(2)[80:])
shown.until(b": step 2,")
assert shown.all.startswith(b"\x1b[?25l\x1b[2J\x1b[H")
write("watch_screen.jsonl", end())
assert shown.end() == 0
assert b"ended: It is over." in shown.all and shown.all.endswith(b"\x1b[J\x1b[?25h"), shown.all[-200:]

# Ctrl-C.
write("watch_open.jsonl", step(1))
shown = terminal("watch_open.jsonl")
shown.until(b": step 1,")
os.kill(shown.process, signal.SIGINT)
assert shown.end() == 130 and shown.all.endswith(b"\x1b[?25h")

# Foreign text cannot reach the terminal's controls.
evil = "\x1b[31m\x07\x9b2J\r\n\u202e\x00red"
write("watch_evil.jsonl", step(1).replace('"run": "run"', '"run": ' + json.dumps(evil)))
write("watch_evil.jsonl", alarm(1, name=evil, ).replace('"run": "run"', '"run": ' + json.dumps(evil)))
write("watch_evil.jsonl", end().replace('"run": "run"', '"run": ' + json.dumps(evil)).replace("over", "\\u001b]0;title\\u0007"))
out = once("watch_evil.jsonl")
assert "?[31m???2J" not in out and out.startswith("?[31m??2J????red (2 ranks): step 1"), out
assert "bucket 0 '?[31m??2J????red': rank 1 sent the same data as in the last such call (stale)" in out and "It is ?]0;title?." in out
assert all(character >= " " or character == "\n" for character in out)
shown = terminal("watch_evil.jsonl")
assert shown.end() == 0
rest = re.sub(rb"\x1b\[(H|K|J|2J|\?25[lh])", b"", shown.all)
assert not re.search(rb"[\x00-\x09\x0b\x0c\x0e-\x1f\x7f]|\xc2[\x80-\x9f]", rest), rest

# The last five alarms, how often a rank was named, and two writers of one run.
for writer in range(2):
    text = line("run", writer=writer, comm_id="", global_rank=writer, ranks=2, started_us=1)
    for number in range(10):
        text += step(number, named=[1, 1] if number > 5 else []).replace('"writer": 0', f'"writer": {writer}')
        text += alarm(number, writer=writer)
    write(f"watch_rank{writer}.jsonl", text)
out = once("watch_rank0.jsonl", "watch_rank1.jsonl")
assert out.count("alarm: ") == 5 and "alarm: step 9, bucket 0 'wte': rank 1 sent the same data as in the last such call (stale)" in out, out
assert "step 4," not in out and ": step 9, alarms 10, loss 0.5, grad norm 0.5 (std / mean 0.25), cosine 0.125, records dropped 0\n" in out, out
assert re.search(r"^0 +0.25 +0.25 +0.5 +0$", out, re.M) and re.search(r"^1 +0.75 +0.75 +- +4$", out, re.M), out
assert re.search(r"^last line [0-9.]+ s ago$", out, re.M), out
assert "\nrank " not in once(*[write("watch_many.jsonl", step(0, ranks=33)) or "watch_many.jsonl"])

# What an alarm of a call or of a value says beside the call.
def found(check, **more):
    return line("alarm", step=30, bucket=None, check=check, damage="unknown", statistic=1, threshold=0,
        false_alarms_per_step=0, advice="recheck", source=None, **more)


write("watch_found.jsonl", step(30)
    + found("call_missing", ranks=[], since=30, steps_before=28,
        other_call={"call": "all_reduce", "type": "float", "count": 1024, "name": "head", "line": "train.cpp:8"})
    + found("value_differs", ranks=[1], name="lr", value=0.5, expected=0.25, since=12)
    + found("zeros", ranks=[1], since=14))
out = once("watch_found.jsonl")
assert "since step 30 without all_reduce 'head' (1,024 elements of float, train.cpp:8), made in all 28 steps before" in out, out
assert "'lr': rank 1 held another value" in out and ": 0.5, most ranks have 0.25, since step 12" in out, out
assert "sent zeros only, where others did not (zeros): since step 14" in out, out

# A run that starts again in the same file, and a line that is none.
shown = terminal("watch_again.jsonl")
write("watch_again.jsonl", line("run", comm_id="", global_rank=0, ranks=2, started_us=1) + step(7) + alarm(7))
shown.until(b"step 7, alarms 1, loss 0.5, grad norm 0.5")
write("watch_again.jsonl", line("run", comm_id="", global_rank=0, ranks=2, started_us=1) + step(3), "w")
shown.until(b"step 3, alarms 0, loss 0.5, grad norm 0.5")
write("watch_again.jsonl", "nonsense\n" + step(4))
shown.until(b"not read: watch_again.jsonl:3: this line is not JSON")
shown.until(b": step 4,")
write("watch_again.jsonl", end())
assert shown.end() == 0

assert once("watch_none.jsonl", code=2) == "waiting for 'watch_none.jsonl'\n"
done = subprocess.run([watch, "."], capture_output=True, text=True, timeout=60)
assert done.returncode == 2 and "'.': Is a directory" in done.stderr, done
print("as it should be")
