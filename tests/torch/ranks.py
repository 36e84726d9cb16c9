# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""Runs a function on several ranks, each a process, over gloo."""
import multiprocessing
import os
import pickle
import tempfile
import time
import traceback
import warnings

import torch
import torch.distributed as dist

import collprobe.torch

_processes = multiprocessing.get_context("fork")  # torch was imported once


def _rank_main(function, rank, ranks, folder, backend, arguments, pipe):
    try:
        torch.set_num_threads(1)
        warnings.simplefilter("always", collprobe.torch.FindingWarning)
        warnings.simplefilter("always", collprobe.torch.ProbeWarning)
        if backend is not None:
            dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
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
        results = []
        until = time.monotonic() + timeout
        try:
            for rank, (process, pipe) in enumerate(started):
                if not pipe.poll(max(0.0, until - time.monotonic())):
                    raise AssertionError(f"rank {rank} has not ended within {timeout} s")
                try:
                    is_good, value = pickle.loads(pipe.recv_bytes())
                except EOFError:
                    is_good, value = False, "it has died"
                results.append((is_good, value))
            bad = "\n".join(f"rank {rank} failed:\n{value}" for rank, (is_good, value) in enumerate(results) if not is_good)
            if bad:
                raise AssertionError(bad)
            for process, _ in started:
                process.join(max(0.1, until - time.monotonic()))
                if process.exitcode is None:
                    raise AssertionError(f"a rank has not ended within {timeout} s")
        finally:
            for process, _ in started:
                if process.is_alive():
                    process.kill()
    return [value for _, value in results]
