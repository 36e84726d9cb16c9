// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include <doctest/doctest.h>

#include <cstdint>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include <collprobe/comm/nccl/detail/zero_bytes.hpp>

#include "tests/support/count_allocations.hpp"
#include "tests/support/stand_in/stand_in_test_tools.hpp"

using namespace collprobe;
using namespace collprobe::testing;
using nccl::detail::zero_bytes;

TEST_CASE("each holder has 64 zero bytes of its own, and they go round")
{
    stand_in::reset();
    std::set<unsigned char*> seen;
    {
        std::vector<zero_bytes> held;
        for (int i = 0; i < 70; ++i) held.emplace_back(0, call_site::current());
        for (const zero_bytes& each : held) {
            for (std::size_t i = 0; i < zero_bytes::bytes; ++i) REQUIRE(each.data()[i] == 0);
            CHECK(reinterpret_cast<std::uintptr_t>(each.data()) % zero_bytes::bytes == 0);
            seen.insert(each.data());
        }
        CHECK(seen.size() == held.size());
    }
    const std::size_t live = stand_in::live_allocations();
    std::vector<zero_bytes> again;
    for (int i = 0; i < 70; ++i) again.emplace_back(0, call_site::current());
    CHECK(stand_in::live_allocations() == live);
}

TEST_CASE("making them frees nothing: that may wait for a collective under way")
{
    stand_in::reset();
    std::vector<zero_bytes> held;
    for (int i = 0; i < 200; ++i) held.emplace_back(0, call_site::current());
    CHECK(stand_in::calls("cudaMalloc") > 0);
    CHECK(stand_in::calls("cudaFree") + stand_in::calls("cudaFreeHost") == 0);
}

TEST_CASE("giving back never allocates")
{
    std::vector<zero_bytes> held;
    for (int i = 0; i < 500; ++i) held.emplace_back(0, call_site::current());
    const auto before = allocations.load();
    while (!held.empty()) held.pop_back();
    CHECK(allocations.load() == before);
}

TEST_CASE("a failure leaves nothing behind, and the next try works")
{
    stand_in::reset();
    const cuda::device_guard fresh(1); // none was made there yet
    const std::size_t live = stand_in::live_allocations();
    for (const char* const call : {"cudaMalloc", "cudaStreamCreateWithFlags", "cudaMemsetAsync"}) {
        stand_in::fail_next(call, cudaErrorECCUncorrectable);
        const auto failure = error_of([] { const zero_bytes none(1, call_site::current()); });
        REQUIRE(failure);
        CHECK(contains(failure->what(), call));
        CHECK(stand_in::live_allocations() == live);
    }
    const zero_bytes works(1, call_site::current());
    CHECK(works.data() != nullptr);
}

TEST_CASE("threads that take and give back at once never share bytes")
{
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 4; ++rank) {
        ranks.emplace_back([] {
            for (int round = 0; round < 50; ++round) {
                std::vector<zero_bytes> held;
                for (int i = 0; i < 20; ++i) held.emplace_back(0, call_site::current());
                // A cell of two threads would be a race here.
                for (const zero_bytes& each : held) each.data()[0] = 1;
                for (const zero_bytes& each : held) each.data()[0] = 0;
            }
        });
    }
    for (std::thread& rank : ranks) rank.join();
}
