#!/usr/bin/env python3
# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""Repeats the experiment of arXiv 2602.14462 in PyTorch: do the ranks agree before they average their gradients?

A small GPT with dropout learns bytes of Python's own library, on 8 ranks over gloo on this machine, four times:
    strict       one seed, one shuffling that the ranks share
    mild         the same, but rank 0 draws its dropout from another seed
    significant  a seed and a shuffling for each rank
    independent  each rank draws its samples independently: the control
The probe itself gives the three metrics: spread of the losses, spread of the gradients' norms, and the cosine of the
gradients of two ranks (pooled over all pairs). `--help` has the options. The README says what came out."""
import argparse
import glob
import math
import multiprocessing
import os
import statistics
import sys
import sysconfig
import tempfile
import time
import warnings

import torch
import torch.distributed as dist
from torch import nn

import collprobe.torch

SETTINGS = ("strict", "mild", "significant", "independent")
METRICS = (("loss, std", "loss.std"), ("gradient norm, std", "gradient_norm.std"), ("cosine, pooled", "cosine.pooled"))
CONTEXT = 64
WIDTH = 64
FIRST_STEP = 20  # before, the loss falls steeply


def text_of_this_machine():
    """600,000 bytes of the standard library's modules."""
    files = sorted(glob.glob(os.path.join(sysconfig.get_paths()["stdlib"], "*.py")))
    text = bytearray()
    for path in files:
        with open(path, "rb") as file:
            text += file.read()
        if len(text) >= 600_000:
            break
    return torch.frombuffer(text[:600_000], dtype=torch.uint8).long()


class Gpt(nn.Module):
    def __init__(self, layers, dropout):
        super().__init__()
        self.bytes = nn.Embedding(256, WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(CONTEXT, WIDTH))
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(
            WIDTH, 4, 4 * WIDTH, dropout, batch_first=True, norm_first=True) for _ in range(layers))
        self.last = nn.Linear(WIDTH, 256)
        self.register_buffer("mask", torch.triu(torch.full((CONTEXT, CONTEXT), float("-inf")), 1))

    def forward(self, x):
        h = self.bytes(x) + self.places
        for block in self.blocks:
            h = block(h, src_mask=self.mask, is_causal=True)
        return self.last(h)


def samples(setting, rank, ranks, batch, count):
    """Numbers of a rank's sequences, step by step."""
    seed = {"significant": 100 + rank, "independent": 500 + rank}.get(setting, 1)
    generator = torch.Generator().manual_seed(seed)
    while True:
        if setting == "independent":
            yield torch.randint(0, count, (batch,), generator=generator)
            continue
        order = torch.randperm(count, generator=generator)
        for begin in range(0, count - batch * ranks + 1, batch * ranks):
            yield order[begin + rank * batch:begin + (rank + 1) * batch]


def train(rank, setting, store, options, pipe):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", collprobe.torch.FindingWarning)  # they are counted
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=options.ranks)
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(Gpt(options.layers, options.dropout))
    probe = collprobe.torch.Probe(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    data = text_of_this_machine()
    torch.manual_seed({"strict": 1, "mild": 99 if rank == 0 else 1}.get(setting, 100 + rank))
    values, losses = {name: [] for _, name in METRICS}, []
    numbers = samples(setting, rank, options.ranks, options.batch, (len(data) - 1) // CONTEXT)
    begin = time.monotonic()
    for step in range(options.steps):
        at = [int(number) * CONTEXT for number in next(numbers)]
        x = torch.stack([data[i:i + CONTEXT] for i in at])
        y = torch.stack([data[i + 1:i + CONTEXT + 1] for i in at])
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        probe.end_step(loss=loss, tokens=y.numel())
        if rank == 0 and (step + 1) % 40 == 0:
            print(f"{setting:12s} step {step + 1} of {options.steps}, loss {loss.item():.3f}, "
                  f"{time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    found = 0
    for record in probe.records(wait=True):
        found += bool(record.findings)
        if record.step >= FIRST_STEP and record.values:
            losses.append(record.values["loss.mean"])
            for name in values:
                values[name].append(record.values[name])
    dist.destroy_process_group()
    if len(losses) < options.steps - FIRST_STEP:
        sys.exit(f"rank {rank}: only {len(losses)} steps have a record")
    if rank == 0:
        pipe.send((values, statistics.mean(losses[-40:]), found))


def run(setting, options):
    with tempfile.TemporaryDirectory() as folder:
        mine, theirs = multiprocessing.get_context("fork").Pipe(duplex=False)
        started = [multiprocessing.get_context("fork").Process(
            target=train, args=(rank, setting, os.path.join(folder, "store"), options, theirs), daemon=True)
            for rank in range(options.ranks)]
        for each in started:
            each.start()
        theirs.close()
        try:
            return mine.recv()
        except EOFError:
            sys.exit(f"the ranks of the setting {setting} have failed")
        finally:
            for each in started:
                each.join(20)


def difference(values, control):
    """Mean over steps of the difference, so that what both runs do in time falls out, and half its 95 % interval, by
    blocks of 10 steps, which depend less on each other."""
    each = [a - b for a, b in zip(values, control)]
    blocks = [statistics.mean(each[i:i + 10]) for i in range(0, len(each) - 9, 10)]
    return statistics.mean(each), 1.96 * statistics.stdev(blocks) / math.sqrt(len(blocks))


def main():
    form = argparse.ArgumentParser(description="The experiment of arXiv 2602.14462 in PyTorch, on this machine.")
    form.add_argument("--steps", type=int, default=200)
    form.add_argument("--ranks", type=int, default=8)
    form.add_argument("--batch", type=int, default=4, help="sequences of 64 bytes a rank")
    form.add_argument("--layers", type=int, default=2)
    form.add_argument("--dropout", type=float, default=0.1)
    options = form.parse_args()
    if options.steps < FIRST_STEP + 30 or options.ranks < 2 or options.batch < 1:
        form.error(f"--steps must be {FIRST_STEP + 30} or more, --ranks 2 or more, --batch 1 or more")
    results = {setting: run(setting, options) for setting in SETTINGS}
    print(f"{f'median of {options.steps - FIRST_STEP} steps':22s}" + "".join(f"{each:>18s}" for each in SETTINGS))
    for title, name in METRICS:
        print(f"{title:22s}" + "".join(f"{statistics.median(results[each][0][name]):18.4f}" for each in SETTINGS))
    print("mean of the difference from independent, step by step; last: strict from mild, of the same samples")
    for title, name in METRICS:
        pairs = [(each, "independent") for each in SETTINGS[:-1]] + [("strict", "mild")]
        cells = [difference(results[one][0][name], results[other][0][name]) for one, other in pairs]
        print(f"{title:22s}" + "".join(f"{f'{value:+.4f} +- {error:.4f}':>18s}" for value, error in cells))
    print(f"{'loss at the end':22s}" + "".join(f"{results[each][1]:18.3f}" for each in SETTINGS))
    print(f"{'steps with a finding':22s}" + "".join(f"{results[each][2]:18d}" for each in SETTINGS))


if __name__ == "__main__":
    main()
