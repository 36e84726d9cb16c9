// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/device/host/device.hpp>

#include "examples/support/device_ranks.hpp"
#include "tests/support/host_gate.hpp"
#include "tests/support/run_ranks.hpp"

namespace collprobe::race_lab {

/// Host streams, and ranks that are threads: `Communicator` is `local`'s on the CPU, or that for devices.
template <class Communicator>
struct basic_host_lab {
    using device = host::device;
    using communicator = Communicator;
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
        if constexpr (std::is_same_v<Communicator, local::communicator>) local::run(count, body);
        else local::run_on<device>(count, {}, body);
    }
    static void warm_up(const auto&...) {}
    static void enter_device(const auto&) {}

    /// What is not the producer's stream, and is easily taken for it.
    template <class Bench>
    static host::stream_ref default_stream(const Bench& at)
    {
        return at.other;
    }
};

using host_lab = basic_host_lab<local::communicator>;

} // namespace collprobe::race_lab
