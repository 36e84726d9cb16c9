// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// The failure modes of host_test.cpp on a GPU: two ranks of this process, and NCCL itself with one rank where one is
// enough. Does nothing where there is no GPU.
#include <doctest/doctest.h>

#include <collprobe/comm/nccl/communicator.hpp>

#include "tests/race_lab/gpu_lab.cuh"
#include "tests/race_lab/modes.hpp"
#include "tests/support/needs_gpu.hpp"

using namespace collprobe::race_lab;

// Compiled in two parts, one for each lab.
#if !defined(COLLPROBE_TEST_PART)
#define IN_EACH_LAB(name, mode) \
    TEST_CASE(name) { mode<gpu_lab>(), mode<gpu_nccl_lab>(); }
#define ON_TWO_RANKS(name, mode) \
    TEST_CASE(name) { mode<gpu_lab>(); }
#elif COLLPROBE_TEST_PART == 1
#define IN_EACH_LAB(name, mode) \
    TEST_CASE(name) { mode<gpu_lab>(); }
#define ON_TWO_RANKS(name, mode) IN_EACH_LAB(name, mode)
#else
#define IN_EACH_LAB(name, mode) \
    TEST_CASE(name) { mode<gpu_nccl_lab>(); }
#define ON_TWO_RANKS(name, mode)
#endif

COLLPROBE_RACE_LAB_MODES(IN_EACH_LAB, ON_TWO_RANKS)
