// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Whoever wraps a communicator must not change what it does.
#include <doctest/doctest.h>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/step/probed.hpp>

#include "conformance/communicator_conformance.hpp"
#include "support/run_ranks.hpp"

namespace collprobe::testing::probed_conformance_test {
namespace {

struct probed_provider {
    using communicator = probed<local::communicator>;
    testing::local_provider inner;
    probe_options options;

    int size() const { return inner.size(); }
    template <class Body>
    void run(Body body) const
    {
        inner.run([&](local::communicator& world) {
            communicator comm(world, options);
            body(comm);
        });
    }
};

} // namespace

TEST_CASE("a probed communicator conforms as the one it wraps does")
{
    for (const int ranks : {1, 2, 3, 8}) {
        CAPTURE(ranks);
        const probed_provider provider{{ranks}, {.calls = 4'000}};
        CHECK_NOTHROW(conformance::check_types(provider, 67));
        CHECK_NOTHROW(conformance::check_calls(provider, 50));
        CHECK_NOTHROW(conformance::check_barrier(provider));
        if (ranks > 1) CHECK_NOTHROW(conformance::check_refusals(provider));
    }
}

TEST_CASE("with the exact alignment's extra messages too")
{
    const probed_provider provider{
        {3}, {.direction = direction_mode::exact, .calls = 4'000, .scratch_bytes = 1 << 12}};
    CHECK_NOTHROW(conformance::check_type<float>(provider, 259));
    CHECK_NOTHROW(conformance::check_calls(provider, 20));
    CHECK_NOTHROW(conformance::check_refusals(provider));
}

} // namespace collprobe::testing::probed_conformance_test
