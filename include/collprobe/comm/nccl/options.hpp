// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include <collprobe/core/config.hpp>

namespace collprobe::inline COLLPROBE_ABI::nccl {

/// Whether calls on an `ncclComm_t` return when their work is enqueued (`ncclConfig_t::blocking` 1,
/// NCCL's default) or perhaps before. NCCL has no call that tells it of a borrowed one.
/// NCCL's environment variable NCCL_COMM_BLOCKING, where it is set, goes before what is said here.
enum class blocking_mode : std::uint8_t { unknown, blocking, non_blocking };

/// Whether a time-out or an asynchronous error ends the communicator by `ncclCommAbort`. Without it
/// what hangs on the device stays, and so does every stream behind it. With it the `ncclComm_t` is
/// gone, and whoever lent it must neither use nor destroy it any more.
enum class abort_policy : std::uint8_t { if_owned, always, never };

/// How long an NCCL communicator waits, what it checks, and when it aborts.
struct options {
    /// How long a call may take to be enqueued (non-blocking communicators), a peer to come to a
    /// verified call, and `synchronize` to wait; a negative number means for ever.
    std::int64_t timeout_ms = 30'000;
    /// The communicator's name in messages.
    std::string name = "nccl";
    /// For `communicator::create`, `unknown` means non-blocking, or blocking where `timeout_ms` sets no
    /// deadline. A non-blocking communicator cannot use the default streams.
    blocking_mode mode = blocking_mode::unknown;
    abort_policy abort_on_failure = abort_policy::if_owned;
    /// Ask CUDA where each buffer is, to refuse another device's or pageable memory: one look-up a
    /// buffer, together well below a microsecond. Off where such memory is meant (unified memory systems).
    bool check_buffers = true;
    /// A diagnostic mode: before each collective the ranks compare what they call, by a small
    /// all-gather that the host waits for. NCCL itself does not notice different counts, types,
    /// operations or roots: it hangs, or moves wrong data. Calls in a capture or a group are refused as
    /// `unsupported`. A group that was opened by `ncclGroupStart` itself is noticed only when the all-gather
    /// does not run: it is part of that group then, and harmless if all ranks do the same.
    bool verify_calls = false;
    /// Look for a group that the program has opened by `ncclGroupStart` itself, in which nothing is enqueued
    /// before its end: results of probed and reproducible calls would be read before they are there, so these are
    /// refused as `unsupported`. (Calls of the communicator itself are as good there as NCCL's.) From NCCL 2.27 on;
    /// before, keep them out of such groups. NCCL cannot be asked without a warning where no group is open, so it
    /// is asked at the 1st, 2nd, 4th, 8th ... of those calls. With NCCL_DEBUG=WARN or above it says then
    /// "ncclSimInfo_t argument not initialized"; that is also what its last error is in between.
    bool watch_groups = true;
};

} // namespace collprobe::nccl
