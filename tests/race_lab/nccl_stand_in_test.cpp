// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// The failure modes that only CUDA and NCCL have, over the stand-ins. README.md lists them all.
#include <doctest/doctest.h>

#include <optional>
#include <stdexcept>
#include <thread>
#include <type_traits>
#include <vector>

#include <collprobe/comm/agreed.hpp>

#include "tests/race_lab/modes.hpp"
#include "tests/race_lab/nccl_lab.hpp"
#include "tests/support/held_clock.hpp"

using namespace collprobe;
using namespace collprobe::race_lab;
using bench_t = bench<nccl_lab>;
using testing::gate;
using testing::rank_outcome;

namespace {

ncclResult_t raw_gather(const bench_t& at, ncclComm_t comm, cudaStream_t on)
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

TEST_CASE("F12 a staging buffer is used again within a group")
{
    const call_site first = call_site::current();
    const call_site second_copy = call_site::current();
    const expected_hazard overwritten{hazard_kind::overwritten_in_group, first, second_copy};
    provoke<nccl_lab>({overwritten}, [=](const bench_t& at, bool guarded_call) {
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
        require_refused([&] { copy_then_all_gather(shared, at.comm, at.on, {at.producer}, {at.consumer}); },
            {"tensors 0 and 1 use the same memory"});
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
    provoke<nccl_lab>({}, [](const bench_t& at, bool guarded_call) {
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

TEST_CASE("F16 a default stream that another thread takes for its own")
{
    provoke<nccl_lab>({}, [](const bench_t& at, bool guarded_call) {
        const cuda::stream_ref mine(cudaStreamPerThread);
        at.write(at.on, 3, at.shard());
        at.on.synchronize(soon_ms);
        if (guarded_call) {
            for (const auto& [each, text] : {std::pair{mine, "cudaStreamPerThread"},
                     std::pair{cuda::stream_ref(cudaStreamLegacy), "legacy default stream"}}) {
                require_code(testing::error_of([&, on = each] {
                    copy_then_all_gather(at.shard(), at.full(), at.comm, on, {}, {});
                }), status::unsupported, text);
            }
            gate closed(mine);
            at.write(mine, 1, at.shard());
            copy_then_all_gather(at.shard(), at.full(), at.comm, at.on, {mine}, {at.consumer});
            at.waits(at.consumer, closed, 1);
            return;
        }
        gate closed(mine);
        at.write(mine, 1, at.shard());
        {
            auto part = at.comm.split(0, at.rank());
            require(raw_gather(at, part->native_handle(), cudaStreamPerThread) == ncclInProgress, "not non-blocking");
        } // waits for the gather, which is not on the stream of this thread
        at.completes(at.consumer, 3);
        require(!mine.query(), "the gate was not closed");
        closed.open();
        mine.synchronize(soon_ms);
    });
    static_assert(!std::is_constructible_v<cuda::stream_ref, std::nullptr_t>, "a null stream by mistake");
}

TEST_CASE("F17 half of a pair is captured")
{
    const call_site gather = call_site::current();
    const call_site launch = call_site::current();
    provoke<nccl_lab>({{hazard_kind::half_captured, gather, launch}}, [=](const bench_t& at, bool guarded_call) {
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
        require_refused([&] {
            copy_then_all_gather(at.shard(), at.full(), at.comm, at.on, {at.producer, at.other}, {at.producer});
        }, {"half of it would be captured"});
        copy_then_all_gather(at.shard(), at.full(), at.comm, at.on, {at.producer}, {at.producer}, {}, gather);
        require(graph.end() == cudaSuccess, "the capture was lost");
        gate closed(at.producer);
        graph.launch(at.producer);
        at.waits(at.producer, closed, 1);
    });
}

TEST_CASE("F17 events that cross the border of a capture")
{
    provoke<nccl_lab>({}, [](const bench_t& at, bool guarded_call) {
        cuda::event outside, inside;
        outside.record(at.other);
        captured_graph graph(at.producer);
        at.write(at.producer, 1, at.shard());
        inside.record(at.producer);
        if (!guarded_call) {
            // Who does not look at the code goes on as if it had waited; the other mistake costs the capture.
            require(cudaStreamWaitEvent(at.producer.get(), outside.get(), 0) == cudaErrorStreamCaptureIsolation,
                "a wait across the border of a capture was taken");
            require(graph.end() == cudaErrorStreamCaptureInvalidated, "the capture is still valid");
            require(cudaStreamWaitEvent(at.on.get(), inside.get(), 0) == cudaErrorCapturedEvent,
                "an event of a capture was taken");
            at.gather(at.shard(), at.full(), at.on);
            at.completes(at.on, poison);
            return;
        }
        require_refused([&] {
            copy_then_all_gather(at.shard(), at.full(), at.comm, at.producer, {at.other}, {at.producer});
        }, {"half of it would be captured"});
        require(graph.end() == cudaSuccess, "the capture was lost");
        require_refused([&] { at.on.wait(inside); }, {"capture"});
        gate closed(at.producer);
        graph.launch(at.producer);
        copy_then_all_gather(at.shard(), at.full(), at.comm, at.on, {at.producer}, {at.consumer});
        at.waits(at.consumer, closed, 1);
    });
}

TEST_CASE("F18 a watchdog asks an event while another thread captures")
{
    provoke<nccl_lab>({}, [](const bench_t& at, bool guarded_call) {
        cuda::event watched;
        watched.record(at.other);
        at.other.synchronize(soon_ms);
        // In the mode that forbids it to all threads.
        captured_graph graph(at.producer, cudaStreamCaptureModeGlobal);
        at.write(at.producer, 1, at.shard());
        std::thread([&] {
            nccl_lab::enter_device(at);
            if (guarded_call) (void)watched.query();
            else (void)cudaEventQuery(watched.get());
        }).join();
        const cudaError_t ended = graph.end();
        require((ended == cudaSuccess) == guarded_call, cudaGetErrorName(ended));
        if (!guarded_call) return;
        gate closed(at.producer);
        graph.launch(at.producer);
        copy_then_all_gather(at.shard(), at.full(), at.comm, at.on, {at.producer}, {at.consumer});
        at.waits(at.consumer, closed, 1);
    }, 1); // a capture in that mode would disturb another rank's
}

TEST_CASE("F19 the graph of the next step copies while that of the last still gathers")
{
    const call_site gathers = call_site::current();
    const call_site copies = call_site::current();
    provoke<nccl_lab>({{hazard_kind::write_after_read, gathers, copies}}, [=](const bench_t& at, bool guarded_call) {
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

TEST_CASE("F19 one graph on two streams does not overlap itself")
{
    const watch over;
    CHECK_NOTHROW(nccl_lab::run(2, [](testing::nccl_owner& comm) {
        const bench_t at(comm);
        at.write(at.on, 1, at.shard());
        at.on.synchronize(soon_ms);
        captured_graph graph(at.on);
        gate closed(at.on);
        at.gather(at.shard(), at.full(), at.on);
        require(graph.end() == cudaSuccess, "capture");
        graph.launch(at.on);
        graph.launch(at.other);
        at.waits(at.other, closed, 1);
    }));
    over.check({});
}

TEST_CASE("F22 an event and a stream of different devices")
{
    const call_site copy = call_site::current();
    const call_site gather = call_site::current();
    provoke<nccl_lab>({{hazard_kind::read_after_write, copy, gather}}, [=](const bench_t& at, bool guarded_call) {
        const int elsewhere = at.comm.device_ordinal() + 4;
        gate closed(at.producer);
        at.write(at.producer, 1, at.shard(), copy);
        const cuda::device_guard wrong(elsewhere);
        if (guarded_call) {
            copy_then_all_gather(at.shard(), at.full(), at.comm, at.on, {at.producer}, {at.consumer}, {}, gather);
            at.waits(at.consumer, closed, 1);
            return;
        }
        cudaEvent_t ready = nullptr;
        require(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming) == cudaSuccess, "create");
        require(cudaEventRecord(ready, at.producer.get()) == cudaErrorInvalidResourceHandle,
            "an event of another device was recorded");
        require(cudaStreamWaitEvent(at.on.get(), ready, 0) == cudaSuccess, "wait"); // for nothing
        at.gather(at.shard(), at.full(), at.on, gather);
        at.completes(at.on, poison);
        require(cudaEventDestroy(ready) == cudaSuccess, "destroy");
    });
}

TEST_CASE("F22 a producer on another device is waited for")
{
    const watch over;
    CHECK_NOTHROW(nccl_lab::run(2, [](testing::nccl_owner& comm) {
        const bench_t at(comm);
        const auto far = [&] {
            const cuda::device_guard elsewhere(comm.device_ordinal() + 4);
            return cuda::stream();
        }();
        gate closed(far);
        at.write(far, 1, at.shard());
        copy_then_all_gather(at.shard(), at.full(), comm, at.on, {far}, {at.consumer});
        at.waits(at.consumer, closed, 1);
    }));
    over.check({});
}

TEST_CASE("F24 ranks that call in different orders")
{
    for (const bool verified : {false, true}) {
        const testing::clean_stand_in clean;
        const testing::held_clock clock;
        std::jthread time([&] {
            if (!verified) clock.advance_ms(100, {0, 1, 2});
        });
        const auto outcomes = testing::run_each_nccl(3, {.timeout_ms = 100}, [&](testing::nccl_owner& owner) {
            const bench_t at(owner);
            const auto call = [&](auto& comm) {
                const bool other_order = comm.rank() == 1;
                if (other_order) comm.barrier(at.on);
                copy_then_all_gather(at.shard(), at.full(), comm, at.on, {}, {});
                if (!other_order) comm.barrier(at.on);
            };
            if (verified) {
                agreed checked{nccl::communicator_ref(owner)};
                return call(checked);
            }
            call(owner);
            clock.i_am(owner.rank());
            const std::optional<error> late = testing::error_of([&] { owner.synchronize(at.on); });
            owner.abort("the calls do not match"); // ends what hangs
            throw late.value();
        });
        for (const rank_outcome& outcome : outcomes) {
            const std::optional<error> failure = outcome.failure();
            REQUIRE(failure);
            CHECK(failure->code() == (verified ? status::mismatch : status::timeout));
            if (verified) CHECK(failure->culprits() == std::vector<int>{1});
        }
    }
}

TEST_CASE("F25 a peer that dies between its copy and the gather")
{
    for (const bool dies : {true, false}) {
        const testing::clean_stand_in clean;
        const auto outcomes = testing::run_each_nccl(2, {}, [&](testing::nccl_owner& comm) {
            const bench_t at(comm);
            at.write(at.producer, 1, at.shard());
            if (dies && comm.rank() == 1) throw std::runtime_error("died");
            auto done = copy_then_all_gather(at.shard(), at.full(), comm, at.on, {at.producer}, {at.consumer});
            if (!dies) return at.completes(at.consumer, 1);
            require_code(testing::error_of([&] { done.synchronize(50); }), status::timeout, "50 ms");
            require(!done.query() && !at.consumer.query(), "it did not wait for the dead peer");
            // By a watchdog, while everything that waits for the gather is still there.
            std::thread([&] { comm.abort("the peer is dead"); }).join();
            at.settle();
            require_code(testing::error_of([&] { comm.check(); }), status::peer_failure, "the peer is dead");
        });
        CHECK_FALSE(outcomes[0].thrown);
        CHECK(bool(outcomes[1].thrown) == dies);
    }
}

TEST_CASE("F27 a stream handle is used again for another stream")
{
    const call_site copy = call_site::current();
    const call_site gather = call_site::current();
    const std::vector<expected_hazard> hazards{{hazard_kind::read_after_write, copy, gather}};
    bool reused = false;
    const auto destroyed_and_made = [&](const bench_t& at, bool guarded_call) {
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
    for (int attempt = 0; attempt < 5 && !reused; ++attempt) provoke<nccl_lab>(hazards, destroyed_and_made);
    // An allocator that keeps freed memory aside, as under AddressSanitizer, gives no handle again.
    if (!reused) MESSAGE("no handle was used again");
}
