// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Faults on a GPU are those on the host.
#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include <collprobe/collprobe.cuh>
#include <collprobe/fault/faulty.hpp>

#include "support/device_bits.hpp"
#include "support/needs_gpu.hpp"
#include "support/run_ranks.hpp"

using namespace collprobe;
namespace cu = collprobe::cuda; // CUDA has a namespace cuda, too

namespace {

using gpu = cu::device;
constexpr std::uint64_t count = 1003;
constexpr int calls = 4;

template <element T>
struct faulty_run {
    std::vector<T> results; ///< of all ranks and calls
    std::vector<T> sends;
    std::vector<injection> log; ///< of rank 1
};

/// All-reduces and all-gathers in turn, with a fault.
template <element T, class Provider>
faulty_run<T> run_with(const Provider& provider, const std::vector<fault>& faults)
{
    const auto ranks = static_cast<std::uint64_t>(provider.size());
    const std::uint64_t per_call = count + ranks * count;
    faulty_run<T> all;
    all.results.resize(ranks * calls * per_call);
    all.sends.resize(ranks * calls * count);
    provider.run([&](auto& world) {
        using comm_type = std::remove_reference_t<decltype(world)>;
        using device = typename comm_type::device;
        const auto guard = world.device_scope();
        const auto rank = static_cast<std::uint64_t>(world.rank());
        typename device::template host_buffer<T> staging(count);
        typename device::template host_buffer<T> result(per_call);
        typename device::template buffer<T> send(count);
        typename device::template buffer<T> receive(per_call);
        const typename device::stream stream;
        // A fault of what three ranks have gathered keeps a copy of it: 24072 bytes.
        faulty<comm_type> comm(world, faults, {.max_bytes = 1 << 15});
        for (std::uint64_t call = 0; call < calls; ++call) {
            for (std::uint64_t i = 0; i < count; ++i) {
                staging[i] = testing::wild_value<T>(world.rank() + 100 * static_cast<int>(call), i);
            }
            device::template copy<T>(stream, view<const T>(staging), view<T>(send));
            device::template zero<T>(stream, view<T>(receive));
            comm.all_reduce(view<const T>(send), view<T>(receive).part(0, count), reduction::max, stream);
            comm.all_gather(view<const T>(send), view<T>(receive).part(count, ranks * count), stream);
            device::template copy<T>(stream, view<const T>(send), view<T>(staging));
            device::template copy<T>(stream, view<const T>(receive), view<T>(result));
            stream.synchronize(60'000);
            std::memcpy(static_cast<void*>(all.results.data() + (rank * calls + call) * per_call), result.data(),
                per_call * sizeof(T));
            std::memcpy(static_cast<void*>(all.sends.data() + (rank * calls + call) * count), staging.data(),
                count * sizeof(T));
        }
        if (rank == 1) all.log.assign(comm.injected().begin(), comm.injected().end());
    });
    return all;
}

} // namespace

TEST_CASE_TEMPLATE("every kind in every phase does on a GPU what it does on the host", T, std::int8_t, bfloat16,
    double)
{
    for (int k = 0; k <= static_cast<int>(fault_kind::infinity); ++k) {
        for (const fault_phase phase : {fault_phase::before, fault_phase::during, fault_phase::after}) {
            const auto kind = static_cast<fault_kind>(k);
            if (kind == fault_kind::untouched_tail && phase != fault_phase::after) continue;
            // The last digits of a draw depend on the processor's logarithm and fused operations.
            if (kind == fault_kind::gaussian) continue;
            CAPTURE(std::string(name(kind)));
            CAPTURE(std::string(name(phase)));
            CAPTURE(std::string(element_traits<T>::name));
            const std::vector<fault> faults{{.kind = kind, .phase = phase, .rank = 1, .probability = 0.7,
                .magnitude = 1.5, .lag = 2}};
            const auto on_host = run_with<T>(testing::local_provider{3}, faults);
            const auto on_gpu = run_with<T>(testing::device_provider<gpu>{3}, faults);
            CHECK(testing::differences<T>(on_host.results, on_gpu.results) == 0);
            CHECK(testing::differences<T>(on_host.sends, on_gpu.sends) == 0);
            CHECK(on_host.log == on_gpu.log);
        }
    }
}

TEST_CASE("noise on a GPU is that on the host to the last digits")
{
    const std::vector<fault> faults = paft_noise(0.25, 3);
    const auto on_host = run_with<double>(testing::local_provider{2}, faults);
    const auto on_gpu = run_with<double>(testing::device_provider<gpu>{2}, faults);
    REQUIRE(on_host.results.size() == on_gpu.results.size());
    std::uint64_t wrong = 0;
    for (std::size_t i = 0; i < on_host.results.size(); ++i) {
        const double a = on_host.results[i], b = on_gpu.results[i];
        if (!is_finite(a) || !is_finite(b)) continue;
        if (!(detail::absolute(a - b) <= 1e-12 * (1 + detail::absolute(a)))) ++wrong;
    }
    CHECK(wrong == 0);
    CHECK(on_host.log == on_gpu.log);
}
