// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <atomic>
#include <vector>

#include <collprobe/audit/audit.hpp>
#include <collprobe/audit/weight_probe.hpp>
#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/step/probed.hpp>

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

TEST_CASE("steps with an audit and a weight_probe allocate nothing and never wait for the host")
{
    testing::hot_path steady(3);
    testing::local_provider{3}.run([&](local::communicator& world) {
        probed comm{world, {.lateness_floor_ns = 1e12, .unread_steps = 2}, audit(), weight_probe({.every = 1})};
        const host::stream stream;
        std::vector<float> mine(5003);
        for (std::size_t i = 0; i < mine.size(); ++i)
            mine[i] = static_cast<float>(detail::mix64(i + 5003 * static_cast<std::size_t>(world.rank())) >> 40) - 0x1p23f;
        std::vector<float> result(mine.size());
        step_record record;
        const auto step = [&] {
            for (int c = 0; c < 3; ++c)
                comm.all_reduce(view<const float>(mine), view<float>(result), reduction::average, stream);
            comm.end_step(0, stream);
        };
        const auto two = [&] {
            step();
            step();
        };
        const auto read = [&] {
            while (comm.poll(record)) testing::require(record.calls[2].weights.how == averaging::mean, "wrong form");
        };
        for (int i = 0; i < 12; ++i) { // each record of the queue gets its memory
            step();
            stream.synchronize(testing::soon_ms);
            read();
        }
        steady.measure(world.rank(), stream, two, step, read);
    });
    CHECK(steady.allocations() == 0);
    CHECK(steady.waits() == 0);
}
