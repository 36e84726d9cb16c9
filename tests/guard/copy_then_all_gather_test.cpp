// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <latch>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/guard/copy_then_all_gather.hpp>

#include "support/checks.hpp"
#include "support/count_allocations.hpp"
#include "support/host_gate.hpp"
#include "support/run_ranks.hpp"

namespace collprobe::testing::copy_then_all_gather_test {

using std::uint64_t;

namespace {

using device = host::device;
constexpr float poison = -1e30f;

/// Element `index` of rank `rank`'s shard in a generation.
float value(int rank, uint64_t index, int generation = 1)
{
    return static_cast<float>(rank * 1000 + static_cast<int>(index)) + 0.25f * static_cast<float>(generation);
}

/// How many elements the shard of a rank has: short and empty ones too.
uint64_t shard_count(int rank, uint64_t slot) { return slot == 0 ? 0 : (slot + static_cast<uint64_t>(rank) * 3) % (slot + 1); }

template <class T>
void check_gathered(const std::vector<T>& full, int ranks, uint64_t slot, bool whole, int generation = 1)
{
    for (int rank = 0; rank < ranks; ++rank) {
        for (uint64_t i = 0; i < slot; ++i) {
            const bool there = whole || i < shard_count(rank, slot);
            const T expected = there ? static_cast<T>(value(rank, i, generation)) : T{};
            const T got = full[static_cast<std::size_t>(rank) * slot + i];
            require(std::memcmp(&expected, &got, sizeof(T)) == 0, "wrong element");
        }
    }
}

/// Runs `body(comm, producer, on, consumer)` on every rank.
template <class Body>
void run(int ranks, Body body)
{
    local_provider{ranks}.run([&](local::communicator& comm) {
        const host::stream producer, on, consumer;
        body(comm, producer, on, consumer);
    });
}

} // namespace

TEST_CASE("every rank gets every shard, whatever the path, the sizes and the element type")
{
    for (int ranks = 1; ranks <= 4; ++ranks) {
        run(ranks, [&](local::communicator& comm, host::stream_ref producer, host::stream_ref on, host::stream_ref) {
            for (uint64_t slot = 0; slot <= 9; ++slot) {
                for (const bool whole : {true, false}) {
                    for (const bool keep : {false, true}) {
                        for (const bool in_slot : {false, true}) {
                            const uint64_t count = whole ? slot : shard_count(comm.rank(), slot);
                            std::vector<float> full(slot * static_cast<uint64_t>(ranks), poison), elsewhere(slot, poison);
                            std::vector<float> kept(slot, poison);
                            float* const at = in_slot ? full.data() + static_cast<uint64_t>(comm.rank()) * slot
                                                      : elsewhere.data();
                            guarded<device, float> shard{view<float>(kept)};
                            producer.enqueue([=, rank = comm.rank()] {
                                for (uint64_t i = 0; i < count; ++i) at[i] = value(rank, i);
                            });
                            auto done = copy_then_all_gather(view<const float>(at, count), full, comm, on, {producer}, {},
                                {.shard = keep ? &shard : nullptr});
                            done.synchronize(soon_ms);
                            check_gathered(full, ranks, slot, whole);
                            const auto expected = keep ? gather_path::copy
                                : in_slot                                          ? gather_path::in_place
                                : count == slot                                    ? gather_path::send_source
                                                                                   : gather_path::copy;
                            require(done.path() == expected || slot == 0, "another path");
                            if (keep) {
                                require(slot == 0
                                        || std::memcmp(kept.data(), full.data() + static_cast<uint64_t>(comm.rank()) * slot,
                                               slot * sizeof(float)) == 0,
                                    "the shard differs from what was gathered");
                                require(slot == 0 || shard.generation() == 2, "a copy is a write");
                            }
                        }
                    }
                    // In another element type.
                    const uint64_t count = whole ? slot : shard_count(comm.rank(), slot);
                    std::vector<float> source(count);
                    for (uint64_t i = 0; i < count; ++i) source[i] = value(comm.rank(), i);
                    std::vector<bfloat16> narrow(slot * static_cast<uint64_t>(ranks));
                    std::vector<double> wide(narrow.size());
                    auto first = copy_then_all_gather(source, narrow, comm, on, {}, {});
                    auto second = copy_then_all_gather(source, wide, comm, on, {}, {});
                    second.synchronize(soon_ms);
                    require(first.path() == gather_path::convert, "not converted");
                    check_gathered(narrow, ranks, slot, whole);
                    check_gathered(wide, ranks, slot, whole);
                }
            }
        });
    }
}

TEST_CASE("a retained shard is copied behind the gather that still reads it, on whatever stream")
{
    run(2, [](local::communicator& comm, host::stream_ref, host::stream_ref on, host::stream_ref) {
        const host::stream other;
        std::vector<float> first(64), second(64), one(128), two(128);
        for (uint64_t i = 0; i < 64; ++i) {
            first[i] = value(comm.rank(), i, 1);
            second[i] = value(comm.rank(), i, 2);
        }
        guarded<device, float> shard(64);
        const host_gate closed;
        closed.close(on);
        auto a = copy_then_all_gather(first, one, comm, on, {}, {}, {.shard = &shard});
        auto b = copy_then_all_gather(second, two, comm, other, {}, {}, {.shard = &shard});
        require(!b.query(), "it did not wait");
        closed.open();
        a.synchronize(soon_ms);
        b.synchronize(soon_ms);
        check_gathered(one, 2, 64, true, 1);
        check_gathered(two, 2, 64, true, 2);
    });
}

TEST_CASE("the host waits for nothing and allocates nothing")
{
    run(1, [](local::communicator& comm, host::stream_ref producer, host::stream_ref on, host::stream_ref consumer) {
        std::vector<float> source(64, 1.0f);
        guarded<device, float> master(64), shard(64), full(64);
        const auto step = [&] {
            master.write(producer, [&](view<float> data) { device::fill(producer, data, 2.0f); });
            copy_then_all_gather(master, full, comm, on, {}, {consumer}, {.shard = &shard});
            full.read(consumer, [](view<const float>) {});
            copy_then_all_gather(shard, full, comm, on, {producer}, {consumer});
        };
        // Streams keep memory for as many tasks as were ever queued.
        for (int i = 0; i < 200; ++i) step();
        for (const host::stream_ref each : {producer, on, consumer}) each.synchronize(soon_ms);
        const auto waits = [&] { return producer.synchronizations() + on.synchronizations() + consumer.synchronizations(); };
        const uint64_t waited = waits();
        const long before = allocations.load();
        for (int i = 0; i < 20; ++i) step();
        CHECK(allocations.load() == before);
        CHECK(waits() == waited);
        for (const host::stream_ref each : {producer, on, consumer}) each.synchronize(soon_ms);
    });
}

TEST_CASE("a stale or empty source is refused by its generation")
{
    local::group ranks(2, {.timeout_ms = 60'000});
    std::optional<error> refused;
    const auto outcomes = run_each(ranks, [&](local::communicator& comm) {
        const host::stream on;
        guarded<device, float> master(8), shard(8);
        std::vector<float> full(16);
        const auto update = [&] {
            master.write(on, [&](view<float> data) { device::fill(on, data, 1.0f); });
        };
        update();
        copy_then_all_gather(master, full, comm, on, {}, {}, {.shard = &shard});
        CHECK(shard.generation() == master.generation());
        copy_then_all_gather(shard, full, comm, on, {}, {}, {.at_least = master.generation()});
        on.synchronize(soon_ms);
        guarded<device, float> empty(0), kept(0);
        empty.write(on, [](view<float>) {});
        std::vector<float> nothing;
        copy_then_all_gather(empty, nothing, comm, on, {}, {}, {.shard = &kept}).synchronize(soon_ms);
        CHECK(kept.generation() == 1);
        if (comm.rank() == 0) {
            update(); // and the shard is not made anew
            refused = error_of([&] {
                copy_then_all_gather(shard, full, comm, on, {}, {}, {.at_least = master.generation()});
            });
        }
        copy_then_all_gather(shard, full, comm, on, {}, {}, {.at_least = 1}).synchronize(soon_ms);
    });
    for (const auto& outcome : outcomes) CHECK_FALSE(outcome.thrown);
    REQUIRE(refused);
    CHECK(refused->code() == status::invalid_argument);
    CHECK(mentions(refused, "stale: it holds generation 1, and 2 is asked for"));

    run(1, [](local::communicator&, host::stream_ref, host::stream_ref on, host::stream_ref) {
        std::vector<float> full(4);
        const auto fresh = [] { return local::group(1).communicator(0); };
        guarded<device, float> nothing(4);
        auto comm = fresh();
        CHECK(mentions(error_of([&] { copy_then_all_gather(nothing, full, comm, on, {}, {}); }), "nothing was written"));
        CHECK(mentions(error_of([&] { nothing.read(on, [](view<const float>) {}); }), "nothing was written"));
        auto another = fresh();
        CHECK(mentions(error_of([&] {
            copy_then_all_gather(view<const float>(full), view<float>(full), another, on, {}, {}, {.at_least = 1});
        }), "plain view"));
    });
}

TEST_CASE("overlaps and sizes that cannot be are refused with what is wrong")
{
    std::vector<float> full(16), other(8);
    const host::stream on;
    const auto refused = [&](int ranks, view<const float> source, view<float> destination,
                             gather_options<device, float> options = {}) {
        local::group group(ranks, {.timeout_ms = 1000});
        auto comm = group.communicator(0);
        return error_of([&] { copy_then_all_gather(source, destination, comm, on, {}, {}, options); });
    };
    const view<float> all(full);
    const auto overlapping = refused(2, all.part(1, 8), all);
    CHECK(mentions(overlapping, "source [0x"));
    CHECK(mentions(overlapping, "overlaps destination [0x"));
    CHECK(mentions(overlapping, "does not begin at this rank's slot [0x"));
    CHECK(mentions(refused(2, all.part(8, 8), all), "overlaps")); // the slot of the other rank
    CHECK(mentions(refused(3, view<const float>(other), all), "no multiple"));
    CHECK(mentions(refused(2, all.part(0, 9), all), "slot of the destination has 8"));
    CHECK(mentions(refused(2, view<const float>(nullptr, 3), all), "source is null with count 3"));
    CHECK(mentions(refused(2, view<const float>(other), view<float>(nullptr, 16)), "destination is null"));
    guarded<device, float> small(7), astride{all.part(4, 8)}, astride_source{view<float>(other)};
    CHECK(mentions(refused(2, view<const float>(other), all, {.shard = &small}), "the shard has 7"));
    CHECK(mentions(refused(2, view<const float>(other), all, {.shard = &astride}), "overlaps destination"));
    CHECK(mentions(refused(2, view<const float>(other).part(1, 4), all, {.shard = &astride_source}), "overlaps source"));
    // The control: right arguments on one rank.
    CHECK(!refused(1, view<const float>(other), view<float>(full.data(), 8)));
    on.synchronize(soon_ms);
}

TEST_CASE("a handle never waits for what follows, and one without an event says so")
{
    run(1, [](local::communicator& comm, host::stream_ref producer, host::stream_ref on, host::stream_ref consumer) {
        std::vector<float> source(4), full(4);
        auto done = copy_then_all_gather(source, full, comm, on, {producer}, {});
        on.synchronize(soon_ms);
        auto without = copy_then_all_gather(source, full, comm, on, {on}, {on});
        on.synchronize(soon_ms);
        const host_gate closed;
        closed.close(on);
        CHECK(done.query());
        done.synchronize(soon_ms);
        CHECK(mentions(error_of([&] { without.query(); }), "name no consumers"));
        CHECK(mentions(error_of([&] { without.wait(consumer); }), "name no consumers"));
        without.wait(on);
        closed.open();
        on.synchronize(soon_ms);
    });
}

TEST_CASE("two histories over the same memory are refused, a part of the destination's own is right")
{
    const host::stream on;
    std::vector<float> memory(8, 1.0f);
    guarded<device, float> full{view<float>(memory)}, alias{view<float>(memory)};
    const auto call = [&](auto&& source, gather_options<device, float> options = {}) {
        auto comm = local::group(1).communicator(0);
        return error_of([&] { copy_then_all_gather(source, full, comm, on, {}, {}, options).synchronize(soon_ms); });
    };
    std::vector<float> elsewhere(8);
    CHECK(mentions(call(alias), "know nothing of each other"));
    CHECK(mentions(call(elsewhere, {.shard = &alias}), "know nothing of each other"));
    CHECK(!call(full.memory()));
    CHECK(!call(full));
    CHECK(!call(elsewhere));
}

TEST_CASE("a batch copies first and gathers then")
{
    run(3, [](local::communicator& comm, host::stream_ref producer, host::stream_ref on, host::stream_ref consumer) {
        std::vector<float> a(5), b(3), full_a(15), full_b(12);
        guarded<device, float> kept(5);
        producer.enqueue([&, rank = comm.rank()] {
            for (uint64_t i = 0; i < 5; ++i) a[i] = value(rank, i);
            for (uint64_t i = 0; i < 3; ++i) b[i] = value(rank, i, 2);
        });
        const gather_item<device, float> items[] = {{a, view<float>(full_a), {.shard = &kept}}, {b, view<float>(full_b)}};
        copy_then_all_gather(items, comm, on, {producer}, {consumer});
        consumer.synchronize(soon_ms);
        check_gathered(full_a, 3, 5, true);
        for (uint64_t i = 0; i < 12; ++i) {
            const float expected = i % 4 == 3 ? 0.0f : value(static_cast<int>(i / 4), i % 4, 2);
            require(full_b[i] == expected, "wrong element of the second tensor");
        }
        require(kept.memory()[4] == value(comm.rank(), 4), "the shard was not kept");
    });
}

TEST_CASE("a handle has deadlines, and streams wait for it")
{
    run(1, [](local::communicator& comm, host::stream_ref, host::stream_ref on, host::stream_ref consumer) {
        std::vector<float> source(4), full(4);
        const host_gate closed;
        closed.close(on);
        auto done = copy_then_all_gather(source, full, comm, on, {}, {});
        const auto late = error_of([&] { done.synchronize(20); });
        CHECK((late && late->code() == status::timeout));
        done.wait(consumer);
        CHECK(!consumer.query());
        closed.open();
        consumer.synchronize(soon_ms);
        done.synchronize(soon_ms);
        CHECK(done.query());
    });
}

} // namespace collprobe::testing::copy_then_all_gather_test
