// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Averages on a GPU are those on the host.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include <collprobe/collprobe.cuh>
#include <collprobe/replica/replica_averaging.hpp>

#include "support/device_bits.hpp"
#include "support/needs_gpu.hpp"
#include "support/run_ranks.hpp"

using namespace collprobe;
namespace cu = collprobe::cuda; // CUDA has a namespace cuda, too

namespace {

using gpu = cu::device;
constexpr std::uint64_t count = 70'001; // more than are sampled

template <element T>
struct averaged {
    std::vector<T> in_place; ///< of rank 0, as all
    std::vector<T> beside;
    std::string when; ///< a 1 for each step that started an average
};

template <element T, class Provider>
averaged<T> run_with(const Provider& provider)
{
    averaged<T> result;
    provider.run([&](auto& world) {
        using device = typename std::remove_reference_t<decltype(world)>::device;
        const auto guard = world.device_scope();
        typename device::template host_buffer<T> staging(count);
        typename device::template buffer<T> weights(count);
        typename device::template buffer<T> gradient(count);
        const typename device::stream stream;
        for (std::uint64_t i = 0; i < count; ++i) {
            staging[i] = static_cast<T>(static_cast<float>(i % 97) + 0.25F * static_cast<float>(world.rank()));
        }
        const auto load = [&](typename device::template buffer<T>& to) {
            device::copy(stream, view<const T>(staging), view<T>(to));
            stream.synchronize(60'000);
        };
        const auto store = [&](std::vector<T>& to) {
            stream.synchronize(60'000);
            device::copy(stream, view<const T>(weights), view<T>(staging));
            stream.synchronize(60'000);
            if (world.rank() == 0) to.assign(staging.begin(), staging.end());
        };
        const std::vector<replica> list{view<T>(weights)};
        {
            load(weights);
            replica_averaging repair(world, list, every{.steps = 1});
            (void)repair.step(stream);
            store(result.in_place);
        }
        for (std::uint64_t i = 0; i < count; ++i) staging[i] = static_cast<T>(static_cast<float>(i % 53) + 0.5F * static_cast<float>(world.rank()));
        load(weights);
        load(gradient);
        replica_averaging repair(world, list, when_worth_it{.gain = 0.02});
        std::string when;
        for (int step = 0; step < 30; ++step) {
            repair.before_update(std::vector<replica>{view<T>(gradient)}, 0.01, stream);
            when += repair.step(stream) ? '1' : '0';
        }
        store(result.beside);
        if (world.rank() == 0) result.when = when;
    });
    return result;
}

} // namespace

TEST_CASE_TEMPLATE("averages and decisions on a GPU are those on the host", T, bfloat16, double)
{
    for (const int ranks : {1, 2, 4}) {
        const averaged<T> on_host = run_with<T>(testing::local_provider{ranks});
        const averaged<T> on_gpu = run_with<T>(testing::device_provider<gpu>{ranks});
        CHECK(testing::differences<T>(on_host.in_place, on_gpu.in_place) == 0);
        CHECK(testing::differences<T>(on_host.beside, on_gpu.beside) == 0);
        CHECK(on_host.when == on_gpu.when);
        CHECK(on_host.when.find('1') == 9);
        CHECK((on_host.when.find('1', 10) == std::string::npos) == (ranks == 1)); // measured
    }
}
