# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""The process group "probed": the calls of a group go to the groups of its backends, and are shown on their way."""
from __future__ import annotations

import functools
import os
import threading
from collections import Counter
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Callable, Counter as CounterOf, Dict, Iterator, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
import torch._C._distributed_c10d as c10d
from torch._C._distributed_c10d import PrefixStore, Store

from . import _library as library
from ._recorder import Call, Recorder, _types

# An all-reduce of fewer elements is a loss or a count, not a gradient.
_fewest = 16

_operations = {
    dist.ReduceOp.SUM: library.SUM, dist.ReduceOp.AVG: library.AVG, dist.ReduceOp.PRODUCT: library.PROD,
    dist.ReduceOp.MAX: library.MAX, dist.ReduceOp.MIN: library.MIN,
}
_name = threading.local()


@contextmanager
def named(name: str) -> Iterator[None]:
    """Calls that this thread makes in the block have the name."""
    before, _name.value = getattr(_name, "value", None), name
    try:
        yield
    finally:
        _name.value = before


def _operation_of(op: Any, ranks: int) -> Tuple[Optional[int], bool]:
    """The operation, None if the library has none, and whether the result is its result, not a multiple."""
    for known, number in _operations.items():
        if op == known:
            return number, True
    if "PREMUL_SUM" in str(getattr(op, "op", op)):
        try:
            factor = float(op.__getstate__()[1])
        except (AttributeError, IndexError, TypeError, ValueError):
            factor = float("nan")
        return (library.AVG, True) if abs(factor * ranks - 1) < 1e-6 else (library.SUM, False)
    return None, True


class Observer:
    """Shows the calls of one group, by a recorder for each kind of device."""

    def __init__(self, rank: int, ranks: List[int], name: str, store: Store, timeout: timedelta,
                 session: Any) -> None:
        self.rank, self.ranks, self.name = rank, ranks, name
        self.store, self.timeout, self.session = store, timeout, session
        self.recorders: Dict[str, Optional[Recorder]] = {}
        self.not_observed: CounterOf[str] = Counter()
        self.closed = False
        self.around: Optional[dist.ProcessGroup] = None  # of a group that is not "probed"
        session.add(self)

    def is_world(self) -> bool:
        return self.name == "0" or len(self.ranks) == dist.get_world_size()

    def leave_out(self, what: str) -> None:
        self.not_observed[what] += 1

    def recorder(self, device: str) -> Optional[Recorder]:
        """All ranks come here with the same call, or value, first: the ranks' messages get a group of their own."""
        if device not in self.recorders:
            self.recorders[device] = None
            if self.closed:
                return None
            try:
                made = Recorder(
                    device, self.rank, self.ranks, self.name, PrefixStore(f"collprobe/{device}", self.store),
                    self.timeout, self.session.options, self.session.tell)
                kept = self.session.restored.get(f"{self.name}/{device}")
                if kept is not None:
                    made.restore(kept)
                self.recorders[device] = made
            except (library.LibraryError, ImportError, RuntimeError) as reason:
                hint = ""
                if isinstance(reason, library.LibraryError) and reason.code == library.UNSUPPORTED:
                    hint = "; install a wheel that was built with CUDA to look at tensors on a GPU"
                self.session.tell(f"group '{self.name}' is not probed on {device}, training goes on: {reason}{hint}")
        return self.recorders[device]

    def live(self) -> List[Recorder]:
        return [each for each in self.recorders.values() if each is not None and each.handle is not None]

    def inputs(self, kind: int, op: Any, tensors: Sequence[torch.Tensor], what: str) -> List[Optional[Call]]:
        """Shows each tensor as the input of a call."""
        operation, is_whole = (library.SUM, True) if op is None else _operation_of(op, len(self.ranks))
        calls: List[Optional[Call]] = []
        for tensor in tensors:
            device = tensor.device.type
            readable = "" if device in ("cpu", "cuda") else f"{what} on {device}"
            if tensor.layout != torch.strided:
                readable = f"{what} of sparse tensors"
            if operation is None:
                readable = f"{what} of another operation than SUM, AVG, PRODUCT, MAX and MIN"
            elif not tensor.is_complex() and tensor.dtype not in _types:
                readable = f"{what} of {tensor.dtype}"
            elif kind == library.ALL_REDUCE and tensor.numel() < _fewest and getattr(_name, "value", None) is None:
                readable = f"{what} of fewer than {_fewest} elements"
            elif tensor.numel() == 0:
                readable = f"{what} of no elements"
            if readable or operation is None:
                self.leave_out(readable)
                calls.append(None)
                continue
            self.session.call_comes()
            recorder = self.recorder(device)
            if recorder is None:
                self.leave_out(f"{what} on {device}")
                calls.append(None)
                continue
            flat = self._readable(tensor, what)
            call = recorder.observe_input(kind, operation, flat, flat.numel(), flat.dtype,
                                          getattr(_name, "value", None))
            if call is not None and not is_whole:  # a multiple of the sum by a factor that is not known here
                recorder.observe_result(call, None)
                call = None
            calls.append(call)
        return calls

    def _readable(self, tensor: torch.Tensor, what: str) -> torch.Tensor:
        tensor = tensor.detach()
        if tensor.is_conj():
            tensor = tensor.resolve_conj()
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor)
        if not tensor.is_contiguous():
            self.session.tell(f"{what} of a tensor that is not contiguous: it is copied to be looked at; "
                              "call .contiguous() before, to save that")
            tensor = tensor.contiguous()
        return tensor

    def results(self, calls: Sequence[Optional[Call]], tensors: Sequence[torch.Tensor], what: str) -> None:
        for call, tensor in zip(calls, tensors):
            if call is not None:
                call.recorder.observe_result(call, self._readable(tensor, what))

    def close(self, grace: float) -> None:
        self.closed = True
        for recorder in self.live():
            recorder.close(grace)


class ProbedWork(c10d.Work):
    """A work whose result is looked at before its waiter goes on: by `wait` or by `get_future`, whichever comes."""

    def __init__(self, work: Any, seen: Callable[[], None]) -> None:
        super().__init__()
        self._work, self._seen, self._future = work, seen, None

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        done: bool = self._work.wait(timeout)
        self._seen()
        return done

    def get_future(self) -> Any:
        if self._future is None:
            def then(future: Any) -> Any:
                value = future.value()
                self._seen()
                return value

            self._future = self._work.get_future().then(then)
        return self._future


def _forward(name: str) -> Any:
    def method(self: ProbedWork, *arguments: Any) -> Any:
        return getattr(self._work, name)(*arguments)

    return method


for _method in ("is_completed", "is_success", "exception", "result", "source_rank", "_source_rank", "synchronize",
                "block_current_stream", "get_future_result", "_get_duration"):
    if hasattr(c10d.Work, _method):
        setattr(ProbedWork, _method, _forward(_method))


def _backend(name: str, store: Store, rank: int, ranks: int, timeout: timedelta, options: Any) -> Any:
    store = PrefixStore(name, store)
    if name == "gloo":
        return dist.ProcessGroupGloo(store, rank, ranks, timeout)
    if not isinstance(options, dist.ProcessGroupNCCL.Options):
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
    return dist.ProcessGroupNCCL(store, rank, ranks, options)


def wrapped_backends() -> Dict[str, str]:
    """The backend by device: $COLLPROBE_BACKEND, such as "gloo" or "cpu:gloo,cuda:nccl"; else gloo, and NCCL for CUDA
    where both are there."""
    has_nccl = dist.is_nccl_available() and torch.cuda.is_available()
    told = os.environ.get("COLLPROBE_BACKEND") or ("cpu:gloo,cuda:nccl" if has_nccl else "gloo")
    by_device: Dict[str, str] = {}
    for part in told.lower().split(","):
        device, _, name = part.strip().rpartition(":")
        if name not in ("gloo", "nccl") or device not in ("", "cpu", "cuda"):
            raise ValueError(f"collprobe: COLLPROBE_BACKEND is '{told}'; it must be gloo, nccl, or such as "
                             "cpu:gloo,cuda:nccl")
        for each in [device] if device else ["cpu", "cuda"] if name == "gloo" else ["cuda"]:
            by_device[each] = name
    return by_device


class ProbedGroup(dist.ProcessGroup):
    """What it does not override, as broadcast, goes to its backends as in any group, and is not looked at."""

    def __init__(self, store: Store, rank: int, ranks: List[int], timeout: timedelta, options: Any, name: str,
                 session: Any) -> None:
        try:
            super().__init__(store, rank, len(ranks))
        except TypeError:  # PyTorch 2.8 makes subclasses without a store alone
            super().__init__(rank, len(ranks))
        self._inner = dist.ProcessGroup(store, rank, len(ranks))
        made: Dict[str, Any] = {}
        for device, backend in wrapped_backends().items():
            if backend not in made:
                made[backend] = _backend(backend, store, rank, len(ranks), timeout, options)
            kind = getattr(dist.ProcessGroup.BackendType, backend.upper())
            for group in (self, self._inner):
                group._set_default_backend(kind)
                group._register_backend(torch.device(device), kind, made[backend])
        # PyTorch runs its own method of a group that is written in Python with the interpreter's lock in hand. A thread
        # of gloo needs that lock to drop a tensor, with the queue of gloo locked: each would wait for the other. The
        # methods of the wrapped group let go of it. (Gloo queues no send and no receive.) There is no frame of Python,
        # which TorchDynamo would trace.
        for method in ("alltoall", "barrier", "broadcast", "gather", "reduce", "scatter"):
            setattr(self, method, functools.partial(getattr(self._inner, method)))
        self.observer = Observer(rank, ranks, name, store, timeout, session)
        self._coalescing: Optional[List[Tuple[List[Optional[Call]], Sequence[torch.Tensor], str]]] = None

    def getBackendName(self) -> str:
        return "probed"

    def _around(self, kind: int, what: str, op: Any, sent: Sequence[torch.Tensor], got: Sequence[torch.Tensor],
                run: Callable[[], Any]) -> Any:
        calls = self.observer.inputs(kind, op, sent, what)
        work = run()
        if not any(calls):
            return work
        if self._coalescing is not None:
            self._coalescing.append((calls, got, what))
            return work
        if work is None:  # it ran on the current stream
            self.observer.results(calls, got, what)
            return None
        return ProbedWork(work, lambda: self.observer.results(calls, got, what))

    def _past(self, what: str, run: Callable[[], Any]) -> Any:
        self.observer.leave_out(what)
        return run()

    def _start_coalescing(self, device: Any) -> None:
        self._inner._start_coalescing(device)
        self._coalescing = []

    def _end_coalescing(self, device: Any) -> Any:
        groups, self._coalescing = self._coalescing or [], None
        work = self._inner._end_coalescing(device)

        def seen() -> None:
            for calls, got, what in groups:
                self.observer.results(calls, got, what)

        return ProbedWork(work, seen) if groups and work is not None else work

    def allreduce(self, tensors: Any, opts: Any = None, *more: Any) -> Any:
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        if isinstance(opts, (dist.ReduceOp, dist.ReduceOp.RedOpType)):
            op, opts = opts, c10d.AllreduceOptions()
            opts.reduceOp = op
            if more:
                opts.timeout = more[0]
        opts = opts or c10d.AllreduceOptions()
        return self._around(library.ALL_REDUCE, "all_reduce", opts.reduceOp, tensors, tensors,
                            lambda: self._inner.allreduce(tensors, opts))

    def allreduce_coalesced(self, tensors: List[torch.Tensor], opts: Any = None) -> Any:
        opts = opts or c10d.AllreduceCoalescedOptions()
        return self._around(library.ALL_REDUCE, "all_reduce", opts.reduceOp, tensors, tensors,
                            lambda: self._inner.allreduce_coalesced(tensors, opts))

    def _reduce_scatter_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        opts = opts or c10d.ReduceScatterOptions()
        return self._around(library.REDUCE_SCATTER, "reduce_scatter", opts.reduceOp, [input], [output],
                            lambda: self._inner._reduce_scatter_base(output, input, opts))

    def reduce_scatter_tensor_coalesced(self, outputs: List[torch.Tensor], inputs: List[torch.Tensor],
                                        opts: Any = None) -> Any:
        opts = opts or c10d.ReduceScatterOptions()
        return self._around(library.REDUCE_SCATTER, "reduce_scatter", opts.reduceOp, inputs, outputs,
                            lambda: self._inner.reduce_scatter_tensor_coalesced(outputs, inputs, opts))

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None, *more: Any) -> Any:
        return self._past("reduce_scatter of lists", lambda: self._inner.reduce_scatter(
            outputs, inputs, *([] if opts is None else [opts]), *more))

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        opts = opts or c10d.AllgatherOptions()
        return self._around(library.ALL_GATHER, "all_gather", None, [input], [output],
                            lambda: self._inner._allgather_base(output, input, opts))

    def allgather_into_tensor_coalesced(self, outputs: List[torch.Tensor], inputs: List[torch.Tensor],
                                        opts: Any = None) -> Any:
        opts = opts or c10d.AllgatherOptions()
        return self._around(library.ALL_GATHER, "all_gather", None, inputs, outputs,
                            lambda: self._inner.allgather_into_tensor_coalesced(outputs, inputs, opts))

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, *more: Any) -> Any:
        return self._past("all_gather of lists", lambda: self._inner.allgather(
            outputs, inputs, *([] if opts is None else [opts]), *more))

    def alltoall_base(self, output: torch.Tensor, input: torch.Tensor, output_splits: List[int],
                      input_splits: List[int], opts: Any = None, *more: Any) -> Any:
        opts = opts or c10d.AllToAllOptions()

        def run() -> Any:
            return self._inner.alltoall_base(output, input, output_splits, input_splits, opts, *more)

        if output_splits or input_splits:
            return self._past("all_to_all with split sizes", run)
        return self._around(library.ALL_TO_ALL, "all_to_all", None, [input], [output], run)

    # The names of newer releases.
    reduce_scatter_single = _reduce_scatter_base  # type: ignore[assignment]
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced  # type: ignore[assignment]
    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced  # type: ignore[assignment]
    all_to_all_single = alltoall_base  # type: ignore[assignment]

    def shutdown(self) -> None:
        self.observer.session.leave(self.observer)
        self._inner.shutdown()

    def abort(self) -> None:
        self.observer.close(0)
        self._inner.abort()
