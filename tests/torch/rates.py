# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""How many false findings healthy training has: prints the table of bench/results/torch.md.

    python tests/torch/rates.py [STEPS]"""
import sys

import ranks
import training

RANKS = 4


def false_steps(form, rate, steps):
    """Steps in which a number names a rank."""
    backend = "gloo" if form == "hook" else "probed"
    results = ranks.run(RANKS, training.train, form, None, steps, training.torch.float32, False,
                        {"false_alarms": rate}, backend=backend, timeout=3000)
    found = [each for each, _ in training.without_times(results[0][0]) if not each.exact]
    return len({each.step for each in found}), sorted({each.kind for each in found})


steps = int(sys.argv[1]) if len(sys.argv) > 1 else 4000
print("| stated | form | steps | stated x steps | found | kinds |\n|---|---|---|---|---|---|")
for rate in (1e-2, 1e-3, 1e-4):
    for form in training.FORMS:
        found, kinds = false_steps(form, rate, steps)
        print(f"| {rate:g} | {form} | {steps:,} | {rate * steps:g} | {found} | {', '.join(kinds)} |", flush=True)
