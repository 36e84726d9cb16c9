# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the JSON lines of examples/studies/quantised_training strictly: the bytes are those of the formulas, and the
verdicts those that the formats deserve.

check_quantised_training.py STEPS SEEDS FILE PICTURE    an SVG file
check_quantised_training.py 1 SEEDS FILE FOLDER         of --dump: whose averages are alike on all ranks
"""
import glob
import os
import pathlib
import sys
from xml.dom import minidom

from json_lines import summaries
from recompute import load

NAMES = {"format", "block", "rounding", "feedback", "rotate", "defects", "seed", "test_accuracy",
         "sqnr_db", "aggregate_sqnr_db", "exact_sqnr_db", "coherence", "noise_ratio", "verdict", "flagged_steps",
         "first_flagged", "wire_bytes", "bytes_ratio", "weights_agree"}
VERDICTS = ["corrupt", "non_finite_hidden", "biased", "harmful", "degenerate_blocks", "visible", "negligible"]
RANKS, NODES, LOCALS = 8, 2, 4


def wire_bytes(parameters, block, within, across):
    """What a rank sends in an all-reduce of one piece: codes of `within` and `across` bits, scales of two bytes."""
    blocks = -(-parameters // (RANKS * block))  # of a slice

    def message(count, bits):
        return -(-count * block * bits // 8 // 16) * 16 + -(-2 * count // 16) * 16
    in_node = (LOCALS - 1) * message(NODES * blocks, within)
    results = (LOCALS - 1) * NODES * message(blocks, across)
    return in_node + 2 * (NODES - 1) * message(blocks, across) + results


def check_line(line, parameters):
    assert 0 <= line["test_accuracy"] <= 1 and line["weights_agree"], line
    form, block = line["format"], line["block"]
    if form == "fp32":
        assert line["verdict"] == "unknown" and line["bytes_ratio"] == 1 and line["exact_sqnr_db"] > 130, line
        return
    assert line["verdict"] in VERDICTS and (line["first_flagged"] is None) == (line["flagged_steps"] == 0), line
    if form == "deepspeed":
        return
    bits = {"int8": (8, 8), "int8_int4": (8, 4), "int4": (4, 4)}[form]
    assert line["wire_bytes"] == wire_bytes(parameters, block, *bits), line
    plain = (RANKS - 1) * (4 * parameters // RANKS) * 2
    assert abs(line["bytes_ratio"] - line["wire_bytes"] / plain) < 1e-12, (line, plain)
    # 128 bins or more: the deviation of an energy is an eighth, or 0.5 dB.
    assert abs(line["aggregate_sqnr_db"] - line["exact_sqnr_db"]) < 2, line
    if form == "int8" and block <= 128:
        assert line["verdict"] == "negligible" and line["noise_ratio"] < 1e-3, line
    if form == "int4" and block == 1024 and line["rounding"] == "nearest" and not line["rotate"]:
        assert line["verdict"] in ("harmful", "biased") and line["first_flagged"] == 0, line
        assert line["noise_ratio"] > 0.1, line


def check_deepspeed(lines):
    by = {line["defects"]: line for line in lines if line["format"] == "deepspeed"}
    assert set(by) == {"none", "bfloat16 read as half", "divided by the nodes", "sums in half", "NaN becomes 0",
                       "extremes clipped", "all five"}, by
    # Independent roundings have a coherence of 1; what is no rounding at all stands far above.
    for defects, line in by.items():
        wrong = defects in ("bfloat16 read as half", "divided by the nodes", "all five")
        if line["coherence"] == "nan":  # of the step with a NaN
            assert defects in ("NaN becomes 0", "all five"), line
        else:
            assert (line["coherence"] > 12) == wrong, line
        assert (line["exact_sqnr_db"] < 0) == wrong, line
    named = {"bfloat16 read as half": "corrupt", "divided by the nodes": "corrupt", "extremes clipped": "biased",
             "NaN becomes 0": "non_finite_hidden", "all five": "non_finite_hidden"}
    assert all(by[defects]["verdict"] == verdict for defects, verdict in named.items()), by
    assert by["none"]["verdict"] == by["sums in half"]["verdict"] == "visible", by


def check_dump(lines, folder):
    runs = [pathlib.Path(each) for each in glob.glob(os.path.join(folder, "*"))]
    assert len(runs) == len(lines), runs
    for run in runs:
        assert len({(run / ("average_step0_rank%d.npy" % rank)).read_bytes() for rank in range(RANKS)}) == 1, run
        assert len({(run / ("grad_step0_rank%d.npy" % rank)).read_bytes() for rank in range(RANKS)}) == RANKS, run
    # The sum over the nodes' means is four times the mean, but for roundings to half.
    mean, sums = (load(os.path.join(folder, "deepspeed_4096_%s_seed1" % how, "average_step0_rank0.npy"))
                  for how in ("none", "divided_by_the_nodes"))
    assert all(abs(4 * a - b) <= abs(b) / 1024 + 1e-6 for a, b in zip(mean, sums))


steps, seeds, path, other = sys.argv[1:]
seeds = [int(each) for each in seeds.split(",")]
lines = summaries(path, NAMES)
assert [line["seed"] for line in lines] == sorted(line["seed"] for line in lines)
assert {line["seed"] for line in lines} == set(seeds) and len(lines) % len(seeds) == 0
if os.path.isdir(other):
    parameters = len(load(glob.glob(os.path.join(other, "fp32_seed*", "grad_step0_rank0.npy"))[0]))
    check_deepspeed(lines)
    check_dump(lines, other)
else:
    parameters = 32 * 32 + 76 * 32 + 10  # two hidden layers of 32 units
    assert len(minidom.parse(other).getElementsByTagName("polyline")) > 4
for line in lines:
    check_line(line, parameters)
print("as it should be")
