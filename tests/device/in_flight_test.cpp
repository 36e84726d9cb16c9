// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include <collprobe/device/host/device.hpp>
#include <collprobe/device/in_flight.hpp>

#include "support/host_gate.hpp"

namespace collprobe::testing::in_flight_test {
namespace {

/// Memory that tells when it is freed.
struct watched {
    explicit watched(int& freed) : freed_(&freed) {}
    watched(const watched&) = delete;
    ~watched() { ++*freed_; }
    bool finished_by(detail::deadline until) const noexcept { return detail::finished_by(until, done); }

    host::event done;

private:
    int* freed_;
};

using owner = detail::in_flight<watched>;
static_assert(std::is_nothrow_move_constructible_v<owner> && std::is_nothrow_move_assignable_v<owner>);
static_assert(!std::is_copy_constructible_v<owner> && !std::is_copy_assignable_v<owner>);

constexpr std::int64_t long_ms = 20'000;

} // namespace

TEST_CASE("memory is freed when the work in front of its event is done, not before")
{
    int freed = 0;
    bool worked = false;
    host::stream stream;
    {
        owner memory(long_ms, freed);
        detail::enqueue_marked(memory->done, stream, [&] {
            stream.enqueue([&] {
                if (freed == 0) worked = true;
            });
        });
    }
    CHECK(worked);
    CHECK(freed == 1);
}

TEST_CASE("memory that work uses at the time-out is leaked")
{
    int freed = 0;
    const host::stream stream;
    const testing::host_gate gate;
    gate.close(stream);
    {
        owner first(1, freed), second(1, freed);
        detail::enqueue_marked(first->done, stream, [] {});
        detail::enqueue_marked(second->done, stream, [] {});
    }
    gate.open();
    stream.synchronize(long_ms);
    CHECK(freed == 0);
}

TEST_CASE("memory whose work has failed is freed")
{
    int freed = 0;
    const host::stream stream;
    {
        owner memory(long_ms, freed);
        detail::enqueue_marked(
            memory->done, stream, [&] { stream.enqueue([] { throw std::runtime_error("it failed"); }); });
    }
    CHECK(freed == 1);
}

TEST_CASE("a call that throws leaves its event behind what it has enqueued")
{
    int freed = 0;
    const host::stream stream;
    const testing::host_gate gate;
    owner memory(long_ms, freed);
    const auto half_a_call = [&] {
        gate.close(stream);
        throw std::runtime_error("the second half");
    };
    CHECK_THROWS_AS(detail::enqueue_marked(memory->done, stream, half_a_call), std::runtime_error);
    CHECK_FALSE(memory->finished_by(detail::deadline::in_ms(1)));
    gate.open();
    CHECK(memory->finished_by(detail::deadline::in_ms(long_ms)));
}

TEST_CASE("a handle that is moved takes the memory and its time-out along")
{
    int freed = 0;
    const host::stream stream;
    const testing::host_gate gate;
    gate.close(stream);
    {
        std::vector<owner> owners;
        owners.emplace_back(1, freed);
        watched* const where = &*owners[0];
        detail::enqueue_marked(owners[0]->done, stream, [] {});
        owners.emplace_back(long_ms, freed); // moves the first
        owners.reserve(10);
        CHECK(&*owners[0] == where);
        owner taken(std::move(owners[0]));
        CHECK_FALSE(owners[0]);
        CHECK_THROWS_WITH_AS(*owners[0], doctest::Contains("the object was moved from"), error);
        CHECK(&*taken == where);
    }
    CHECK(freed == 1); // of the one that no work used
    gate.open();
    stream.synchronize(long_ms);
    CHECK(freed == 1);
}

TEST_CASE("assignment frees what was held before, and takes over")
{
    int first = 0, second = 0;
    owner memory(long_ms, first);
    memory = owner(long_ms, second);
    CHECK(first == 1);
    CHECK(second == 0);
    memory = {};
    CHECK_FALSE(memory);
    CHECK(second == 1);
}

TEST_CASE("memory can be leaked without waiting")
{
    int freed = 0;
    owner memory(long_ms, freed);
    memory.leak_now();
    CHECK_FALSE(memory);
    memory.leak_now();
    memory = {};
    CHECK(freed == 0);
}

} // namespace collprobe::testing::in_flight_test
