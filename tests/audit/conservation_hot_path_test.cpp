// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <latch>
#include <vector>

#include <collprobe/audit/conservation.hpp>
#include <collprobe/comm/local/communicator.hpp>

#include "support/count_allocations.hpp"
#include "support/run_ranks.hpp"

using namespace collprobe;

TEST_CASE("steady checks of conservation allocate nothing and never wait for the host, and verdicts are all right")
{
    std::latch warm(3), counted(3), worked(3);
    std::atomic<long> before{0}, after{0};
    std::atomic<std::uint64_t> waits{0};
    std::atomic<int> right{0};
    testing::local_provider{3, local::reduction_order::tree}.run([&](local::communicator& world) {
        std::vector<float> values(5003);
        for (std::size_t i = 0; i < values.size(); ++i)
            values[i] = static_cast<float>((i * 37 + static_cast<std::size_t>(world.rank())) % 101) / 7;
        std::vector<float> result(values.size());
        host::buffer<conservation_result> out(1);
        const host::stream stream;
        conservation_check check(world, {.sketch = {}, .order = rounding_order::tree});
        const auto work = [&] {
            check.before<float>(values, stream);
            world.all_reduce(view<const float>(values), view<float>(result), reduction::average, stream);
            check.after<float>(result, reduction::average, out.data(), stream);
        };
        // The queues keep what they ever needed: let them be longer here than they can get below.
        for (int round = 0; round < 2; ++round) {
            std::latch go(1);
            stream.enqueue([&go] { go.wait(); });
            work();
            work();
            go.count_down();
            stream.synchronize(20'000);
        }
        warm.arrive_and_wait();
        if (world.rank() == 0) before = allocations.load();
        counted.arrive_and_wait();
        const std::uint64_t waited = stream.synchronizations();
        work();
        waits += stream.synchronizations() - waited;
        stream.synchronize(20'000);
        worked.arrive_and_wait();
        if (world.rank() == 0) after = allocations.load();
        right += out[0].checked && out[0].conserved ? 1 : 0;
    });
    CHECK(right == 3);
    CHECK(after - before == 0);
    CHECK(waits == 0);
}
