# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""Probes on the collectives of PyTorch: which rank, which tensor, which step.

Two lines, for DistributedDataParallel, FSDP2 and calls of your own:

    import collprobe.torch
    torch.distributed.init_process_group("probed")  # around gloo, and NCCL for CUDA

Each `optimizer.step()` then ends a step, and each learning rate is compared. More is seen with

    probe = collprobe.torch.probe(log="run.jsonl")
    ...
    probe.end_step(loss=loss, tokens=count)

`Probe(ddp_model)` gives DDP's buckets the names of their parameters and compares weights and buffers; it needs no group
"probed". What is found is warned of (`FindingWarning`) on rank 0, and told to `on_finding` on each rank.
"""
from __future__ import annotations

import atexit
import dataclasses
import json
import math
import os
import sys
import time
import warnings
from collections import deque
from datetime import timedelta
from typing import Any, Callable, ContextManager, Dict, List, Optional, Set, Tuple, Union

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from . import _library as library
from ._group import Observer, ProbedGroup, named as _named
from ._recorder import Finding, Record, comparable

__all__ = ["Finding", "FindingWarning", "Probe", "ProbeWarning", "Record", "probe"]


class FindingWarning(UserWarning):
    """A step has found something. Once for each kind, call and rank."""


class ProbeWarning(UserWarning):
    """Something is not looked at, or no more."""


@dataclasses.dataclass
class _Options:
    every: int = 1
    false_alarms: float = 1e-4
    patience: float = 60.0
    expectations: int = 256


# A check of weights looks at so many tensors in a step, the first time, and at each tensor once in so many steps.
_tensors_at_once = 64
_check_period = 100
_kept_records = 1024
_longest_by_hand = 100
_warnings_of_a_step = 8


def _warn(text: str, category: type) -> None:
    """At the line outside of this package and of torch that led here."""
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in ("collprobe", "torch"):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)


class _Session:
    """What the probes of this process share: steps, findings, the log."""

    def __init__(self) -> None:
        self.options = _Options()
        self.observers: List[Observer] = []
        self.models: List["_Model"] = []
        self.pid = os.getpid()
        self.reset()

    def reset(self) -> None:
        self.step = 0
        self.is_due = False  # an optimizer has ended the step; a call of end_step may still tell its loss
        self.by_hand = False
        self.since_by_hand = 0  # steps of optimizers
        self.values: Dict[Tuple[int, str], Any] = {}
        self.optimizers: Dict[int, int] = {}
        self.rates: Dict[Tuple[int, int], float] = {}  # learning rates by optimizer and group
        self.records: deque[Record] = deque(maxlen=_kept_records)
        self.told: Set[Any] = set()
        self.run = "run"
        self.log: Any = None
        self.on_finding: Optional[Callable[[Finding], None]] = None
        self.stepped: Set[int] = set()  # optimizers, in the step that is due
        self.empty_steps = self.longest_empty = 0  # steps without a reduction, and the longest such time before
        self.last_reductions: List[str] = []
        self.restored: Dict[str, torch.Tensor] = {}

    def add(self, observer: Observer) -> None:
        if not self.observers:  # the process groups were destroyed, and are made again
            self.models.clear()
            self.options = _Options()
            self.pid = os.getpid()
            self.reset()
        self.observers.append(observer)

    def configure(self, log: Optional[str], on_finding: Optional[Callable[[Finding], None]], run: Optional[str],
                  options: Dict[str, Any]) -> None:
        changed = dataclasses.replace(self.options, **{k: v for k, v in options.items() if v is not None})
        if changed.every < 1 or not 0 < changed.false_alarms < 1 or not changed.patience > 0:
            raise ValueError("collprobe: every must be 1 or more, false_alarms above 0 and below 1, patience above 0 s")
        if changed != self.options and any(each.recorders for each in self.observers):
            raise RuntimeError("collprobe: set every, false_alarms and patience before the first collective")
        self.options = changed
        if run is not None:
            self.run = run
        if on_finding is not None:
            self.on_finding = on_finding
        if log is not None and dist.get_rank() == 0:
            self.log = open(log, "a", encoding="utf-8", buffering=1)

    def tell(self, text: str) -> None:
        """Once for each text."""
        if text not in self.told:
            self.told.add(text)
            _warn(f"collprobe: {text}", ProbeWarning)

    def call_comes(self) -> None:
        """A call belongs to the next step if an optimizer has stepped."""
        if self.is_due:
            self.end_step(None, None, 1.0)

    def optimizer_stepped(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self.pid != os.getpid() or not self.observers:
            return
        place = self.optimizers.setdefault(id(optimizer), len(self.optimizers))
        if self.is_due and place in self.stepped:  # no call came in between
            self.end_step(None, None, 1.0)
        self.stepped.add(place)
        for index, group in enumerate(optimizer.param_groups):
            rate = group.get("lr", 0.0)
            # One on a GPU is not looked at, because that would wait for it.
            if not isinstance(rate, torch.Tensor) or rate.device.type == "cpu":
                self.rates[place, index] = float(rate)
        self.is_due = not self.by_hand
        if self.by_hand:
            self.since_by_hand += 1
            if self.since_by_hand == _longest_by_hand * len(self.optimizers):
                self.tell(f"no step has ended since step {self.step - 1}, in {self.since_by_hand} steps of optimizers: "
                          "since end_step was called once, they end none; call it in each step, or never")

    def expect(self, expectation: int, name: str, value: Any) -> None:
        if not name:
            raise ValueError("collprobe: a value needs a name")
        if isinstance(value, torch.Tensor):
            value = _local(value)
        elif not isinstance(value, (bool, int, float)):
            raise TypeError(f"collprobe: '{name}' must be a number or a tensor, not {type(value).__name__}")
        elif isinstance(value, int) and abs(value) > 1 << 53:  # a double holds no more: both halves are compared
            value = torch.tensor([value & 0xFFFFFFFF, (value >> 32) & 0xFFFFFFFF], dtype=torch.int64)
        self.values[expectation, name] = value

    def end_step(self, step: Optional[int], loss: Any, weight: float) -> None:
        self.is_due = False
        self.since_by_hand = 0
        self.stepped.clear()
        number = self.step if step is None else step
        self.step = number + 1
        main = next((each for each in self.observers if not each.closed), None)
        if main is not None:
            self._tell_values(main)
        reductions = [name for each in self.observers for recorder in each.live() for name in recorder.reductions]
        for observer in list(self.observers):
            for recorder in observer.live():
                is_main = observer is main and recorder is observer.live()[0]
                recorder.end_step(number, self._loss(loss, recorder.device) if is_main else None, weight)
        if main is not None and main.live():
            self._look_for_empty_steps(number, reductions, main)
        self.take_records(2)

    def _look_for_empty_steps(self, step: int, reductions: List[str], main: Observer) -> None:
        """Accumulation of gradients has steps without a reduction, too: told if there are more in turn than ever."""
        if reductions:
            self.longest_empty = max(self.longest_empty, self.empty_steps)
            self.empty_steps, self.last_reductions = 0, reductions
            return
        self.empty_steps += 1
        if self.empty_steps != self.longest_empty + 2:
            return
        if not self.last_reductions:
            self.tell(f"no reduction was seen in the first {self.empty_steps} steps. Is no_sync() left on, or the "
                      'process group none of init_process_group("probed")?')
            return
        first = step - self.empty_steps + 1
        text = (f"no gradient was reduced since step {first}, where the steps before had "
                f"{_label(self.last_reductions)}: is no_sync() left on?")
        found = Finding(first, "call_missing", text, self.last_reductions[0], -1, True, main.name)
        self._deliver(Record(first, main.name, (found,), {}), main)

    def _tell_values(self, main: Observer) -> None:
        if main.live():
            # All ranks tell it in each step, also those without an optimizer: so the steps have the same values.
            several = sum(rate * (k + 1) for k, rate in enumerate(self.rates.values()))
            self.values[library.EQUAL, "lr"] = several
        for model in self.models:
            self.values.update(model.weights())
        values, self.values = self.values, {}
        if len(values) > self.options.expectations:
            self.tell(f"a step has {len(values)} values to compare; only {self.options.expectations} are")
        for (expectation, name), value in list(values.items())[:self.options.expectations]:
            is_there = isinstance(value, torch.Tensor)
            device = value.device.type if is_there else next(iter(main.recorders), "cpu")
            recorder = main.recorder(device)
            if recorder is not None:
                recorder.expect(expectation, name, comparable(value) if is_there else value)

    def _loss(self, loss: Any, device: str) -> Any:
        if not isinstance(loss, torch.Tensor):
            return None if loss is None else float(loss)
        loss = _local(loss.detach())
        if loss.device.type == "cpu":
            return loss.item()
        if loss.device.type == device:
            return loss.float().reshape(1)
        self.tell(f"a loss on {loss.device} is not looked at, as that would wait for it; give a number of the host")
        return None

    def take_records(self, most: int) -> None:
        for observer in self.observers:
            for recorder in observer.live():
                for record in recorder.records(self.run, self.log is not None, most):
                    self._deliver(record, observer)

    def _deliver(self, record: Record, observer: Observer) -> None:
        self.records.append(record)
        if self.log is not None:
            self.log.write((record.json or json.dumps({"step": record.step, "group": record.group, "findings": [
                dataclasses.asdict(each) for each in record.findings]})) + "\n")
        fresh = []
        for finding in record.findings:
            if self.on_finding is not None:
                self.on_finding(finding)
            key = (finding.group, finding.kind, finding.call, finding.rank)
            if observer.rank == 0 and key not in self.told:
                self.told.add(key)
                fresh.append(finding)
        where = "" if observer.is_world() else f" in group '{record.group}' (ranks {observer.ranks})"
        for finding in fresh[:_warnings_of_a_step]:
            _warn(f"step {finding.step}{where}: {finding.text}", FindingWarning)
        if len(fresh) > _warnings_of_a_step:
            _warn(f"step {record.step}{where}: {len(fresh) - _warnings_of_a_step} findings more; on_finding and the "
                  "log have all", FindingWarning)

    def leave(self, observer: Observer) -> None:
        """Of a group that is destroyed."""
        if observer in self.observers and not observer.closed:
            self.close([observer])

    def close(self, observers: Optional[List[Observer]] = None) -> None:
        """Ends a step that is due, and tells what the last steps have found. Waits no longer than `grace`."""
        if self.pid != os.getpid():
            return
        leaving = self.observers if observers is None else observers
        has_failed = getattr(sys, "last_type", None) is not None
        grace = 0.5 if has_failed else min(10.0, self.options.patience)
        try:
            if self.is_due and not has_failed:
                self.end_step(None, None, 1.0)
            until = time.monotonic() + grace
            for observer in leaving:
                for recorder in observer.live():
                    recorder.patience = max(0.0, until - time.monotonic())
                    for record in recorder.records(self.run, self.log is not None, 0):
                        self._deliver(record, observer)
        finally:
            for observer in leaving:
                observer.close(grace)
            self.observers = [each for each in self.observers if not each.closed]


_session = _Session()


def _local(tensor: torch.Tensor) -> torch.Tensor:
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()


def _at_exit() -> None:
    try:
        _session.close()
    except Exception as reason:  # the interpreter ends: what cannot be told is printed
        print(f"collprobe: {reason}", file=sys.stderr)


atexit.register(_at_exit)
register_optimizer_step_post_hook(_session.optimizer_stepped)


def _create(options: Any, backend_options: Any = None) -> ProbedGroup:
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    return ProbedGroup(options.store, options.group_rank, ranks, options.timeout, backend_options,
                       str(options.group_id), _session)


dist.Backend.register_backend("probed", _create, extended_api=True, devices=["cpu", "cuda"])


def _label(names: List[str]) -> str:
    """ "net.0.weight, net.0.bias", or with the first and the last if there are many."""
    text = ", ".join(names)
    return text if len(text) <= 60 else f"{names[0]} .. {names[-1]} ({len(names)})"


class _Model:
    """DDP's buckets by parameters' names, and its weights and buffers compared from time to time."""

    def __init__(self, ddp: torch.nn.parallel.DistributedDataParallel, hook: Any, state: Any,
                 observer: Optional[Observer]) -> None:
        self.hook, self.state, self.observer = hook, state, observer
        self.group = ddp.process_group
        self.ranks = self.group.size()
        self.names = {id(each): name for name, each in ddp.module.named_parameters()}
        ignored = set(getattr(ddp, "parameters_to_ignore", ()))
        self.parameters = [(n, p) for n, p in ddp.module.named_parameters() if n not in ignored]
        self.buffers = [(n, b) for n, b in ddp.module.named_buffers() if n not in ignored]
        self.module = ddp.module
        self.ddp = ddp
        self.next_weight = self.next_buffer = 0
        self.step_of_buffers = -1
        ddp.register_comm_hook(self, lambda model, bucket: model._reduce(bucket))  # DDP reads annotations
        ddp.module.register_forward_pre_hook(
            torch._dynamo.disable(self._before_forward))  # type: ignore[no-untyped-call]

    def _reduce(self, bucket: Any) -> Any:
        name = _label([self.names.get(id(each), "?") for each in bucket.parameters()])
        with _named(name):
            if self.observer is None:  # the group looks at its calls itself
                return self._run(bucket)
            buffer = bucket.buffer()
            calls = self.observer.inputs(library.ALL_REDUCE, dist.ReduceOp.AVG, [buffer], "all_reduce")
        observer = self.observer

        def seen(future: Any) -> Any:
            value = future.value()
            observer.results(calls, value if isinstance(value, (list, tuple)) else [value], "all_reduce")
            return value

        return self._run(bucket).then(seen)

    def _run(self, bucket: Any) -> Any:
        if self.hook is not None:
            return self.hook(self.state, bucket)
        buffer = bucket.buffer().mul_(1.0 / self.ranks)  # as DDP does without a hook, to the bit
        work = self.group.allreduce([buffer])
        return work.get_future().then(lambda future: future.value()[0])

    @staticmethod
    def _turn(tensors: List[Any], begin: int) -> List[Any]:
        most = _tensors_at_once if begin < len(tensors) else -(-len(tensors) // _check_period)
        return [tensors[(begin + k) % len(tensors)] for k in range(min(most, len(tensors)))]

    def weights(self) -> Dict[Tuple[int, str], Any]:
        """Those whose turn it is. All, or as many as there is room for, in the first step."""
        turn = self._turn(self.parameters, self.next_weight)
        self.next_weight += len(turn)
        return {(library.EQUAL, name): _local(each.detach()) for name, each in turn}

    def _before_forward(self, *_: Any) -> None:
        """Behind DDP's own synchronisation of the buffers, which the forward pass then changes."""
        session = _session
        if session.step == self.step_of_buffers or not self.module.training or not self.buffers:
            return
        if not torch.is_grad_enabled() or not getattr(self.ddp, "require_forward_param_sync", True):
            return
        session.call_comes()
        self.step_of_buffers = session.step
        turn = self._turn(self.buffers, self.next_buffer)
        self.next_buffer += len(turn)
        for name, each in turn:
            session.values[library.EQUAL, name] = _local(each.detach()).clone()


def _name_calls_of(model: torch.nn.Module) -> None:
    """FSDP2's parts make their calls by objects of their own, which get a class that names them."""
    for name, part in model.named_modules():
        state = part._get_fsdp_state() if hasattr(part, "_get_fsdp_state") else None
        groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
        for group in groups:
            for attribute in ("_all_gather_comm", "_reduce_scatter_comm"):
                maker = getattr(group, attribute, None)
                if maker is not None:  # else a release that has none: the calls are named by kind and place
                    maker.__class__ = _named_class(type(maker), name or "the model's own parameters")


def _named_class(kind: type, name: str) -> type:
    def call(self: Any, *arguments: Any, **keywords: Any) -> Any:
        with _named(name):
            return kind.__call__(self, *arguments, **keywords)

    return type(kind.__name__, (kind,), {"__call__": call})


class Probe:
    """The probes of this process. All objects of this class share steps, findings, options and log.

    `model`: a DistributedDataParallel, before its first backward pass. `hook`, `state`: a communication hook of DDP's
    kind for it, such as bf16_compress_hook; without one the gradients are averaged as DDP does. Or a model of
    fully_shard in the group "probed", whose calls get the names of its parts.
    `log`: a file for JSON lines, written on rank 0. `on_finding`: called with each `Finding`, on each rank of its
    group, in each step that has it. `run`: the run's name in the log.
    Equal on all ranks, before the first collective: `every`: one step of so many is looked at; `false_alarms`: share of
    healthy steps in which a number names a rank; `patience`: seconds for a rank that is two steps behind, before
    probing ends (training goes on).
    """

    def __init__(self, model: Optional[torch.nn.Module] = None, hook: Any = None, state: Any = None, *,
                 log: Optional[str] = None, on_finding: Optional[Callable[[Finding], None]] = None,
                 run: Optional[str] = None, every: Optional[int] = None, false_alarms: Optional[float] = None,
                 patience: Optional[float] = None) -> None:
        if not dist.is_initialized():
            raise RuntimeError("collprobe: call torch.distributed.init_process_group first")
        library.load()
        self._session: _Session = _session
        options = {"every": every, "false_alarms": false_alarms, "patience": patience}
        if model is None:
            if hook is not None or state is not None:
                raise ValueError("collprobe: a hook needs a model")
            _session.configure(log, on_finding, run, options)
            return
        if hasattr(model, "set_requires_gradient_sync") and hook is None:  # FSDP2
            _session.configure(log, on_finding, run, options)
            _name_calls_of(model)
            return
        if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
            raise TypeError("collprobe: Probe(model) takes a DistributedDataParallel, or without a hook a model of "
                            f"fully_shard, not {type(model).__name__}; all else is seen through "
                            'init_process_group("probed") and probe()')
        group = model.process_group
        observer = None if isinstance(group, ProbedGroup) else _observer_around(group)
        _session.configure(log, on_finding, run, options)
        _session.models.append(_Model(model, hook, state, observer))

    def end_step(self, loss: Union[None, float, torch.Tensor] = None, tokens: float = 1.0,
                 step: Optional[int] = None) -> None:
        """Ends a step: the calls since the last one. `loss`: mean over this rank's `tokens` (or samples; 0: none).
        `step`: its number, equal on all ranks; without it they are counted. Once it was called, optimizers end no
        steps.
        Waits for nothing, unless a rank is more than two steps behind."""
        self._require_open()
        tokens = float(tokens)
        if not (tokens >= 0 and math.isfinite(tokens)):
            raise ValueError(f"collprobe: tokens is {tokens}; it must be a number of samples or tokens, or 0")
        if step is not None and step < 0:
            raise ValueError("collprobe: step is negative")
        if isinstance(loss, torch.Tensor) and loss.numel() != 1:
            raise ValueError(f"collprobe: loss has {loss.numel()} elements; give its mean")
        if loss is not None and not isinstance(loss, torch.Tensor):
            try:
                loss = float(loss)
            except (TypeError, ValueError):
                raise TypeError(f"collprobe: loss is {loss!r}; it must be a number or a tensor of one element"
                                ) from None
        self._session.by_hand = True
        self._session.end_step(step, loss, tokens)

    def expect_equal(self, name: str, value: Union[float, torch.Tensor]) -> None:
        """The value of this step is equal on all ranks, bit by bit: a learning rate, a seed, weights. It is read when
        the step ends."""
        self._require_open()
        self._session.expect(library.EQUAL, name, value)

    def expect_distinct(self, name: str, value: Union[float, torch.Tensor]) -> None:
        """Each rank has its own value in this step: the seed of its dropout, the first sample of its batch."""
        self._require_open()
        self._session.expect(library.DISTINCT, name, value)

    def named(self, name: str) -> ContextManager[None]:
        """`with probe.named("energy"): dist.all_reduce(energy)`: the calls in the block have the name."""
        return _named(name)

    def records(self, wait: bool = False) -> List[Record]:
        """Those that came since the last call, the last 1,024. `wait`: for all steps that have ended."""
        if wait:
            self._session.take_records(0)
        out = list(self._session.records)
        self._session.records.clear()
        return out

    def table(self) -> str:
        """The newest record of each group, for people."""
        return "\n".join(recorder.table() for each in self._session.observers for recorder in each.live())

    def not_observed(self) -> Dict[str, int]:
        """Calls that were passed on without a look, by kind and reason."""
        out: Dict[str, int] = {}
        for each in self._session.observers:
            for what, count in each.not_observed.items():
                out[what] = out.get(what, 0) + count
        return out

    def state_dict(self) -> Dict[str, Any]:
        """What the probes have learnt of the run, for a checkpoint; each rank saves its own."""
        self._session.take_records(0)
        groups = {f"{each.name}/{recorder.device}": recorder.state()
                  for each in self._session.observers for recorder in each.live()}
        return {"step": self._session.step, "groups": groups}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """On all ranks alike. What belongs to a group that has no probe yet is loaded when it gets one."""
        if not isinstance(state, dict) or set(state) != {"step", "groups"}:
            raise ValueError("collprobe: this is no state of a probe: it needs 'step' and 'groups'")
        session = self._session
        session.take_records(0)
        for observer in session.observers:
            for recorder in observer.live():
                kept = state["groups"].get(f"{observer.name}/{recorder.device}")
                if kept is not None:
                    recorder.restore(kept)
        session.step = int(state["step"])
        session.restored = dict(state["groups"])

    def close(self) -> None:
        """Ends probing; tells what the last steps have found. Training may go on. At the end of the program, or with
        destroy_process_group, it is done by itself."""
        self._session.close()

    def _require_open(self) -> None:
        if not self._session.observers:
            raise RuntimeError('collprobe: there is no group to probe: it was closed, or init_process_group("probed") '
                               "or Probe(model) did not come before")


def probe(**options: Any) -> Probe:
    """The probe of the process groups that init_process_group("probed") makes. Options as of `Probe`."""
    return Probe(**options)


def _observer_around(group: dist.ProcessGroup) -> Observer:
    """Around a group that is not "probed": its DDP hook shows the calls."""
    for each in _session.observers:
        if each.around is group:
            return each
    world = dist.distributed_c10d._world
    store = world.pg_map[group][1]
    ranks = dist.get_process_group_ranks(group)
    made = Observer(group.rank(), ranks, str(world.pg_names[group]), store, timedelta(minutes=30), _session)
    made.around = group
    return made
