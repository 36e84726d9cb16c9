// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Wrappers that are moved while calls are under way.
#include <doctest/doctest.h>

#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include <collprobe/audit/audit.hpp>
#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/fault/faulty.hpp>
#include <collprobe/guard/guarded.hpp>
#include <collprobe/reduce/reproducible.hpp>
#include <collprobe/replica/agreement.hpp>
#include <collprobe/replica/replica_averaging.hpp>
#include <collprobe/step/probed.hpp>

#include "support/checks.hpp"
#include "support/host_gate.hpp"
#include "support/run_ranks.hpp"

namespace collprobe::testing::probed_moved_test {
namespace {

using world_handle = local::communicator;

/// What owns memory that work uses is moved, and never copied.
template <class T>
concept handle = std::is_nothrow_move_constructible_v<T> && std::is_nothrow_move_assignable_v<T>
    && !std::is_copy_constructible_v<T> && !std::is_copy_assignable_v<T>;
static_assert(handle<probed<world_handle>> && handle<probed<world_handle, audit>> && handle<faulty<world_handle>>);
static_assert(handle<reproducible<world_handle>> && handle<agreement<world_handle>>);
static_assert(handle<replica_averaging<world_handle, every>> && handle<replica_averaging<world_handle, when_worth_it>>);
static_assert(handle<guarded<host::device, float>>);
using stacked = probed<reproducible<faulty<world_handle>>, audit>;
static_assert(handle<stacked>);

} // namespace

TEST_CASE("an object that was moved from refuses its calls and says why")
{
    testing::local_provider{1}.run([](world_handle& world) {
        const host::stream stream;
        std::vector<float> data(10, 1.0f);
        const auto reduce = [&](auto& comm) {
            comm.all_reduce(view<const float>(data), view<float>(data), reduction::sum, stream);
        };
        const auto check_refused = [](const auto& call) {
            CHECK_THROWS_WITH_AS(call(), doctest::Contains("invalid argument: the object was moved from"), error);
        };
        probed comm{world};
        reduce(comm); // in a step that the new object ends
        probed<world_handle> next(std::move(comm));
        step_record record;
        check_refused([&] { reduce(comm); });
        check_refused([&] { comm.end_step(0, {}, stream); });
        check_refused([&] { comm.poll(record); });
        next.end_step(1, {}, stream);
        stream.synchronize(soon_ms);
        REQUIRE(next.poll(record));
        CHECK(record.step == 1);
        CHECK(record.calls.size() == 1);

        // A handle of a rank is a copy: what is moved from is that rank still.
        const world_handle other(std::move(world));
        CHECK(world.size() == other.size());
        reduce(world);
        stream.synchronize(soon_ms);
    });
}

TEST_CASE("assignment waits for the work of the old probe, and the new one goes on with its own")
{
    testing::local_provider{2}.run([](world_handle& world) {
        const host::stream stream, other;
        std::vector<float> data(100, 1.0f), more(100, 1.0f);
        probed comm{world};
        comm.all_reduce(view<const float>(data), view(data), reduction::sum, stream);
        comm.end_step(7, {}, stream);
        probed next{world};
        next.all_reduce(view<const float>(more), view(more), reduction::sum, other);
        next.end_step(8, {}, other);
        comm = std::move(next);
        CHECK(data[0] == 2.0f); // nothing was synchronised but by the assignment
        other.synchronize(soon_ms);
        step_record record;
        REQUIRE(comm.poll(record));
        CHECK(record.step == 8);
        CHECK_FALSE(comm.poll(record));
    });
}

TEST_CASE("a whole stack moves with calls under way, and what each layer has begun it ends")
{
    testing::local_provider{3}.run([](world_handle& world) {
        const host::stream stream;
        const testing::host_gate gate;
        gate.close(stream);
        const fault once{.kind = fault_kind::scale, .phase = fault_phase::after, .rank = 1, .call = 0, .magnitude = 0};
        std::vector<float> data(999, 1.0f), result(999);
        probed made{reproducible{faulty{world, {once}, {.calls = {collective::all_to_all}}},
                        contract<reproducibility::size_invariant>{}, {.algorithm = reduction_algorithm::exchange}},
            {}, audit()};
        const auto call = [&](auto& comm) {
            comm.all_reduce(view<const float>(data), view(result), reduction::sum, stream);
        };
        call(made);
        std::vector<stacked> stacks;
        stacks.push_back(std::move(made));
        call(stacks[0]);
        stacks.reserve(8);
        stacks[0].end_step(0, {.loss = 1}, stream);
        stacked comm(std::move(stacks[0]));
        stacks.clear();
        call(comm);
        comm.end_step(1, {.loss = 1}, stream);
        gate.open();
        stream.synchronize(soon_ms);
        CHECK(result == std::vector<float>(999, 3.0f));
        step_record record;
        for (std::uint64_t step = 0; step < 2; ++step) {
            REQUIRE(comm.poll(record));
            CHECK(record.step == step);
            CHECK(record.calls.size() == 2 - step);
            // The fault hits what rank 1 receives for its part of the first sum, which all ranks then get.
            CHECK(record.calls[0].audit.conserved == (step != 0));
        }
        CHECK(comm.base().base().injected_total() == (comm.rank() == 1 ? 1 : 0));
    });
}

TEST_CASE("repairs move with work under way, and comparisons between two calls")
{
    testing::local_provider{2}.run([](world_handle& world) {
        const host::stream stream;
        const testing::host_gate gate;
        std::vector<float> weights(100, static_cast<float>(world.rank()));
        const std::vector<replica> list{view(weights)};
        std::vector<agreement<world_handle>> checks;
        checks.emplace_back(world);
        CHECK_FALSE(checks[0].agreed(list, stream));
        gate.close(stream);
        std::vector<replica_averaging<world_handle, every>> repairs;
        repairs.emplace_back(world, list, every{.steps = 1});
        repairs[0].step(stream);
        std::vector<guarded<host::device, float>> buffers;
        buffers.emplace_back(100);
        buffers[0].write(stream, [](view<float> all) { CHECK(all.count() == 100); });
        for (int k = 0; k < 3; ++k) { // moves the first
            checks.emplace_back(world);
            repairs.emplace_back(world, list, every{.steps = 1});
            buffers.emplace_back(10);
        }
        gate.open();
        CHECK(checks[0].agreed(list, stream)); // behind the average
        CHECK(weights[0] == 0.5f);
        CHECK(repairs[0].rounds() == 1);
        CHECK(buffers[0].generation() == 1);
        guarded<host::device, float> taken = std::move(buffers[0]);
        CHECK(taken.count() == 100);
        CHECK(buffers[0].count() == 0);
        CHECK(buffers[0].generation() == 0);
    });
}

} // namespace collprobe::testing::probed_moved_test
