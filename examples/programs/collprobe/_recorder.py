# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""One process group's calls on one kind of device: a probe of the C entry, and a gloo group for its messages."""
from __future__ import annotations

import ctypes as c
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from . import _library as library

_types: Dict[torch.dtype, int] = {
    torch.int8: 0, torch.uint8: 1, torch.bool: 1, torch.int32: 2, torch.int64: 4, torch.float16: 6, torch.float32: 7,
    torch.float64: 8, torch.bfloat16: 9,
}
for _name, _number in (("uint32", 3), ("uint64", 5), ("float8_e4m3fn", 10), ("float8_e5m2", 11)):
    if hasattr(torch, _name):
        _types[getattr(torch, _name)] = _number

_kinds = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")  # as the library names calls
_values = (
    "step", "calls", "loss.mean", "loss.std", "loss.range", "gradient_norm.mean", "gradient_norm.std",
    "gradient_norm.range", "result_norm", "cosine.mean_pairwise", "cosine.pooled", "noise_scale",
)


def comparable(tensor: torch.Tensor) -> torch.Tensor:
    """The same bits in an element type that the C library has."""
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    tensor = tensor.contiguous()
    return tensor if tensor.dtype in _types else tensor.reshape(-1).view(torch.uint8)


@dataclass(frozen=True)
class Finding:
    """Something that a step has found. `rank` is a global one, -1 if it is not one rank's."""

    step: int
    kind: str  # "non_finite", "duplicate", "loss", ...: core/record/finding_kind.hpp has all
    text: str  # a sentence with rank, tensor and evidence; ranks in it are those of the group
    call: str  # name of the call or value; "" if it is of the whole step
    rank: int
    exact: bool  # neither chance nor rounding explains it. Else a number with a rate of false alarms
    group: str


@dataclass(frozen=True)
class Record:
    """A step of a group, the same on all its ranks."""

    step: int
    group: str
    findings: Tuple[Finding, ...]
    # None of a step that could not be judged.
    values: Dict[str, float]  # "loss.std", "cosine.pooled", ...: collprobeGetValue in collprobe.h lists them
    json: str = field(repr=False, default="")  # all numbers, on rank 0 where a log is written


class Call:
    """A call whose input was shown."""

    __slots__ = ("recorder", "token", "step")

    def __init__(self, recorder: "Recorder", token: int, step: int) -> None:
        self.recorder, self.token, self.step = recorder, token, step


class _Messages:
    """The all-gather of the C entry. It is called on a thread of the library."""

    def __init__(self, store: Store, rank: int, ranks: int, timeout: timedelta) -> None:
        self.gloo: Any = dist.ProcessGroupGloo(store, rank, ranks, timeout)
        self.ranks = ranks
        self.deadline = float("inf")
        self.came = threading.Event()
        self.abandoned: List[Any] = []
        self.reason = ""
        self.function = library.AllGather(self._gather)

    def _gather(self, _: int, send: int, receive: int, size: int) -> int:
        try:
            # The buffers are our own: one that is given up may still be written by the peers.
            mine = torch.frombuffer((c.c_uint8 * size).from_address(send), dtype=torch.uint8).clone()
            every = torch.empty(self.ranks * size, dtype=torch.uint8)
            work = self.gloo.allgather([list(every.view(self.ranks, size).unbind(0))], [mine])
            while True:
                try:
                    work.wait(timedelta(milliseconds=200))
                    break
                except RuntimeError:
                    if work.is_completed():  # it has failed, or ended right behind the time-out
                        work.wait()
                        break
                    if time.monotonic() > self.deadline:
                        self.abandoned = [self.gloo, work, mine, every]
                        self.reason = "the other ranks have not ended the step"
                        return 1
            c.memmove(receive, every.data_ptr(), every.numel())
            return 0
        except Exception as reason:
            self.reason = str(reason).strip().split("\n")[0]
            return 1
        finally:
            self.came.set()

    def close(self) -> None:
        if self.abandoned:  # gloo's threads are in it: it stays until the process has ended
            c.pythonapi.Py_IncRef(c.py_object(self.abandoned))
        self.gloo = None


class Recorder:
    """Shows the calls of a group on `device` to the C entry. A failure ends the probing, not the training: `tell` has
    the sentence. Any thread may use it."""

    most_under_way = 2  # steps

    def __init__(self, device: str, rank: int, ranks: List[int], name: str, store: Store, timeout: timedelta,
                 options: Any, tell: Callable[[str], None]) -> None:
        self.device, self.rank, self.ranks, self.name = device, rank, ranks, name
        self.tell, self.patience, self.every = tell, options.patience, options.every
        self.lock = threading.Lock()
        self.handle: Optional[c.c_void_p] = None
        self.serial = 0
        self.under_way: deque[int] = deque()
        self.open: Dict[int, None] = {}
        self.names: List[str] = []
        self.last_names: List[str] = []
        self.reductions: List[str] = []
        self.had = 0  # calls of the last step
        self.parted: Optional[int] = None  # the step in which the ranks made other calls, if it was the last one
        self.kept: deque[Any] = deque(maxlen=8)  # losses on the device that are still read
        self.messages = _Messages(store, rank, len(ranks), timeout)
        kind = library.CUDA if device == "cuda" else library.HOST
        given = library.Options(c.sizeof(library.Options), self.messages.function, None, kind, options.every, 0,
                                options.expectations, options.false_alarms, name.encode())
        handle = c.c_void_p()
        library.call("Create", c.byref(handle), rank, len(ranks), c.byref(given))
        self.handle = handle

    def _stream(self, tensor: torch.Tensor) -> Optional[int]:
        return torch.cuda.current_stream(tensor.device).cuda_stream if self.device == "cuda" else None

    def _fail(self, reason: str) -> None:
        """With the lock. The peers learn it from the connection, which closes."""
        handle, self.handle = self.handle, None
        self.messages.deadline = 0
        if handle is not None:
            library.load().collprobeDestroy(handle)
        self.messages.close()
        self.tell(f"probing of group '{self.name}' on rank {self.rank} has ended in step "
                  f"{self.under_way[0] if self.under_way else self.serial}, training goes on: {reason}")

    def _guarded(self, body: Callable[[c.c_void_p], Any]) -> Any:
        with self.lock:
            if self.handle is None:
                return None
            try:
                return body(self.handle)
            except library.LibraryError as failure:
                self._fail(f"the exchange with the other ranks failed: {self.messages.reason}" if self.messages.reason
                           else f"{failure}")
                return None

    def observe_input(self, kind: int, operation: int, tensor: Optional[torch.Tensor], count: int, dtype: torch.dtype,
                      name: Optional[str]) -> Optional[Call]:
        """`tensor`: contiguous; or None, of a rank whose `count` elements cannot be read."""
        token = c.c_uint64()

        def show(handle: c.c_void_p) -> Call:
            address = library.NO_BUFFER if tensor is None else tensor.data_ptr()
            stream = None if tensor is None else self._stream(tensor)
            library.call("ObserveInput", handle, kind, _types[dtype], operation, address, count,
                         name.encode() if name else None, stream, c.byref(token))
            self.open[token.value] = None
            self.names.append(name or f"{_kinds[kind]}#{len(self.names)}")
            if kind in (library.ALL_REDUCE, library.REDUCE_SCATTER):
                self.reductions.append(self.names[-1])
            return Call(self, token.value, self.serial)

        call: Optional[Call] = self._guarded(show)
        return call

    def observe_result(self, call: Call, tensor: Optional[torch.Tensor]) -> None:
        """Once for a call; a result of an earlier step is left out."""

        def show(handle: c.c_void_p) -> None:
            if call.step != self.serial or call.token not in self.open:
                return
            del self.open[call.token]
            if tensor is None:
                library.call("ObserveResult", handle, call.token, library.NO_BUFFER, 0, None)
            else:
                library.call("ObserveResult", handle, call.token, tensor.data_ptr(), tensor.numel(),
                             self._stream(tensor))

        self._guarded(show)

    def expect(self, expectation: int, name: str, value: Any) -> None:
        def show(handle: c.c_void_p) -> None:
            if isinstance(value, torch.Tensor):
                library.call("ExpectBuffer", handle, expectation, name.encode(), _types[value.dtype], value.data_ptr(),
                             value.numel(), self._stream(value))
            else:
                library.call("ExpectNumber", handle, expectation, name.encode(), float(value))

        self._guarded(show)

    def end_step(self, step: int, loss: Any, weight: float) -> None:
        """Waits only for a rank that is more than two steps behind, and not longer than the patience."""

        def end(handle: c.c_void_p) -> None:
            for token in self.open:
                library.call("ObserveResult", handle, token, library.NO_BUFFER, 0, None)
            seen = library.Step(c.sizeof(library.Step), library.UNKNOWN, weight, library.UNKNOWN, None)
            stream = None
            if isinstance(loss, torch.Tensor):
                self.kept.append(loss)
                seen.device_loss, stream = loss.data_ptr(), self._stream(loss)
            else:
                if loss is not None:
                    seen.loss = loss
                if self.device == "cuda":
                    stream = torch.cuda.current_stream().cuda_stream
            library.call("EndStep", handle, step, c.byref(seen), stream)
            if self.serial % self.every == 0:
                self.under_way.append(step)
            self.serial += 1
            self.open.clear()
            if self.names:
                self.last_names = self.names
            self.had, self.names, self.reductions = len(self.names), [], []

        self._guarded(end)

    def records(self, run: str, log: bool, most: int) -> Iterator[Record]:
        """Those that are there; waits until no more than `most` steps are under way."""
        until = time.monotonic() + self.patience
        while True:
            self.messages.came.clear()
            found = self._guarded(lambda handle: self._poll(handle, run, log))
            if self.handle is None:
                return
            if found is not None:
                yield found
                until = time.monotonic() + self.patience
            elif len(self.under_way) <= most:
                return
            elif time.monotonic() > until:
                self._guarded(lambda _: self._fail(self._late()))
                return
            else:
                self.messages.came.wait(0.002)

    def _late(self) -> str:
        text = f"this rank has ended step {self.under_way[0]}, but another rank has not for {self.patience:g} s"
        if self.had < len(self.last_names):
            text += (f". This rank's last step has {self.had} of the {len(self.last_names)} calls of its steps before; "
                     f"missing: {', '.join(self.last_names[self.had:][:3])}."
                     " Is no_sync() left on on this rank?")
        return text

    def _poll(self, handle: c.c_void_p, run: str, log: bool) -> Optional[Record]:
        try:
            if library.call("Poll", handle, 0) == library.NOT_READY:
                return None
        except library.LibraryError as failure:
            if failure.code != library.MISMATCH:
                raise
            self.parted = step = self.under_way.popleft()
            text = f"{failure}".split("mismatch: ")[-1]
            text += ". Does a rank skip a step of its optimizer, or make other calls?"
            other = Finding(step, "mismatch", text, "", -1, True, self.name)
            return Record(step, self.name, (other,), {})
        step = self.under_way.popleft()
        findings: List[Finding] = []
        found = library.FoundBy(c.sizeof(library.FoundBy))
        while library.call("GetFinding", handle, len(findings), c.byref(found)) == library.SUCCESS:
            findings.append(Finding(
                step, found.kind.decode(), found.text.decode(errors="replace"), found.call.decode(errors="replace"),
                self.ranks[found.rank] if found.rank >= 0 else -1, bool(found.exact), self.name))
        if self.parted is not None and any(each.kind == "result_differs" for each in findings):
            # Calls of different steps are held against each other: on all ranks alike.
            self._fail(f"the ranks' steps do not fit together since step {self.parted}, where they made other calls")
            return None
        self.parted = None
        value = c.c_double()
        values = {}
        for each in _values:
            library.call("GetValue", handle, each.encode(), -1, c.byref(value))
            values[each] = value.value
        return Record(step, self.name, tuple(findings), values, self._text(handle, library.JSON, run) if log else "")

    def _text(self, handle: c.c_void_p, form: int, run: str) -> str:
        text = c.c_char_p()
        library.call("GetText", handle, form, run.encode(), c.byref(text))
        return (text.value or b"").decode(errors="replace").rstrip("\n")

    def table(self) -> str:
        try:
            with self.lock:
                return "" if self.handle is None else self._text(self.handle, library.TABLE, "")
        except library.LibraryError:  # there is no record yet
            return ""

    def value_of(self, name: str, rank: int) -> float:
        """Of the record taken last."""
        value = c.c_double()
        self._guarded(lambda handle: library.call("GetValue", handle, name.encode(), rank, c.byref(value)))
        return value.value

    def state(self) -> torch.Tensor:
        size = c.c_size_t()
        out = torch.empty(0, dtype=torch.uint8)

        def save(handle: c.c_void_p) -> torch.Tensor:
            library.call("SaveState", handle, None, c.byref(size))
            room = torch.empty(size.value, dtype=torch.uint8)
            library.call("SaveState", handle, room.data_ptr(), c.byref(size))
            return room

        saved = self._guarded(save)
        return out if saved is None else saved

    def restore(self, state: torch.Tensor) -> None:
        with self.lock:
            if self.handle is not None and state.numel():
                library.call("RestoreState", self.handle, state.data_ptr(), state.numel())

    def close(self, grace: float) -> None:
        """Gives the ranks so many seconds to end the steps that this one has ended."""
        self.messages.deadline = time.monotonic() + grace
        with self.lock:
            handle, self.handle = self.handle, None
            if handle is not None:
                library.load().collprobeDestroy(handle)
                self.messages.close()
