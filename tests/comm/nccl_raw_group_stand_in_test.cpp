// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What a group that the program opens by ncclGroupStart itself does to calls of the library.
#include <doctest/doctest.h>

#include <cstdint>
#include <optional>
#include <string>

#include <collprobe/comm/nccl/communicator.hpp>

#include "support/checks.hpp"
#include "tests/support/stand_in/nccl_ranks.hpp"

namespace collprobe::testing::nccl_raw_group_stand_in_test {

namespace {

std::uint64_t warnings() { return stand_in::calls("warning"); }

} // namespace

#if NCCL_VERSION_CODE >= 22700

TEST_CASE("NCCL is asked at the calls whose number is a power of two, and warns of no more")
{
    const clean_stand_in clean;
    check_all(run_each_nccl(1, {}, [](nccl_owner& world) {
        for (int call = 0; call < 1000; ++call) require(world.enqueues_at_once(), "no group is open");
        require(warnings() == 10, "1, 2, 4 ... 512");
        // One that comes late is seen late, and then at each call until it ends.
        ncclGroupStart();
        ncclGroupStart(); // the second of nested groups, too
        for (int call = 1001; call < 1100; ++call) {
            require(world.enqueues_at_once() == (call < 1024), "from call 1024 on");
        }
        ncclGroupEnd();
        require(!world.enqueues_at_once(), "the outer one is open");
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
