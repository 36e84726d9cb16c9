// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Agreement and the search for differences on a GPU say what they say on the host.
#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include <collprobe/collprobe.cuh>
#include <collprobe/replica/agreement.hpp>
#include <collprobe/replica/majority_repair.hpp>

#include "replica/damage.hpp"
#include "support/device_copy.cuh"
#include "support/needs_gpu.hpp"
#include "support/run_ranks.hpp"

using namespace collprobe;
using collprobe::testing::raw_buffer;
namespace cu = collprobe::cuda; // CUDA has a namespace cuda, too

namespace {

using gpu = cu::device;

using on_gpu = collprobe::testing::device_copy<unsigned char>;

std::vector<unsigned char> bytes_of(const raw_buffer& from)
{
    return {from.data(), from.data() + from.count * from.size()};
}
replica replica_of(const on_gpu& memory, const raw_buffer& like)
{
    replica all;
    all.data = memory.data();
    all.count = like.count;
    all.type = like.type;
    return all;
}

} // namespace

TEST_CASE("ranks on a GPU find damage of every kind, and nothing where there is none")
{
    testing::random_numbers random{3};
    for (int k = 0; k < 9 * static_cast<int>(testing::damage_kind::count); ++k) {
        raw_buffer clean(random.between(2, k % 9 == 0 ? 3'000'000 : 5'000), static_cast<element_type>(random.below(10)));
        clean.randomise(random);
        raw_buffer damaged = clean;
        testing::damage_once(
            damaged, static_cast<testing::damage_kind>(k % static_cast<int>(testing::damage_kind::count)), random);
        const difference expected = testing::differences_of(clean, damaged, 1);
        if (expected.elements == 0) continue;
        const testing::device_provider<gpu> ranks{.ranks = 3};
        ranks.run([&](auto& comm) {
            const auto guard = comm.device_scope();
            const on_gpu good(bytes_of(clean)), bad(bytes_of(damaged));
            const cu::stream stream;
            agreement check(comm);
            CHECK(check.agreed(std::vector{replica_of(good, clean)}, stream));
            const on_gpu& mine = comm.rank() == 1 ? bad : good;
            const std::vector<disagreement> found = check.locate(std::vector{replica_of(mine, clean)}, stream);
            REQUIRE(found.size() == 1);
            CHECK(found[0].others == std::vector{1});
            CHECK(testing::same(found[0].differences[0], expected));
        });
    }
}

TEST_CASE("ranks on a GPU get back what most of them hold")
{
    testing::random_numbers random{9};
    for (const element_type type : {element_type::int8, element_type::bfloat16, element_type::float32, element_type::float64}) {
        raw_buffer clean(400'003, type);
        clean.randomise(random);
        raw_buffer damaged = clean;
        for (std::uint64_t i = 5; i < clean.count; i += 101) damaged.set_bits(i, ~clean.bits(i));
        const testing::device_provider<gpu> ranks{.ranks = 4};
        ranks.run([&](auto& comm) {
            const auto guard = comm.device_scope();
            const on_gpu mine(bytes_of(comm.rank() == 0 ? damaged : clean));
            const cu::stream stream;
            agreement check(comm);
            const repair_result result = majority_repair(check, std::vector{replica_of(mine, clean)}, stream);
            CHECK(result.repaired);
            CHECK(result.rounds == 1);
            CHECK(mine.read() == bytes_of(clean));
        });
    }
}
