# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""The claim of the main job: for every seed, disagreement before the all-reduce grows strictly from strict to mild to
significant while accuracy stays above 95 %; and with i.i.d. sampling the report says that nothing can be told apart.

acceptance.py PROGRAM FOLDER SEED...
"""
import os
import subprocess
import sys

from json_lines import lines_of

program, folder, seeds = sys.argv[1], sys.argv[2], sys.argv[3:]
os.makedirs(folder, exist_ok=True)
path = os.path.join(folder, "acceptance.jsonl")
failures = []


def train(*options):
    return subprocess.run([program, *options], check=True, stdout=subprocess.PIPE, text=True).stdout


for seed in seeds:
    report = train("--seed", seed, "--jsonl", path)
    runs = lines_of(path, "summary")
    assert [run["run"] for run in runs] == ["strict", "mild", "significant"]
    loss = [run["loss"]["std"] for run in runs]
    norm = [run["grad_norm"]["std"] for run in runs]
    cosine = [run["cosine"]["mean_pairwise"] for run in runs]
    accuracy = [run["test_accuracy"] for run in runs]
    print("seed", seed, *("%s %.4f %.4f %.4f" % (name, *values) for name, values in
                          (("loss std", loss), ("norm std", norm), ("cosine", cosine), ("accuracy", accuracy))))
    good = (loss[0] < loss[1] < loss[2] and norm[0] < norm[1] < norm[2] and cosine[0] > cosine[1] > cosine[2]
            and min(accuracy) > 0.95 and "The settings CAN be told apart" in report)
    if not good:
        failures.append("seed %s" % seed)
    if "The settings CANNOT be told apart" not in train("--seed", seed, "--sampler", "iid"):
        failures.append("seed %s, iid" % seed)
    sys.stdout.flush()

sys.exit("failed: " + ", ".join(failures) if failures else 0)
