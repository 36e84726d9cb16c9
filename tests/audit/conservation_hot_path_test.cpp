// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <atomic>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>

#include "audit/lone_checks.hpp"
#include "support/hot_path.hpp"
#include "support/run_ranks.hpp"

using namespace collprobe;

TEST_CASE("steady checks of conservation allocate nothing and never wait for the host, and verdicts are all right")
{
    testing::hot_path steady(3);
    std::atomic<int> right{0};
    testing::local_provider{3, local::reduction_order::tree}.run([&](local::communicator& world) {
        std::vector<float> values(5003);
        for (std::size_t i = 0; i < values.size(); ++i)
            values[i] = static_cast<float>((i * 37 + static_cast<std::size_t>(world.rank())) % 101) / 7;
        std::vector<float> result(values.size());
        host::buffer<detail::conservation_result> out(1);
        const host::stream stream;
        testing::conservation_check check(world, {.sketch = {}, .order = rounding_order::tree});
        const auto work = [&] {
            check.before<float>(values, stream, reduction::average);
            world.all_reduce(view<const float>(values), view<float>(result), reduction::average, stream);
            check.after<float>(result, out.data(), stream);
        };
        steady.measure(world.rank(), stream, work);
        right += out[0].checked && out[0].conserved ? 1 : 0;
    });
    CHECK(right == 3);
    CHECK(steady.allocations() == 0);
    CHECK(steady.waits() == 0);
}
