// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>

#include "../../examples/support/device_ranks.hpp"

namespace collprobe::testing {

/// Ends the process if it is not destroyed in time: a test that hangs must say so, not sit there.
class watchdog {
public:
    watchdog(const char* what, int seconds)
        : guard_([this, what, seconds] {
              std::unique_lock lock(mutex_);
              if (done_.wait_for(lock, std::chrono::seconds(seconds), [this] { return finished_; })) return;
              std::fprintf(stderr, "watchdog: %s did not finish within %d s\n", what, seconds);
              std::abort();
          })
    {
    }
    ~watchdog()
    {
        {
            const std::lock_guard lock(mutex_);
            finished_ = true;
        }
        done_.notify_all();
        guard_.join();
    }

private:
    std::mutex mutex_;
    std::condition_variable done_;
    bool finished_ = false;
    std::thread guard_;
};

/// What one rank's function ended with.
struct rank_outcome {
    std::exception_ptr thrown;

    /// The collprobe::error that it threw, if it threw one.
    std::optional<error> failure() const
    {
        if (!thrown) return std::nullopt;
        try {
            std::rethrow_exception(thrown);
        } catch (const error& known) {
            return known;
        } catch (...) {
            return std::nullopt;
        }
    }
};

/// Runs `fn(rank)` on a thread for each rank, and returns how each ended.
inline std::vector<rank_outcome> outcomes_of(int ranks, const std::function<void(int)>& fn, int deadline_s)
{
    const watchdog guard("a rank", deadline_s);
    std::vector<rank_outcome> outcomes(static_cast<std::size_t>(ranks));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
        threads.emplace_back([&, rank] {
            try {
                fn(rank);
            } catch (...) {
                outcomes[static_cast<std::size_t>(rank)].thrown = std::current_exception();
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    return outcomes;
}
/// The same; rethrows what one threw.
inline void run_threads(int ranks, const std::function<void(int)>& fn, int deadline_s = 60)
{
    for (const rank_outcome& outcome : outcomes_of(ranks, fn, deadline_s)) {
        if (outcome.thrown) std::rethrow_exception(outcome.thrown);
    }
}

/// Runs `fn(communicator&)` for every rank of a group and returns how each ended. Unlike `local::run`
/// it fails nothing when a rank throws: what the peers get is the communicator's own doing.
template <class Communicator, class Fn>
std::vector<rank_outcome> run_each(const local::detail::basic_group<Communicator>& ranks, Fn fn, int deadline_s = 60)
{
    return outcomes_of(ranks.size(), [&](int rank) {
        Communicator comm = ranks.communicator(rank);
        fn(comm);
    }, deadline_s);
}

/// Provides the conformance suite with ranks of `local`.
struct local_provider {
    using communicator = local::communicator;
    int ranks = 1;
    local::reduction_order order = local::reduction_order::linear;
    int deadline_s = 120;

    int size() const { return ranks; }
    /// Runs `fn(communicator&)` on every rank; rethrows what a rank threw.
    template <class Fn>
    void run(Fn fn) const
    {
        const watchdog guard("a rank function", deadline_s);
        local::run(ranks, {.timeout_ms = 60'000, .name = "local", .order = order}, fn);
    }
};

/// And with ranks of `local` on a device.
template <class Device>
struct device_provider {
    using communicator = local::device_communicator<Device>;
    int ranks = 1;
    int deadline_s = 120;

    int size() const { return ranks; }
    template <class Fn>
    void run(Fn fn) const
    {
        const watchdog guard("a rank function", deadline_s);
        local::run_on<Device>(ranks, {.timeout_ms = 60'000, .name = "local"}, fn);
    }
};

/// And with what `wrap(communicator&)` makes of the communicators of another provider.
template <class Provider, class Wrap>
struct wrapped_provider {
    Provider base;
    Wrap wrap;

    int size() const { return base.size(); }
    template <class Fn>
    void run(Fn fn) const
    {
        base.run([&](auto& world) {
            auto comm = wrap(world);
            fn(comm);
        });
    }
};
template <class Provider, class Wrap>
wrapped_provider(Provider, Wrap) -> wrapped_provider<Provider, Wrap>;

} // namespace collprobe::testing
