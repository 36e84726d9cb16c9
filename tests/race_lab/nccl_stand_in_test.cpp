// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// README.md lists the failure modes.
#include <doctest/doctest.h>

#include <latch>
#include <optional>
#include <thread>
#include <vector>

#include <collprobe/comm/nccl/communicator.hpp>

#include "tests/race_lab/bench.hpp"

namespace collprobe::race_lab::nccl_stand_in_test {

namespace {

ncclResult_t raw_gather(const bench& at, ncclComm_t comm, cudaStream_t on)
{
    return ncclAllGather(at.shard().data(), at.full().data(), slot, ncclUint32, comm, on);
}
void require_code(
    const std::optional<error>& refused, status code, const char* text, call_site where = call_site::current())
{
    require(refused.has_value(), "it was taken", where);
    require(refused->code() == code && testing::contains(refused->what(), text), refused->what(), where);
}

} // namespace

/// The copy is on one stream, the gather on another, and nothing between.
TEST_CASE("F01 a copy and a gather without an edge")
{
    const call_site copy = call_site::current();
    const call_site gather = call_site::current();
    provoke({{hazard_kind::read_after_write, copy, gather}}, [=](const bench& at, bool guarded_call) {
        gate closed(at.producer);
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
TEST_CASE("F05 a wait for the wrong stream")
{
    const call_site copy = call_site::current();
    const call_site gather = call_site::current();
    provoke({{hazard_kind::read_after_write, copy, gather}}, [=](const bench& at, bool guarded_call) {
        guarded<cuda::device, word> shard(at.shard());
        gate closed(at.producer);
        if (guarded_call) {
            // Who copied is known where the buffer knows it, whatever the call is told.
            shard.write(at.producer, [&](view<word> to) { at.write(at.producer, 1, to, copy); });
            copy_then_all_gather(
                shard, at.full(), at.comm, at.on, {cuda::stream_ref(cudaStreamLegacy)}, {at.consumer}, {}, gather);
            at.waits(at.consumer, closed, 1);
        } else {
            at.write(at.producer, 1, at.shard(), copy);
            copy_then_all_gather(
                at.shard(), at.full(), at.comm, at.on, {cuda::stream_ref(cudaStreamLegacy)}, {at.consumer}, {}, gather);
            at.completes(at.consumer, poison);
        }
    });
}

/// Two streams fill a shard, and one is waited for.
TEST_CASE("F06 one of two producers is waited for")
{
    constexpr std::uint64_t half = slot / 2;
    const call_site copy = call_site::current();
    const call_site gather = call_site::current();
    provoke({{hazard_kind::read_after_write, copy, gather}}, [=](const bench& at, bool guarded_call) {
        gate closed(at.other);
        cuda::device::copy(at.producer, at.master(1).part(0, half), at.shard().part(0, half));
        cuda::device::copy(at.other, at.master(1).part(half, half), at.shard().part(half, half), copy);
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
TEST_CASE("F07 a consumer reads before the gather")
{
    const call_site gather = call_site::current();
    const call_site read = call_site::current();
    provoke({{hazard_kind::read_after_write, gather, read}}, [=](const bench& at, bool guarded_call) {
        at.write(at.on, 1, at.shard());
        gate closed(at.on);
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
TEST_CASE("F23 host threads without a handoff")
{
    const call_site copy = call_site::current();
    const call_site gather = call_site::current();
    provoke({{hazard_kind::write_after_read, gather, copy}}, [=](const bench& at, bool guarded_call) {
        std::latch may_copy(1), copied(1);
        gate closed(at.producer);
        const handoff begun;
        const handoff done;
        begun.release();
        std::thread copying([&] {
            cuda::check(cudaSetDevice(at.producer.device()), "cudaSetDevice");
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
TEST_CASE("F08 the next copy overwrites under the gather")
{
    const call_site gather = call_site::current();
    const call_site copy = call_site::current();
    provoke({{hazard_kind::write_after_read, gather, copy}}, [=](const bench& at, bool guarded_call) {
        guarded<cuda::device, word> shard(at.shard());
        at.write(at.on, 1, at.shard());
        at.on.synchronize(soon_ms);
        gate closed(at.on);
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
TEST_CASE("F09 two gathers into one destination")
{
    const call_site older = call_site::current();
    const call_site newer = call_site::current();
    provoke({{hazard_kind::write_after_write, older, newer}}, [=](const bench& at, bool guarded_call) {
        auto another = at.comm.split(0, at.rank());
        at.write(at.on, 1, at.shard());
        at.write(at.other, 2, at.second());
        guarded<cuda::device, word> full(at.full());
        gate closed(at.on);
        if (guarded_call) {
            copy_then_all_gather(at.shard(), full, at.comm, at.on, {}, {}, {}, older);
            copy_then_all_gather(at.second(), full, *another, at.other, {}, {at.consumer}, {}, newer);
            at.waits(at.consumer, closed, 2);
        } else {
            at.gather(at.shard(), at.full(), at.on, older);
            another->all_gather<word>(view<const word>(at.second()), at.full(), at.other, newer);
            at.completes(at.other, 2); // so far
            closed.open();
            at.on.synchronize(soon_ms);
            at.completes(at.on, 1);
        }
        at.settle(); // before `another` goes
    });
}

/// The shard is freed while the gather still has to read it, and its memory is somebody else's.
TEST_CASE("F11 a shard freed under the gather")
{
    const call_site gather = call_site::current();
    const call_site release = call_site::current();
    provoke({{hazard_kind::released_in_use, gather, release}}, [=](const bench& at, bool guarded_call) {
        guarded<cuda::device, word> shard(at.shard());
        at.write(at.on, 1, at.shard());
        at.on.synchronize(soon_ms);
        gate closed(at.on);
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

TEST_CASE("F12 a staging buffer is used again within a group")
{
    const call_site first = call_site::current();
    const call_site second_copy = call_site::current();
    const expected_hazard overwritten{hazard_kind::overwritten_in_group, first, second_copy};
    provoke({overwritten}, [=](const bench& at, bool guarded_call) {
        using buffer = guarded<cuda::device, word>;
        buffer staging(at.shard()), own(at.second());
        if (!guarded_call) {
            // All on one stream, and yet the second copy comes before the first gather.
            nccl::group open;
            at.write(at.on, 1, at.shard());
            at.gather(at.shard(), at.full(), at.on, first);
            at.write(at.on, 2, at.shard(), second_copy);
            at.gather(at.shard(), at.spare(), at.on);
            open.end();
            at.completes(at.on, 2);
            return;
        }
        using item = gather_item<cuda::device, word>;
        const item shared[]
            = {{at.master(1), at.full(), {.shard = &staging}}, {at.master(2), at.spare(), {.shard = &staging}}};
        require_code(testing::error_of([&] { copy_then_all_gather(shared, at.comm, at.on, {at.producer}, {at.consumer}); }), status::invalid_argument, "tensors 0 and 1 use the same memory");
        {
            nccl::group open;
            require_code(testing::error_of([&] {
                copy_then_all_gather(at.master(1), at.full(), at.comm, at.on, {}, {}, {.shard = &staging});
            }), status::unsupported, "inside a group");
        }
        const item apart[]
            = {{at.master(1), at.full(), {.shard = &staging}}, {at.master(2), at.spare(), {.shard = &own}}};
        gate closed(at.producer);
        copy_then_all_gather(apart, at.comm, at.on, {at.producer}, {at.consumer});
        at.waits(at.consumer, closed, 1);
    });
}

TEST_CASE("F15 the end of a gather is recorded before a non-blocking communicator has enqueued it")
{
    provoke({}, [](const bench& at, bool guarded_call) {
        at.write(at.on, 1, at.shard());
        if (guarded_call) {
            gate closed(at.on);
            auto done = copy_then_all_gather(at.shard(), at.full(), at.comm, at.on, {}, {at.consumer});
            ncclResult_t state = ncclInProgress;
            require(ncclCommGetAsyncError(at.comm.native_handle(), &state) == ncclSuccess && state == ncclSuccess,
                "it is still being enqueued");
            require(!done.query(), "the end was recorded too early");
            at.waits(at.consumer, closed, 1);
            return;
        }
        stand_in::nccl::set_launch_delay_ms(-1); // until it is aborted
        require(raw_gather(at, at.comm.native_handle(), at.on.get()) == ncclInProgress, "not non-blocking");
        cuda::event done;
        done.record(at.on);
        at.consumer.wait(done);
        at.completes(at.consumer, poison);
        require(done.query(), "the end was not recorded too early");
        at.comm.abort("the end of the control");
    });
}

TEST_CASE("F17 half of a pair is captured")
{
    const call_site gather = call_site::current();
    const call_site launch = call_site::current();
    provoke({{hazard_kind::half_captured, gather, launch}}, [=](const bench& at, bool guarded_call) {
        captured_graph graph(at.producer);
        at.write(at.producer, 1, at.shard());
        if (!guarded_call) {
            at.gather(at.shard(), at.full(), at.on, gather);
            require(graph.end() == cudaSuccess, "the capture was lost");
            gate closed(at.producer);
            graph.launch(at.producer, launch);
            at.completes(at.on, poison);
            closed.open();
            at.producer.synchronize(soon_ms);
            return;
        }
        require_code(testing::error_of([&] {
            copy_then_all_gather(at.shard(), at.full(), at.comm, at.on, {at.producer, at.other}, {at.producer});
        }), status::invalid_argument, "half of it would be captured");
        copy_then_all_gather(at.shard(), at.full(), at.comm, at.on, {at.producer}, {at.producer}, {}, gather);
        require(graph.end() == cudaSuccess, "the capture was lost");
        gate closed(at.producer);
        graph.launch(at.producer);
        at.waits(at.producer, closed, 1);
    });
}

TEST_CASE("F19 the graph of the next step copies while that of the last still gathers")
{
    const call_site gathers = call_site::current();
    const call_site copies = call_site::current();
    provoke({{hazard_kind::write_after_read, gathers, copies}}, [=](const bench& at, bool guarded_call) {
        at.write(at.on, 1, at.shard());
        at.on.synchronize(soon_ms);
        captured_graph gather(at.on);
        gate closed(at.on); // in the graph
        at.gather(at.shard(), at.full(), at.on);
        require(gather.end() == cudaSuccess, "capture");
        captured_graph copy(at.producer);
        at.write(at.producer, 2, at.shard());
        require(copy.end() == cudaSuccess, "capture");
        if (guarded_call) {
            guarded<cuda::device, word> shard(at.shard());
            shard.read(at.on, [&](view<const word>) { gather.launch(at.on, gathers); });
            shard.write(at.producer, [&](view<word>) { copy.launch(at.producer, copies); });
        } else {
            gather.launch(at.on, gathers);
            copy.launch(at.producer, copies);
        }
        at.next_owner_is_behind(closed, guarded_call, 2);
    });
}

TEST_CASE("F22 a producer on another device is waited for, whatever device is current")
{
    const watch over;
    CHECK_NOTHROW(run_ranks(2, [](testing::nccl_owner& comm) {
        const bench at(comm);
        const auto far = [&] {
            const cuda::device_guard elsewhere(comm.device_ordinal() + 4);
            return cuda::stream();
        }();
        gate closed(far);
        at.write(far, 1, at.shard());
        const cuda::device_guard wrong(comm.device_ordinal() + 5);
        copy_then_all_gather(at.shard(), at.full(), comm, at.on, {far}, {at.consumer});
        at.waits(at.consumer, closed, 1);
    }));
    over.check({});
}

TEST_CASE("F27 a stream handle is used again for another stream")
{
    const call_site copy = call_site::current();
    const call_site gather = call_site::current();
    const std::vector<expected_hazard> hazards{{hazard_kind::read_after_write, copy, gather}};
    bool reused = false;
    const auto destroyed_and_made = [&](const bench& at, bool guarded_call) {
        guarded<cuda::device, word> shard(at.shard());
        // Takes what the allocator has kept, so that it gives out next what is freed next.
        std::vector<cuda::stream> made(16);
        std::optional<cuda::stream> dead(std::in_place);
        const cudaStream_t handle = dead->get();
        const cuda::stream_id id = dead->id();
        gate closed(*dead);
        cuda::event copied;
        shard.write(*dead, [&](view<word> to) { at.write(*dead, 1, to, copy); });
        copied.record(*dead);
        dead.reset();
        const cuda::stream on;
        const bool same = on.get() == handle;
        require(!(on.id() == id), "two streams with one number");
        if (at.rank() == 0 && same) reused = true;
        if (guarded_call) {
            copy_then_all_gather(shard, at.full(), at.comm, on, {}, {at.consumer}, {}, gather);
            at.waits(at.consumer, closed, 1);
        } else {
            // Bookkeeping by handles: "it was written on this stream, so there is nothing to wait for".
            at.gather(at.shard(), at.full(), on, gather);
            at.completes(on, poison);
        }
        closed.open();
        copied.synchronize(soon_ms);
        on.synchronize(soon_ms);
    };
    for (int attempt = 0; attempt < 5 && !reused; ++attempt) provoke(hazards, destroyed_and_made);
    // An allocator that keeps freed memory aside, as under AddressSanitizer, gives no handle again.
    if (!reused) MESSAGE("no handle was used again");
}

} // namespace collprobe::race_lab::nccl_stand_in_test
