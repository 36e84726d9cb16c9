// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <collprobe/comm/nccl.hpp>

#include "tests/support/run_ranks.hpp"
#include "tests/support/stand_in/stand_in.hpp"

/// Ranks as threads, a device and a communicator of the NCCL stand-in for each.
namespace collprobe::testing {

/// Runs `fn(nccl::communicator&)` for each of `ranks` ranks and returns how each ended. A rank that
/// throws tells its peers nothing, as in real life.
template <class Fn>
std::vector<rank_outcome> run_each_nccl(int ranks, const nccl::options& settings, Fn fn, int deadline_s = 60)
{
    const watchdog guard("run_each_nccl", deadline_s);
    stand_in::set_device_count(8);
    std::vector<rank_outcome> outcomes(static_cast<std::size_t>(ranks));
    const ncclUniqueId id = nccl::unique_id();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
        threads.emplace_back([&, rank] {
            try {
                const cuda::device_guard current(rank % 8);
                auto comm = nccl::communicator::create(id, rank, ranks, rank % 8, settings);
                fn(comm);
            } catch (...) {
                outcomes[static_cast<std::size_t>(rank)].thrown = std::current_exception();
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    return outcomes;
}

/// Provides the conformance suite with ranks of the NCCL stand-in.
struct nccl_provider {
    using communicator = nccl::communicator;
    int ranks = 1;
    nccl::options settings = {};
    int deadline_s = 120;

    int size() const { return ranks; }
    /// Runs `fn(communicator&)` on every rank; rethrows what a rank threw, after aborting the others.
    template <class Fn>
    void run(Fn fn) const
    {
        std::mutex together;
        std::vector<nccl::communicator_ref> all;
        std::exception_ptr first;
        const auto outcomes = run_each_nccl(ranks, settings, [&](nccl::communicator& comm) {
            {
                const std::lock_guard lock(together);
                all.push_back(comm);
            }
            try {
                fn(comm);
            } catch (...) {
                const std::lock_guard lock(together);
                if (!first) first = std::current_exception();
                for (const auto& each : all) each.abort("a rank threw");
                throw;
            }
        }, deadline_s);
        if (first) std::rethrow_exception(first);
        for (const rank_outcome& outcome : outcomes) {
            if (outcome.thrown) std::rethrow_exception(outcome.thrown);
        }
    }
};

/// `count` elements of a rank's device memory, and how to look into it: it is host memory here.
template <class T>
class device_values {
public:
    device_values(std::size_t count, T value) : memory_(count)
    {
        for (std::size_t i = 0; i < count; ++i) memory_.data()[i] = value;
    }
    view<const T> in() const { return view<const T>(memory_.data(), memory_.size()); }
    view<T> out() const { return view<T>(memory_.data(), memory_.size()); }
    T* data() const { return memory_.data(); }
    T& operator[](std::size_t index) const { return memory_.data()[index]; }
    bool all(T value) const
    {
        for (std::size_t i = 0; i < memory_.size(); ++i) {
            if (memory_.data()[i] != value) return false;
        }
        return true;
    }

private:
    cuda::buffer<T> memory_;
};

} // namespace collprobe::testing
