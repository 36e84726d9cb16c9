# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""A small training run with one fault of twelve, or none."""
import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

import collprobe.torch

BAD = 2  # the rank with the fault
FAULT_STEP = 40
FORMS = ("group", "hook", "fsdp2")  # DDP in the group "probed", DDP with the hook, FSDP2 in the group


class Net(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.first = nn.Linear(32, 64, dtype=dtype)
        self.extra = nn.Linear(64, 64, bias=False, dtype=dtype)
        self.last = nn.Linear(64, 10, dtype=dtype)
        self.register_buffer("scale", torch.linspace(0.9, 1.1, 64, dtype=dtype))

    def forward(self, x, extra=1.0):
        h = torch.relu(self.first(x)) * self.scale
        if extra is not None:
            h = h + self.extra(h) * extra
        return self.last(torch.relu(h))


def batches(seed):
    """Samples of a fixed teacher, in an order of their own."""
    teacher = torch.randn(32, 10, generator=torch.Generator().manual_seed(7))
    generator = torch.Generator().manual_seed(seed)
    while True:
        x = torch.randn(32, 32, generator=generator)
        yield x, (x @ teacher + torch.randn(32, 10, generator=generator)).argmax(1)


def train(rank, ranks, form, fault, steps, dtype=torch.float32, is_auto=False, options=None):
    """(findings with the step in which each was told, losses, weights). `is_auto`: optimizers end the steps."""
    options = options or {}
    torch.manual_seed(3)
    told = []
    now = 0

    def on_finding(finding):
        told.append((finding, now))

    net = Net(dtype)
    if form == "fsdp2":
        for part in (net.first, net.extra, net.last):
            fully_shard(part)
        model = fully_shard(net)
        probe = collprobe.torch.Probe(model, on_finding=on_finding, **options)
    else:
        # Small buckets, so that a tensor is one.
        model = nn.parallel.DistributedDataParallel(
            net, bucket_cap_mb=0.001, broadcast_buffers=False,
            find_unused_parameters=fault in ("unused", "healthy_unused"))
        model_or_none = model if form == "hook" else None
        probe = None if form == "bare" else collprobe.torch.Probe(model_or_none, on_finding=on_finding, **options)
    if fault == "load" and rank == BAD:
        with torch.no_grad():
            net.extra.weight[3, 4] += 0.5
    is_alike = {"not_sharded": True, "shuffled_alike": rank in (1, BAD)}.get(fault, False)
    loader = batches(1 if is_alike else 100 + rank)
    seed = 5 if fault == "dropout_seed" and rank in (1, BAD) else 50 + rank
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    losses = []
    for now in range(steps):
        is_bad = rank == BAD and now >= FAULT_STEP
        is_now = rank == BAD and now == FAULT_STEP
        if not (fault == "stale" and is_now):
            x, y = next(loader)
        if fault == "buffer" and is_now:
            net.scale[5] += 0.25
        for group in optimizer.param_groups:
            group["lr"] = 0.0 if fault == "stale" and now == FAULT_STEP - 1 else 0.02
            if fault == "learning_rate" and is_bad:
                group["lr"] = 0.025
        without_sync = fault == "no_sync" and now >= FAULT_STEP
        context = contextlib.nullcontext()
        if form == "fsdp2":
            model.set_requires_gradient_sync(not without_sync)
        elif without_sync:
            context = model.no_sync()
        with context:
            # FSDP2 needs each part on each rank: there the rank uses it without effect.
            extra = (0.0 if form == "fsdp2" else None) if fault == "unused" and is_bad else 1.0
            output = model(x.to(dtype), extra)
            loss = cross_entropy(output.float(), y)
            used = loss
            if fault == "nan" and is_now:
                used = loss * float("nan")
            elif fault == "overflow" and is_now:
                used = loss * 2.0**24
            elif fault == "scaled" and is_bad:
                used = loss * 8
            optimizer.zero_grad()
            used.backward()
        optimizer.step()
        losses.append(loss.item())
        if probe is None or is_auto:
            continue
        if form != "hook":  # Probe(model) compares them by itself
            probe.expect_equal("scale", net.scale)
        if form == "group":
            probe.expect_equal("extra.weight", net.extra.weight)
        probe.expect_distinct("dropout seed", seed)
        probe.end_step(loss=loss, tokens=len(y))
    if probe is not None:
        probe.records(wait=True)
    weights = [each.detach() for each in net.parameters()]
    weights = [each.to_local() if hasattr(each, "to_local") else each for each in weights]
    return told, losses, [each.clone() for each in weights]


def without_times(told):
    """Findings that do not depend on the clock of a machine that others use, too."""
    return [(each, at) for each, at in told if each.kind != "late" and "its delay at the calls" not in each.text]
