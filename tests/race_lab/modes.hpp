// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "tests/race_lab/bench.hpp"

/// The failure modes that every lab tries, and their list at the end.
namespace collprobe::race_lab {

/// The copy is on one stream, the gather on another, and nothing between.
template <class Lab>
void f01_copy_and_gather_without_an_edge()
{
    const call_site copy = call_site::current();
    const call_site gather = call_site::current();
    provoke<Lab>({{hazard_kind::read_after_write, copy, gather}}, [=](const bench<Lab>& at, bool guarded_call) {
        typename Lab::gate closed(at.producer);
        at.write(at.producer, 1, at.shard(), copy);
        if (guarded_call) {
            at.gathers_behind({at.producer}, closed, gather);
        } else {
            at.gather(at.shard(), at.full(), at.on, gather);
            at.completes(at.on, poison);
        }
    });
}

/// The guard is given another stream than the one that copies.
template <class Lab>
void f05_wait_for_the_wrong_stream()
{
    const call_site copy = call_site::current();
    const call_site gather = call_site::current();
    provoke<Lab>({{hazard_kind::read_after_write, copy, gather}}, [=](const bench<Lab>& at, bool guarded_call) {
        guarded<typename Lab::device, word> shard(at.shard());
        typename Lab::gate closed(at.producer);
        if (guarded_call) {
            // Who copied is known where the buffer knows it, whatever the call is told.
            shard.write(at.producer, [&](view<word> to) { at.write(at.producer, 1, to, copy); });
            copy_then_all_gather(
                shard, at.full(), at.comm, at.on, {Lab::default_stream(at)}, {at.consumer}, {}, gather);
            at.waits(at.consumer, closed, 1);
        } else {
            at.write(at.producer, 1, at.shard(), copy);
            copy_then_all_gather(
                at.shard(), at.full(), at.comm, at.on, {Lab::default_stream(at)}, {at.consumer}, {}, gather);
            at.completes(at.consumer, poison);
        }
    });
}

/// Two streams fill a shard, and one is waited for.
template <class Lab>
void f06_one_of_two_producers()
{
    constexpr std::uint64_t half = slot / 2;
    const call_site copy = call_site::current();
    const call_site gather = call_site::current();
    provoke<Lab>({{hazard_kind::read_after_write, copy, gather}}, [=](const bench<Lab>& at, bool guarded_call) {
        using device = typename Lab::device;
        typename Lab::gate closed(at.other);
        device::copy(at.producer, at.master(1).part(0, half), at.shard().part(0, half));
        device::copy(at.other, at.master(1).part(half, half), at.shard().part(half, half), copy);
        if (guarded_call) {
            at.gathers_behind({at.producer, at.other}, closed, gather);
        } else {
            copy_then_all_gather(at.shard(), at.full(), at.comm, at.on, {at.producer}, {at.consumer}, {}, gather);
            at.read(at.consumer);
            at.consumer.synchronize(soon_ms);
            require(at.seen_at(half - 1) == pattern(1, 0, half - 1), "the waited half is not there");
            require(at.seen_at(half) == pattern(poison, 0, half), "the control did not read poison");
        }
    });
}

/// The reader of the result does not wait for the gather.
template <class Lab>
void f07_consumer_reads_before_the_gather()
{
    const call_site gather = call_site::current();
    const call_site read = call_site::current();
    provoke<Lab>({{hazard_kind::read_after_write, gather, read}}, [=](const bench<Lab>& at, bool guarded_call) {
        at.write(at.on, 1, at.shard());
        typename Lab::gate closed(at.on);
        if (guarded_call) {
            copy_then_all_gather(at.shard(), at.full(), at.comm, at.on, {}, {at.consumer}, {}, gather);
            at.waits(at.consumer, closed, 1, read);
        } else {
            at.gather(at.shard(), at.full(), at.on, gather);
            at.completes(at.consumer, poison, read);
        }
    });
}

/// Two host threads: one copies, the other gathers, and does not know that the first is late.
template <class Lab>
void f23_host_threads_without_a_handoff()
{
    const call_site copy = call_site::current();
    const call_site gather = call_site::current();
    provoke<Lab>({{hazard_kind::write_after_read, gather, copy}}, [=](const bench<Lab>& at, bool guarded_call) {
        std::latch may_copy(1), copied(1);
        typename Lab::gate closed(at.producer);
        const handoff begun;
        const handoff done;
        begun.release();
        std::thread copying([&] {
            Lab::enter_device(at);
            may_copy.wait();
            begun.acquire();
            at.write(at.producer, 1, at.shard(), copy);
            done.release();
            copied.count_down();
        });
        struct joined {
            std::latch& late;
            std::thread& of;
            bool let = false;
            void run()
            {
                if (!let) late.count_down();
                let = true;
            }
            ~joined()
            {
                run();
                of.join();
            }
        } thread{may_copy, copying};
        if (guarded_call) {
            thread.run();
            copied.wait();
            done.acquire();
        }
        copy_then_all_gather(at.shard(), at.full(), at.comm, at.on, {at.producer}, {at.consumer}, {}, gather);
        if (guarded_call) {
            at.waits(at.consumer, closed, 1);
        } else {
            // What the call was given to wait for did not contain the copy.
            closed.open();
            at.completes(at.consumer, poison);
            thread.run();
            copied.wait();
        }
    });
}

/// The next copy overwrites the shard that the gather still has to read.
template <class Lab>
void f08_next_copy_under_the_gather()
{
    const call_site gather = call_site::current();
    const call_site copy = call_site::current();
    provoke<Lab>({{hazard_kind::write_after_read, gather, copy}}, [=](const bench<Lab>& at, bool guarded_call) {
        guarded<typename Lab::device, word> shard(at.shard());
        at.write(at.on, 1, at.shard());
        at.on.synchronize(soon_ms);
        typename Lab::gate closed(at.on);
        if (guarded_call) {
            copy_then_all_gather(shard, at.full(), at.comm, at.on, {}, {}, {}, gather);
            shard.write(at.producer, [&](view<word> to) { at.write(at.producer, 2, to, copy); });
        } else {
            at.gather(at.shard(), at.full(), at.on, gather);
            at.write(at.producer, 2, at.shard(), copy);
        }
        at.next_owner_is_behind(closed, guarded_call, 2);
    });
}

/// Two gathers into one destination, on two communicators: the older comes last.
template <class Lab>
void f09_two_gathers_into_one_destination()
{
    const call_site older = call_site::current();
    const call_site newer = call_site::current();
    provoke<Lab>({{hazard_kind::write_after_write, older, newer}}, [=](const bench<Lab>& at, bool guarded_call) {
        auto another = at.comm.split(0, at.rank());
        at.write(at.on, 1, at.shard());
        at.write(at.other, 2, at.second());
        guarded<typename Lab::device, word> full(at.full());
        typename Lab::gate closed(at.on);
        if (guarded_call) {
            copy_then_all_gather(at.shard(), full, at.comm, at.on, {}, {}, {}, older);
            copy_then_all_gather(at.second(), full, *another, at.other, {}, {at.consumer}, {}, newer);
            at.waits(at.consumer, closed, 2);
        } else {
            at.gather(at.shard(), at.full(), at.on, older);
            another->template all_gather<word>(view<const word>(at.second()), at.full(), at.other, newer);
            at.completes(at.other, 2); // so far
            closed.open();
            at.on.synchronize(soon_ms);
            at.completes(at.on, 1);
        }
        at.settle(); // before `another` goes
    });
}

/// The shard is freed while the gather still has to read it, and its memory is somebody else's.
template <class Lab>
void f11_freed_under_the_gather()
{
    const call_site gather = call_site::current();
    const call_site release = call_site::current();
    provoke<Lab>({{hazard_kind::released_in_use, gather, release}}, [=](const bench<Lab>& at, bool guarded_call) {
        guarded<typename Lab::device, word> shard(at.shard());
        at.write(at.on, 1, at.shard());
        at.on.synchronize(soon_ms);
        typename Lab::gate closed(at.on);
        if (guarded_call) {
            copy_then_all_gather(shard, at.full(), at.comm, at.on, {}, {}, {}, gather);
            shard.order_release(at.producer);
        } else {
            at.gather(at.shard(), at.full(), at.on, gather);
        }
        // A pool that gives a block to the next who asks, on the stream where it was freed.
        pool_release(at.producer, at.shard(), release);
        at.write(at.producer, 3, at.shard());
        at.next_owner_is_behind(closed, guarded_call, 3);
    });
}

/// `ONE(name, function)` for each of them.
#define COLLPROBE_RACE_LAB_MODES(ONE)                                                                                  \
    ONE("F01 a copy and a gather without an edge", f01_copy_and_gather_without_an_edge)                                \
    ONE("F05 a wait for the wrong stream", f05_wait_for_the_wrong_stream)                                              \
    ONE("F06 one of two producers is waited for", f06_one_of_two_producers)                                            \
    ONE("F07 a consumer reads before the gather", f07_consumer_reads_before_the_gather)                                \
    ONE("F08 the next copy overwrites under the gather", f08_next_copy_under_the_gather)                               \
    ONE("F09 two gathers into one destination", f09_two_gathers_into_one_destination)                                  \
    ONE("F11 a shard freed under the gather", f11_freed_under_the_gather)                                              \
    ONE("F23 host threads without a handoff", f23_host_threads_without_a_handoff)

} // namespace collprobe::race_lab
