// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/audit/weight_probe.hpp>
#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/step/probed.hpp>

#include "support/run_ranks.hpp"

/// Steps whose weights are looked at.
namespace testing_weights {

using namespace collprobe;

inline constexpr std::uint64_t count = 4 * 1001;

template <class T>
std::vector<T> gradient(int rank, std::uint64_t elements = count)
{
    std::vector<T> data;
    std::uint64_t state = 0x9e3779b97f4a7c15u * (static_cast<std::uint64_t>(rank) + 1);
    for (std::uint64_t i = 0; i < elements; ++i) {
        const std::uint64_t bits = detail::mix64(state += 0x9e3779b97f4a7c15u);
        data.push_back(static_cast<T>(static_cast<float>(bits >> 40) * 0x1p-24f - 0.5f));
    }
    return data;
}

template <class T>
std::vector<T> times(std::vector<T> data, double factor)
{
    for (T& each : data) each = static_cast<T>(static_cast<float>(each) * static_cast<float>(factor));
    return data;
}

inline auto weights(const weight_probe_options& options = {.every = 1})
{
    return [options] { return weight_probe(options); };
}
inline bool same(const call_weights& a, const call_weights& b)
{
    return a.seen == b.seen && a.how == b.how && a.why_not == b.why_not && a.expected == b.expected
        && a.weights == b.weights && a.bounds == b.bounds && a.ranks == b.ranks
        && to_bits(a.common) == to_bits(b.common) && a.residual == b.residual;
}

/// The step that the ranks' `work(comm, stream)` makes, and ends, which is equal on all ranks. `parts` make those of `probed`.
template <class Work, class... Parts>
step_record one_step(int ranks, const Work& work, const Parts&... parts)
{
    std::vector<step_record> records(static_cast<std::size_t>(ranks));
    testing::local_provider{ranks}.run([&](local::communicator& world) {
        probed comm{world, {}, parts()...};
        host::stream stream;
        work(comm, stream);
        (void)comm.wait(records[static_cast<std::size_t>(world.rank())]);
    });
    for (const step_record& each : records) {
        REQUIRE(each.calls.size() == records[0].calls.size());
        for (std::size_t c = 0; c < each.calls.size(); ++c)
            CHECK(same(each.calls[c].weights, records[0].calls[c].weights));
        CHECK(each.findings.size() == records[0].findings.size());
    }
    return records[0];
}

} // namespace testing_weights
