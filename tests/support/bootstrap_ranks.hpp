// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <collprobe/comm/bootstrap.hpp>

#include "support/run_ranks.hpp"

namespace collprobe::testing {

/// A port of 127.0.0.1 where nobody listens. Below those that the system gives to connections, so that
/// none of them can take it before the test does.
inline int free_port()
{
    static std::mt19937 random{std::random_device{}()};
    for (;;) {
        const int port = std::uniform_int_distribution<int>(12'000, 31'000)(random);
        const bootstrap::detail::descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        sockaddr_in any{};
        any.sin_family = AF_INET;
        any.sin_port = htons(static_cast<std::uint16_t>(port));
        any.sin_addr.s_addr = htonl(INADDR_ANY);
        if (bind(socket.get(), reinterpret_cast<const sockaddr*>(&any), sizeof any) == 0) return port;
    }
}

inline bootstrap::job job_of(int rank, int size, int port, const std::string& token = "the token of this job")
{
    return {.rank = rank,
        .size = size,
        .local_rank = rank,
        .local_size = size,
        .master_address = "127.0.0.1",
        .port = port,
        .path = {},
        .token = token};
}

/// What a rank ended with, and when.
struct ended : rank_outcome {
    std::int64_t after_ms = 0;

    std::string message() const
    {
        const auto known = failure();
        return known ? known->what() : std::string(thrown ? "not a collprobe::error" : "");
    }
};

inline bool contains(const std::string& text, const std::string& part)
{
    return text.find(part) != std::string::npos;
}

/// Runs `fn(rank)` for each of `ranks` on a thread of its own.
template <class Fn>
std::vector<ended> run_as_threads(const std::vector<int>& ranks, Fn fn, int deadline_s = 30)
{
    const watchdog guard("a bootstrap exchange", deadline_s);
    const auto begin = std::chrono::steady_clock::now();
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
                outcomes[i].after_ms = std::chrono::duration_cast<std::chrono::milliseconds>(
                    std::chrono::steady_clock::now() - begin)
                                           .count();
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
