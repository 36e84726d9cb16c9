# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the JSON lines of examples/studies/aggregation_faults strictly, and requires what its methods promise.

check_aggregation_faults.py FAULT RANKS SIGMA2 SEEDS PARAMETERS STEPS FILE    lists are separated by commas
"""
import sys

from json_lines import summaries

NAMES = {"fault", "method", "sigma2", "ranks", "interval", "seed", "test_accuracy",
         "weights_agree", "repair_bytes"}
METHODS = ["clean", "noised", "periodic", "periodic", "periodic", "dynamic", "dynamic_corrected", "majority"]


fault, ranks, sigma2, seeds, parameters, steps, path = sys.argv[1:]
ranks, sigma2, seeds = ([kind(each) for each in text.split(",")]
                        for kind, text in ((int, ranks), (float, sigma2), (int, seeds)))
parameters, steps = int(parameters), int(steps)
lines = summaries(path, NAMES)
expected = [(n, seed, variance, method) for n in ranks for seed in seeds for variance in sigma2 for method in METHODS]
assert [(line["ranks"], line["seed"], line["sigma2"], line["method"]) for line in lines] == expected, lines
for line in lines:
    assert line["fault"] == fault, line
    assert 0 <= line["test_accuracy"] <= 1, line
    # Bits flipped in a run without repair may leave all ranks with the same NaN.
    assert line["weights_agree"] == (line["method"] != "noised") or (line["method"], fault) == ("noised", "bit_flips"), line
    if line["method"] in ("clean", "noised"):
        assert line["interval"] == 0 and line["repair_bytes"] == 0, line
    if line["method"] == "periodic":
        averages = -(-steps // line["interval"])  # one at the end if it was not the time for it
        assert line["repair_bytes"] == averages * 4 * parameters, line
    if line["method"] in ("dynamic", "dynamic_corrected"):
        assert line["repair_bytes"] % (4 * parameters) % 32 == 0, line  # averages, and 32 bytes for each decision
    if line["method"] == "majority" and fault == "bit_flips":
        clean = next(each for each in lines if each["method"] == "clean" and each["seed"] == line["seed"]
                     and each["ranks"] == line["ranks"])
        assert line["test_accuracy"] == clean["test_accuracy"], line
        assert line["repair_bytes"] >= 80 * steps, line
print("as it should be")
