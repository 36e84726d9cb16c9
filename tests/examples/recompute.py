# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a dump is what the probes saw: the losses and norms of the JSON lines, from the dumped losses and gradients. (All
other numbers of a step are computed again from the definitions in tests/step and tests/metrics.)

recompute.py FOLDER FILE ELEMENT RUN...    of several runs FOLDER has a folder each

A norm is exact and rounded once (math.fsum over products of two floats, which a double holds exactly).
"""
import math
import os
import re
import struct
import sys
from ast import literal_eval
from operator import mul

from json_lines import lines_of


def load(path):
    """A one-dimensional NumPy file of version 1.0, as a list of doubles."""
    with open(path, "rb") as file:
        data = file.read()
    assert data[:8] == b"\x93NUMPY\x01\x00", path
    (length,) = struct.unpack_from("<H", data, 8)
    assert (10 + length) % 64 == 0, "the data are not aligned"
    header = literal_eval(data[10:10 + length].decode("latin-1"))
    assert not header["fortran_order"]
    letter = {"<f2": "e", "<f4": "f", "<f8": "d"}[header["descr"]]
    (count,) = header["shape"]
    values = list(struct.unpack_from("<%d%s" % (count, letter), data, 10 + length))
    assert len(data) == 10 + length + count * struct.calcsize(letter)
    try:
        import numpy
    except ImportError:
        return values
    assert numpy.load(path).astype(numpy.float64).tolist() == values
    return values


def check(folder, path, element, run):
    digits = 1e-12 if element in ("float", "double") else 4e-6  # of norms: what the probe promises
    lines = {line["step"]: line for line in lines_of(path, "step") if line["run"] == run}
    steps = sorted(int(match.group(1)) for match in map(re.compile(r"loss_step(\d+)\.npy").fullmatch,
                                                        os.listdir(folder)) if match)
    assert steps, "nothing was dumped"
    for step in steps:
        line = lines[step]
        assert load(os.path.join(folder, "loss_step%d.npy" % step)) == line["loss"]["by_rank"], step
        for rank, seen in enumerate(line["grad_norm"]["by_rank"]):
            gradient = load(os.path.join(folder, "grad_step%d_rank%d.npy" % (step, rank)))
            norm = math.sqrt(math.fsum(map(mul, gradient, gradient)))
            assert abs(seen - norm) <= digits * norm, "step %d, rank %d: got %.17g, recomputed %.17g" % (step, rank, seen, norm)
        assert rank + 1 == line["ranks"], line
    print("steps as recomputed: %d" % len(steps))


if __name__ == "__main__":
    root, file, kind, *runs = sys.argv[1:]
    for each in runs:
        check(root if len(runs) == 1 else os.path.join(root, each), file, kind, each)
