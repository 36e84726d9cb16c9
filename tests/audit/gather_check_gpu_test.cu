// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Verdicts of all-gathers on a GPU.
#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include <collprobe/collprobe.cuh>
#include <collprobe/fault/faulty.hpp>

#include "audit/lone_checks.hpp"
#include "support/device_bits.hpp"
#include "support/needs_gpu.hpp"
#include "support/run_ranks.hpp"

using namespace collprobe;
namespace cu = collprobe::cuda; // CUDA has a namespace cuda, too

namespace {

using gpu = cu::device;

template <element T>
std::vector<testing::verdict> gathered_on_gpu(int ranks, std::uint64_t count, const std::vector<fault>& faults)
{
    std::vector<testing::verdict> verdicts(static_cast<std::size_t>(ranks));
    testing::device_provider<gpu>{ranks}.run([&](auto& world) {
        const auto guard = world.device_scope();
        const auto rank = static_cast<std::size_t>(world.rank());
        cu::pinned_buffer<T> staging(count);
        cu::buffer<T> shard(count);
        cu::buffer<T> whole(count * static_cast<std::uint64_t>(ranks));
        const cu::stream stream;
        faulty comm{world, faults, {.max_bytes = 1 << 20}};
        testing::gather_check check(comm);
        for (std::uint64_t i = 0; i < count; ++i) staging[i] = testing::wild_value<T>(world.rank(), i);
        gpu::copy<T>(stream, view<const T>(staging), view<T>(shard));
        check.template before<T>(view<const T>(shard), stream);
        comm.all_gather(view<const T>(shard), view<T>(whole), stream);
        check.template after<T>(view<const T>(whole), stream);
        stream.synchronize(60'000);
        verdicts[rank] = check.verdict();
    });
    return verdicts;
}

} // namespace

TEST_CASE_TEMPLATE("a GPU names who holds a damaged shard and who sent one, and nobody else", T, std::uint8_t, bfloat16,
    double)
{
    for (const int ranks : {1, 3, 8}) {
        for (const std::uint64_t count : {1u, 1001u, 40'000u}) {
            CAPTURE(ranks);
            CAPTURE(count);
            for (const testing::verdict& each : gathered_on_gpu<T>(ranks, count, {})) CHECK(each.intact());
            const int rank = ranks / 2;
            for (const testing::verdict& each : gathered_on_gpu<T>(ranks, count, {{.rank = rank}})) {
                CHECK(each.damaged() == 1);
                CHECK(each.call().audit.where == damage::broadcast);
                CHECK(each.culprits() == std::vector<int>{rank});
            }
            for (const testing::verdict& each :
                gathered_on_gpu<T>(ranks, count, {{.phase = fault_phase::during, .rank = rank}})) {
                CHECK(each.damaged() == static_cast<std::uint64_t>(ranks));
                CHECK(each.culprits() == std::vector<int>{rank});
            }
        }
    }
}
