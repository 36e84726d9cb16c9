// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Many more ranks than cores: apart from local_test.cpp, so that each stays short under sanitizers.

#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>

#include "conformance/communicator_conformance.hpp"
#include "support/run_ranks.hpp"

namespace collprobe::testing::local_many_test {

TEST_CASE("64 ranks conform: reductions, movement, calls and barriers")
{
    CHECK_NOTHROW(conformance::check_type<float16>(local_provider{64, local::reduction_order::ring}, 331));
    CHECK_NOTHROW(conformance::check_calls(local_provider{64}, 40));
    CHECK_NOTHROW(conformance::check_barrier(local_provider{64}));
}

TEST_CASE("256 ranks meet")
{
    CHECK_NOTHROW(local_provider{256, local::reduction_order::tree}.run([](local::communicator& comm) {
        std::vector<std::int64_t> value(300, comm.rank());
        {
            const host::stream stream;
            for (int round = 0; round < 5; ++round) {
                comm.all_reduce(view<const std::int64_t>(value), view<std::int64_t>(value), reduction::max, stream);
                comm.barrier(stream);
            }
            stream.synchronize();
        }
        for (const std::int64_t x : value) conformance::require(x == 255, "wrong maximum");
    }));
}

} // namespace collprobe::testing::local_many_test
