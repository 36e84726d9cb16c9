// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include <doctest/doctest.h>

#include <optional>
#include <string>
#include <thread>

#include <collprobe/comm/nccl/communicator.hpp>

#include "tests/support/fail_allocation.hpp"
#include "tests/support/stand_in/nccl_ranks.hpp"
#include "tests/support/stand_in/stand_in_test_tools.hpp"

namespace collprobe::testing::nccl_group_stand_in_test {

using nccl::blocking_mode;

namespace {

bool has(const std::optional<error>& failure, status code, const std::string& part)
{
    return failure && failure->code() == code && contains(failure->what(), part);
}

} // namespace

TEST_CASE("the stand-in notices who frees a communicator before its group ends")
{
    for (const bool elsewhere : {false, true}) {
        const std::uint64_t before = stand_in::nccl::dead_handle_calls();
        run_each_nccl(2, {.mode = blocking_mode::blocking}, [&](nccl_owner& owner) {
            const cuda::stream stream;
            device_values<float> values(4, 1.0f);
            if (owner.rank() == 1) return;
            const ncclComm_t raw = owner.native_handle();
            ncclGroupStart();
            ncclAllReduce(values.data(), values.data(), 4, ncclFloat32, ncclSum, raw, stream.get());
            if (elsewhere) std::thread([&] { owner.abort("too early"); }).join();
            else owner.abort("too early");
            ncclGroupEnd();
            stream.synchronize();
        });
        CHECK(stand_in::nccl::dead_handle_calls() == before + 1);
        CHECK(stand_in::nccl::live_communicators() == 0);
    }
    stand_in::reset();
}

TEST_CASE("a communicator that fails within a group takes no further call, and the group makes those that it has")
{
    const clean_stand_in clean;
    for (const blocking_mode mode : nccl_modes) {
        check_all(run_each_nccl(2, {.name = "dp", .mode = mode}, [&](nccl_owner& comm) {
            const cuda::stream stream;
            device_values<float> values(4, 1.0f);
            device_values<float> others(4, 1.0f);
            auto healthy = comm.split(0, comm.rank());
            {
                nccl::group together;
                comm.all_reduce(values.in(), values.out(), reduction::sum, stream);
                healthy->all_reduce(others.in(), others.out(), reduction::sum, stream);
                std::thread([lent = nccl::communicator_ref(comm)] { lent.fail("from afar"); }).join();
                require(has(error_of([&] { comm.barrier(stream); }), status::peer_failure, "gave up: from afar"),
                    "the failure is known at once");
                if (mode == blocking_mode::blocking) together.end();
                else {
                    require(has(error_of([&] { together.end(); }), status::peer_failure, "gave up: from afar"),
                        "whoever waits for it is told");
                }
            }
            for (ncclResult_t state = ncclInProgress; state == ncclInProgress; std::this_thread::yield())
                ncclCommGetAsyncError(comm.native_handle(), &state);
            healthy->barrier(stream);
            healthy->synchronize(stream);
            require(values.all(2.0f) && others.all(2.0f), "the calls of the group");
            require(has(error_of([&] { comm.check(); }), status::peer_failure, "'dp'"), "the failure stays");
            healthy->all_reduce(others.in(), others.out(), reduction::sum, stream);
            healthy->synchronize(stream);
            require(others.all(4.0f), "the other one is usable");
        }));
    }
}

TEST_CASE("a group that fails leaves the current device as it was")
{
    const clean_stand_in clean;
    for (const bool explicitly : {true, false}) {
        stand_in::fail_next("ncclGroupEnd", ncclSystemError);
        stand_in::fail_next("ncclGroupEnd", ncclSystemError);
        check_all(run_each_nccl(2, {.mode = blocking_mode::blocking}, [&](nccl_owner& comm) {
            const cuda::stream stream;
            device_values<float> values(4, 1.0f);
            const cuda::device_guard elsewhere(5);
            {
                nccl::group together;
                comm.all_reduce(values.in(), values.out(), reduction::sum, stream);
                if (explicitly) {
                    require(has(error_of([&] { together.end(); }), status::device_failure, "ncclSystemError"), "fails");
                }
            }
            int device = -1;
            require(cudaGetDevice(&device) == cudaSuccess && device == 5, "the current device has changed");
        }));
    }
}

TEST_CASE("whichever allocation fails, the destructor of a group that fails throws nothing")
{
    const clean_stand_in clean;
    long failed = 0;
    for (bool reached = true; reached && failed < 100; ++failed) {
        const auto outcomes = run_each_nccl(1, {.name = "a name that does not fit into a string itself"},
            [&](nccl_owner& comm) {
                const cuda::stream stream;
                device_values<float> values(4, 1.0f);
                std::optional<nccl::group> together(std::in_place);
                comm.all_reduce(values.in(), values.out(), reduction::sum, stream);
                stand_in::fail_next("ncclGroupEnd", ncclSystemError);
                failing_allocation = failed + 1;
                together.reset();
                reached = std::exchange(failing_allocation, 0) == 0;
                require(!nccl::group::is_open(), "the group has ended");
                stream.synchronize();
            });
        check_all(outcomes);
    }
    CHECK(failed > 1);
}

} // namespace collprobe::testing::nccl_group_stand_in_test
