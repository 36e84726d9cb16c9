// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/core/record/step.hpp>

/// The plain data that probes write and reports read. No function here computes more than a square root.
namespace collprobe::inline COLLPROBE_ABI {

/// The facts about a run that hold for all of its records, as one rank knows them. Every text may have any bytes.
struct run_record {
    std::string name = "run"; ///< the caller's name for the run
    std::string job; ///< that of the scheduler; empty if there is none
    std::string communicator = "world"; ///< its name
    std::string communicator_id; ///< the same on all its ranks, and on no other communicator of the job; may be empty
    std::string host;
    std::string device; ///< the UUID of the rank's GPU; empty on a CPU
    int rank = 0; ///< that writes, in the communicator
    int global_rank = -1; ///< in the job; -1: as `rank`
    int ranks = 1; ///< of the communicator
    int nodes = 0; ///< of the communicator; 0: unknown
    std::int64_t process = 0; ///< its id on the host
    std::uint64_t started_ns = 0; ///< nanoseconds since 1970, UTC
    std::string library; ///< the version of collprobe
    std::vector<std::pair<std::string, std::string>> settings; ///< name and value, for people to read

    int rank_of_job() const noexcept { return global_rank < 0 ? rank : global_rank; }
};

/// When a record was made, and what was lost before it.
struct record_context {
    const run_record& run;
    std::uint64_t unix_ns = 0; ///< nanoseconds since 1970, UTC
    std::uint64_t dropped = 0; ///< records of this run that were dropped before this one, for lack of room
};

} // namespace collprobe
