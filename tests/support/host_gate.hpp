// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>

#include <collprobe/device/host/stream.hpp>

namespace collprobe::testing {

/// Stops a host stream until it is opened: what is enqueued behind it runs no earlier, which makes a lost race
/// certain instead of likely. A gate that nobody opens ends the process.
class host_gate {
public:
    /// Everything enqueued on `on` from now on waits for `open`.
    void close(host::stream_ref on) const
    {
        on.enqueue([state = state_] {
            std::unique_lock lock(state->mutex);
            if (state->opened.wait_for(lock, std::chrono::seconds(60), [&] { return state->open; })) return;
            std::fputs("a gate was not opened within 60 s\n", stderr);
            std::abort();
        });
    }
    void open() const
    {
        {
            const std::lock_guard lock(state_->mutex);
            state_->open = true;
        }
        state_->opened.notify_all();
    }
    host_gate() = default;
    host_gate(const host_gate&) = delete;
    ~host_gate() { open(); }

private:
    struct state {
        std::mutex mutex;
        std::condition_variable opened;
        bool open = false;
    };
    std::shared_ptr<state> state_ = std::make_shared<state>();
};

} // namespace collprobe::testing
