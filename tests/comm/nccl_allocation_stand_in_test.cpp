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

/// What a communicator of one rank says of an all-reduce in place of `count` floats at `data`.
std::optional<error> sum_in_place(float* data, std::uint64_t count, const nccl::options& settings = {})
{
    std::optional<error> refused;
    run_each_nccl(1, settings, [&](nccl_owner& comm) {
        const cuda::stream stream;
        refused = error_of([&] {
            comm.all_reduce(view<const float>(data, count), view<float>(data, count), reduction::sum, stream);
        });
        stream.synchronize();
    });
    return refused;
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

TEST_CASE("the rest of the allocation counts, to the last byte, whatever made it")
{
    const clean_stand_in clean;
    const cuda::device_guard first(0);
    float* of_device = nullptr;
    float* of_pool = nullptr;
    float* managed = nullptr;
    float* pinned = nullptr;
    const auto as_void = [](float*& of) { return reinterpret_cast<void**>(&of); };
    REQUIRE(cudaMalloc(as_void(of_device), 40) == cudaSuccess);
    REQUIRE(cudaMallocAsync(as_void(of_pool), 40, nullptr) == cudaSuccess);
    REQUIRE(cudaMallocManaged(as_void(managed), 40, cudaMemAttachGlobal) == cudaSuccess);
    REQUIRE(cudaHostAlloc(as_void(pinned), 40, 0) == cudaSuccess);
    plain_memory registered;
    REQUIRE(cudaHostRegister(registered.at(0), 40, 0) == cudaSuccess);
    for (float* const memory : {of_device, of_pool, managed, pinned, registered.at(0)}) {
        CHECK_FALSE(sum_in_place(memory, 10));
        CHECK_FALSE(sum_in_place(memory + 7, 3));
        CHECK_FALSE(sum_in_place(memory + 10, 0)); // one past the end, and nothing of it
        check_error(sum_in_place(memory, 11), status::invalid_argument, {"44 bytes", "has 40 bytes"});
        check_error(sum_in_place(memory + 7, 4), status::invalid_argument, {"16 bytes", "has 12 bytes"});
    }
    CHECK(cudaHostUnregister(registered.at(0)) == cudaSuccess);
    CHECK(cudaFreeHost(pinned) == cudaSuccess);
    CHECK(cudaFree(managed) == cudaSuccess);
    CHECK(cudaFree(of_pool) == cudaSuccess);
    CHECK(cudaFree(of_device) == cudaSuccess);
}

TEST_CASE("a view across two adjacent runs is refused unless a program may join them")
{
    const clean_stand_in clean;
    const cuda::device_guard first(0);
    plain_memory memory;
    const auto across = [&](cudaMemoryType type, memory_origin one, memory_origin two) {
        const lent_memory front(memory.at(0), 64, type, one);
        const lent_memory behind(memory.at(16), 64, type, two);
        CHECK_FALSE(sum_in_place(memory.at(8), 8));
        CHECK_FALSE(sum_in_place(memory.at(16), 16));
        check_error(sum_in_place(memory.at(16), 17), status::invalid_argument, {"68 bytes", "has 64 bytes"});
        return sum_in_place(memory.at(8), 24);
    };
    SUBCASE("a reservation that another one extends, with handles mapped to both")
    {
        CHECK_FALSE(across(cudaMemoryTypeDevice, memory_origin::reservation, memory_origin::reservation));
    }
    SUBCASE("host memory that is registered piece by piece")
    {
        CHECK_FALSE(across(cudaMemoryTypeHost, memory_origin::registration, memory_origin::registration));
    }
    SUBCASE("allocations of a device, of a pool and of both")
    {
        for (const memory_origin one : {memory_origin::allocation, memory_origin::pool}) {
            for (const memory_origin two : {memory_origin::allocation, memory_origin::pool}) {
                check_error(across(cudaMemoryTypeDevice, one, two), status::invalid_argument,
                    {"96 bytes", "has 32 bytes"});
            }
        }
        check_error(across(cudaMemoryTypeDevice, memory_origin::reservation, memory_origin::allocation),
            status::invalid_argument, {"has 32 bytes"});
        check_error(across(cudaMemoryTypeDevice, memory_origin::allocation, memory_origin::reservation),
            status::invalid_argument, {"has 32 bytes"});
    }
    SUBCASE("managed allocations")
    {
        check_error(across(cudaMemoryTypeManaged, memory_origin::allocation, memory_origin::allocation),
            status::invalid_argument, {"has 32 bytes"});
    }
}

TEST_CASE("runs that may be joined are joined as far as they go")
{
    const clean_stand_in clean;
    const cuda::device_guard first(0);
    plain_memory memory;
    const lent_memory a(memory.at(0), 32, cudaMemoryTypeDevice, memory_origin::reservation);
    const lent_memory b(memory.at(8), 32, cudaMemoryTypeDevice, memory_origin::reservation);
    const lent_memory c(memory.at(16), 32, cudaMemoryTypeDevice, memory_origin::reservation);
    CHECK_FALSE(sum_in_place(memory.at(4), 20));
    check_error(sum_in_place(memory.at(4), 21), status::invalid_argument, {"84 bytes", "has 80 bytes"});
}

TEST_CASE("where the driver cannot tell, nothing is refused")
{
    const clean_stand_in clean;
    const cuda::device_guard first(0);
    plain_memory memory;
    const lent_memory one(memory.at(0), 4, cudaMemoryTypeDevice, memory_origin::allocation);
    constexpr int not_supported = 801;
    CHECK(sum_in_place(memory.at(0), 4));
    for (int looked_up = 0; looked_up < 2; ++looked_up) stand_in::fail_next("cuPointerGetAttributes", not_supported);
    CHECK_FALSE(sum_in_place(memory.at(0), 4)); // of send and of receive
    CHECK(sum_in_place(memory.at(0), 4));
    // It knows the range, but not whether it may be joined with the one behind.
    const lent_memory two(memory.at(1), 60, cudaMemoryTypeDevice, memory_origin::allocation);
    CHECK(sum_in_place(memory.at(0), 4));
    for (int looked_up = 0; looked_up < 2; ++looked_up) {
        stand_in::fail_next("cuPointerGetAttributes", not_supported, 2);
        stand_in::fail_next("cuPointerGetAttributes", not_supported);
    }
    CHECK_FALSE(sum_in_place(memory.at(0), 4));
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

TEST_CASE("an allocation that ends and comes again with another size is seen as it is")
{
    const clean_stand_in clean;
    const cuda::device_guard first(0);
    plain_memory memory;
    {
        const lent_memory large(memory.at(0), 64, cudaMemoryTypeDevice, memory_origin::allocation);
        CHECK_FALSE(sum_in_place(memory.at(0), 16));
    }
    const lent_memory small(memory.at(0), 32, cudaMemoryTypeDevice, memory_origin::allocation);
    check_error(sum_in_place(memory.at(0), 16), status::invalid_argument, {"64 bytes", "has 32 bytes"});
    CHECK_FALSE(sum_in_place(memory.at(0), 8));
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
