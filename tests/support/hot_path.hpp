// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <latch>

#include <collprobe/device/host/stream.hpp>

#include "checks.hpp"
#include "count_allocations.hpp"

namespace collprobe::testing {

/// Counts what steady work costs the hosts of `ranks` ranks: allocations of the process, waits for the rank's stream.
class hot_path {
public:
    explicit hot_path(int ranks) : warm_(ranks), counted_(ranks), worked_(ranks) {}

    /// Each rank calls it once. `warm_up` and `work` enqueue on `stream`, `work` at most half as much as `warm_up`;
    /// `read` takes what came back. Counted are one `work`, and the `read` behind it.
    template <class WarmUp, class Work, class Read>
    void measure(int rank, const host::stream& stream, const WarmUp& warm_up, const Work& work, const Read& read)
    {
        // The queues keep what they ever needed: let them be longer here than they can get below.
        for (int round = 0; round < 2; ++round) {
            std::latch go(1);
            stream.enqueue([&go] { go.wait(); });
            warm_up();
            go.count_down();
            stream.synchronize(soon_ms);
            read();
        }
        warm_.arrive_and_wait();
        if (rank == 0) before_ = ::allocations.load();
        counted_.arrive_and_wait();
        const std::uint64_t waited = stream.synchronizations();
        work();
        waits_ += stream.synchronizations() - waited;
        stream.synchronize(soon_ms);
        read();
        worked_.arrive_and_wait();
        if (rank == 0) after_ = ::allocations.load();
    }
    template <class Work>
    void measure(int rank, const host::stream& stream, const Work& work)
    {
        const auto twice = [&] {
            work();
            work();
        };
        measure(rank, stream, twice, work, [] {});
    }

    /// Of all ranks; once they are done.
    long allocations() const { return after_ - before_; }
    std::uint64_t waits() const { return waits_; }

private:
    std::latch warm_, counted_, worked_;
    std::atomic<long> before_{0}, after_{0};
    std::atomic<std::uint64_t> waits_{0};
};

} // namespace collprobe::testing
