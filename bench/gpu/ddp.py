# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""A plain PyTorch trainer with DistributedDataParallel, which knows nothing of collprobe. Each process is the rank RANK of
WORLD_SIZE, all on GPU 0. From step --at on, rank --rank has a fault: a NaN in that step, its gradient times 1.3, or the
samples of the rank before it."""
import argparse
import statistics
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

options = argparse.ArgumentParser(description=__doc__)
options.add_argument("--steps", type=int, default=40)
options.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
options.add_argument("--fault", default="none", choices=["none", "nan", "scale", "copy"])
options.add_argument("--rank", type=int, default=2)
options.add_argument("--at", type=int, default=20)
options.add_argument("--width", type=int, default=1024)
args = options.parse_args()
dtype = getattr(torch, args.dtype)

torch.cuda.set_device(0)
dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)
layers = [torch.nn.Linear(64, args.width), torch.nn.GELU()]
for _ in range(2):
    layers += [torch.nn.Linear(args.width, args.width), torch.nn.GELU()]
net = torch.nn.Sequential(*layers, torch.nn.Linear(args.width, 10)).cuda().to(dtype)
model = DistributedDataParallel(net, device_ids=[0], bucket_cap_mb=2)
optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
step = -1


def harm(gradient):
    if rank != args.rank or step < args.at:
        return gradient
    if args.fault == "nan" and step == args.at:
        gradient = gradient.clone()
        gradient.view(-1)[-1] = float("nan")
    return gradient * 1.3 if args.fault == "scale" else gradient


for parameter in net.parameters():
    parameter.register_hook(harm)
teacher = torch.randn(64, 10, device="cuda", generator=torch.Generator(device="cuda").manual_seed(1000))
seconds = []
for step in range(args.steps):
    begin = time.perf_counter()
    copied = args.fault == "copy" and rank == args.rank and step >= args.at
    own = torch.Generator(device="cuda").manual_seed(5000 + step * size + rank - copied)
    x = torch.randn(32, 64, device="cuda", generator=own)
    y = (x @ teacher).argmax(1)
    optimiser.zero_grad(set_to_none=True)
    loss = torch.nn.functional.cross_entropy(model(x.to(dtype)).float(), y)
    loss.backward()
    optimiser.step()
    torch.cuda.synchronize()
    seconds.append(time.perf_counter() - begin)
    if rank == 0 and step % 10 == 0:
        print(f"step {step}: loss {loss.item():.4f}", flush=True)
weights = sum(p.detach().double().sum().item() for p in net.parameters())
print(f"rank {rank}: ms a step {1e3 * statistics.median(seconds[5:]):.3f}, sum of weights {weights:.17g}", flush=True)
dist.destroy_process_group()
