// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <mutex>
#include <vector>

#include <collprobe/comm/nccl/communicator.hpp>

#include "tests/support/nccl_owner.hpp"
#include "tests/support/run_ranks.hpp"

/// Ranks as threads with an owned NCCL communicator each, over NCCL or its stand-in.
namespace collprobe::testing {

/// Runs `fn(nccl_owner&)` for each of `ranks` ranks, on one of `devices` devices each, and returns
/// how each ended. A rank that throws tells its peers nothing, as in real life.
template <class Fn>
std::vector<rank_outcome> run_each_nccl(
    int ranks, int devices, const nccl::options& settings, Fn fn, int deadline_s = 60)
{
    const ncclUniqueId id = new_nccl_id();
    return outcomes_of(ranks, [&](int rank) {
        const collprobe::cuda::device_guard current(rank % devices);
        auto comm = nccl_owner::create(id, rank, ranks, rank % devices, settings);
        fn(comm);
    }, deadline_s);
}

/// Provides the conformance suite with such ranks.
struct nccl_provider {
    using communicator = nccl_owner;
    int ranks = 1;
    nccl::options settings = {};
    int devices = 8;
    int deadline_s = 120;

    int size() const { return ranks; }
    /// Runs `fn(communicator&)` on every rank; rethrows what a rank threw, after the others have failed, too.
    template <class Fn>
    void run(Fn fn) const
    {
        std::mutex together;
        std::vector<nccl::communicator_ref> all;
        std::exception_ptr first;
        const auto outcomes = run_each_nccl(ranks, devices, settings, [&](nccl_owner& comm) {
            {
                const std::lock_guard lock(together);
                all.push_back(comm);
            }
            try {
                fn(comm);
            } catch (...) {
                const std::lock_guard lock(together);
                if (!first) first = std::current_exception();
                for (const auto& each : all) each.fail("a rank threw");
                throw;
            }
        }, deadline_s);
        if (first) std::rethrow_exception(first);
        for (const rank_outcome& outcome : outcomes) {
            if (outcome.thrown) std::rethrow_exception(outcome.thrown);
        }
    }
};

} // namespace collprobe::testing
