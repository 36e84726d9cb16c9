// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/reduce/reproducible.hpp>

#include "support/hot_path.hpp"
#include "support/run_ranks.hpp"

namespace collprobe::testing::reproducible_hot_path_test {

TEST_CASE("steady reductions under a contract allocate nothing and never wait for the host")
{
    for (const auto how :
        {reduction_algorithm::exchange, reduction_algorithm::one_shot, reduction_algorithm::fixed_point}) {
        testing::hot_path steady(3);
        testing::local_provider{3}.run([&](local::communicator& world) {
            std::vector<float> send(2 * 5003, 1.5f), receive(5003);
            const host::stream stream;
            reproducible comm(
                world, contract<reproducibility::order_invariant>{}, {.scratch_bytes = 1 << 14, .algorithm = how});
            const auto work = [&] {
                for (int call = 0; call < 3; ++call) {
                    comm.all_reduce(view<const float>(send), view<float>(receive), reduction::average, stream, {.leaves = 2});
                }
            };
            steady.measure(world.rank(), stream, work);
        });
        CHECK(steady.allocations() == 0);
        CHECK(steady.waits() == 0);
    }
}

} // namespace collprobe::testing::reproducible_hot_path_test
