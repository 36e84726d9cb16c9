// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <latch>
#include <stdexcept>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/replica/agreement.hpp>

#include "support/held_clock.hpp"
#include "support/hot_path.hpp"
#include "support/run_ranks.hpp"

using namespace collprobe;

TEST_CASE("steady checks allocate nothing and never wait for the host")
{
    testing::hot_path steady(3);
    testing::local_provider{3}.run([&](local::communicator& world) {
        std::vector<float> weights(5003, 1.5f);
        std::vector<double> momentum(77);
        const std::vector<replica> buffers{view(weights), view(momentum)};
        const host::stream stream;
        agreement check(world, {.checks_in_flight = 8});
        bool agree = true;
        const auto read = [&] {
            for (bool each = true; check.poll(each);) agree = agree && each;
        };
        const auto enqueue = [&](int checks) {
            for (int k = 0; k < checks; ++k) check.check(buffers, stream);
        };
        const auto work = [&] {
            for (int k = 0; k < 4; ++k) {
                enqueue(1);
                read();
            }
        };
        steady.measure(world.rank(), stream, [&] { enqueue(8); }, work, read);
        if (!agree) throw std::runtime_error("they agree");
    });
    CHECK(steady.allocations() == 0);
    CHECK(steady.waits() == 0);
}

TEST_CASE("a check returns before its peers have called")
{
    std::latch returned(1);
    CHECK_NOTHROW(testing::local_provider{2}.run([&](local::communicator& world) {
        std::vector<float> weights(100'000);
        const host::stream stream;
        agreement check(world);
        if (world.rank() == 1) returned.wait();
        check.check(std::vector<replica>{view(weights)}, stream);
        bool agree = false;
        if (world.rank() == 0) {
            CHECK(!check.poll(agree));
            returned.count_down();
        }
        CHECK(check.wait());
    }));
}

TEST_CASE("a peer that never comes is a time-out that names it, not a hang")
{
    for (const bool blocking : {false, true}) {
        const testing::held_clock clock;
        const local::group group(3, {.timeout_ms = 300});
        const auto outcomes = testing::run_each(group, [&](local::communicator& comm) {
            if (comm.rank() == 1) return clock.advance_ms(300, {0, 2});
            std::vector<float> weights(10);
            agreement check(comm);
            const host::stream stream;
            stream.enqueue([&, rank = comm.rank()] { clock.i_am(rank); });
            const std::vector<replica> buffers{view(weights)};
            if (blocking) (void)check.locate(buffers, stream);
            else check.check(buffers, stream);
            (void)check.wait();
        });
        for (const std::size_t r : {std::size_t{0}, std::size_t{2}}) {
            REQUIRE(outcomes[r].failure());
            CHECK(outcomes[r].failure()->code() == status::timeout);
            CHECK(outcomes[r].failure()->culprits() == std::vector{1});
        }
    }
}
