// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What every communicator must do, where nothing is quantised.
#include <doctest/doctest.h>

#include <cstdint>

#include <collprobe/quant/quantised.hpp>

#include "conformance/communicator_conformance.hpp"
#include "support/run_ranks.hpp"

namespace collprobe::testing::quantised_conformance_test {
TEST_CASE("a quantised communicator that quantises nothing conforms as the one it wraps does")
{
    for (const int ranks : {1, 2, 3}) {
        CAPTURE(ranks);
        const wrapped_provider provider{local_provider{ranks},
            [](auto& world) { return quantised(world, {}, {.least_bytes = std::uint64_t{1} << 40}); }};
        CHECK_NOTHROW(conformance::check_type<float>(provider, 67));
        CHECK_NOTHROW(conformance::check_type<std::int32_t>(provider, 67));
        CHECK_NOTHROW(conformance::check_calls(provider, 30));
        CHECK_NOTHROW(conformance::check_barrier(provider));
    }
}

} // namespace collprobe::testing::quantised_conformance_test
