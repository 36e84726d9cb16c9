# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""Runs a function on several ranks, each a process, over gloo."""
import multiprocessing
import multiprocessing.connection
import os
import pickle
import tempfile
import time
import traceback
import warnings

import torch
import torch._dynamo
import torch.distributed as dist
import torch.distributed.fsdp

import collprobe.torch

_processes = multiprocessing.get_context("fork")  # torch was imported once


def _rank_main(function, rank, ranks, folder, backend, arguments, pipe):
    try:
        torch.set_num_threads(1)
        warnings.simplefilter("always", collprobe.torch.FindingWarning)
        warnings.simplefilter("always", collprobe.torch.ProbeWarning)
        if backend is not None:
            dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
            dist.barrier()  # else a rank may leave while others still connect
        result = function(rank, ranks, *arguments)
        if dist.is_initialized():
            dist.destroy_process_group()
        pipe.send_bytes(pickle.dumps((True, result)))
    except BaseException:
        pipe.send_bytes(pickle.dumps((False, traceback.format_exc())))
        os._exit(1)
    pipe.close()


def run(ranks, function, *arguments, backend="probed", timeout=60):
    """What `function(rank, ranks, *arguments)` returns, by rank. A rank that fails or hangs fails the test."""
    with tempfile.TemporaryDirectory() as folder:
        started = []
        for rank in range(ranks):
            mine, theirs = _processes.Pipe(duplex=False)
            process = _processes.Process(
                target=_rank_main, args=(function, rank, ranks, folder, backend, arguments, theirs), daemon=True)
            process.start()
            theirs.close()
            started.append((process, mine))
        results = {}
        until = time.monotonic() + timeout
        try:
            while len(results) < ranks:
                waiting = {pipe: rank for rank, (_, pipe) in enumerate(started) if rank not in results}
                ready = multiprocessing.connection.wait(list(waiting), max(0.0, until - time.monotonic()))
                for pipe in ready:
                    try:
                        results[waiting[pipe]] = pickle.loads(pipe.recv_bytes())
                    except EOFError:
                        results[waiting[pipe]] = False, "it has died"
                    if not results[waiting[pipe]][0]:  # the others may wait for it for ever
                        until = min(until, time.monotonic() + 5)
                if not ready:
                    for rank in waiting.values():
                        results[rank] = False, "it has not ended"
            bad = [f"rank {rank}: {value}" for rank, (is_good, value) in sorted(results.items()) if not is_good]
            if bad:
                raise AssertionError("\n".join(bad))
            for rank, (process, _) in enumerate(started):
                process.join(max(0.1, until - time.monotonic()))
                if process.exitcode is None:
                    raise AssertionError(f"rank {rank} does not exit")
        finally:
            for process, _ in started:
                if process.is_alive():
                    process.kill()
    return [results[rank][1] for rank in range(ranks)]
