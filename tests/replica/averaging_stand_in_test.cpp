// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Averaging over NCCL and on CUDA streams: devices that are not the current one, kernel loading, captures.
#include <doctest/doctest.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include <collprobe/device/cuda/device.hpp>
#include <collprobe/replica/replica_averaging.hpp>

#include "examples/support/device_ranks.hpp"
#include "step/nccl_steps.hpp"
#include "tests/support/stand_in/stand_in_test_tools.hpp"

namespace collprobe::testing::averaging_stand_in_test {
namespace {

constexpr std::size_t count = 1003;

template <class T>
std::vector<T> values_of(int rank)
{
    std::vector<T> values(count);
    for (std::size_t i = 0; i < count; ++i) {
        values[i] = static_cast<T>(static_cast<float>(rank) + static_cast<float>(i % 64));
    }
    return values;
}

template <class T>
void require_average(const device_vector<T>& found, int ranks)
{
    for (std::size_t i = 0; i < count; ++i) {
        const float expected = static_cast<float>(ranks - 1) / 2 + static_cast<float>(i % 64);
        if (static_cast<float>(found.data()[i]) != expected) throw std::runtime_error("wrong average");
    }
}

} // namespace

TEST_CASE("averages every second step over NCCL are those of the replicas, on devices that are not the current one")
{
    for (const int ranks : {1, 2, 4}) {
        CAPTURE(ranks);
        CHECK_NOTHROW(run_nccl(ranks, [&](testing::nccl_owner& world) {
            const cuda::device_guard here(world.device_ordinal());
            device_vector<float> weights(count);
            device_vector<bfloat16> small(count);
            const cuda::stream stream;
            weights.set(values_of<float>(world.rank()), stream);
            small.set(values_of<bfloat16>(world.rank()), stream);
            const cuda::device_guard elsewhere((world.device_ordinal() + 1) % 8);
            replica_averaging repair(nccl::communicator_ref(world),
                std::vector<replica>{view<float>(weights), view<bfloat16>(small)}, every{.steps = 2});
            for (int step = 0; step < 4; ++step) (void)repair.step(stream);
            stream.synchronize(soon_ms);
            require_average(weights, ranks);
            require_average(small, ranks);
        }));
    }
}

TEST_CASE("averages over NCCL that measure take the place of the weights, and all ranks read one decision")
{
    for (const int ranks : {1, 2, 4}) {
        CAPTURE(ranks);
        CHECK_NOTHROW(run_nccl(ranks, [&](testing::nccl_owner& world) {
            const cuda::device_guard here(world.device_ordinal());
            device_vector<float> weights(count);
            device_vector<float> gradient(count);
            const cuda::stream stream;
            weights.set(values_of<float>(world.rank()), stream);
            gradient.set(values_of<float>(2), stream);
            const cuda::device_guard elsewhere((world.device_ordinal() + 1) % 8);
            replica_averaging repair(
                nccl::communicator_ref(world), std::vector<replica>{view<float>(weights)}, when_worth_it{.gain = 0.01});
            std::string when;
            for (int step = 0; step < 14; ++step) {
                repair.before_update(std::vector<replica>{view<float>(gradient)}, 0.1, stream);
                when += repair.step(stream) ? '1' : '0';
            }
            repair.finish(stream);
            stream.synchronize(soon_ms);
            require_average(weights, ranks);
            // The measured noise asks for the shortest interval; one rank alone has none.
            if (when != (ranks == 1 ? "00000000010000" : "00000000010100")) throw std::runtime_error(when);
        }));
    }
}

TEST_CASE("kernels of averages are loaded at construction, so that none waits for a running collective")
{
    stand_in::reset();
    const cuda::device_guard here(6);
    const cuda::stream stream;
    device_vector<collprobe::float16> weights(count);
    device_vector<collprobe::float16> gradient(count);
    weights.set(values_of<collprobe::float16>(0), stream);
    gradient.set(values_of<collprobe::float16>(1), stream);
    stream.synchronize(soon_ms);
    replica_averaging repair(local::device_group<cuda::device>(1).communicator(0),
        std::vector<replica>{view<collprobe::float16>(weights)}, when_worth_it());
    for (int step = 0; step < 9; ++step) REQUIRE_FALSE(repair.step(stream));
    const std::uint64_t launches = stand_in::calls("cudaLaunchKernel");
    gate running(stream); // as a collective that waits for another rank
    REQUIRE(repair.step(stream));
    repair.before_update(std::vector<replica>{view<collprobe::float16>(gradient)}, 0.1, stream);
    CHECK(stand_in::calls("cudaLaunchKernel") > launches);
    CHECK(stand_in::loads_behind_work() == 0);
    running.open();
    stream.synchronize(soon_ms);
    require_average(weights, 1);
}

TEST_CASE("an average of float weights can be captured, and runs each time its graph does; none waits on the host")
{
    CHECK_NOTHROW(run_nccl(2, [&](testing::nccl_owner& world) {
        const cuda::device_guard here(world.device_ordinal());
        device_vector<float> weights(count);
        const cuda::stream stream;
        replica_averaging repair(
            nccl::communicator_ref(world), std::vector<replica>{view<float>(weights)}, every{.steps = 1});
        captured_graph graph(stream, cudaStreamCaptureModeThreadLocal);
        repair.step(stream);
        cuda::check(graph.end(), "end");
        for (int replay = 0; replay < 3; ++replay) {
            weights.set(values_of<float>(world.rank()), stream);
            graph.launch(stream);
            stream.synchronize(soon_ms);
            require_average(weights, 2);
        }
        weights.set(values_of<float>(world.rank()), stream);
        repair.step(stream);
        stream.synchronize(soon_ms);
        require_average(weights, 2);
    }));
}

} // namespace collprobe::testing::averaging_stand_in_test
