# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""Recomputes every metric of the JSON lines from the dumped gradients and losses, from the definitions, without
the Gram matrix that the probes use, and compares.

recompute.py FOLDER FILE ELEMENT RUN...    of several runs FOLDER has a folder each

Sums are exact and rounded once (math.fsum over products of two floats, which a double holds exactly). The limit is
1e-12 relative. A cosine, a pooled one too, is a sum of terms of either sign and may be far smaller than they are:
where it is below 1e-2, the limit is 1e-14 absolute instead.
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


def dot(a, b):
    return math.fsum(map(mul, a, b))


def spread(values):
    n = len(values)
    mean = math.fsum(values) / n
    squares = math.fsum((value - mean) ** 2 for value in values)
    deviation = math.sqrt(squares / n)
    return {"mean": mean, "std": deviation, "std_sample": math.sqrt(squares / (n - 1)),
            "range": max(values) - min(values), "cv": deviation / abs(mean), "finite": n,
            "min": min(values), "min_rank": values.index(min(values)), "max": max(values), "max_rank": values.index(max(values))}


def expected(gradients, losses):
    n = len(gradients)
    norms = [math.sqrt(dot(g, g)) for g in gradients]
    pairs = [(i, j) for i in range(n) for j in range(i)]
    dots = {(i, j): dot(gradients[i], gradients[j]) for i, j in pairs}
    others = [[math.fsum(g[k] for j, g in enumerate(gradients) if j != i) for k in range(len(gradients[0]))]
              for i in range(n)]
    total = [math.fsum(g[k] for g in gradients) for k in range(len(gradients[0]))]
    s = dot(total, total)
    q = math.fsum(dot(g, g) for g in gradients)
    signal = (s - q) / (n * (n - 1))
    noise = (q - s / n) / (n - 1)
    return {
        "loss": dict(spread(losses), by_rank=list(losses)),
        "grad_norm": dict(spread(norms), by_rank=norms),
        "cosine": {
            "mean_pairwise": math.fsum(dots[p] / (norms[p[0]] * norms[p[1]]) for p in pairs) / len(pairs),
            "pooled": math.fsum(dots.values()) / math.fsum(norms[i] * norms[j] for i, j in pairs),
            "leave_one_out": [dot(g, o) / (norm * math.sqrt(dot(o, o)))
                              for g, o, norm in zip(gradients, others, norms)],
            "pairwise": [math.fsum(dots[p] / (norms[p[0]] * norms[p[1]]) for p in pairs if i in p) / (n - 1)
                         for i in range(n)],
        },
        "noise_scale": noise / signal if signal > 0 else math.inf,
    }


def compare(name, got, want, worst, digits):
    if isinstance(want, list):
        assert len(got) == len(want), name
        for index, (a, b) in enumerate(zip(got, want)):
            compare("%s[%d]" % (name, index), a, b, worst, digits)
        return
    if isinstance(got, str) or not math.isfinite(want):  # the file has infinity as "inf"
        assert got == str(want), "%s: got %r, recomputed %r" % (name, got, want)
        return
    floor = 1e-2 if name.startswith("cosine") else 0
    scale = max(abs(want), floor)
    # The noise scale divides by a difference that may be small: as many digits as it keeps.
    limit = digits * (1 + abs(want) if name == "noise_scale" else 1)
    error = abs(got - want) / scale if scale > 0 else abs(got)
    worst.append((error / limit * digits, name))
    assert error <= limit, "%s: got %.17g, recomputed %.17g" % (name, got, want)


def check(folder, path, element, run):
    digits = 1e-12 if element in ("float", "double") else 4e-6  # of norms: what the probe promises
    lines = {line["step"]: line for line in lines_of(path, "step") if line["run"] == run}
    steps = sorted(int(match.group(1)) for match in map(re.compile(r"loss_step(\d+)\.npy").fullmatch,
                                                        os.listdir(folder)) if match)
    assert steps, "nothing was dumped"
    worst = []
    for step in steps:
        line = lines[step]
        losses = load(os.path.join(folder, "loss_step%d.npy" % step))
        gradients = [load(os.path.join(folder, "grad_step%d_rank%d.npy" % (step, rank)))
                     for rank in range(line["ranks"])]
        assert len(losses) == line["ranks"]
        want = expected(gradients, losses)
        for group in ("loss", "grad_norm", "cosine"):
            for name, value in line[group].items():
                if name != "predicted":  # depends on all steps before, too
                    compare(group + "." + name, value, want[group][name], worst, digits)
        compare("noise_scale", line["noise_scale"], want["noise_scale"], worst, digits)
    print("steps as recomputed: %d; largest error %.2g (%s)" % ((len(steps),) + max(worst)))


if __name__ == "__main__":
    root, file, kind, *runs = sys.argv[1:]
    for each in runs:
        check(root if len(runs) == 1 else os.path.join(root, each), file, kind, each)
