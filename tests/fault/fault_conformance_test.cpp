// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Faults that are not due, or that undo each other, change nothing of what the wrapped communicator does.
#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/fault/faulty.hpp>

#include "conformance/communicator_conformance.hpp"
#include "support/run_ranks.hpp"

namespace collprobe::testing::fault_conformance_test {
namespace {

struct faulty_provider {
    using communicator = faulty<local::communicator>;
    testing::local_provider inner;
    std::vector<fault> faults;

    int size() const { return inner.size(); }
    template <class Body>
    void run(Body body) const
    {
        inner.run([&](local::communicator& world) {
            communicator comm(world, faults);
            body(comm);
        });
    }
};

void check_with(const faulty_provider& provider)
{
    for (const int ranks : {1, 2, 3}) {
        CAPTURE(ranks);
        faulty_provider sized = provider;
        sized.inner.ranks = ranks;
        CHECK_NOTHROW(conformance::check_type<bfloat16>(sized, 67));
        CHECK_NOTHROW(conformance::check_calls(sized, 30));
        CHECK_NOTHROW(conformance::check_barrier(sized));
        if (ranks > 1) CHECK_NOTHROW(conformance::check_refusals(sized));
    }
}

} // namespace

TEST_CASE("a faulty communicator without faults that are due conforms as the one it wraps does")
{
    check_with({{}, {}});
    check_with({{}, {{.kind = fault_kind::stale, .phase = fault_phase::during, .call = std::uint64_t{1} << 40},
                   {.probability = 0}}});
}

TEST_CASE("a faulty communicator whose faults undo each other conforms")
{
    // Not `before`: the suite has calls that read the same buffer at the same time.
    const fault copied{.phase = fault_phase::during, .first = 0, .elements = 5, .mask = 1};
    const fault received{.phase = fault_phase::after, .first = 0, .elements = 5, .mask = 1};
    check_with({{}, {copied, copied, received, received}});
}

} // namespace collprobe::testing::fault_conformance_test
