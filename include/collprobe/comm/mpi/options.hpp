// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include <collprobe/core/config.hpp>

namespace collprobe::inline COLLPROBE_ABI::mpi {

/// The time-out and the checks of an MPI communicator.
struct options {
    /// How long a rank waits for the others to come to a verified call, and how long `synchronize` waits for a
    /// stream. A negative number means for ever.
    std::int64_t timeout_ms = 30'000;
    /// The communicator's name in messages.
    std::string name = "mpi";
    /// Before each collective the ranks meet: they wait for one another, at most for `timeout_ms`, and compare their
    /// calls. If a rank is late, makes another call or cannot take part, every rank gets an error that names it. MPI
    /// itself waits for ever, or moves wrong data. Equal on all ranks.
    /// Cost: two messages to every other rank, one of 32 bytes and one of 8 bytes for each 64 ranks: 1 to 3 us for each
    /// other rank of the machine (README.md). The rank sleeps where MPI would wait busily.
    bool verify_calls = true;
};

} // namespace collprobe::mpi
