# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""Runs a function on several ranks, each a process, over gloo."""
import multiprocessing
import pickle
import tempfile
import time
import warnings

import torch
import torch._dynamo
import torch.distributed as dist
import torch.distributed.fsdp

import collprobe.torch

_processes = multiprocessing.get_context("fork")  # torch was imported once


def _rank_main(function, rank, ranks, folder, backend, arguments):
    torch.set_num_threads(1)
    warnings.simplefilter("always", collprobe.torch.FindingWarning)
    warnings.simplefilter("always", collprobe.torch.ProbeWarning)
    dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    dist.barrier()  # else a rank may leave while others still connect
    result = function(rank, ranks, *arguments)
    if dist.is_initialized():
        dist.destroy_process_group()
    return pickle.dumps(result)  # else tensors would be shared memory of a process that ends


def run(ranks, function, *arguments, backend="probed", timeout=60):
    """What `function(rank, ranks, *arguments)` returns, by rank. A rank that fails, hangs or dies fails the test."""
    with tempfile.TemporaryDirectory() as folder, _processes.Pool(ranks) as pool:  # whose end kills them
        jobs = [pool.apply_async(_rank_main, (function, rank, ranks, folder, backend, arguments)) for rank in range(ranks)]
        until = time.monotonic() + timeout
        while time.monotonic() < until and not all(job.ready() for job in jobs):
            if any(job.ready() and not job.successful() for job in jobs):
                until = min(until, time.monotonic() + 5)  # the others may wait for it for ever
            time.sleep(0.01)
        ended = [rank for rank, job in enumerate(jobs) if job.ready()]
        for rank in ended:
            jobs[rank].get(0)  # or its error
        assert len(ended) == ranks, f"only the ranks {ended} have ended"
        return [pickle.loads(job.get(0)) for job in jobs]
