# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""A program ends without a hang and without an abort, however it ends; and what is found last is told."""
import os
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

from collprobe import _library

PROGRAM = """
import os, sys, torch, torch.distributed as dist, collprobe.torch
torch.set_num_threads(1)
how, rank, ranks, store = sys.argv[1], int(sys.argv[2]), 2, sys.argv[3]
dist.init_process_group("probed", init_method="file://" + store, rank=rank, world_size=ranks)
if how != "two_lines":
    probe = collprobe.torch.probe()
torch.manual_seed(rank)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    loss = model(torch.randn(4, 32)).square().mean()
    if step == 5:
        loss = loss * float("nan") if rank == 1 else loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if how != "two_lines":
        probe.end_step(loss=loss)
    if how == "exception" and step == 3 and rank == 1:
        raise RuntimeError("the trainer's own")
if how == "destroyed":
    dist.destroy_process_group()
if how == "closed":
    probe.close()
    probe.close()
if how == "exit":
    sys.exit(0)
if how == "unequal" and rank == 0:
    probe.end_step()  # a step that the other rank does not end
print("done", flush=True)
"""


def run(how, timeout=150):
    """(exit status, standard output, standard error) by rank."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "program.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(PROGRAM)
        started = [
            subprocess.Popen([sys.executable, path, how, str(rank), os.path.join(folder, "store")],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in range(2)]
        try:
            return [(each.wait(timeout), *each.communicate()) for each in started]
        finally:
            for each in started:
                if each.poll() is None:
                    each.kill()
                    each.communicate()


class Exit(unittest.TestCase):
    def check_good(self, how):
        ended = run(how)
        for status, out, error in ended:
            self.assertEqual(status, 0, error)
            self.assertNotIn("terminate", error)
        self.assertIn("NaN or infinity", ended[0][2])  # of the last step, told at the end

    def test_two_lines_alone(self):
        self.check_good("two_lines")

    def test_never_closed(self):
        self.check_good("open")

    def test_process_group_destroyed_before(self):
        self.check_good("destroyed")

    def test_closed_twice(self):
        self.check_good("closed")

    def test_a_rank_that_has_ended_a_step_more_does_not_hang(self):
        for status, _, error in run("unequal"):
            self.assertEqual(status, 0, error)

    def test_an_exception_on_one_rank_is_that_of_the_trainer(self):
        (first, _, first_error), (second, _, second_error) = run("exception")
        self.assertEqual(second, 1)
        self.assertIn("the trainer's own", second_error)
        self.assertEqual(first, 1)  # gloo's: its peer has gone
        self.assertNotIn("terminate", first_error + second_error)


class Library(unittest.TestCase):
    def load(self, path):
        with unittest.mock.patch.dict(os.environ, COLLPROBE_LIBRARY=path), \
                unittest.mock.patch.object(_library, "_loaded", None):
            _library.load()

    def test_that_is_missing(self):
        with self.assertRaisesRegex(ImportError, "install the wheel, or set COLLPROBE_LIBRARY"):
            self.load("/nonexistent/libcollprobe.so")

    def test_that_is_another_one(self):
        with self.assertRaisesRegex(ImportError, "install the wheel, or set COLLPROBE_LIBRARY"):
            self.load("libm.so.6")

    def test_of_another_version(self):
        with unittest.mock.patch.object(_library, "_version", 9900):
            with self.assertRaisesRegex(ImportError, "install both from one wheel"):
                self.load(_library.path())


if __name__ == "__main__":
    unittest.main()
