#!/usr/bin/env python3
# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""A program of mpi4py that does not know this project: program.py STEPS FAULT. It prints checksums of all results."""

import math
import random
import sys
import zlib
from array import array

from mpi4py import MPI

COUNT = 4096
FAULT_STEP = 7


def numbers(kind, count):
    return array(kind, [random.gauss(0, 1) for _ in range(count)])


def main():
    steps, fault = int(sys.argv[1]), sys.argv[2]
    world = MPI.COMM_WORLD
    rank = world.Get_rank()
    random.seed(rank)
    checksum = 0
    for step in range(steps):
        gradient, other, values = numbers("f", COUNT), numbers("f", COUNT), numbers("d", COUNT // 2)
        if rank == 1 and step == FAULT_STEP:
            if fault == "nan":
                gradient[777] = math.inf
            if fault == "in_place":
                values[42] = math.nan
        total, later, part = array("f", gradient), array("f", gradient), array("f", [0] * (COUNT // 2))
        world.Allreduce(gradient, total, MPI.SUM)
        world.Allreduce(MPI.IN_PLACE, values, MPI.SUM)
        request = world.Iallreduce(other, later, MPI.SUM)
        if world.Get_size() == 2:
            world.Reduce_scatter_block(gradient, part, MPI.SUM)
        request.Wait()
        world.allreduce(step)
        for result in (total, values, later, part):
            checksum = zlib.crc32(result.tobytes(), checksum)
    checksums = world.gather(checksum)
    if rank == 0:
        print("checksums", checksums)


main()
