# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""Checks Chrome traces, alone and joined: the members that each kind of event needs, slices that nest on
their thread, begins with ends, arrows whose two ends lie in slices, names for all processes, and process numbers that no
process id or device has."""
import collections
import json
from decimal import Decimal

FIRST_PROCESS = 10_000_000
NEEDED = {
    "X": {"name", "pid", "tid", "ts", "dur"},
    "b": {"name", "pid", "tid", "ts", "id", "cat"},
    "e": {"name", "pid", "tid", "ts", "id", "cat"},
    "C": {"name", "pid", "ts", "args"},
    "i": {"name", "pid", "tid", "ts", "s"},
    "s": {"name", "pid", "tid", "ts", "id", "cat"},
    "f": {"name", "pid", "tid", "ts", "id", "cat", "bp"},
    "M": {"name", "pid", "args"},
}
CALLS = {"nccl:all_reduce": "allreduce", "nccl:_reduce_scatter_base": "_reduce_scatter_base",
         "nccl:_all_gather_base": "_allgather_base", "nccl:all_to_all": "all_to_all", "nccl:broadcast": "broadcast"}
CALL_ARGUMENTS = {"Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype", "Process Group Name",
                  "Process Group Ranks", "Rank", "Seq", "step", "bucket", "nonfinite", "agree"}


def refuse(text):
    raise ValueError(f"not JSON: {text}")


def unique(pairs):
    members = dict(pairs)
    if len(members) != len(pairs):
        refuse(f"a member twice in {pairs}")
    return members


def load(text):
    return json.loads(text, parse_float=Decimal, parse_constant=refuse, object_pairs_hook=unique)


def check_events(events):
    """The findings."""
    findings = []
    slices = collections.defaultdict(list)
    arrows = collections.defaultdict(list)
    asynchronous = collections.defaultdict(list)
    named = set()
    sorted_processes = set()
    for event in events:
        kind = event.get("ph")
        missing = NEEDED.get(kind, {"a known ph"}) - event.keys()
        if missing:
            findings.append(f"lacks {sorted(missing)}: {event}")
            continue
        if event["pid"] < FIRST_PROCESS:
            findings.append(f"a process number that may be a device or a process: {event}")
        if "ts" in event and event["ts"] < 0 or "dur" in event and event["dur"] < 0:
            findings.append(f"a negative time: {event}")
        track = event["pid"], event.get("tid")
        if kind == "X":
            slices[track].append((event["ts"], event["ts"] + event["dur"]))
        elif kind in "be":
            asynchronous[event["cat"], event["id"], event["name"]].append(event)
        elif kind in "sf":
            arrows[event["cat"], event["id"], event["name"]].append(event)
            if kind == "f" and event["bp"] != "e":
                findings.append(f"an arrow's end that does not bind to the slice around it: {event}")
        elif kind == "i" and event["s"] not in "gpt":
            findings.append(f"no scope: {event}")
        elif kind == "C":
            for value in event["args"].values():
                if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
                    findings.append(f"no number: {event}")
        elif kind == "M":
            if event["name"] == "process_name":
                named.add(event["pid"])
            if event["name"] == "process_sort_index":
                sorted_processes.add(event["pid"])
        if kind in "Xb" and event["name"].startswith("nccl:"):
            args = event.get("args", {})
            if CALL_ARGUMENTS - args.keys():
                findings.append(f"lacks the arguments {sorted(CALL_ARGUMENTS - args.keys())}: {event}")
            elif args["Collective name"] != CALLS.get(event["name"]) or not 0 <= args["Rank"] < args["Group size"]:
                findings.append(f"does not agree with its arguments: {event}")
    for track, found in slices.items():
        around = []
        for begin, end in sorted(found, key=lambda each: (each[0], -each[1])):
            while around and around[-1] <= begin:
                around.pop()
            if around and end > around[-1]:
                findings.append(f"slices of {track} overlap at {begin}")
            around.append(end)
    for key, found in asynchronous.items():
        if [each["ph"] for each in found] != ["b", "e"] or found[0]["ts"] > found[1]["ts"]:
            findings.append(f"not one begin and then one end: {key}")
        elif (found[0]["pid"], found[0]["tid"]) != (found[1]["pid"], found[1]["tid"]):
            findings.append(f"begins on one track and ends on another: {key}")
    for key, found in arrows.items():
        if sorted(each["ph"] for each in found) != ["f", "s"]:
            findings.append(f"not one begin and one end of an arrow: {key}")
            continue
        begin, end = sorted(found, key=lambda each: each["ph"], reverse=True)
        if begin["ts"] > end["ts"]:
            findings.append(f"an arrow back in time: {key}")
        for each in found:
            if not any(a <= each["ts"] < b for a, b in slices[each["pid"], each["tid"]]):
                findings.append(f"an arrow that is in no slice: {each}")
    processes = {event["pid"] for event in events if "pid" in event}
    for process in sorted(processes - named):
        findings.append(f"process {process} has no name")
    if processes - sorted_processes:
        findings.append(f"processes without a place in the order: {sorted(processes - sorted_processes)}")
    return findings


def check(trace):
    if list(trace)[-1] != "traceEvents" or not {"displayTimeUnit", "baseTimeNanoseconds", "otherData"} < trace.keys():
        return [f"other members: {list(trace)}"]
    if not {"schema", "run", "job", "communicator", "host", "library", "started_ns", "rank"} <= trace["otherData"].keys():
        return [f"otherData lacks members: {trace['otherData']}"]
    if not 0 <= int(trace["otherData"]["started_ns"]) - trace["baseTimeNanoseconds"] < 7_889_238_000_000_000:
        return ["its zero is not the quarter in which it began"]
    return check_events(trace["traceEvents"])
