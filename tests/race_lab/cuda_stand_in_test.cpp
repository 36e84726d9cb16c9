// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// The failure modes of host_test.cpp on CUDA's streams and NCCL's ranks, over the stand-ins.
#include <doctest/doctest.h>

#include "tests/race_lab/modes.hpp"
#include "tests/race_lab/nccl_lab.hpp"

namespace collprobe::race_lab::cuda_stand_in_test {

#define ON_CUDA(name, mode) \
    TEST_CASE(name) { mode<nccl_lab>(); }
COLLPROBE_RACE_LAB_MODES(ON_CUDA, ON_CUDA)

TEST_CASE("F28 the doubles run in their streams") { f28_double_runs_in_its_stream<local_cuda_lab>(); }

} // namespace collprobe::race_lab::cuda_stand_in_test
