// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
#include <latch>
#include <stdexcept>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/step/probed.hpp>

#include "support/held_clock.hpp"
#include "support/hot_path.hpp"
#include "support/run_ranks.hpp"

using namespace collprobe;

TEST_CASE("steady checks of values allocate nothing and never wait for the host")
{
    for (const report_mode mode : {report_mode::gather, report_mode::summary}) {
        CAPTURE(name(mode));
        testing::hot_path steady(3);
        testing::local_provider{3}.run([&](local::communicator& world) {
            std::vector<float> weights(5003, 1.5f);
            std::vector<double> momentum(77);
            const host::stream stream;
            probed comm(world, {.mode = mode, .steps_in_flight = 10, .unread_steps = 10});
            step_record record;
            std::uint64_t steps = 0, wrong = 0;
            const auto read = [&] {
                while (comm.poll(record)) {
                    wrong += record.expectations.size() == 3 && record.findings.empty() ? 0 : 1;
                    for (const expectation_record& each : record.expectations) wrong += each.holds ? 0 : 1;
                }
            };
            const auto enqueue = [&](int count) {
                for (int k = 0; k < count; ++k) {
                    comm.expect_equal("weights", view<const float>(weights), stream);
                    comm.expect_equal("momentum", view<const double>(momentum), stream);
                    comm.expect_equal("step", steps);
                    comm.end_step(steps++, stream);
                }
            };
            const auto work = [&] {
                for (int k = 0; k < 4; ++k) {
                    enqueue(1);
                    read();
                }
            };
            steady.measure(world.rank(), stream, [&] { enqueue(8); }, work, read);
            if (wrong != 0 || steps != 20 || comm.pending_steps() != 0) throw std::runtime_error("they are equal");
        });
        CHECK(steady.allocations() == 0);
        CHECK(steady.waits() == 0);
    }
}

TEST_CASE("a check of values returns before its peers have called")
{
    std::latch returned(1);
    CHECK_NOTHROW(testing::local_provider{2}.run([&](local::communicator& world) {
        std::vector<float> weights(100'000);
        const host::stream stream;
        probed comm(world);
        if (world.rank() == 1) returned.wait();
        comm.expect_equal("weights", view<const float>(weights), stream);
        comm.expect_equal("learning rate", 0.1);
        comm.end_step(0, stream);
        step_record record;
        if (world.rank() == 0) {
            CHECK(!comm.poll(record));
            returned.count_down();
        }
        REQUIRE(comm.wait(record));
        CHECK(record.expectations.at(0).holds);
        CHECK(record.expectations.at(1).holds);
    }));
}

TEST_CASE("a peer that never tells its values is a time-out that names it, not a hang")
{
    const testing::held_clock clock;
    const local::group group(3, {.timeout_ms = 300});
    const auto outcomes = testing::run_each(group, [&](local::communicator& world) {
        if (world.rank() == 1) return clock.advance_ms(300, {0, 2});
        std::vector<float> weights(10);
        probed comm(world);
        const host::stream stream;
        stream.enqueue([&, rank = world.rank()] { clock.i_am(rank); });
        comm.expect_equal("weights", view<const float>(weights), stream);
        comm.end_step(0, stream);
        step_record record;
        (void)comm.wait(record);
    });
    for (const std::size_t r : {std::size_t{0}, std::size_t{2}}) {
        REQUIRE(outcomes[r].failure());
        CHECK(outcomes[r].failure()->code() == status::timeout);
        CHECK(outcomes[r].failure()->culprits() == std::vector{1});
    }
}
