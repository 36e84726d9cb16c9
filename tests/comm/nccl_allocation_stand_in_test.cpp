// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <collprobe/comm/nccl/communicator.hpp>

#include "tests/support/stand_in/nccl_ranks.hpp"
#include "tests/support/stand_in/stand_in_test_tools.hpp"

namespace collprobe::testing::nccl_allocation_stand_in_test {

using stand_in::lent_memory;
using stand_in::memory_origin;

namespace {

/// How many of `count` floats at `data` are in memory that one call may use.
std::uint64_t held(const float* data, std::uint64_t count)
{
    return cuda::detail::bytes_in_allocation(data, count * sizeof(float)) / sizeof(float);
}

/// 64 floats that are no memory of CUDA's yet.
struct plain_memory {
    alignas(256) float values[64] = {};
    float* at(std::size_t index) { return values + index; }
};

} // namespace

TEST_CASE("a count of bytes in the place of a count of elements is refused by argument, rank, call and sizes")
{
    const clean_stand_in clean;
    using call_t = std::function<void(nccl_owner&, float*, const device_values<float>&, cuda::stream_ref)>;
    struct wrong_call {
        const char* name;
        const char* argument;
        call_t make;
    };
    // `one` is an allocation of one float, `large` is large enough for all.
    const std::uint64_t wrong = sizeof(float);
    const std::vector<wrong_call> calls{
        {"all_reduce", "send",
            [&](auto& comm, float* one, auto&, auto on) {
                comm.all_reduce(view<const float>(one, wrong), view<float>(one, wrong), reduction::sum, on);
            }},
        {"all_reduce", "receive",
            [&](auto& comm, float* one, auto& large, auto on) {
                comm.all_reduce(large.in().part(0, wrong), view<float>(one, wrong), reduction::sum, on);
            }},
        {"broadcast", "receive",
            [&](auto& comm, float* one, auto&, auto on) {
                comm.broadcast(view<const float>(), view<float>(one, wrong), 0, on);
            }},
        {"all_gather", "send",
            [&](auto& comm, float* one, auto& large, auto on) {
                comm.all_gather(view<const float>(one, wrong), large.out().part(0, 2 * wrong), on);
            }},
    };
    for (const wrong_call& each : calls) {
        CAPTURE(std::string(each.name));
        CAPTURE(std::string(each.argument));
        std::optional<error> refused;
        const auto outcomes = run_each_nccl(2, {.name = "dp"}, [&](nccl_owner& comm) {
            const cuda::stream stream;
            const device_values<float> one(1, 2.0f);
            const device_values<float> large(16, 0.0f);
            if (comm.rank() == 1) {
                refused = error_of([&] { each.make(comm, one.data(), large, stream); });
                comm.synchronize(stream);
                if (!one.all(2.0f) || !large.all(0.0f)) throw std::runtime_error("something was written");
            }
            comm.all_reduce(one.in(), one.out(), reduction::sum, stream); // the right call is legal after that
            comm.synchronize(stream);
            if (!one.all(4.0f)) throw std::runtime_error("wrong sum");
        });
        check_all(outcomes);
        check_error(refused, status::invalid_argument,
            {std::string(each.argument) + " reaches beyond its allocation: it has 4 elements, 16 bytes, and the rest of "
                                          "the allocation has 4 bytes",
                "rank 1 of 2 of communicator 'dp'"});
        CHECK(std::string(refused->call()) == each.name);
        CHECK(refused->culprits() == std::vector<int>{1});
    }
}

TEST_CASE("a view reaches from one run into the next where a program may have joined them")
{
    const clean_stand_in clean;
    const cuda::device_guard first(0);
    plain_memory memory;
    using enum memory_origin;
    const struct {
        cudaMemoryType type;
        memory_origin front, behind;
        bool joined;
    } pairs[]{
        {cudaMemoryTypeDevice, reservation, reservation, true}, // with handles mapped to both
        {cudaMemoryTypeHost, registration, registration, true}, // piece by piece
        {cudaMemoryTypeDevice, allocation, allocation, false},
        {cudaMemoryTypeDevice, allocation, pool, false},
        {cudaMemoryTypeDevice, pool, allocation, false},
        {cudaMemoryTypeDevice, pool, pool, false},
        {cudaMemoryTypeDevice, reservation, allocation, false},
        {cudaMemoryTypeDevice, allocation, reservation, false},
        {cudaMemoryTypeManaged, allocation, allocation, false},
    };
    for (const auto& each : pairs) {
        CAPTURE(&each - pairs);
        const lent_memory front(memory.at(0), 64, each.type, each.front);
        const lent_memory behind(memory.at(16), 64, each.type, each.behind);
        CHECK(held(memory.at(8), 8) == 8);
        CHECK(held(memory.at(16), 17) == 16);
        CHECK(held(memory.at(8), 24) == (each.joined ? 24 : 8));
    }
    // As far as they go.
    const lent_memory a(memory.at(0), 32, cudaMemoryTypeDevice, reservation);
    const lent_memory b(memory.at(8), 32, cudaMemoryTypeDevice, reservation);
    const lent_memory c(memory.at(16), 32, cudaMemoryTypeDevice, reservation);
    CHECK(held(memory.at(4), 21) == 20);
}

TEST_CASE("where the driver cannot tell, nothing is refused")
{
    const clean_stand_in clean;
    const cuda::device_guard first(0);
    plain_memory memory;
    const lent_memory one(memory.at(0), 4, cudaMemoryTypeDevice, memory_origin::allocation);
    constexpr int not_supported = 801;
    CHECK(held(memory.at(0), 4) == 1);
    stand_in::fail_next("cuPointerGetAttributes", not_supported);
    CHECK(held(memory.at(0), 4) == 4);
    // It knows the range, but not whether it may be joined with the one behind.
    const lent_memory two(memory.at(1), 60, cudaMemoryTypeDevice, memory_origin::allocation);
    CHECK(held(memory.at(0), 4) == 1);
    stand_in::fail_next("cuPointerGetAttributes", not_supported, 2);
    stand_in::fail_next("cuPointerGetAttributes", not_supported);
    CHECK(held(memory.at(0), 4) == 4);
}

TEST_CASE("a look-up a buffer, in a capture too")
{
    const clean_stand_in clean;
    const auto looked_up = [] { return stand_in::calls("cuPointerGetAttributes"); };
    run_each_nccl(1, {}, [&](nccl_owner& comm) {
        const cuda::stream stream;
        const device_values<float> values(8, 1.0f);
        const std::uint64_t before = looked_up();
        captured_graph graph(stream);
        comm.all_reduce(values.in(), values.out(), reduction::sum, stream);
        CHECK(error_of([&] {
            comm.all_reduce(view<const float>(values.data(), 9), view<float>(values.data(), 9), reduction::sum, stream);
        }));
        CHECK(looked_up() - before == 4); // 2 of the call that is refused: nothing is behind
        CHECK(graph.end() == cudaSuccess);
    });
}

TEST_CASE("a caller that reads a buffer before the call hears of it before it reads")
{
    const clean_stand_in clean;
    run_each_nccl(1, {}, [](nccl_owner& comm) {
        const cuda::stream stream;
        const device_values<double> values(4, 1.0);
        const view<const double> too_long(values.data(), 5);
        check_error(error_of([&] { comm.check_buffer(too_long, "send", collective::reduce_scatter, stream); }),
            status::invalid_argument, {"send reaches beyond", "5 elements, 40 bytes", "has 32 bytes", "reduce_scatter"});
        CHECK_FALSE(error_of([&] { comm.check_buffer(values.in(), "send", collective::all_reduce, stream); }));
    });
}

} // namespace collprobe::testing::nccl_allocation_stand_in_test
