// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Faults over NCCL and on CUDA streams: devices, captures, kernel loading.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include <collprobe/device/cuda/device.hpp>
#include <collprobe/fault/faulty.hpp>

#include "step/nccl_steps.hpp"
#include "support/checks.hpp"
#include "tests/support/stand_in/stand_in_test_tools.hpp"

namespace collprobe::testing::fault_stand_in_test {
namespace {

constexpr std::size_t count = 1003;

/// Rank r sends r + 1 everywhere.
std::vector<float> sent_by(int rank) { return std::vector<float>(count, static_cast<float>(rank + 1)); }

/// All elements are `value`, but for `others` that are not.
void require_mostly(const device_vector<float>& found, float value, std::size_t others)
{
    std::size_t differing = 0;
    for (std::size_t i = 0; i < count; ++i) differing += to_bits(found.data()[i]) != to_bits(value) ? 1 : 0;
    require(differing == others, std::to_string(differing) + " elements differ, not " + std::to_string(others));
}

} // namespace

TEST_CASE("faults over NCCL hit the elements that were planned, on devices that are not the current one")
{
    CHECK_NOTHROW(run_nccl(3, [](testing::nccl_owner& world) {
        const bool is_hit = world.rank() == 1;
        faulty comm{nccl::communicator_ref(world),
            {{.phase = fault_phase::during, .rank = 1, .call = 0, .elements = 5},
                {.phase = fault_phase::after, .rank = 1, .call = 1, .elements = 3},
                {.kind = fault_kind::untouched_tail, .rank = 1, .call = 2},
                {.kind = fault_kind::stale, .phase = fault_phase::during, .rank = 1, .call = 4},
                {.kind = fault_kind::duplicate_shard, .phase = fault_phase::during, .rank = 1, .call = 5}},
            {.max_bytes = 1 << 14}};
        const cuda::device_guard here(world.device_ordinal());
        device_vector<float> send(count), receive(count);
        const cuda::stream stream, other;
        const cuda::device_guard elsewhere((world.device_ordinal() + 1) % 8);
        const auto call = [&](float factor, float all, std::size_t others) {
            std::vector<float> values = sent_by(world.rank());
            for (float& each : values) each *= factor;
            {
                const cuda::device_guard back(world.device_ordinal());
                send.set(values, stream);
                receive.set(std::vector<float>(count, -1.0f), stream);
            }
            comm.all_reduce(view<const float>(send), view<float>(receive), reduction::sum, stream);
            stream.synchronize(soon_ms);
            require_mostly(receive, all, others);
            require_mostly(send, values[0], 0);
        };
        call(1, 6, 5); // of what travels: at all ranks
        call(1, 6, is_hit ? 3 : 0);
        call(1, 6, is_hit ? 8 : 0);
        call(1, 6, 0);
        call(2, 10, 0); // 2 + 2 + 6
        call(1, 7, 0); // 1 + 3 + 3
        require(comm.injected().count() == (is_hit ? 5 : 0), "the log");
    }));
}

TEST_CASE("a captured call has its fault at each replay, between calls that are not captured")
{
    CHECK_NOTHROW(run_nccl(2, [](testing::nccl_owner& world) {
        faulty comm{nccl::communicator_ref(world),
            {{.phase = fault_phase::during, .rank = 1, .call = 1, .elements = 4}}, {.max_bytes = 1 << 14}};
        const cuda::device_guard here(world.device_ordinal());
        device_vector<float> send(count), receive(count);
        const cuda::stream stream, other;
        send.set(sent_by(world.rank()), stream);
        const auto call = [&](cuda::stream_ref on) {
            comm.all_reduce(view<const float>(send), view<float>(receive), reduction::sum, on);
        };
        call(stream);
        stream.synchronize(soon_ms);
        require_mostly(receive, 3, 0);
        captured_graph graph(stream, cudaStreamCaptureModeThreadLocal);
        call(stream);
        cuda::check(graph.end(), "end");
        for (int replay = 0; replay < 2; ++replay) {
            graph.launch(stream);
            stream.synchronize(soon_ms);
            require_mostly(receive, 3, 4);
            call(stream);
            stream.synchronize(soon_ms);
            require_mostly(receive, 3, 0);
        }
    }));
}

TEST_CASE("a call without a fault enqueues nothing more")
{
    CHECK_NOTHROW(run_nccl(1, [](testing::nccl_owner& world) {
        faulty comm{nccl::communicator_ref(world), {{.phase = fault_phase::during, .call = 1}}};
        const cuda::device_guard here(world.device_ordinal());
        device_vector<float> send(count), receive(count);
        const cuda::stream stream;
        const auto work = [] {
            return stand_in::calls("cudaLaunchKernel") + stand_in::calls("cudaMemcpyAsync") + stand_in::calls("cudaEventRecord");
        };
        const auto enqueued = [&](auto& by) {
            const std::uint64_t before = work();
            by.all_reduce(view<const float>(send), view<float>(receive), reduction::sum, stream);
            return work() - before;
        };
        const std::uint64_t bare = enqueued(world), without = enqueued(comm), with = enqueued(comm);
        stream.synchronize(soon_ms);
        require(without == bare && with > bare, std::to_string(without) + " and " + std::to_string(with));
    }));
}

TEST_CASE("kernels are loaded at construction, so that none waits for a running collective")
{
    stand_in::reset();
    CHECK_NOTHROW(run_nccl(8, [](testing::nccl_owner& world) { // on some of the devices nothing has run yet
        faulty comm{nccl::communicator_ref(world), {{.phase = fault_phase::during}}};
        const cuda::device_guard here(world.device_ordinal());
        device_vector<float> values(count), sum(count);
        const cuda::stream stream;
        gate running(stream); // as a collective that waits for another rank
        comm.all_reduce(view<const float>(values), view<float>(sum), reduction::sum, stream);
        running.open();
        stream.synchronize(soon_ms);
        require(comm.injected().count() == 1, "the log");
    }));
    CHECK(stand_in::loads_behind_work() == 0);
}

} // namespace collprobe::testing::fault_stand_in_test
