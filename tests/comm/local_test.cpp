// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include <doctest/doctest.h>

#include <string>

#include <collprobe/comm/local/communicator.hpp>

#include "conformance/communicator_conformance.hpp"
#include "support/run_ranks.hpp"

namespace collprobe::testing::local_test {
namespace {

constexpr local::reduction_order orders[]
    = {local::reduction_order::linear, local::reduction_order::ring, local::reduction_order::tree};

// More elements where there are few ranks; the oracle reads all inputs of an element.
constexpr std::uint64_t larger(int ranks)
{
    if (COLLPROBE_TEST_UNLESS_BRIEF(false, true)) return ranks <= 3 ? 1031 : 131;
    return ranks <= 3 ? 2051 : ranks <= 8 ? 1031 : 331;
}

} // namespace

TEST_CASE("local conforms for every element type, operation, count and placement")
{
    for (const int ranks : {1, 2, 3, 8, 17}) {
        if (COLLPROBE_TEST_UNLESS_BRIEF(false, ranks == 17)) continue;
        for (const local::reduction_order order : orders) {
            CAPTURE(ranks);
            CAPTURE(local::name(order));
            CHECK_NOTHROW(conformance::check_all_types(local_provider{ranks, order}, larger(ranks)));
        }
    }
}

TEST_CASE("splits, sequences of calls and stress conform")
{
    for (const int ranks : {1, 2, 3, 8, 64}) { // many more than cores
        CAPTURE(ranks);
        CHECK_NOTHROW(conformance::check_calls(local_provider{ranks}, ranks <= 8 ? COLLPROBE_TEST_UNLESS_BRIEF(200, 60) : 40));
    }
}

TEST_CASE("a bad argument throws at the call, enqueues nothing, and can be corrected")
{
    for (const int ranks : {2, 3, 8}) CHECK_NOTHROW(conformance::check_refusals(local_provider{ranks}));
    CHECK_NOTHROW(local_provider{2}.run([](local::communicator& comm) {
        bool refused = false;
        try {
            if (comm.rank() == 1) comm.split(-2, 0);
        } catch (const error& failure) {
            refused = std::string(failure.what()).find("color -2 is below no_color") != std::string::npos
                && failure.code() == status::invalid_argument;
        }
        conformance::require(refused == (comm.rank() == 1), "a split by color -2");
        (void)comm.split(0, 0);
    }));
}

TEST_CASE("a barrier orders the work of all ranks")
{
    for (const int ranks : {1, 2, 3, 8, 64}) {
        CAPTURE(ranks);
        CHECK_NOTHROW(conformance::check_barrier(local_provider{ranks}));
    }
}

} // namespace collprobe::testing::local_test
