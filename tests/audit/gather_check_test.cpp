// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/fault/faulty.hpp>

#include "audit/lone_checks.hpp"
#include "fault/fault_cases.hpp"
#include "fault/realistic_fault.hpp"
#include "support/element_types.hpp"
#include "support/run_ranks.hpp"

namespace collprobe::testing::gather_check_test {

using std::uint64_t;

namespace {

/// Damage done by hand to what a rank received.
template <element T>
using harm = std::function<void(int receiver, std::vector<T>& whole)>;

/// The verdict of an all-gather of `count` elements a rank with faults and harm; equal on all ranks, or this fails.
template <element T>
testing::verdict gathered(int ranks, uint64_t count, bool in_place, const std::vector<fault>& faults,
    const harm<T>& hurt = [](int, std::vector<T>&) {})
{
    std::vector<testing::verdict> verdicts(static_cast<std::size_t>(ranks));
    local::run(ranks, [&](local::communicator& world) {
        const auto rank = static_cast<uint64_t>(world.rank());
        faulty comm{world, faults, {.max_bytes = 1 << 20}};
        std::vector<T> shard, whole(static_cast<uint64_t>(ranks) * count);
        for (uint64_t i = 0; i < count; ++i) shard.push_back(some_element<T>((rank << 32) + i));
        view<const T> send(shard);
        if (in_place && count != 0) {
            std::memcpy(static_cast<void*>(whole.data() + rank * count), shard.data(), count * sizeof(T));
            send = view<const T>(whole).part(rank * count, count);
        }
        testing::gather_check check(comm);
        {
            host::stream stream;
            check.template before<T>(send, stream);
            comm.all_gather(send, view<T>(whole), stream);
            stream.enqueue([&] { hurt(world.rank(), whole); });
            check.template after<T>(view<const T>(whole), stream);
            stream.synchronize(soon_ms);
        }
        verdicts[rank] = check.verdict();
    });
    for (const testing::verdict& each : verdicts) {
        CHECK(each.damaged() == verdicts[0].damaged());
        CHECK(each.culprits() == verdicts[0].culprits());
        CHECK(each.call().audit.where == verdicts[0].call().audit.where);
    }
    return verdicts[0];
}

template <element T>
void flip(std::vector<T>& whole, uint64_t index, int bit = 0)
{
    unsigned char* const byte = reinterpret_cast<unsigned char*>(whole.data() + index) + bit / 8;
    *byte = static_cast<unsigned char>(*byte ^ (1u << (bit % 8)));
}

} // namespace

TEST_CASE_TEMPLATE("a clean all-gather is intact", T, COLLPROBE_TEST_ELEMENT_TYPES)
{
    for (const int ranks : {1, 2, 3, 16}) {
        for (const uint64_t count : {0u, 1u, 7u, 4097u}) {
            for (const bool in_place : {false, true}) {
                const testing::verdict verdict = gathered<T>(ranks, count, in_place, {});
                CHECK(verdict.intact());
                CHECK(verdict.culprits().empty());
            }
        }
    }
}

TEST_CASE("a receiver that holds a damaged shard is named, with its owner")
{
    for (int ranks = 3; ranks <= 16; ++ranks) {
        for (const bool in_place : {false, true}) {
            CAPTURE(ranks);
            const uint64_t count = 33;
            const auto owner = static_cast<uint64_t>(ranks * 5 / 7), bit = static_cast<uint64_t>(ranks) % 32;
            const int receiver = ranks * 2 / 3 - 1;
            const testing::verdict verdict = gathered<float>(ranks, count, in_place, {}, [&](int rank, std::vector<float>& whole) {
                if (rank == receiver) flip(whole, owner * count + 5, static_cast<int>(bit));
            });
            CHECK(verdict.damaged() == 1);
            CHECK(verdict.culprits() == std::vector<int>{receiver});
            CHECK(verdict.call().audit.where == damage::broadcast);
            REQUIRE(verdict.record.findings.size() == 1);
            CHECK(verdict.record.findings[0].rank() == receiver);
            CHECK(verdict.record.findings[0].other_rank == static_cast<int>(owner));
        }
    }
}

TEST_CASE("an owner that sent damage is named, in place and out of place")
{
    for (int ranks = 1; ranks <= 16; ++ranks) {
        for (const fault_kind kind : {fault_kind::bit_flips, fault_kind::zero_slice, fault_kind::swap, fault_kind::scale}) {
            for (const bool in_place : {false, true}) {
                CAPTURE(ranks);
                const int owner = ranks / 2;
                const fault one{.kind = kind, .phase = fault_phase::during, .rank = owner, .magnitude = 3};
                const testing::verdict verdict = gathered<bfloat16>(ranks, 50, in_place, {one});
                CHECK(verdict.damaged() == static_cast<uint64_t>(ranks));
                CHECK(verdict.culprits() == std::vector<int>{owner});
                CHECK(verdict.record.findings.at(0).other_rank == owner);
            }
        }
    }
}

TEST_CASE("what all other ranks received alike was sent so, though the owner's own copy is right")
{
    for (const int ranks : {2, 3, 4, 9}) {
        const testing::verdict verdict = gathered<double>(ranks, 10, true, {}, [&](int rank, std::vector<double>& whole) {
            if (rank != 0) flip(whole, 3, 62);
        });
        CHECK(verdict.damaged() == static_cast<uint64_t>(ranks - 1));
        CHECK(verdict.call().audit.where == (ranks == 2 ? damage::unknown : damage::input));
        CHECK(verdict.culprits() == (ranks == 2 ? std::vector<int>{} : std::vector<int>{0}));
    }
}

TEST_CASE("lists are bounded, counts are not")
{
    const testing::verdict verdict = gathered<float>(16, 4, false, {}, [](int rank, std::vector<float>& whole) {
        for (uint64_t owner = 0; owner < 16; ++owner) flip(whole, 4 * owner, rank);
    });
    CHECK(verdict.damaged() == 256);
    CHECK(verdict.culprits() == std::vector<int>{0, 1, 2, 3, 4, 5}); // three shards of each receiver, 16 in all
}

TEST_CASE("random damage of realistic shape is always seen and its receiver named")
{
    const int rounds = std::getenv("COLLPROBE_ROUNDS") != nullptr ? std::atoi(std::getenv("COLLPROBE_ROUNDS")) : 100;
    for (int round = 0; round < rounds; ++round) {
        const auto seed = static_cast<uint64_t>(round);
        CAPTURE(seed);
        const int ranks = 3 + round % 14;
        fault one = testing::realistic_fault(seed);
        one.rank = static_cast<int>(seed * 7 % static_cast<uint64_t>(ranks));
        const testing::verdict verdict = gathered<bfloat16>(ranks, 1 + 37 * (seed % 50), round % 2 == 0, {one});
        CHECK(!verdict.intact());
        CHECK(verdict.culprits() == std::vector<int>{one.rank});
    }
}

} // namespace collprobe::testing::gather_check_test
