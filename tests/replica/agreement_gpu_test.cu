// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Agreement and the search for differences on a GPU say what they say on the host.
#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include <collprobe/collprobe.cuh>
#include <collprobe/replica/agreement.hpp>
#include <collprobe/replica/majority_repair.hpp>

#include "replica/damage.hpp"
#include "support/needs_gpu.hpp"
#include "support/run_ranks.hpp"
#include "support/upload.hpp"

using namespace collprobe;
using collprobe::testing::raw_buffer;
namespace cu = collprobe::cuda; // CUDA has a namespace cuda, too

namespace {

using gpu = cu::device;

/// The bytes of a buffer in device memory.
class device_copy {
public:
    explicit device_copy(const raw_buffer& from) : bytes_(from.count * from.size()), memory_(bytes_ + 1)
    {
        collprobe::testing::upload(data(), from.data(), bytes_);
    }
    unsigned char* data() const { return memory_.data(); }
    replica as_replica(const raw_buffer& like) const
    {
        replica all;
        all.data = data();
        all.count = like.count;
        all.type = like.type;
        return all;
    }
    bool holds(const raw_buffer& expected) const
    {
        std::vector<unsigned char> back(bytes_);
        if (bytes_ == 0) return true;
        REQUIRE(cudaMemcpy(back.data(), data(), bytes_, cudaMemcpyDeviceToHost) == cudaSuccess);
        return std::memcmp(back.data(), expected.data(), bytes_) == 0;
    }

private:
    std::uint64_t bytes_;
    cu::buffer<unsigned char> memory_;
};

} // namespace

TEST_CASE("ranks on a GPU find damage of every kind, and nothing where there is none")
{
    testing::random_numbers random{3};
    for (int k = 0; k < 4 * static_cast<int>(testing::damage_kind::count); ++k) {
        raw_buffer clean(random.between(2, k % 8 == 0 ? 3'000'000 : 5'000), static_cast<element_type>(random.below(10)));
        clean.randomise(random);
        raw_buffer damaged = clean;
        testing::damage_once(
            damaged, static_cast<testing::damage_kind>(k % static_cast<int>(testing::damage_kind::count)), random);
        const difference expected = testing::differences_of(clean, damaged, 1);
        if (expected.elements == 0) continue;
        const testing::device_provider<gpu> ranks{.ranks = 3};
        ranks.run([&](auto& comm) {
            const auto guard = comm.device_scope();
            const device_copy good(clean), bad(damaged);
            const cu::stream stream;
            agreement check(comm);
            CHECK(check.agreed(std::vector{good.as_replica(clean)}, stream));
            const device_copy& mine = comm.rank() == 1 ? bad : good;
            const std::vector<disagreement> found = check.locate(std::vector{mine.as_replica(clean)}, stream);
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
            const device_copy mine(comm.rank() == 0 ? damaged : clean);
            const cu::stream stream;
            agreement check(comm);
            const repair_result result = majority_repair(check, std::vector{mine.as_replica(clean)}, stream);
            CHECK(result.repaired);
            CHECK(result.rounds == 1);
            CHECK(mine.holds(clean));
        });
    }
}
