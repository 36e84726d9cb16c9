// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <latch>
#include <thread>

#include "tests/race_lab/bench.hpp"

/// Failure modes of order: an edge that is missing, comes from the wrong place, or is there by luck.
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
            copy_then_all_gather(at.shard(), at.full(), at.comm, at.on, {at.producer}, {at.consumer}, {}, gather);
            at.waits(at.consumer, closed, 1);
        } else {
            at.gather(at.shard(), at.full(), at.on, gather);
            at.completes(at.on, poison);
        }
    });
}

/// Not a race but its usual cure: the host waits for the producer, and enqueues nothing meanwhile.
template <class Lab>
void f02_host_synchronisation_as_the_cure()
{
    provoke<Lab>({}, [](const bench<Lab>& at, bool guarded_call) {
        typename Lab::gate closed(at.producer);
        at.write(at.producer, 1, at.shard());
        const std::uint64_t before = Lab::host_waits(at);
        if (guarded_call) {
            // It returns, with the gate closed.
            copy_then_all_gather(at.shard(), at.full(), at.comm, at.on, {at.producer}, {at.consumer});
            require(Lab::host_waits(at) == before, "the host waited");
            at.waits(at.consumer, closed, 1);
            return;
        }
        bool returned = true;
        try {
            at.producer.synchronize(20);
        } catch (const error& late) {
            require(late.code() == status::timeout, "another error");
            returned = false;
        }
        require(!returned, "a synchronisation that waits for nothing is no control");
        closed.open();
        at.producer.synchronize(soon_ms);
        at.gather(at.shard(), at.full(), at.on);
        at.completes(at.on, 1);
    }, 1);
}

/// The event is older than the copy.
template <class Lab>
void f03_event_recorded_before_the_copy()
{
    const call_site copy = call_site::current();
    const call_site gather = call_site::current();
    provoke<Lab>({{hazard_kind::read_after_write, copy, gather}}, [=](const bench<Lab>& at, bool guarded_call) {
        typename bench<Lab>::device::event ready;
        ready.record(at.producer);
        typename Lab::gate closed(at.producer);
        at.write(at.producer, 1, at.shard(), copy);
        if (guarded_call) {
            copy_then_all_gather(at.shard(), at.full(), at.comm, at.on, {at.producer}, {at.consumer}, {}, gather);
            at.waits(at.consumer, closed, 1);
        } else {
            at.on.wait(ready);
            at.gather(at.shard(), at.full(), at.on, gather);
            at.completes(at.on, poison);
        }
    });
}

/// The wait comes before the record.
template <class Lab>
void f04_wait_for_an_event_never_recorded()
{
    const call_site wait = call_site::current();
    const call_site copy = call_site::current();
    const call_site gather = call_site::current();
    std::vector<expected_hazard> hazards{{hazard_kind::read_after_write, copy, gather}};
    if (Lab::takes_unrecorded_waits) hazards.insert(hazards.begin(), {hazard_kind::unrecorded_event, {}, wait});
    provoke<Lab>(hazards, [=](const bench<Lab>& at, bool guarded_call) {
        typename Lab::gate closed(at.producer);
        if (!guarded_call) Lab::wait_for_unrecorded(at.on, wait);
        at.write(at.producer, 1, at.shard(), copy);
        if (guarded_call) {
            copy_then_all_gather(at.shard(), at.full(), at.comm, at.on, {at.producer}, {at.consumer}, {}, gather);
            at.waits(at.consumer, closed, 1);
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
            copy_then_all_gather(
                at.shard(), at.full(), at.comm, at.on, {at.producer, at.other}, {at.consumer}, {}, gather);
            at.waits(at.consumer, closed, 1);
        } else {
            copy_then_all_gather(at.shard(), at.full(), at.comm, at.on, {at.producer}, {at.consumer}, {}, gather);
            at.read(at.consumer);
            at.consumer.synchronize(soon_ms);
            require(at.seen_at(half - 1) == pattern(1, 0, half - 1), "the waited half is not there");
            require(at.seen_at(half) == pattern(poison, 0, half), "the control did not read poison");
        }
    });
}

/// The other half is copied on the same stream, behind the record.
template <class Lab>
void f06_work_behind_the_record()
{
    constexpr std::uint64_t half = slot / 2;
    const call_site copy = call_site::current();
    const call_site gather = call_site::current();
    provoke<Lab>({{hazard_kind::read_after_write, copy, gather}}, [=](const bench<Lab>& at, bool guarded_call) {
        using device = typename Lab::device;
        typename device::event ready;
        device::copy(at.producer, at.master(1).part(0, half), at.shard().part(0, half));
        ready.record(at.producer);
        typename Lab::gate closed(at.producer);
        device::copy(at.producer, at.master(1).part(half, half), at.shard().part(half, half), copy);
        if (guarded_call) {
            copy_then_all_gather(at.shard(), at.full(), at.comm, at.on, {at.producer}, {at.consumer}, {}, gather);
            at.waits(at.consumer, closed, 1);
        } else {
            at.on.wait(ready);
            at.gather(at.shard(), at.full(), at.on, gather);
            at.read(at.on);
            at.on.synchronize(soon_ms);
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

/// The event is recorded elsewhere before anybody waits for it.
template <class Lab>
void f10_event_recorded_anew_before_the_wait()
{
    const call_site copy = call_site::current();
    const call_site gather = call_site::current();
    provoke<Lab>({{hazard_kind::read_after_write, copy, gather}}, [=](const bench<Lab>& at, bool guarded_call) {
        typename bench<Lab>::device::event only;
        typename Lab::gate closed(at.producer);
        at.write(at.producer, 1, at.shard(), copy);
        if (guarded_call) {
            copy_then_all_gather(at.shard(), at.full(), at.comm, at.on, {at.producer}, {at.consumer}, {}, gather);
            at.waits(at.consumer, closed, 1);
        } else {
            only.record(at.producer);
            only.record(at.other);
            at.on.wait(only);
            at.gather(at.shard(), at.full(), at.on, gather);
            at.completes(at.on, poison);
        }
    });
}

/// The same after the wait is legal: nobody waits for more, and nothing is to be reported.
template <class Lab>
void f10_event_recorded_anew_after_the_wait()
{
    provoke<Lab>({}, [](const bench<Lab>& at, bool guarded_call) {
        typename bench<Lab>::device::event only;
        at.write(at.producer, 1, at.shard());
        if (guarded_call) {
            copy_then_all_gather(at.shard(), at.full(), at.comm, at.on, {at.producer}, {at.consumer});
        } else {
            only.record(at.producer);
            at.on.wait(only);
        }
        typename Lab::gate closed(at.other);
        only.record(at.other);
        if (guarded_call) {
            at.completes(at.consumer, 1);
        } else {
            at.gather(at.shard(), at.full(), at.on);
            at.completes(at.on, 1);
        }
        require(!at.other.query(), "the gate was not closed");
    });
}

/// Another collective on the producer's stream, in front of the gather: the communicator's own order hides that the
/// edge is missing. The data are right, and nobody has promised it.
template <class Lab>
void f14_order_by_the_communicator_only()
{
    const call_site copy = call_site::current();
    const call_site gather = call_site::current();
    provoke<Lab>({{hazard_kind::read_after_write, copy, gather}}, [=](const bench<Lab>& at, bool guarded_call) {
        typename Lab::gate closed(at.producer);
        at.write(at.producer, 1, at.shard(), copy);
        at.gather(at.second(), at.spare(), at.producer);
        if (guarded_call) {
            copy_then_all_gather(at.shard(), at.full(), at.comm, at.on, {at.producer}, {at.consumer}, {}, gather);
            at.waits(at.consumer, closed, 1);
        } else {
            at.gather(at.shard(), at.full(), at.on, gather);
            at.waits(at.on, closed, 1);
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

/// Too much order: what the producer got behind the copy is waited for as well, and nothing overlaps.
template <class Lab>
void f26_unrelated_work_is_waited_for()
{
    provoke<Lab>({}, [](const bench<Lab>& at, bool guarded_call) {
        at.write(at.producer, 1, at.shard());
        if (guarded_call) {
            copy_then_all_gather(at.shard(), at.full(), at.comm, at.on, {at.producer}, {at.consumer});
            typename Lab::gate closed(at.producer);
            at.write(at.producer, 2, at.second());
            at.completes(at.consumer, 1);
            require(!at.producer.query(), "the gate was not closed");
        } else {
            typename Lab::gate closed(at.producer);
            at.write(at.producer, 2, at.second());
            typename bench<Lab>::device::event late;
            late.record(at.producer);
            at.on.wait(late);
            at.gather(at.shard(), at.full(), at.on);
            at.waits(at.on, closed, 1);
        }
    });
}

} // namespace collprobe::race_lab
