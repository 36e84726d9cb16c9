// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// The ranks of tests and experiments that share a device, on the CPU as one: they conform, so that what is tried over
// them is not their own fault.
#include <doctest/doctest.h>

#include "conformance/communicator_conformance.hpp"
#include "examples/support/device_ranks.hpp"
#include "support/device_bits.hpp"
#include "support/run_ranks.hpp"
#include "support/element_types.hpp"

namespace collprobe::testing::local_device_test {
namespace {

using provider = testing::device_provider<host::device>;

} // namespace

TEST_CASE("operations, counts and placements, splits, sequences of calls, stress and barriers conform over a device")
{
    for (const int ranks : {1, 2, 3, 5, 8, 16}) {
        CAPTURE(ranks);
        CHECK_NOTHROW(conformance::check_type<bfloat16>(provider{ranks}, ranks <= 5 ? 521 : 131));
        CHECK_NOTHROW(conformance::check_calls(provider{ranks}, ranks <= 8 ? 100 : 30));
        CHECK_NOTHROW(conformance::check_barrier(provider{ranks}));
        if (ranks > 1) CHECK_NOTHROW(conformance::check_refusals(provider{ranks}));
    }
}

TEST_CASE_TEMPLATE("a device gives the bits of local on the CPU", T, COLLPROBE_TEST_ELEMENT_TYPES)
{
    for (const int ranks : {1, 2, 3, 5, 8, 17, 64}) {
        CAPTURE(ranks);
        CHECK(testing::differing_reductions<host::device, T>(ranks, ranks < 64 ? 333 : 70) == 0);
    }
}

} // namespace collprobe::testing::local_device_test
