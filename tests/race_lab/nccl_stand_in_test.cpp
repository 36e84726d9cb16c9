// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// The failure modes of host_test.cpp on CUDA's streams and NCCL's ranks over the stand-ins, and those that only these
// have. README.md lists them all.
#include <doctest/doctest.h>

#include <optional>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "tests/race_lab/modes.hpp"
#include "tests/race_lab/nccl_lab.hpp"

namespace collprobe::race_lab::nccl_stand_in_test {

#define ON_CUDA(name, mode) \
    TEST_CASE(name) { mode<nccl_lab>(); }
COLLPROBE_RACE_LAB_MODES(ON_CUDA)

using bench_t = bench<nccl_lab>;
using testing::gate;

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

TEST_CASE("F22 a producer on another device is waited for, whatever device is current")
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

} // namespace collprobe::race_lab::nccl_stand_in_test
