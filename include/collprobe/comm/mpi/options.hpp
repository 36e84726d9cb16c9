// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include <collprobe/core/config.hpp>

namespace collprobe::inline COLLPROBE_ABI::mpi {

/// The time-out and the name of an MPI communicator.
struct options {
    /// How long `synchronize` waits for a stream. A negative number means for ever.
    std::int64_t timeout_ms = 30'000;
    /// The communicator's name in messages.
    std::string name = "mpi";
};

} // namespace collprobe::mpi
