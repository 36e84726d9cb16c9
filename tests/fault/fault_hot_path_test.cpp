// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/fault/faulty.hpp>

#include "support/hot_path.hpp"
#include "support/run_ranks.hpp"

namespace collprobe::testing::fault_hot_path_test {

TEST_CASE("calls with faults allocate nothing and never wait for the host")
{
    std::vector<fault> faults;
    for (int k = 0; k <= static_cast<int>(fault_kind::infinity); ++k) {
        for (const fault_phase phase : {fault_phase::before, fault_phase::during, fault_phase::after}) {
            const auto kind = static_cast<fault_kind>(k);
            if (kind == fault_kind::untouched_tail && phase != fault_phase::after) continue;
            faults.push_back({.kind = kind, .phase = phase, .magnitude = 0.5});
        }
    }
    testing::hot_path steady(3);
    std::atomic<std::uint64_t> injections{0};
    testing::local_provider{3}.run([&](local::communicator& world) {
        std::vector<float> shard(503, 1.5f), whole(3 * 503);
        faulty comm(world, faults, {.max_bytes = 1 << 14, .max_injections = 10});
        const host::stream stream;
        const auto work = [&] {
            for (int call = 0; call < 3; ++call) {
                comm.all_gather(view<const float>(shard), view<float>(whole), stream);
                comm.all_reduce(view<const float>(shard), view<float>(shard), reduction::max, stream);
            }
        };
        steady.measure(world.rank(), stream, work);
        injections += comm.injected_total();
    });
    CHECK(steady.allocations() == 0);
    CHECK(steady.waits() == 0);
    CHECK(injections > 1000);
}

} // namespace collprobe::testing::fault_hot_path_test
