# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""Runs examples/studies/guarded_all_gather with many delays: guarded must have the synchronised losses and no hazard, the
synchronised run must not depend on the delays, the unguarded one must be wrong and reported, each time.

delay_seeds.py PROGRAM SCRATCH_FILE COUNT [ARGUMENT...]    seeds 1 to COUNT; by hand with 100
"""
import subprocess
import sys

from json_lines import summaries

NAMES = {"mode", "final_loss", "loss_digest", "hazards_reported", "seconds_per_step"}
MODES = ["unguarded", "guarded", "synchronised"]


program, scratch, count, arguments = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]
right, lost = set(), 0
for seed in range(1, count + 1):
    subprocess.run([program, "--delay-seed", str(seed), "--jsonl", scratch] + arguments, check=True,
                   stdout=subprocess.DEVNULL, timeout=120)
    lines = summaries(scratch, NAMES)
    assert [line["mode"] for line in lines] == MODES, lines
    for line in lines:
        assert len(line["loss_digest"]) == 16 and int(line["loss_digest"], 16) > 0, line
        assert line["seconds_per_step"] > 0, line
    unguarded, guarded, synchronised = lines
    assert guarded["loss_digest"] == synchronised["loss_digest"], (seed, lines)
    assert 0 < guarded["final_loss"] == synchronised["final_loss"] < 2.4, (seed, lines)
    assert guarded["hazards_reported"] == synchronised["hazards_reported"] == 0, (seed, lines)
    assert unguarded["loss_digest"] != synchronised["loss_digest"], (seed, lines)
    assert unguarded["hazards_reported"] > 0, (seed, lines)
    right.add(synchronised["loss_digest"])
    lost += unguarded["final_loss"] is None
assert len(right) == 1, right
print("%d seeds: as it should be; the unguarded loss ended as NaN in %d, wrong in the others" % (count, lost))
