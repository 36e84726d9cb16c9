// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Averaging over NCCL and on CUDA streams: devices that are not the current one, kernel loading, captures.
#include <doctest/doctest.h>

#include <cstdint>
#include <stdexcept>
#include <vector>

#include <collprobe/device/cuda/device.hpp>
#include <collprobe/replica/dynamic_averaging.hpp>
#include <collprobe/replica/periodic_averaging.hpp>

#include "examples/support/device_ranks.hpp"
#include "step/nccl_steps.hpp"
#include "tests/support/stand_in/stand_in_test_tools.hpp"

using namespace collprobe;
using namespace collprobe::testing;

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

TEST_CASE("periodic averages over NCCL are those of the replicas, on devices that are not the current one")
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
            periodic_averaging repair(nccl::communicator_ref(world),
                std::vector<replica>{view<float>(weights), view<bfloat16>(small)},
                {.interval = 2, .scratch_elements = 300});
            for (int step = 0; step < 4; ++step) (void)repair.step(stream);
            stream.synchronize(soon_ms);
            require_average(weights, ranks);
            require_average(small, ranks);
        }));
    }
}

TEST_CASE("dynamic averages over NCCL take the place of the weights, and all ranks read one decision")
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
            dynamic_averaging repair(nccl::communicator_ref(world), std::vector<replica>{view<float>(weights)}, {},
                {.first_interval = 1, .most_interval = 1000});
            for (int step = 0; step < 4; ++step) {
                if (repair.begin_step(stream) != (step == 1)) throw std::runtime_error("an average at the wrong time");
                repair.before_update(std::vector<replica>{view<float>(gradient)}, 0.1, stream);
            }
            repair.finish(stream);
            stream.synchronize(soon_ms);
            require_average(weights, ranks);
            if (repair.last().step != 1 || repair.last().interval < 2) throw std::runtime_error("no decision");
            if ((ranks == 1) != (repair.last().interval == 1000)) throw std::runtime_error("another interval");
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
    dynamic_averaging repair(local::device_group<cuda::device>(1).communicator(0),
        std::vector<replica>{view<collprobe::float16>(weights)}, {}, {.first_interval = 1});
    repair.before_update(std::vector<replica>{view<collprobe::float16>(gradient)}, 0.1, stream);
    const std::uint64_t launches = stand_in::calls("cudaLaunchKernel");
    gate running(stream); // as a collective that waits for another rank
    (void)repair.begin_step(stream);
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
        periodic_averaging repair(nccl::communicator_ref(world), std::vector<replica>{view<float>(weights)});
        captured_graph graph(stream, cudaStreamCaptureModeThreadLocal);
        repair.average(stream);
        cuda::check(graph.end(), "end");
        for (int replay = 0; replay < 3; ++replay) {
            weights.set(values_of<float>(world.rank()), stream);
            graph.launch(stream);
            stream.synchronize(soon_ms);
            require_average(weights, 2);
        }
        weights.set(values_of<float>(world.rank()), stream);
        repair.average(stream);
        stream.synchronize(soon_ms);
        require_average(weights, 2);
    }));
}
