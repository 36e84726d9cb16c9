// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// The failure modes that host streams and ranks of one process can have. README.md lists them all.
#include <doctest/doctest.h>

#include <optional>
#include <stdexcept>
#include <vector>

#include "support/held_clock.hpp"
#include "support/run_ranks.hpp"
#include "tests/race_lab/host_lab.hpp"
#include "tests/race_lab/modes.hpp"

namespace collprobe::race_lab::host_test {

#define ON_HOST(name, mode) \
    TEST_CASE(name) { mode<host_lab>(); }
COLLPROBE_RACE_LAB_MODES(ON_HOST, ON_HOST)

TEST_CASE("F24 ranks that call in different orders")
{
    for (const bool diverge : {true, false}) {
        const watch over;
        local::group ranks(3, {.timeout_ms = 60'000});
        const auto outcomes = testing::run_each(ranks, [&](local::communicator& comm) {
            const bench<host_lab> at(comm);
            const bool other_order = diverge && comm.rank() == 1;
            if (other_order) comm.barrier(at.on);
            copy_then_all_gather(at.shard(), at.full(), comm, at.on, {}, {});
            if (!other_order) comm.barrier(at.on);
            at.on.synchronize(soon_ms);
        });
        for (const testing::rank_outcome& outcome : outcomes) {
            const std::optional<error> failure = outcome.failure();
            CHECK(failure.has_value() == diverge);
            if (!failure) continue;
            CHECK(failure->code() == status::mismatch);
            CHECK(failure->culprits() == std::vector<int>{1});
        }
        over.check({});
    }
}

TEST_CASE("F24 two communicators in different orders")
{
    for (const bool diverge : {true, false}) {
        const testing::held_clock clock;
        local::group ranks(2, {.timeout_ms = 100});
        const auto outcomes = testing::run_each(ranks, [&](local::communicator& comm) {
            const bench<host_lab> at(comm);
            auto another = comm.split(0, comm.rank());
            at.on.enqueue([&, rank = comm.rank()] { clock.i_am(rank); });
            // On one stream: each rank is in a gather that the other comes to only behind it.
            const bool other_order = diverge && comm.rank() == 1;
            auto& first = other_order ? *another : comm;
            auto& second = other_order ? comm : *another;
            copy_then_all_gather(at.shard(), at.full(), first, at.on, {}, {});
            copy_then_all_gather(at.second(), at.spare(), second, at.on, {}, {});
            if (other_order) clock.advance_ms(100, {0, 1});
            at.on.synchronize(soon_ms);
        });
        bool timed_out = false; // the other one may hear of it, and get that as a peer's failure
        for (const testing::rank_outcome& outcome : outcomes) {
            const std::optional<error> failure = outcome.failure();
            CHECK(failure.has_value() == diverge);
            timed_out = timed_out || (failure && failure->code() == status::timeout);
        }
        CHECK(timed_out == diverge);
    }
}

TEST_CASE("F25 a peer that dies between its copy and the gather")
{
    for (const bool dies : {true, false}) {
        const testing::held_clock clock;
        local::group ranks(2, {.timeout_ms = 100});
        const auto outcomes = testing::run_each(ranks, [&](local::communicator& comm) {
            const bench<host_lab> at(comm);
            at.write(at.producer, 1, at.shard());
            at.on.enqueue([&, rank = comm.rank()] { clock.i_am(rank); });
            if (dies && comm.rank() == 1) {
                clock.advance_ms(100, {0});
                throw std::runtime_error("died");
            }
            auto done = copy_then_all_gather(at.shard(), at.full(), comm, at.on, {at.producer}, {at.consumer});
            done.synchronize(soon_ms);
            at.completes(at.consumer, 1);
        });
        const std::optional<error> failure = outcomes[0].failure();
        CHECK(failure.has_value() == dies);
        if (!failure) continue;
        CHECK(failure->code() == status::timeout);
        CHECK(failure->culprits() == std::vector<int>{1});
    }
}

TEST_CASE("F28 the doubles run in their streams")
{
    f28_double_runs_in_its_stream<basic_host_lab<local::device_communicator<host::device>>>();
}

} // namespace collprobe::race_lab::host_test
