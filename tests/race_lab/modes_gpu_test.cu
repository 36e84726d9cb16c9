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

// Compiled in two parts, one for each lab.
#if !defined(COLLPROBE_TEST_PART)
#define IN_EACH_LAB(mode) mode<gpu_lab>(), mode<gpu_nccl_lab>()
#define ON_TWO_RANKS(mode) mode<gpu_lab>()
#elif COLLPROBE_TEST_PART == 1
#define IN_EACH_LAB(mode) mode<gpu_lab>()
#define ON_TWO_RANKS(mode) mode<gpu_lab>()
#else
#define IN_EACH_LAB(mode) mode<gpu_nccl_lab>()
#define ON_TWO_RANKS(mode)
#endif

TEST_CASE("F01 a copy and a gather without an edge") { IN_EACH_LAB(f01_copy_and_gather_without_an_edge); }
TEST_CASE("F02 a host synchronisation as the cure") { IN_EACH_LAB(f02_host_synchronisation_as_the_cure); }
TEST_CASE("F03 an event recorded before the copy") { IN_EACH_LAB(f03_event_recorded_before_the_copy); }
TEST_CASE("F04 a wait for an event never recorded") { IN_EACH_LAB(f04_wait_for_an_event_never_recorded); }
TEST_CASE("F05 a wait for the wrong stream") { IN_EACH_LAB(f05_wait_for_the_wrong_stream); }
TEST_CASE("F06 one of two producers is waited for") { IN_EACH_LAB(f06_one_of_two_producers); }
TEST_CASE("F06 work behind the record is not waited for") { IN_EACH_LAB(f06_work_behind_the_record); }
TEST_CASE("F07 a consumer reads before the gather") { IN_EACH_LAB(f07_consumer_reads_before_the_gather); }
TEST_CASE("F08 the next copy overwrites under the gather") { IN_EACH_LAB(f08_next_copy_under_the_gather); }
TEST_CASE("F09 two gathers into one destination") { IN_EACH_LAB(f09_two_gathers_into_one_destination); }
TEST_CASE("F10 an event recorded anew before the wait") { IN_EACH_LAB(f10_event_recorded_anew_before_the_wait); }
TEST_CASE("F10 an event recorded anew after the wait") { IN_EACH_LAB(f10_event_recorded_anew_after_the_wait); }
TEST_CASE("F11 a shard freed under the gather") { IN_EACH_LAB(f11_freed_under_the_gather); }
TEST_CASE("F13 a shard beside its slot") { ON_TWO_RANKS(f13_shard_beside_its_slot); }
TEST_CASE("F14 order by the communicator only") { ON_TWO_RANKS(f14_order_by_the_communicator_only); }
TEST_CASE("F20 a shard older than its master") { IN_EACH_LAB(f20_shard_older_than_its_master); }
TEST_CASE("F21 short and empty last shards") { ON_TWO_RANKS(f21_short_and_empty_last_shards); }
TEST_CASE("F23 host threads without a handoff") { IN_EACH_LAB(f23_host_threads_without_a_handoff); }
TEST_CASE("F26 unrelated work is waited for") { IN_EACH_LAB(f26_unrelated_work_is_waited_for); }
