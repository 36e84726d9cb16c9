// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include <collprobe/comm/bootstrap.hpp>

#include "support/run_ranks.hpp"
#include "tests/support/checks.hpp"

namespace collprobe::testing {

inline bootstrap::job job_of(int rank, int size, const std::string& path, const std::string& key = "this job")
{
    return {.rank = rank, .size = size, .local_rank = rank, .local_size = size, .path = path, .key = key};
}

/// What a rank ended with.
struct ended : rank_outcome {
    std::string message() const
    {
        const auto known = failure();
        return known ? known->what() : std::string(thrown ? "not a collprobe::error" : "");
    }
};

/// Runs `fn(rank)` for each of `ranks` on a thread of its own.
template <class Fn>
std::vector<ended> run_as_threads(const std::vector<int>& ranks, Fn fn, int deadline_s = 100)
{
    const watchdog guard("a bootstrap exchange", deadline_s);
    std::vector<ended> outcomes(ranks.size());
    {
        std::vector<std::jthread> threads;
        for (std::size_t i = 0; i < ranks.size(); ++i) {
            threads.emplace_back([&, i] {
                try {
                    fn(ranks[i]);
                } catch (...) {
                    outcomes[i].thrown = std::current_exception();
                }
            });
        }
    }
    return outcomes;
}

inline std::vector<int> ranks_below(int size)
{
    std::vector<int> ranks;
    for (int rank = 0; rank < size; ++rank) ranks.push_back(rank);
    return ranks;
}

inline void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

} // namespace collprobe::testing
