// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "tests/race_lab/bench.hpp"

/// Failure modes of memory: it is written again, freed, of the wrong age, or the wrong part of it is sent.
namespace collprobe::race_lab {

/// `call` must be refused as an invalid argument that says all of this.
template <class Call>
void require_refused(Call call, const std::vector<const char*>& words, call_site where = call_site::current())
{
    try {
        call();
    } catch (const error& refused) {
        require(refused.code() == status::invalid_argument, refused.what(), where);
        for (const char* each : words) {
            require(std::string(refused.what()).find(each) != std::string::npos, refused.what(), where);
        }
        return;
    }
    require(false, "it was taken", where);
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
            require(!at.producer.query(), "the copy did not wait for the gather");
            closed.open();
            at.producer.synchronize(soon_ms);
            at.completes(at.on, 1);
        } else {
            at.gather(at.shard(), at.full(), at.on, gather);
            at.write(at.producer, 2, at.shard(), copy);
            at.producer.synchronize(soon_ms);
            closed.open();
            at.completes(at.on, 2);
        }
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
        Lab::warm_up(at, *another); // reads `second` on `on`: so before the write on `other`
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
        // A pool that gives a block to the next who asks, on the stream where it was freed.
        const auto free_and_use_again = [&] {
            pool_release(at.producer.get(), at.shard(), release);
            at.write(at.producer, 3, at.shard());
        };
        if (guarded_call) {
            copy_then_all_gather(shard, at.full(), at.comm, at.on, {}, {}, {}, gather);
            shard.order_release(at.producer);
            free_and_use_again();
            require(!at.producer.query(), "the next owner did not wait for the gather");
            closed.open();
            at.producer.synchronize(soon_ms);
            at.completes(at.on, 1);
        } else {
            at.gather(at.shard(), at.full(), at.on, gather);
            free_and_use_again();
            at.producer.synchronize(soon_ms);
            closed.open();
            at.completes(at.on, 3);
        }
    });
}

/// The shard is not in this rank's slot, or a few bytes beside it.
template <class Lab>
void f13_shard_beside_its_slot()
{
    provoke<Lab>({}, [](const bench<Lab>& at, bool guarded_call) {
        const int next = (at.rank() + 1) % at.comm.size();
        const view<word> mine = at.slot_of(guarded_call ? at.rank() : next);
        at.write(at.producer, 1, mine);
        if (guarded_call) {
            auto done = copy_then_all_gather(mine, at.full(), at.comm, at.on, {at.producer}, {at.consumer});
            require(done.path() == gather_path::in_place, "not in place");
            at.completes(at.consumer, 1);
        } else {
            // In place by the rules: nobody sees that the slot is another rank's.
            at.producer.synchronize(soon_ms);
            at.gather(at.slot_of(at.rank()), at.full(), at.on);
            at.completes(at.on, poison);
        }
    });
    for (const bool by_bytes : {false, true}) {
        CHECK_NOTHROW(Lab::run(Lab::ranks, [&](typename Lab::communicator& comm) {
            const bench<Lab> at(comm);
            const int next = (at.rank() + 1) % comm.size();
            // Backwards from the last slot, or it would end outside.
            const auto shift = 16 / sizeof(word);
            const std::uint64_t first = static_cast<std::uint64_t>(at.rank()) * slot;
            const view<word> beside = by_bytes ? at.full().part(first == 0 ? shift : first - shift, slot)
                                               : at.slot_of(next);
            require_refused([&] { copy_then_all_gather(beside, at.full(), comm, at.on, {}, {}); },
                {"source [0x", "overlaps destination [0x", "does not begin at this rank's slot [0x"});
        }));
    }
}

/// No race: the shard is older than the parameter it was made of.
template <class Lab>
void f20_shard_older_than_its_master()
{
    provoke<Lab>({}, [](const bench<Lab>& at, bool guarded_call) {
        using buffer = guarded<typename Lab::device, word>;
        buffer master(at.second()), shard(at.shard());
        const auto update = [&](int generation) {
            master.write(at.producer, [&](view<word> to) { at.write(at.producer, generation, to); });
        };
        const auto make_shard = [&] {
            master.read(at.producer, [&](view<const word> from) {
                shard.write(at.producer, [&](view<word> to) { Lab::device::copy(at.producer, from, to); });
            });
            shard.set_generation(master.generation());
        };
        update(1);
        make_shard();
        update(2);
        if (guarded_call) make_shard(); // else forgotten
        if (guarded_call) {
            copy_then_all_gather(shard, at.full(), at.comm, at.on, {}, {at.consumer},
                {.at_least = master.generation()});
            at.completes(at.consumer, 2);
        } else {
            at.producer.synchronize(soon_ms);
            at.gather(at.shard(), at.full(), at.on);
            at.completes(at.on, 1);
        }
    });
    CHECK_NOTHROW(Lab::run(Lab::ranks, [](typename Lab::communicator& comm) {
        const bench<Lab> at(comm);
        guarded<typename Lab::device, word> shard(at.shard());
        require_refused([&] { copy_then_all_gather(shard, at.full(), comm, at.on, {}, {}, {.at_least = 2}); },
            {"the source is stale: it holds generation 1, and 2 is asked for"});
    }));
}

/// The last rank's shard is short, or empty, and what follows it is whatever was there.
template <class Lab>
void f21_short_and_empty_last_shards()
{
    for (const std::uint64_t last : {slot - 5, std::uint64_t{0}}) {
        provoke<Lab>({}, [=](const bench<Lab>& at, bool guarded_call) {
            const int end = at.comm.size() - 1;
            const std::uint64_t count = at.rank() == end ? last : slot;
            typename Lab::gate closed(at.producer);
            if (count != 0) {
                Lab::device::copy(at.producer, at.master(1).part(0, count), at.shard().part(0, count));
            }
            if (guarded_call) {
                copy_then_all_gather(
                    at.shard().part(0, count), at.full(), at.comm, at.on, {at.producer}, {at.consumer});
                at.read(at.consumer);
                require(!at.consumer.query(), "it did not wait for the gate");
                closed.open();
                at.consumer.synchronize(soon_ms);
            } else {
                closed.open();
                at.producer.synchronize(soon_ms);
                at.gather(at.shard(), at.full(), at.on);
                at.read(at.on);
                at.on.synchronize(soon_ms);
            }
            const std::uint64_t begin = static_cast<std::uint64_t>(end) * slot;
            for (std::uint64_t i = 0; i < slot; ++i) {
                const word padding = guarded_call ? 0 : pattern(poison, end, i);
                require(at.seen_at(begin + i) == (i < last ? pattern(1, end, i) : padding), "wrong element or padding");
            }
        });
    }
}

} // namespace collprobe::race_lab
