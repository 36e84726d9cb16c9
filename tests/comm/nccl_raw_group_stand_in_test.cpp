// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What a group that the program opens by ncclGroupStart itself does to calls of the library.
#include <doctest/doctest.h>

#include <cstdint>
#include <latch>
#include <optional>
#include <string>

#include <collprobe/comm/nccl/communicator.hpp>
#include <collprobe/step/probed.hpp>

#include "tests/support/stand_in/nccl_ranks.hpp"
#include "tests/support/stand_in/stand_in_test_tools.hpp"

namespace collprobe::testing::nccl_raw_group_stand_in_test {

using nccl::blocking_mode;

namespace {

constexpr int ranks = 2;

void end_raw_group(ncclComm_t comm)
{
    ncclResult_t state = ncclGroupEnd();
    while (state == ncclInProgress) ncclCommGetAsyncError(comm, &state);
    require(state == ncclSuccess, "the group of the program itself is as good as ever");
}
bool is_refused(const std::optional<error>& failure)
{
    return failure && failure->code() == status::unsupported && contains(failure->what(), "ncclGroupStart")
        && contains(failure->what(), "end the group first");
}
std::uint64_t warnings() { return stand_in::calls("warning"); }

} // namespace

#if NCCL_VERSION_CODE >= 22700

// As every adaptor that asks: in the second of nested groups, too.
TEST_CASE("a call of an adaptor in a group of ncclGroupStart is refused, and the group keeps its calls")
{
    const clean_stand_in clean;
    for (const blocking_mode mode : nccl_modes) {
        for (const int depth : {1, 2}) {
            std::latch refused(ranks);
            check_all(run_each_nccl(ranks, {.mode = mode}, [&](nccl_owner& world) {
                probed comm{nccl::communicator_ref(world)};
                const cuda::stream stream;
                const device_values<float> values(8, 1.0f);
                const device_values<float> raw(4, 1.0f);
                const auto call = [&] { comm.all_reduce(values.in(), values.out(), reduction::sum, stream); };
                for (int i = 0; i < depth; ++i) ncclGroupStart();
                ncclAllReduce(
                    raw.data(), raw.data(), 4, ncclFloat32, ncclSum, world.native_handle(), stream.get());
                for (int again = 0; again < 5; ++again) require(is_refused(error_of(call)), "not refused");
                require(warnings() == 0, "where it matters nothing is warned of");
                refused.arrive_and_wait(); // warnings are those of all ranks
                for (int i = 1; i < depth; ++i) ncclGroupEnd();
                end_raw_group(world.native_handle());
                call();
                world.synchronize(stream);
                require(raw.all(2.0f), "the call of the program itself");
                require(values.all(2.0f), "the call outside");
            }));
            stand_in::reset();
        }
    }
}

TEST_CASE("NCCL is asked at the calls whose number is a power of two, and warns of no more")
{
    const clean_stand_in clean;
    check_all(run_each_nccl(1, {}, [](nccl_owner& world) {
        for (int call = 0; call < 1000; ++call) require(world.enqueues_at_once(), "no group is open");
        require(warnings() == 10, "1, 2, 4 ... 512");
        // One that comes late is seen late, and then at each call until it ends.
        ncclGroupStart();
        for (int call = 1001; call < 1100; ++call) {
            require(world.enqueues_at_once() == (call < 1024), "from call 1024 on");
        }
        ncclGroupEnd();
        require(world.enqueues_at_once() && warnings() == 11, "the group has ended");
    }));
}

TEST_CASE("NCCL's warning of the question is not taken for the cause of an error")
{
    const clean_stand_in clean;
    for (const char* const said :
        {"ncclSimInfo_t argument not initialized via NCCL_SIM_INFO_INITIALIZER", "socket closed"}) {
        const auto outcomes = run_each_nccl(1, {}, [&](nccl_owner& world) {
            stand_in::nccl::set_async_error(world.native_handle(), ncclRemoteError, said);
            world.check();
        });
        const std::optional<error> failure = outcomes[0].failure();
        REQUIRE(failure);
        CHECK(contains(failure->what(), "socket closed") == (said == std::string("socket closed")));
        CHECK_FALSE(contains(failure->what(), "ncclSimInfo_t"));
    }
}

#endif

} // namespace collprobe::testing::nccl_raw_group_stand_in_test
