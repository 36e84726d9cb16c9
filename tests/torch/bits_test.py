# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""The trained bits are the same with and without probes; the numbers of a step do not depend on the way in."""
import unittest

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import collprobe.torch
import ranks


def net():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Dropout(0.1), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 8))


def weights_after(rank, count, form, is_probed, hook=None, accumulate=1, is_view=False, is_auto=False, compiled=False):
    model = inner = net()
    if form == "fsdp2":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for each in inner:
            if isinstance(each, nn.Linear):
                fully_shard(each, mp_policy=policy)
        model = fully_shard(inner, mp_policy=policy)
    elif form != "explicit":
        # Several buckets, except where PyTorch itself needs one over gloo.
        bucket = 25 if compiled or hook is powerSGD_hook else 0.02
        model = nn.parallel.DistributedDataParallel(inner, bucket_cap_mb=bucket, gradient_as_bucket_view=is_view)
    state = None
    if hook is powerSGD_hook:
        state = PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    probe = None
    if is_probed:
        is_named = form in ("hook", "fsdp2")
        probe = collprobe.torch.Probe(model, hook, state) if is_named else collprobe.torch.probe()
    elif hook is not None:
        model.register_comm_hook(state, hook)
    run = torch.compile(model, backend="aot_eager") if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(70 + rank)
    for step in range(12):
        loss = None
        for micro in range(accumulate):
            is_last = micro == accumulate - 1
            if form == "fsdp2":
                model.set_requires_gradient_sync(is_last)
            elif form != "explicit":
                model.require_backward_grad_sync = is_last
            x = torch.randn(16, 32)
            loss = run(x).square().mean()
            loss.backward()
        if form == "explicit":
            for each in inner.parameters():
                dist.all_reduce(each.grad, op=dist.ReduceOp.AVG)
        optimizer.step()
        optimizer.zero_grad(set_to_none=not is_view)
        if probe is not None and not is_auto:
            probe.end_step(loss=loss)
    weights = []
    for each in inner.parameters():
        each = each.detach()
        weights.append((each.to_local() if hasattr(each, "to_local") else each).clone().view(torch.int32))
    return weights, 0 if probe is None else len(probe.records(wait=True))


def pooled(rank, count, form, operation):
    """Of the same gradients: DDP's, FSDP2's, and those of a call by hand."""
    model = inner = net()
    inner[2].p = 0.0
    if form == "fsdp2":
        for each in inner:
            if isinstance(each, nn.Linear):
                fully_shard(each)
        model = fully_shard(inner)
    elif form == "ddp":
        model = nn.parallel.DistributedDataParallel(inner)
    probe = collprobe.torch.probe()
    torch.manual_seed(70 + rank)
    values = []
    for step in range(4):
        model.zero_grad()
        loss = model(torch.randn(16, 32)).square().mean()
        loss.backward()
        if form == "explicit":
            flat = torch.cat([each.grad.flatten() for each in inner.parameters()])
            dist.all_reduce(flat, op=operation)
        probe.end_step(loss=loss)
    return [each.values["cosine.pooled"] for each in probe.records(wait=True)]


class Bits(unittest.TestCase):
    def check(self, form, count=2, **how):
        bare, _ = zip(*ranks.run(count, weights_after, form, False, *how.values(), backend="gloo"))
        backend = "gloo" if form == "hook" else "probed"
        probed, records = zip(*ranks.run(count, weights_after, form, True, *how.values(), backend=backend))
        self.assertTrue(all(each == records[0] and each >= 10 for each in records), records)
        for mine, theirs in zip(bare, probed):
            for a, b in zip(mine, theirs):
                self.assertTrue(torch.equal(a, b))

    def test_ddp_by_the_group(self):
        self.check("ddp")

    def test_ddp_by_the_hook(self):
        self.check("hook")

    def test_ddp_on_three_ranks_by_the_hook(self):
        self.check("hook", count=3)

    def test_gradients_that_are_views_of_buckets(self):
        self.check("hook", hook=None, accumulate=1, is_view=True)
        self.check("ddp", hook=None, accumulate=1, is_view=True)

    def test_accumulation_by_no_sync(self):
        self.check("hook", hook=None, accumulate=3)
        self.check("ddp", hook=None, accumulate=3)

    def test_steps_that_optimizers_end(self):
        self.check("ddp", hook=None, accumulate=1, is_view=False, is_auto=True)

    def test_compiled_model(self):
        self.check("ddp", hook=None, accumulate=1, is_view=False, is_auto=False, compiled=True)
        self.check("hook", hook=None, accumulate=1, is_view=False, is_auto=False, compiled=True)

    def test_own_hooks_compose(self):
        self.check("hook", hook=bf16_compress_hook)
        self.check("hook", hook=powerSGD_hook)

    def test_fsdp2_in_mixed_precision(self):
        self.check("fsdp2")
        self.check("fsdp2", hook=None, accumulate=3)

    def test_calls_by_hand(self):
        self.check("explicit")


class PooledCosine(unittest.TestCase):
    def test_is_the_same_under_ddp_fsdp2_and_both_operations(self):
        sums = ranks.run(4, pooled, "explicit", dist.ReduceOp.SUM)[0]
        self.assertEqual(len(sums), 4)
        for form, operation in (("explicit", dist.ReduceOp.AVG), ("ddp", None), ("fsdp2", None)):
            for got, expected in zip(ranks.run(4, pooled, form, operation)[0], sums):
                self.assertAlmostEqual(got, expected, delta=1e-6, msg=form)


if __name__ == "__main__":
    unittest.main()
