// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include <collprobe/core/config.hpp>

namespace collprobe::inline COLLPROBE_ABI::mpi {

/// How long an MPI communicator waits, and what it checks.
struct options {
    /// How long a rank waits for the others to come to a verified call, and `synchronize` for a stream;
    /// a negative number means for ever.
    std::int64_t timeout_ms = 30'000;
    /// The communicator's name in messages.
    std::string name = "mpi";
    /// Before each collective the ranks meet: they wait for one another, at most for `timeout_ms`, and
    /// compare what they call. A rank that is late, that calls something else or that cannot take part
    /// gives an error on every rank that names it. MPI itself waits for ever, or moves wrong data.
    /// Cost: two messages to every other rank, of 32 bytes and of 8 for each 64 ranks, and a sleep in place of
    /// MPI's busy wait.
    bool verify_calls = false;
};

} // namespace collprobe::mpi
