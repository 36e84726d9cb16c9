// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Several ranks on one GPU, or on all that there are: the kernels, copies and events of CUDA itself.
#include <doctest/doctest.h>

#include <cstdint>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/device/cuda/device.hpp>
#include <collprobe/device/cuda/kernels.cuh>

#include "conformance/communicator_conformance.hpp"
#include "examples/support/device_ranks.hpp"
#include "support/device_bits.hpp"
#include "support/element_types.hpp"
#include "support/needs_gpu.hpp"
#include "support/run_ranks.hpp"

using namespace collprobe;
namespace cu = collprobe::cuda; // nvcc's headers have a namespace cuda, too

namespace {

using gpu = cu::device;
using provider = testing::device_provider<gpu>;

} // namespace

TEST_CASE("ranks on a GPU conform: operations, counts and placements, splits, sequences of calls and stress")
{
    for (const int ranks : {1, 2, 3, 8}) {
        CAPTURE(ranks);
        CHECK_NOTHROW(conformance::check_type<bfloat16>(provider{ranks}, ranks <= 3 ? 2051 : 331));
        CHECK_NOTHROW(conformance::check_calls(provider{ranks}, 100));
    }
}

// One integer of each size, and each sign; all floating types.
TEST_CASE_TEMPLATE("a GPU gives the bits of the CPU", T, std::int8_t, std::uint32_t, std::int64_t,
    COLLPROBE_TEST_WIDER_FLOATING_TYPES, COLLPROBE_TEST_FLOAT8_TYPES)
{
    for (const int ranks : {1, 2, 3, 8, 17, 64}) {
        CAPTURE(ranks);
        CHECK(testing::differing_reductions<gpu, T>(ranks, ranks <= 8 ? 20'011 : 331) == 0);
    }
}
