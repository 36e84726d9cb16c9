# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""False findings of healthy training are at most twice as many as is stated.

    python tests/torch/rates_test.py table [STEPS]    prints the table of bench/results/torch.md"""
import math
import sys
import unittest

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


class Rates(unittest.TestCase):
    def check(self, form, rate, steps):
        found, kinds = false_steps(form, rate, steps)
        expected = 2 * rate * steps
        self.assertLessEqual(found, expected + 3 * math.sqrt(expected), kinds)

    def test_one_in_a_hundred_steps(self):
        self.check("group", 1e-2, 800)

    def test_one_in_a_thousand_steps(self):
        self.check("hook", 1e-3, 800)


if __name__ == "__main__":
    if sys.argv[1:2] != ["table"]:
        unittest.main()
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 4000
    print("| stated | form | steps | stated x steps | found | kinds |\n|---|---|---|---|---|---|")
    for rate in (1e-2, 1e-3, 1e-4):
        for form in training.FORMS:
            found, kinds = false_steps(form, rate, steps)
            print(f"| {rate:g} | {form} | {steps:,} | {rate * steps:g} | {found} | {', '.join(kinds)} |", flush=True)
