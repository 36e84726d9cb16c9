# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""Twelve faults are named by rank, tensor and step, under DDP by the group and by the hook, and under FSDP2; each
beside the same training without the fault, which is silent in 1,000 steps."""
import os
import unittest

import torch

import ranks
import training
from training import BAD, FAULT_STEP

RANKS = 4


def findings(form, fault, steps, dtype=torch.float32):
    """Of all ranks, which must agree; without what depends on the machine's clock."""
    backend = "gloo" if form == "hook" else "probed"
    results = ranks.run(RANKS, training.train, form, fault, steps, dtype, backend=backend, timeout=400)
    every = [training.without_times(told) for told, _, _ in results]
    for told in every[1:]:
        assert [each for each, _ in told] == [each for each, _ in every[0]], "the ranks reach different verdicts"
    return every[0]


class Faults:
    """For one form."""

    form = ""
    extra = {"all_reduce#1"}  # the call with extra.weight
    whole = {"all_reduce#0", "all_reduce#1", "all_reduce#2"}

    def first(self, fault, kinds, steps=FAULT_STEP + 3, dtype=torch.float32):
        """Those of these kinds in the first step that has one; told at most two steps later."""
        told = findings(self.form, fault, steps, dtype)
        first = min((each.step for each, _ in told if each.kind in kinds), default=None)
        self.assertIsNotNone(first, f"no finding of {kinds}: {told}")
        for each, at in told:
            self.assertLessEqual(at - each.step, 2, each)
        found = [each for each, _ in told if each.step == first and each.kind in kinds]
        self.assertEqual(first, min(each.step for each, _ in told), "something was found before")
        return first, found

    def named(self, fault, kinds, rank, calls, step, **more):
        first, found = self.first(fault, kinds, **more)
        self.assertEqual(first, step)
        self.assertEqual({each.rank for each in found}, rank if isinstance(rank, set) else {rank})
        self.assertTrue({each.call for each in found} & calls, found)

    def test_a_loader_that_is_not_sharded_makes_copies_on_all_ranks(self):
        self.named("not_sharded", {"duplicate"}, {0, 1, 2, 3}, self.first_calls, 0, steps=4)

    def test_two_loaders_shuffled_alike_make_copies_on_these_ranks(self):
        self.named("shuffled_alike", {"duplicate"}, {1, BAD}, self.first_calls, 0, steps=4)

    def test_nan_on_one_rank(self):
        self.named("nan", {"non_finite"}, BAD, self.extra, FAULT_STEP)

    def test_overflow_in_half_precision_on_one_rank(self):
        self.named("overflow", {"non_finite"}, BAD, self.extra, FAULT_STEP, dtype=torch.float16)

    def test_scaled_gradient_of_one_rank(self):
        self.named("scaled", {"gradient_norm", "largest_magnitude"}, BAD, self.whole, FAULT_STEP)

    def test_stale_gradient_of_one_rank(self):
        self.named("stale", {"stale"}, BAD, self.extra, FAULT_STEP)

    def test_parameter_without_gradient_on_one_rank(self):
        first, found = self.first("unused", {"zeros", "gradient_norm"}, steps=FAULT_STEP + 20)
        self.assertTrue(FAULT_STEP <= first < FAULT_STEP + 18, found)
        self.assertEqual({each.rank for each in found}, {BAD})
        self.assertTrue({each.call for each in found} & self.unused, found)

    def test_no_sync_left_on(self):
        first, found = self.first("no_sync", {"call_missing"})
        self.assertEqual((first, found[0].rank), (FAULT_STEP, -1))
        self.assertIn(found[0].call, self.whole)

    def test_learning_rate_of_one_rank(self):
        self.named("learning_rate", {"value_differs"}, BAD, {"lr"}, FAULT_STEP)

    def test_dropout_seed_that_two_ranks_share(self):
        self.named("dropout_seed", {"value_repeats"}, {1, BAD}, {"dropout seed"}, 0, steps=4)

    def test_buffer_that_is_not_synchronised(self):
        self.named("buffer", {"value_differs"}, BAD, {"scale"}, FAULT_STEP)

    @unittest.skipIf(os.environ.get("COLLPROBE_WITHOUT_TWINS"), "without twins")
    def test_healthy_twin_is_silent_in_1000_steps(self):
        self.assertEqual(findings(self.form, None, 1000), [])

    @unittest.skipIf(os.environ.get("COLLPROBE_WITHOUT_TWINS"), "without twins")
    def test_healthy_twin_in_half_precision_is_silent_in_1000_steps(self):
        self.assertEqual(findings(self.form, None, 1000, torch.float16), [])


class Group(Faults, unittest.TestCase):
    form = "group"
    first_calls = {"all_reduce#0"}
    unused = {"all_reduce#1"}

    def test_weights_that_are_not_equal_after_load(self):
        self.named("load", {"value_differs"}, BAD, {"extra.weight"}, 0, steps=4)

    @unittest.skipIf(os.environ.get("COLLPROBE_WITHOUT_TWINS"), "without twins")
    def test_healthy_twin_that_looks_for_unused_parameters_is_silent_in_1000_steps(self):
        self.assertEqual(findings(self.form, "healthy_unused", 1000), [])


class Hook(Faults, unittest.TestCase):
    form = "hook"
    extra = {"extra.weight"}
    whole = {"extra.weight", "first.bias, first.weight", "last.bias, last.weight"}
    first_calls = {"first.weight .. last.bias (5)"}
    unused = {"first.bias, extra.weight", "extra.weight"}

    def test_weights_that_are_not_equal_after_load(self):
        self.named("load", {"value_differs"}, BAD, {"extra.weight"}, 0, steps=4)


class Fsdp2(Faults, unittest.TestCase):
    """Its ranks hold no copies of weights that could differ after load."""

    form = "fsdp2"
    extra = first_calls = unused = {"extra"}
    whole = {"first", "extra", "last"}


if __name__ == "__main__":
    unittest.main()
