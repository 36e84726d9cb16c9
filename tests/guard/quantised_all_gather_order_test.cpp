// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What the quantised gather tells the checker of stream order. Compiled with COLLPROBE_STREAM_ORDER=1.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/guard/quantised_all_gather.hpp>
#include <collprobe/order/stream_order.hpp>

#include "support/checks.hpp"

using namespace collprobe;
using namespace collprobe::testing;

namespace {

using device = host::device;
constexpr std::uint64_t count = 500;

std::string messages(const stream_order& checker)
{
    std::string text;
    for (const stream_hazard& each : checker.hazards()) text += each.message() + "\n";
    return text;
}

struct rank_memory {
    explicit rank_memory(std::uint64_t elements) : shard(elements), next(elements), full(count), seen(count)
    {
        for (float& each : next) each = 1;
    }
    host::buffer<float> shard, next;
    host::buffer<bfloat16> full, seen;
    host::stream compute, on, other;
};

/// Runs `body(weights, memory)` on two ranks.
template <class Body>
void run(Body body)
{
    local::run(2, {.timeout_ms = soon_ms}, [&](local::communicator& comm) {
        quantised_all_gather<local::communicator, bfloat16> weights(comm, count);
        rank_memory memory(weights.shard_range().count);
        body(weights, memory);
        for (const auto* each : {&memory.compute, &memory.on, &memory.other}) each->synchronize(soon_ms);
    });
}

} // namespace

TEST_CASE("right steps are silent: codes, arrivals, shard and weights, on three streams")
{
    stream_order checker;
    checker.install();
    run([](auto& weights, rank_memory& of) {
        guarded<device, bfloat16> kept(count);
        for (std::uint64_t generation = 1; generation < 4; ++generation) {
            device::copy(of.compute, view<const float>(of.next), view<float>(of.shard));
            weights.encode(of.shard, generation, of.other, {of.compute}, {of.compute});
            weights.gather(of.full, generation, of.on, {of.compute}, {of.compute});
            device::copy(of.compute, view<const bfloat16>(of.full), view<bfloat16>(of.seen));
            weights.gather(kept, generation, of.other, {}, {});
            kept.read(of.on, [](view<const bfloat16>) {});
        }
    });
    CAPTURE(messages(checker));
    CHECK(checker.hazard_count() == 0);
}

namespace {

/// One hazard was found, on both ranks: these two operations, `earlier` at this line of the test.
void check_hazard(const stream_order& checker, hazard_kind kind, const char* earlier, const char* later, call_site where)
{
    CAPTURE(messages(checker));
    REQUIRE(checker.hazards().size() == 1);
    const stream_hazard found = checker.hazards()[0];
    CHECK(found.count == 2);
    CHECK(found.kind == kind);
    CHECK(std::string(found.earlier.operation) == earlier);
    CHECK(std::string(found.later.operation) == later);
    CHECK(found.earlier.where.line == where.line);
    CHECK(std::string(found.earlier.where.file) == __FILE__);
}

} // namespace

// The accesses of the test itself are told, and not made: so it has no race.

TEST_CASE("weights that are read on a stream which does not wait are reported")
{
    stream_order checker;
    checker.install();
    const call_site gathers = call_site::current();
    run([&](auto& weights, rank_memory& of) {
        weights.encode(of.shard, 1, of.compute, {}, {});
        weights.gather(of.full, 1, of.on, {}, {of.compute}, gathers);
        checker.launch(order_hooks::stream_of(of.other.get()), {view<const bfloat16>(of.full)}, {}, "forward");
    });
    check_hazard(checker, hazard_kind::read_after_write, "decode", "forward", gathers);
}

TEST_CASE("a shard that is overwritten while it is encoded is reported")
{
    stream_order checker;
    checker.install();
    const call_site encodes = call_site::current();
    run([&](auto& weights, rank_memory& of) {
        weights.encode(of.shard, 1, of.on, {}, {}, nullptr, encodes);
        checker.launch(order_hooks::stream_of(of.compute.get()), {}, {view<float>(of.shard)}, "optimiser");
    });
    check_hazard(checker, hazard_kind::write_after_read, "encode", "optimiser", encodes);
}

TEST_CASE("a shard that is encoded before its producer is done is reported")
{
    stream_order checker;
    checker.install();
    const call_site writes = call_site::current();
    run([&](auto& weights, rank_memory& of) {
        checker.launch(order_hooks::stream_of(of.compute.get()), {}, {view<float>(of.shard)}, "optimiser", writes);
        weights.encode(of.shard, 1, of.on, {}, {});
    });
    check_hazard(checker, hazard_kind::read_after_write, "optimiser", "encode", writes);
}

TEST_CASE("codes that are overwritten past the object are reported")
{
    stream_order checker;
    checker.install();
    const call_site gathers = call_site::current();
    run([&](auto& weights, rank_memory& of) {
        weights.encode(of.shard, 1, of.on, {}, {});
        weights.gather(of.full, 1, of.on, {}, {}, gathers);
        checker.launch(order_hooks::stream_of(of.compute.get()), {}, {weights.codes().memory()}, "by hand");
    });
    CAPTURE(messages(checker));
    // On each rank behind the encoding, and behind the gather.
    for (const stream_hazard& each : checker.hazards()) CHECK(std::string(each.later.operation) == "by hand");
    CHECK(contains(messages(checker), "all_gather"));
}
