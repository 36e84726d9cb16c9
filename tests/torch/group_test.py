# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""The group "probed" gives what gloo gives, names what it sees, and meets bad input with a sentence."""
import ctypes
import json
import os
import tempfile
import threading
import time
import unittest
import warnings

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import collprobe.torch
import ranks
from collprobe._recorder import _Messages


def numbers(rank, dtype=torch.float32):
    return torch.randn(64, generator=torch.Generator().manual_seed(rank)).to(dtype)


def all_calls(rank, count):
    """Results of every collective, as bytes."""
    out = []

    def keep(*tensors):
        out.extend(each.detach().clone() for each in tensors)

    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int32):
        x = numbers(rank, dtype)
        dist.all_reduce(x)
        keep(x)
    for op in (dist.ReduceOp.AVG, dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT):
        x = numbers(rank)
        dist.all_reduce(x, op=op)
        keep(x)
    x = torch.tensor([rank + 1] * 16, dtype=torch.int32)
    dist.all_reduce(x, op=dist.ReduceOp.BOR)
    keep(x)
    x = torch.complex(numbers(rank), numbers(rank + 10))
    dist.all_reduce(x)
    keep(x)
    x, y = numbers(rank), numbers(rank + 7)
    works = [dist.all_reduce(y, async_op=True), dist.all_reduce(x, async_op=True)]
    for each in reversed(works):  # results out of order
        each.wait()
    keep(x, y)
    x = numbers(rank)
    keep(dist.all_reduce(x, async_op=True).get_future().then(lambda future: future.value()[0] * 2).wait())
    shard, whole = torch.empty(64 // count), torch.empty(64 * count)
    dist.reduce_scatter_tensor(shard, numbers(rank))
    dist.all_gather_into_tensor(whole, numbers(rank))
    keep(shard, whole)
    parts = [torch.empty(64) for _ in range(count)]
    dist.all_gather(parts, numbers(rank))
    keep(*parts)
    x = torch.empty(64)
    dist.all_to_all_single(x, numbers(rank))
    keep(x)
    splits = [64 // count] * count
    dist.all_to_all_single(x, numbers(rank), splits, splits)
    keep(x)
    x = numbers(rank)
    dist.broadcast(x, 1)
    keep(x)
    x = numbers(rank)
    dist.reduce(x, 0)
    if rank == 0:
        keep(x)
    xs = [numbers(rank), numbers(rank + 3)]
    with dist._coalescing_manager():
        for each in xs:
            dist.all_reduce(each)
    keep(*xs)
    world = dist.group.WORLD
    keep(functional.all_reduce(numbers(rank), "sum", world) + 0)
    keep(functional.all_gather_tensor(numbers(rank), 0, world) + 0)
    keep(functional.reduce_scatter_tensor(numbers(rank), "sum", 0, world) + 0)

    @torch.compile(backend="aot_eager", fullgraph=True)
    def compiled(tensor):
        return functional.all_reduce(tensor * 2, "sum", world) + 1

    keep(compiled(numbers(rank)))
    pair = dist.new_group([0, 1])
    if rank < 2:
        x = numbers(rank)
        dist.all_reduce(x, group=pair)
        keep(x)
    mesh = init_device_mesh("cpu", (2, count // 2), mesh_dim_names=("a", "b"))
    x = numbers(rank)
    dist.all_reduce(x, group=mesh["b"].get_group())
    keep(x)
    if rank < 2:
        x = numbers(rank)
        (dist.send(x, 1) if rank == 0 else dist.recv(x, 0))
        keep(x)
    dist.barrier()
    if dist.get_backend() == "probed":
        probe = collprobe.torch.probe()
        probe.end_step(loss=1.0)
        records = probe.records(wait=True)
        calls = {each.group: each.values["calls"] for each in records}
        return [each.view(torch.uint8) if not each.is_complex() else torch.view_as_real(each) for each in out], calls
    return [each.view(torch.uint8) if not each.is_complex() else torch.view_as_real(each) for each in out], None


def backend_of(rank, count):
    return dist.get_backend()


def warned(body):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        body()
    return [str(each.message) for each in caught
            if issubclass(each.category, (collprobe.torch.FindingWarning, collprobe.torch.ProbeWarning))]


def bad_tensors(rank, count):
    probe = collprobe.torch.probe()

    def body():
        wide = torch.zeros(64, 2)
        wide[:, 0] = rank + 1.0
        column = wide[:, 0] if rank == 1 else wide[:, 0].contiguous()
        if rank != 1:
            dist.all_reduce(column)
        else:  # gloo itself takes no such tensor: the group's own look at it is tested
            dist.all_reduce(column.contiguous())
            group = dist.group.WORLD
            assert group.observer._readable(column, "all_reduce").is_contiguous()
        sparse = torch.sparse_coo_tensor([[rank]], [1.0], (64,))
        dist.all_reduce(sparse)
        assert sparse.to_dense().sum() == count
        scalar = torch.ones(())
        dist.all_reduce(scalar)
        probe.end_step(loss=1.0)
        probe.records(wait=True)

    return warned(body), probe.not_observed()


def errors(rank, count):
    probe = collprobe.torch.probe()
    out = []
    for call in (lambda: probe.end_step(loss=torch.ones(3)), lambda: probe.end_step(tokens=-1),
                 lambda: probe.end_step(step=-1), lambda: probe.expect_equal("", 1.0),
                 lambda: probe.expect_equal("lr", "0.1"), lambda: collprobe.torch.probe(every=0),
                 lambda: collprobe.torch.probe(false_alarms=2.0), lambda: collprobe.torch.Probe(nn.Linear(2, 2)),
                 lambda: collprobe.torch.Probe(hook=print), lambda: probe.load_state_dict({"step": 1})):
        try:
            call()
            out.append("")
        except (ValueError, TypeError, RuntimeError) as reason:
            out.append(str(reason))
    dist.all_reduce(torch.ones(64))
    try:
        collprobe.torch.probe(every=2)
        out.append("")
    except RuntimeError as reason:
        out.append(str(reason))
    probe.end_step()
    probe.close()
    x = torch.ones(64)
    dist.all_reduce(x)  # training goes on
    assert x[0] == count
    try:
        probe.end_step()
        out.append("")
    except RuntimeError as reason:
        out.append(str(reason))
    return out


def other_order(rank, count):
    probe = collprobe.torch.probe()

    def body():
        for step in range(3):
            names = ["energy", "forces"]
            if step == 1 and rank == 2:
                names.reverse()
            for name in names:
                with probe.named(name):
                    dist.all_reduce(numbers(rank + 5 * step + len(name)))
            probe.end_step()
        probe.records(wait=True)

    return warned(body)


def alone_without_sync(rank, count):
    """Rank 1 makes no call in the steps from 2 on, while the others wait for it."""
    probe = collprobe.torch.probe(patience=0.5)

    def body():
        for step in range(12):
            if step >= 2 and rank != 1:
                time.sleep(5)  # as in a reduction that rank 1 does not make
                break
            if step < 2:
                dist.all_reduce(numbers(rank + step))
            probe.end_step()

    return warned(body)


def gone(rank, count):
    """Rank 1 ends its probing alone; the others are told and go on."""
    probe = collprobe.torch.probe(patience=20.0)

    def body():
        for step in range(8):
            x = numbers(rank + step)
            dist.all_reduce(x)
            if rank == 1 and step == 3:
                probe.close()
            if not (rank == 1 and step >= 3):
                try:
                    probe.end_step(loss=1.0)
                except RuntimeError:
                    pass
            time.sleep(0.05)

    return warned(body)


def saved(rank, count, path):
    probe = collprobe.torch.probe()
    for step in range(40):
        dist.all_reduce(numbers(rank + 4 * step))
        probe.end_step(loss=float(numbers(step)[rank]))
    state = probe.state_dict()
    torch.save(state, f"{path}.{rank}")
    loaded = torch.load(f"{path}.{rank}", weights_only=True)
    assert loaded["step"] == 40 and all(each.numel() for each in loaded["groups"].values())
    probe.load_state_dict(loaded)
    damaged = {"step": 40, "groups": {key: each.clone() for key, each in loaded["groups"].items()}}
    next(iter(damaged["groups"].values()))[-1] ^= 1
    try:
        probe.load_state_dict(damaged)
        return "a damaged state was taken"
    except RuntimeError as reason:
        text = str(reason)
    dist.all_reduce(numbers(rank))
    probe.end_step(loss=1.0)
    assert probe.records(wait=True)[-1].step == 40
    return text


def logged(rank, count, path):
    probe = collprobe.torch.probe(log=path, run="mine")
    for step in range(5):
        x = numbers(rank + 4 * step)
        if step == 3 and rank == 2:
            x[17] = float("nan")
        dist.all_reduce(x)
        probe.end_step(loss=torch.tensor(1.0 + rank), step=10 * step)
    return [each.step for each in probe.records(wait=True)], probe.table()


def ended_by_optimizers(rank, count):
    """Two lines: import, and the name of the group."""
    def body():
        torch.manual_seed(0)
        model = nn.parallel.DistributedDataParallel(nn.Linear(32, 32))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1 if rank != 2 else 0.2)
        for _ in range(6):
            model(torch.randn(4, 32)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        dist.destroy_process_group()

    return warned(body)


class OfAllTypes(nn.Module):
    """With a parameter and a buffer of types that no collective sums."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.phases = nn.Parameter(torch.ones(8, dtype=torch.complex64))
        self.register_buffer("mask", torch.ones(3, dtype=torch.bool))

    def forward(self, x):
        return self.linear(x).mean() + self.phases.abs().mean()


def broadcast_views(rank, count):
    values = [torch.zeros(3, dtype=torch.complex64) for _ in range(8)]
    for _ in range(300):  # gloo's threads drop the views, for which they need the interpreter's lock
        dist._broadcast_coalesced(dist.group.WORLD, [torch.view_as_real(each) for each in values], 8, 0)
    mine, got = torch.full((4,), float(rank)), [torch.zeros(4) for _ in range(count)]
    dist.reduce(mine.clone(), 0)
    dist.gather(mine, got if rank == 0 else None)
    dist.scatter(mine, [torch.full((4,), 7.0 + each) for each in range(count)] if rank == 0 else None)
    if rank == 0:
        dist.send(mine, 1)
    elif rank == 1:
        dist.recv(mine, 0)
        assert mine[0] == 7, mine
        dist.send(mine, 2)
    else:
        dist.recv(mine)  # from any rank
        assert mine[0] == 7, mine
    dist.barrier()
    return [each[0].item() for each in got] if rank == 0 else None


def of_all_types(rank, count):
    def body():
        torch.manual_seed(0)
        model = nn.parallel.DistributedDataParallel(OfAllTypes())
        probe = collprobe.torch.Probe(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            optimizer.zero_grad()
            model(numbers(rank + 3 * step).reshape(4, 16)).backward()
            optimizer.step()
            probe.expect_equal("filter", torch.full((3,), 1 + 1j * (rank == 1 and step == 2), dtype=torch.complex64))
            probe.expect_equal("counts", torch.full((3,), 5 + (rank == 2 and step == 3), dtype=torch.int16))
        dist.destroy_process_group()

    return warned(body)


def stepped_by_hand_once(rank, count):
    def body():
        model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        probe = collprobe.torch.probe()
        for step in range(120):
            model(torch.randn(4, 4)).square().mean().backward()
            optimizer.step()
            if step == 3:
                try:
                    probe.end_step(loss="x")
                except TypeError as reason:
                    assert "loss is 'x'" in str(reason), reason
                probe.end_step(loss=1.0)
        dist.destroy_process_group()

    return warned(body)


def skips_a_step(rank, count):
    def body():
        model = nn.parallel.DistributedDataParallel(nn.Linear(32, 32))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(20):
            x = torch.randn(4, 32, generator=torch.Generator().manual_seed(count * step + rank))
            model(x).square().mean().backward()
            if rank != 1 or step != 7:
                optimizer.step()
            optimizer.zero_grad()
        dist.destroy_process_group()

    return warned(body)


class LateWork:
    """Ends between the time-out of a wait and the question whether it has ended."""

    def wait(self, timeout=None):
        if timeout is not None:
            raise RuntimeError("Operation timed out!")

    def is_completed(self):
        return True


class LateGroup:
    def allgather(self, outputs, inputs):
        outputs[0][0].copy_(inputs[0])
        return LateWork()


class Messages(unittest.TestCase):
    def test_work_that_ends_right_behind_the_time_out_is_no_failure(self):
        messages = _Messages.__new__(_Messages)
        messages.gloo, messages.ranks, messages.deadline, messages.came = LateGroup(), 1, 0.0, threading.Event()
        sent, got = ctypes.create_string_buffer(b"collprobe", 9), ctypes.create_string_buffer(9)
        self.assertEqual(messages._gather(0, ctypes.addressof(sent), ctypes.addressof(got), 9), 0)
        self.assertEqual(got.raw, b"collprobe")


class ProbedGroup(unittest.TestCase):
    def test_gives_what_gloo_gives(self):
        probed, bare = ranks.run(4, all_calls), ranks.run(4, all_calls, backend="gloo")
        for (mine, calls), (theirs, _) in zip(probed, bare):
            self.assertEqual(len(mine), len(theirs))
            for place, (a, b) in enumerate(zip(mine, theirs)):
                self.assertTrue(torch.equal(a, b), place)
            self.assertGreaterEqual(calls["0"], 20)
        self.assertEqual(len(probed[0][1]), 3)  # the world, the pair, the row of the mesh

    def test_takes_a_backend_by_device(self):
        self.assertEqual(ranks.run(2, backend_of, backend="cpu:probed"), ["cpu:probed"] * 2)

    def test_bad_tensors_are_passed_on_and_counted(self):
        told, left_out = ranks.run(2, bad_tensors)[1]
        self.assertTrue(any("not contiguous" in each for each in told), told)
        self.assertEqual(left_out.get("all_reduce of sparse tensors"), 1)
        self.assertEqual(left_out.get("all_reduce of fewer than 16 elements"), 1)

    def test_bad_arguments_get_one_sentence(self):
        for out in ranks.run(2, errors):
            for each in out:
                self.assertTrue(each.startswith("collprobe: "), out)
                self.assertNotIn("\n", each)

    def test_calls_in_another_order_are_named(self):
        told = ranks.run(4, other_order)[0]
        self.assertEqual(len(told), 1, told)
        self.assertTrue(told[0].startswith("step 1:"), told)
        self.assertIn("'forces' of 64 float32 (sum) on rank 2", told[0])

    def test_no_sync_on_one_rank_does_not_hang(self):
        told = ranks.run(3, alone_without_sync)[1]
        self.assertTrue(any("no_sync" in each and "rank 1" in each for each in told), told)

    def test_a_rank_that_stops_probing_does_not_stop_training(self):
        told = ranks.run(3, gone)
        self.assertTrue(any("training goes on" in each for each in told[0]), told)

    def test_state_goes_through_a_checkpoint(self):
        with tempfile.TemporaryDirectory() as folder:
            for text in ranks.run(2, saved, os.path.join(folder, "state")):
                self.assertIn("damaged", text)

    def test_log_has_a_line_for_each_step(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "run.jsonl")
            steps, table = ranks.run(3, logged, path)[0]
            with open(path, encoding="utf-8") as file:
                lines = [json.loads(line) for line in file]
        self.assertEqual(steps, [0, 10, 20, 30, 40])
        self.assertEqual([each["step"] for each in lines], steps)
        self.assertIn("mine", json.dumps(lines[0]))
        self.assertIn("step 40", table)

    def test_optimizers_end_steps_and_compare_learning_rates(self):
        told = ranks.run(4, ended_by_optimizers)
        self.assertTrue(any(each.startswith("step 0: 'lr': rank 2 held another value") and " 0.2, most" in each for each in told[0]), told)
        self.assertEqual(told[1:], [[], [], []])  # rank 0 warns

    def test_calls_that_are_not_looked_at_let_go_of_the_interpreter(self):
        self.assertEqual(ranks.run(3, broadcast_views)[0], [0.0, 1.0, 2.0])

    def test_values_of_all_types_are_compared(self):
        told = ranks.run(3, of_all_types)[0]
        self.assertTrue(any(each.startswith("step 2: 'filter': rank 1 held another value") for each in told), told)
        self.assertTrue(any(each.startswith("step 3: 'counts': rank 2 held another value") for each in told), told)
        self.assertEqual(len(told), 2, told)

    def test_steps_that_are_ended_by_hand_once_are_told(self):
        told = ranks.run(2, stepped_by_hand_once)[0]
        self.assertTrue(any("no step has ended since step" in each for each in told), told)

    def test_a_rank_that_skips_an_optimizer_step_is_no_other_fault(self):
        told = ranks.run(3, skips_a_step)[0]
        hint = "Does a rank skip a step of its optimizer"
        self.assertTrue(any("rank 1" in each and hint in each for each in told), told)
        self.assertTrue(any("do not fit together since step 7" in each for each in told), told)
        self.assertEqual(len(told), 2, told)


if __name__ == "__main__":
    unittest.main()
