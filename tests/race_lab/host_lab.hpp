// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/device/host/device.hpp>

#include "tests/support/host_gate.hpp"
#include "tests/support/run_ranks.hpp"

namespace collprobe::race_lab {

/// Host streams, and ranks that are threads.
struct host_lab {
    using device = host::device;
    using communicator = local::communicator;
    static constexpr int ranks = 2;

    class gate {
    public:
        explicit gate(host::stream_ref on) { gate_.close(on); }
        void open() { gate_.open(); }

    private:
        testing::host_gate gate_;
    };

    template <class Body>
    static void run(int count, Body body)
    {
        const testing::watchdog guard("a failure mode", 120);
        local::run(count, body);
    }
    static void enter_device(const auto&) {}

    /// What is not the producer's stream, and is easily taken for it.
    template <class Bench>
    static host::stream_ref default_stream(const Bench& at)
    {
        return at.other;
    }
};

} // namespace collprobe::race_lab
