// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What a step with statistics and audit reads of a call, beyond what the call itself reads: counted by page faults.
#include <doctest/doctest.h>

#include <cstddef>
#include <vector>

#include <collprobe/audit/audit.hpp>
#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/comm/local/run.hpp>
#include <collprobe/step/probed.hpp>

#include "support/counted_memory.hpp"
#include "support/element_types.hpp"

using namespace collprobe;

TEST_CASE_TEMPLATE("the full stack reads a call's input once before it, and result and input once after it", T,
    COLLPROBE_TEST_FLOATING_TYPES)
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
        const auto call = [&](auto& comm, view<const T> from) {
            comm.all_reduce(from, result, reduction::sum, stream);
            stream.synchronize();
        };
        const auto extra = [&](auto& memory, view<const T> from) {
            return memory.passes([&] { call(all, from); }) - memory.passes([&] { call(world, from); });
        };
        CHECK(extra(send, input) == 2); // its statistics and sketch; its dot with the result
        CHECK(extra(receive, input) == 1);
        CHECK(extra(receive, view<const T>(result)) == 2); // in place, so there is no dot
        all.end_step(0, stream);
        stream.synchronize();
    });
}
