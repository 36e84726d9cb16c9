// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include <doctest/doctest.h>

#include "../../examples/studies/silent_inconsistency/pilot.hpp"
#include "../../examples/studies/silent_inconsistency/sampler.hpp"

using namespace trainer;

namespace {

std::vector<std::vector<std::size_t>> pools_of(std::size_t count, std::size_t size)
{
    std::vector<std::vector<std::size_t>> pools(count);
    for (std::size_t i = 0; i < count * size; ++i) pools[i / size].push_back(i);
    return pools;
}

} // namespace

TEST_CASE("ranks with one seed take disjoint parts of one pool")
{
    const sampler draws(pools_of(8, 100));
    for (std::uint64_t step = 0; step < 50; ++step) {
        std::set<std::size_t> seen;
        std::set<std::size_t> pools;
        for (int rank = 0; rank < 4; ++rank) {
            for (const std::size_t sample : draws.draw(1, step, rank, 25)) {
                CHECK(seen.insert(sample).second);
                pools.insert(sample / 100);
            }
        }
        CHECK(seen.size() == 100);
        CHECK(pools.size() == 1);
    }
}

TEST_CASE("ranks with different seeds draw from different pools, and share samples")
{
    const sampler draws(pools_of(8, 100));
    int same_pool = 0;
    int shared = 0;
    for (std::uint64_t step = 0; step < 800; ++step) {
        const auto a = draws.draw(1, step, 0, 25);
        const auto b = draws.draw(2, step, 1, 25);
        same_pool += a[0] / 100 == b[0] / 100 ? 1 : 0;
        for (const std::size_t sample : a) shared += std::find(b.begin(), b.end(), sample) != b.end() ? 1 : 0;
    }
    CHECK(same_pool > 60); // 1 in 8 on average: 100
    CHECK(same_pool < 140);
    CHECK(shared > 0);
}

TEST_CASE("a pool smaller than ranks x batch goes on in another order")
{
    const sampler draws(pools_of(1, 30));
    std::map<std::size_t, int> times;
    for (int rank = 0; rank < 6; ++rank) {
        for (const std::size_t sample : draws.draw(9, 4, rank, 10)) ++times[sample];
    }
    CHECK(times.size() == 30);
    for (const auto& [sample, count] : times) CHECK(count == 2);
    // No two ranks get the same samples, though the pool is a whole number of batches.
    std::vector<std::size_t> first = draws.draw(9, 4, 0, 10);
    std::vector<std::size_t> second_pass = draws.draw(9, 4, 3, 10);
    std::sort(first.begin(), first.end());
    std::sort(second_pass.begin(), second_pass.end());
    CHECK(first != second_pass);
}

TEST_CASE("a batch larger than the pool is filled")
{
    CHECK(sampler(pools_of(1, 3)).draw(1, 0, 1, 10).size() == 10);
}

TEST_CASE("a draw is a function of seed, step and rank")
{
    const sampler draws(pools_of(2, 50));
    CHECK(draws.draw(1, 2, 3, 8) == draws.draw(1, 2, 3, 8));
    CHECK(draws.draw(1, 2, 3, 8) != draws.draw(1, 3, 3, 8));
    CHECK(draws.draw(1, 2, 3, 8) != draws.draw(2, 2, 3, 8));
}

TEST_CASE("the settings differ in whose seed is whose")
{
    for (int rank = 0; rank < 4; ++rank) {
        CHECK(rank_seed(setting::strict, 5, rank) == rank_seed(setting::strict, 5, 0));
        for (int other = 0; other < rank; ++other) {
            CHECK((rank_seed(setting::mild, 5, rank) == rank_seed(setting::mild, 5, other)) == (other != 0));
            CHECK(rank_seed(setting::significant, 5, rank) != rank_seed(setting::significant, 5, other));
        }
    }
    CHECK(rank_seed(setting::mild, 5, 1) == rank_seed(setting::strict, 5, 1));
    CHECK(rank_seed(setting::strict, 5, 0) != rank_seed(setting::strict, 6, 0));
}

TEST_CASE("difficulty buckets are of nearly equal size and go from easy to hard")
{
    const std::vector<double> losses = {0.5, 0.1, 0.9, 0.3, 0.7, 0.2, 0.8};
    const auto buckets = difficulty_buckets(losses, 3);
    REQUIRE(buckets.size() == 3);
    std::vector<std::size_t> all;
    for (const auto& bucket : buckets) {
        CHECK(bucket.size() >= 2);
        CHECK(bucket.size() <= 3);
        all.insert(all.end(), bucket.begin(), bucket.end());
    }
    CHECK(all == std::vector<std::size_t>{1, 5, 3, 0, 4, 6, 2});
}
