// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// A probe of quantised sums with CUDA's kernels finds what it finds with the host's, and no damage. Small,
// because a run without a GPU executes PTX.
#include <doctest/doctest.h>

#include <cstdint>
#include <random>

#include <collprobe/collprobe.cuh>
#include <collprobe/quant/cuda/codec_kernels.cuh>
#include <collprobe/quant/quantisation_probe.hpp>
#include <collprobe/quant/quantised.hpp>

#include "support/errors.hpp"
#include "support/needs_gpu.hpp"
#include "support/run_ranks.hpp"

using namespace collprobe;
using namespace collprobe::testing;
namespace cu = collprobe::cuda; // CUDA has a namespace cuda, too

namespace {

constexpr int ranks = 2;
constexpr std::uint64_t count = 2 * 1000;

/// Two steps with an all-reduce and a reduce-scatter, as rank 0 has seen the last one.
template <class Device, class Comm>
step_record probed_steps(Comm& world, const quantisation& how)
{
    using T = bfloat16;
    const auto scope = world.device_scope();
    quantised codes(world, how, {.least_bytes = 1, .scratch_bytes = 1 << 13});
    probed probe(std::move(codes), {}, quantisation_probe({}, {.messages = true}));
    typename Device::template host_buffer<T> staging(count);
    typename Device::template buffer<T> input(count), sum(count), part(count / ranks);
    const typename Device::stream on;
    step_record record;
    for (std::uint64_t step = 0; step < 2; ++step) {
        std::mt19937_64 random(step * ranks + static_cast<std::uint64_t>(probe.rank()));
        std::normal_distribution<float> normal;
        for (std::uint64_t i = 0; i < count; ++i) staging.data()[i] = T(normal(random));
        Device::copy(on, view<const T>(staging.data(), count), view<T>(input));
        probe.all_reduce(view<const T>(input), view<T>(sum), reduction::average, on);
        probe.reduce_scatter(view<const T>(input), view<T>(part), reduction::sum, on);
        probe.end_step(step, on);
        require(probe.wait(record), "no record");
        on.synchronize(soon_ms);
    }
    return record;
}

void check_like_host(const quantisation& how)
{
    step_record expected, found;
    device_provider<host::device>{ranks}.run([&](auto& comm) {
        const step_record record = probed_steps<host::device>(comm, how);
        if (comm.rank() == 0) expected = record;
    });
    device_provider<cu::device>{ranks}.run([&](auto& comm) {
        const step_record record = probed_steps<cu::device>(comm, how);
        if (comm.rank() == 0) found = record;
    });
    for (std::size_t c = 0; c < 2; ++c) {
        const call_quantisation& a = found.calls.at(c).quantisation;
        const call_quantisation& b = expected.calls.at(c).quantisation;
        CHECK(a.bins == b.bins);
        CHECK(a.aggregate_sqnr_db == doctest::Approx(b.aggregate_sqnr_db).epsilon(1e-9));
        CHECK(a.drift == doctest::Approx(b.drift).epsilon(1e-9));
        CHECK((a.messages_checked && b.messages_checked));
        CHECK(a.damaged_pairs == 0);
        CHECK(name(a.verdict) == name(b.verdict));
    }
}

} // namespace

TEST_CASE("sums as int4, and rotated ones with feedback")
{
    check_like_host({.format = code_format::int4});
    check_like_host({.format = code_format::int8, .rotate = true, .feedback = error_feedback::all});
}
