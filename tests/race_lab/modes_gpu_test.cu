// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// The failure modes of host_test.cpp on a GPU: two ranks of this process, and NCCL itself with one rank where one is
// enough. Does nothing where there is no GPU.
#include <doctest/doctest.h>

#include <collprobe/comm/nccl/communicator.hpp>

#include "tests/race_lab/gpu_lab.cuh"
#include "tests/race_lab/memory_modes.hpp"
#include "tests/race_lab/order_modes.hpp"
#include "tests/support/needs_gpu.hpp"

using namespace collprobe::race_lab;

TEST_CASE("F01 a copy and a gather without an edge")
{
    f01_copy_and_gather_without_an_edge<gpu_lab>();
    f01_copy_and_gather_without_an_edge<gpu_nccl_lab>();
}
TEST_CASE("F02 a host synchronisation as the cure")
{
    f02_host_synchronisation_as_the_cure<gpu_lab>();
    f02_host_synchronisation_as_the_cure<gpu_nccl_lab>();
}
TEST_CASE("F03 an event recorded before the copy")
{
    f03_event_recorded_before_the_copy<gpu_lab>();
    f03_event_recorded_before_the_copy<gpu_nccl_lab>();
}
TEST_CASE("F04 a wait for an event never recorded")
{
    f04_wait_for_an_event_never_recorded<gpu_lab>();
    f04_wait_for_an_event_never_recorded<gpu_nccl_lab>();
}
TEST_CASE("F05 a wait for the wrong stream")
{
    f05_wait_for_the_wrong_stream<gpu_lab>();
    f05_wait_for_the_wrong_stream<gpu_nccl_lab>();
}
TEST_CASE("F06 one of two producers is waited for")
{
    f06_one_of_two_producers<gpu_lab>();
    f06_one_of_two_producers<gpu_nccl_lab>();
}
TEST_CASE("F06 work behind the record is not waited for")
{
    f06_work_behind_the_record<gpu_lab>();
    f06_work_behind_the_record<gpu_nccl_lab>();
}
TEST_CASE("F07 a consumer reads before the gather")
{
    f07_consumer_reads_before_the_gather<gpu_lab>();
    f07_consumer_reads_before_the_gather<gpu_nccl_lab>();
}
TEST_CASE("F08 the next copy overwrites under the gather")
{
    f08_next_copy_under_the_gather<gpu_lab>();
    f08_next_copy_under_the_gather<gpu_nccl_lab>();
}
TEST_CASE("F09 two gathers into one destination")
{
    f09_two_gathers_into_one_destination<gpu_lab>();
    f09_two_gathers_into_one_destination<gpu_nccl_lab>();
}
TEST_CASE("F10 an event recorded anew before the wait")
{
    f10_event_recorded_anew_before_the_wait<gpu_lab>();
    f10_event_recorded_anew_before_the_wait<gpu_nccl_lab>();
}
TEST_CASE("F10 an event recorded anew after the wait")
{
    f10_event_recorded_anew_after_the_wait<gpu_lab>();
    f10_event_recorded_anew_after_the_wait<gpu_nccl_lab>();
}
TEST_CASE("F11 a shard freed under the gather")
{
    f11_freed_under_the_gather<gpu_lab>();
    f11_freed_under_the_gather<gpu_nccl_lab>();
}
TEST_CASE("F13 a shard beside its slot") { f13_shard_beside_its_slot<gpu_lab>(); }
TEST_CASE("F14 order by the communicator only") { f14_order_by_the_communicator_only<gpu_lab>(); }
TEST_CASE("F20 a shard older than its master")
{
    f20_shard_older_than_its_master<gpu_lab>();
    f20_shard_older_than_its_master<gpu_nccl_lab>();
}
TEST_CASE("F21 short and empty last shards") { f21_short_and_empty_last_shards<gpu_lab>(); }
TEST_CASE("F23 host threads without a handoff")
{
    f23_host_threads_without_a_handoff<gpu_lab>();
    f23_host_threads_without_a_handoff<gpu_nccl_lab>();
}
TEST_CASE("F26 unrelated work is waited for")
{
    f26_unrelated_work_is_waited_for<gpu_lab>();
    f26_unrelated_work_is_waited_for<gpu_nccl_lab>();
}
