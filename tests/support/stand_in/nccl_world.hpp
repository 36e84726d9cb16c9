// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <nccl.h>

#include "tests/support/stand_in/nccl_elements.hpp"

/// What the NCCL stand-in (`nccl.cpp`) asks of those that carry data between ranks: threads of one process
/// (`nccl_threads.cpp`), or processes (`tests/preload/stand_in/nccl_processes.cpp`). A program links one of them.
namespace collprobe::stand_in::nccl {

enum class kind { all_reduce, reduce, reduce_scatter, all_gather, all_to_all, broadcast, transfers };

/// One side of a send or a receive.
struct transfer {
    bool is_send;
    const void* from;
    void* to;
    std::size_t bytes;
    int peer;
};

/// The factor of a rank, for a pre-multiplied sum.
struct premultiplier {
    bool is_used = false;
    factor value;
    const void* in_memory = nullptr; ///< if not null, it is read there when the call runs

    factor read(ncclDataType_t type) const { return in_memory == nullptr ? value : factor_at(in_memory, type); }
};

/// What one rank brings to a call. `count` is elements per part where there are parts.
struct operation {
    kind what;
    const void* send;
    void* receive;
    std::size_t count;
    ncclDataType_t type;
    ncclRedOp_t reduction;
    int root;
    std::shared_ptr<const std::vector<transfer>> transfers;
    premultiplier scale{};

    /// Whether the rank gets a result.
    bool receives(int rank) const
    {
        return what != kind::transfers && (what != kind::reduce || rank == root);
    }
};

/// What ranks tell each other when they make communicators.
using note = std::array<unsigned char, 128>;

/// The ranks of a communicator, where they meet. `rank` is always one of the caller's own.
class world {
public:
    virtual ~world() = default;
    virtual int size() const = 0;

    /// The number of the call that `rank` enqueues now.
    virtual std::uint64_t issue(int rank) = 0;
    /// Makes that call, on the stream of `rank`. Calls of a rank run in the order of their numbers.
    virtual void run(int rank, std::uint64_t number, const operation& own) = 0;
    /// Ends all waits of `rank`, for ever.
    virtual void abort(int rank) = 0;
    /// Waits for all that `rank` has enqueued. False if it was aborted.
    virtual bool drain(int rank) = 0;
    /// Waits until all ranks have come. False if `rank` was aborted before.
    virtual bool join(int rank) = 0;
    /// Waits until all ranks have told something, and gives what they told. False if `rank` was aborted before.
    virtual bool exchange(int rank, const note& mine, std::vector<note>& all) = 0;
    /// Success, or why calls cannot get through any more.
    virtual ncclResult_t failure() const { return ncclSuccess; }
};

/// The world of that name, for one rank that comes to it; null if it has another size.
std::shared_ptr<world> meet(const std::string& name, int ranks);
/// A name that no other world has.
std::string new_name();

/// In what ways stand-ins differ.
struct manners {
    int launch_delay_ms = 1; ///< that a non-blocking communicator takes; negative: until it is aborted
    int polls = 1; ///< the number of the ncclCommGetAsyncError that tells its success first
    bool calls_itself = false; ///< enters its own public functions where NCCL does so
};
manners first_manners();

} // namespace collprobe::stand_in::nccl
