# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""The lines of a run in the dialect of NCCL Inspector v4.0: each line has `header` (communicator, rank) and `metadata`
(host, process, time), and a call has a line of its own, with `coll_perf` if its time is known. Our numbers are in a
third object, `coll_values`, `step`, `alarm` or `inspection`."""
from __future__ import annotations

import hashlib
import json
from typing import Dict, Iterable, Iterator, Optional, Tuple

from .lines import BadLine, Entry, Line, Stream, count, elements, objects, text
from .trace import interval, times_of

_bytes = {"int8": 1, "uint8": 1, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8, "half": 2, "bfloat16": 2, "float": 4,
          "double": 8, "float8_e4m3": 1, "float8_e5m2": 1}
_names = {"all_reduce": "AllReduce", "reduce_scatter": "ReduceScatter", "all_gather": "AllGather",
          "all_to_all": "AlltoAll", "broadcast": "Broadcast"}  # as NCCL names its functions
_head_members = ("schema", "kind", "run", "comm", "writer", "time_us", "records_dropped")


def inspector_lines(entries: Iterable[Entry]) -> Iterator[str]:
    heads: Dict[Tuple[Stream, Optional[int]], Line] = {}
    for entry in entries:
        line = entry.line
        key = (entry.stream, entry.writer)
        if entry.kind == "run":
            heads[key] = line
        elif entry.kind in ("step", "alarm", "inspection"):
            run = heads.get(key, {})
            try:
                head = _head(entry, run)
                calls = _calls(line, run, entry.writer) if entry.kind == "step" else []
            except BadLine:
                continue
            for call in calls:
                yield _written({**head, **call})
            content = {name: value for name, value in line.items() if name != "calls"}
            yield _written({**head, entry.kind: content})


def _written(line: Line) -> str:
    return json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n"


def _head(entry: Entry, run: Line) -> Line:
    """The beginning of each line."""
    line = entry.line
    communicator = text(line, "comm")
    identity = text(run, "comm_id")
    if not identity:
        name = f"{text(run, 'job')}/{communicator}".encode("utf-8", "replace")
        identity = f"0x{hashlib.blake2b(name, digest_size=8).hexdigest()}"
    ranks = run.get("ranks", line.get("ranks") if entry.kind == "step" else None)
    return {
        "header": {"id": identity, "comm_name": communicator or "unknown", "rank": entry.writer, "n_ranks": ranks,
                   "nnodes": run.get("nodes") or 1},
        "metadata": {"inspector_output_format_version": "v4.0", "git_rev": text(run, "version"),
                     "rec_mechanism": "collprobe", "dump_timestamp_us": count(line, "time_us"),
                     "hostname": text(run, "host"), "pid": run.get("pid", 0)},
        "schema": line["schema"], "run": entry.stream.run, "records_dropped": count(line, "records_dropped")}


def _calls(line: Line, run: Line, writer: Optional[int]) -> Iterable[Line]:
    ranks = max(count(line, "ranks"), 1)
    found = []
    for call in objects(line, "calls"):
        performance = _performance(call, ranks, writer, bool(text(run, "device")))
        found.append({**({"coll_perf": performance} if performance else {}),
                      "coll_values": {"step": line["step"], **call}})
    return found


def _performance(call: Line, ranks: int, writer: Optional[int], is_gpu: bool) -> Optional[Line]:
    """Bytes as NCCL counts them (what a rank sends to an all-gather, and what it gets of a reduce-scatter), the time on
    the writer's rank, bandwidths as nccl-tests defines them."""
    times = times_of(call, ranks)
    if writer is None or not 0 <= writer < len(times):
        return None
    kind = text(call, "call")
    counted = "input_sizes" if kind in ("all_gather", "all_to_all") else "output_sizes"
    size = elements(call, counted) * _bytes.get(text(call, "type"), 1)
    traffic = size * ranks if kind in ("all_gather", "reduce_scatter") else size
    share = (ranks - 1) / ranks
    factor = 2 * share if kind == "all_reduce" else share if kind in ("all_gather", "reduce_scatter", "all_to_all") else 1
    ns = interval(*times[writer])
    return {
        "coll": _names.get(kind, "Unknown"), "coll_sn": call.get("collective_seq_id"), "coll_msg_size_bytes": size,
        "coll_exec_time_us": int(ns / 1000 + 0.5) if ns > 0 else 0,
        "coll_timing_source": "kernel_gpu" if is_gpu else "collective_cpu",
        "coll_algobw_gbs": traffic / ns if ns > 0 else 0, "coll_busbw_gbs": traffic / ns * factor if ns > 0 else 0}
