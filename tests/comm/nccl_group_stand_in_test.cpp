// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include <doctest/doctest.h>

#include <optional>
#include <string>
#include <thread>

#include <collprobe/comm/nccl/communicator.hpp>

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

} // namespace collprobe::testing::nccl_group_stand_in_test
