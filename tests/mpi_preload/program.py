#!/usr/bin/env python3
# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""A program of mpi4py that does not know this project: program.py STEPS FAULT. It prints a checksum of all results."""

import sys
import zlib

import numpy
from mpi4py import MPI

FAULT_STEP = 7


def main():
    steps, fault = int(sys.argv[1]), sys.argv[2]
    world = MPI.COMM_WORLD
    rank = world.Get_rank()
    ranks = world.Get_size()
    random = numpy.random.default_rng(rank)
    checksum = 0
    for step in range(steps):
        gradient = random.standard_normal(4096).astype(numpy.float32)
        values = random.standard_normal(2048)
        if rank == 1 and step == FAULT_STEP:
            if fault == "nan":
                gradient[777] = numpy.inf
            if fault == "in_place":
                values[42] = numpy.nan
        total = numpy.empty_like(gradient)
        later = numpy.empty_like(gradient)
        doubled = 2 * gradient
        world.Allreduce(gradient, total, MPI.SUM)
        world.Allreduce(MPI.IN_PLACE, values, MPI.SUM)
        request = world.Iallreduce(doubled, later, MPI.SUM)
        part = numpy.empty(4096 // ranks, numpy.float32)
        world.Reduce_scatter_block(gradient[:4096 // ranks * ranks], part, MPI.SUM)
        request.Wait()
        world.allreduce(step)
        for result in (total, values, later, part):
            checksum = zlib.crc32(result.tobytes(), checksum)
    checksums = world.gather(checksum)
    if rank == 0:
        print("checksum", checksums)


main()
