# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""What a step of DistributedDataParallel costs, bare, with an empty Python hook, and probed: two ranks over gloo.

    PYTHONPATH=examples/programs COLLPROBE_LIBRARY=... python bench/torch_cost.py [ROUNDS]

In each round every form makes a step, in an order that turns, so that other work on the machine meets all alike.
A ratio is the median over rounds of the two times of one round. bench/results/torch.md has results."""
import os
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SIZES = {"1 MB": (1, 64, 512, 2, 32), "25 MB": (25, 256, 1024, 12, 64)}  # bucket, inputs, width, layers, batch


def empty_hook(group, bucket):
    buffer = bucket.buffer().mul_(0.5)
    return dist.all_reduce(buffer, group=group, async_op=True).get_future().then(lambda future: future.value()[0])


def model_of(size, group):
    bucket, inputs, width, layers, _ = SIZES[size]
    torch.manual_seed(0)
    parts = [nn.Linear(inputs, width), nn.ReLU()]
    for _ in range(layers - 1):
        parts += [nn.Linear(width, width), nn.ReLU()]
    parts.append(nn.Linear(width, 10))
    return DistributedDataParallel(nn.Sequential(*parts), bucket_cap_mb=bucket, process_group=group)


def measure(rank, size, way, rounds):
    import collprobe.torch

    _, inputs, _, _, batch = SIZES[size]
    forms = {"bare": model_of(size, None), "hook": model_of(size, None)}
    forms["hook"].register_comm_hook(dist.group.WORLD, empty_hook)
    if way == "group":
        forms["probed"] = model_of(size, dist.new_group(backend="probed"))
        probe = collprobe.torch.probe()
    else:
        forms["probed"] = model_of(size, None)
        probe = collprobe.torch.Probe(forms["probed"])
    optimizers = {form: torch.optim.SGD(model.parameters(), lr=1e-3) for form, model in forms.items()}
    torch.manual_seed(rank)
    x, y = torch.randn(batch, inputs), torch.randint(0, 10, (batch,))
    times = {form: [] for form in forms}
    names = list(forms)
    for turn in range(rounds + 5):
        for form in names[turn % 3:] + names[:turn % 3]:
            dist.barrier()
            begin = time.perf_counter()
            loss = nn.functional.cross_entropy(forms[form](x), y)
            optimizers[form].zero_grad()
            loss.backward()
            optimizers[form].step()
            if form == "probed":
                probe.end_step(loss=loss)
            if turn >= 5:
                times[form].append(1e3 * (time.perf_counter() - begin))
    if rank == 0:
        ms = {form: statistics.median(each) for form, each in times.items()}
        ratio = {form: statistics.median(a / b for a, b in zip(times[form], times["bare"])) for form in times}
        of_hook = statistics.median(a / b for a, b in zip(times["probed"], times["hook"]))
        print(f"| {size} | {way} | {rounds} | {ms['bare']:.2f} | {ms['hook']:.2f} | {ms['probed']:.2f} | "
              f"{ratio['hook']:.3f} | {ratio['probed']:.3f} | {of_hook:.3f} |", flush=True)


def main():
    if len(sys.argv) > 2:
        rank, store, size, way, rounds = int(sys.argv[1]), *sys.argv[2:5], int(sys.argv[5])
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
        measure(rank, size, way, rounds)
        dist.destroy_process_group()
        return
    rounds = sys.argv[1] if len(sys.argv) == 2 else "200"
    print("| buckets | probed by | rounds | bare, ms | empty hook, ms | probed, ms | hook / bare | probed / bare | "
          "probed / hook |\n|---|---|---|---|---|---|---|---|---|", flush=True)
    for size in SIZES:
        for way in ("group", "hook"):
            with tempfile.TemporaryDirectory() as folder:
                ranks = [subprocess.Popen([sys.executable, __file__, str(rank), os.path.join(folder, "store"), size,
                                           way, rounds]) for rank in range(2)]
                for each in ranks:
                    each.wait(1200)


if __name__ == "__main__":
    main()
