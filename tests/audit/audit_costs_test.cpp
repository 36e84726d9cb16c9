// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What an audit costs: reads of the memory, counted by page faults; allocations; waits of the host.
#include <doctest/doctest.h>

#include <cstddef>
#include <vector>

#include <collprobe/audit/audit.hpp>
#include <collprobe/audit/weight_probe.hpp>
#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/step/probed.hpp>

#include "support/counted_memory.hpp"
#include "support/counting.hpp"
#include "support/hot_path.hpp"
#include "support/run_ranks.hpp"

namespace collprobe::testing::audit_costs_test {

TEST_CASE_TEMPLATE("the full stack reads a call's input once before it, and result and input once after it", T,
    float8_e4m3, bfloat16, float, double)
{
    // One rank: its threads touch the memory one after the other.
    local::run(1, [](local::communicator& world) {
        constexpr std::size_t count = (std::size_t{4} << 20) / sizeof(T);
        testing::counted_memory<T> send(count), receive(count);
        for (std::size_t i = 0; i < count; ++i) send.data()[i] = T(static_cast<float>(i % 1000) - 300.5f);
        const view<const T> input(send.data(), count);
        const view<T> result(receive.data(), count);
        host::stream stream;
        probed all{local::communicator(world), {}, audit()};
        const auto call = [&](auto& comm, view<const T> from, reduction operation = reduction::sum) {
            comm.all_reduce(from, result, operation, stream);
            stream.synchronize();
        };
        const auto extra = [&](auto& memory, view<const T> from) {
            return memory.passes([&] { call(all, from); }) - memory.passes([&] { call(world, from); });
        };
        CHECK(extra(send, input) == 2); // its statistics and sketch; its dot with the result
        CHECK(extra(receive, input) == 1);
        CHECK(extra(receive, view<const T>(result)) == 2); // in place, so there is no dot
        probed alone{local::communicator(world), {.statistics = false}, audit()};
        const auto read = [&](reduction operation) {
            return receive.passes([&] { call(alone, input, operation); }) - receive.passes([&] { call(world, input, operation); });
        };
        CHECK(read(reduction::max) == 1); // for its digest
        CHECK(read(reduction::sum) == 2); // and its sketch
        all.end_step(0, stream);
        alone.end_step(0, stream);
        stream.synchronize();
    });
}

TEST_CASE("a step sends the bytes that the pages state")
{
    // A rank of three, beside its calls: five all-reduces of 1000 floats.
    const auto sent = [](const probe_options& options, bool tells, auto... parts) {
        std::uint64_t bytes = 0;
        local::run(3, [&](local::communicator& world) {
            host::stream stream;
            probed comm{counting(world), options, parts...};
            std::vector<float> values(1000, 1.0f), result(1000);
            for (int c = 0; c < 5; ++c) comm.all_reduce(values, view(result), reduction::sum, stream);
            for (const char* const each : {"lr", "beta"})
                if (tells) comm.expect_equal(each, 0.5);
            comm.end_step(0, stream);
            stream.synchronize();
            if (world.rank() == 0) bytes = comm.innermost().bytes - 5 * 4000;
        });
        return bytes;
    };
    const probe_options plain, summary{.mode = report_mode::summary};
    const std::uint64_t gathered = 40 + 5 * 128, summed = 304 + 5 * 104 + 168;
    CHECK(sent(plain, false) == gathered);
    CHECK(sent(plain, true) == gathered + 2 * 24);
    CHECK(sent(summary, false) == summed);
    CHECK(sent({.order_sample = 7}, false) == gathered + 5 * 7 * 16);
    CHECK(sent({.direction = direction_mode::exact}, false) == gathered + 5 * 1002 * 4 + 9 * 8); // whole parts, cosines
    CHECK(sent(plain, false, audit()) == gathered + 5 * (64 + 64 * 16));
    CHECK(sent(summary, false, audit()) == summed + 5 * (32 + 64 * 16));
    CHECK(sent(plain, false, weight_probe({.every = 1})) == gathered + 5 * (136 + 256 * 16));
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

} // namespace collprobe::testing::audit_costs_test
