// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include <collprobe/core/config.hpp>

namespace collprobe::inline COLLPROBE_ABI::nccl {

/// Whether calls on an `ncclComm_t` return when their work is enqueued (`ncclConfig_t::blocking` 1, NCCL's default)
/// or perhaps before. NCCL has no call that tells this of a borrowed `ncclComm_t`. NCCL's environment variable
/// NCCL_COMM_BLOCKING, if set, overrides this option.
enum class blocking_mode : std::uint8_t { unknown, blocking, non_blocking };

/// Whether a time-out or an asynchronous error ends the communicator by `ncclCommAbort`. Without the abort, hanging
/// work stays on the device, and every stream behind it hangs. After the abort the `ncclComm_t` is gone, and a lender
/// must neither use nor destroy it any more.
enum class abort_policy : std::uint8_t { if_owned, always, never };

/// The time-out, the checks and the abort policy of an NCCL communicator.
struct options {
    /// The time limit of each wait: for a call to be enqueued (non-blocking communicators), for a peer to come to a
    /// verified call, and in `synchronize`. A negative number means for ever.
    std::int64_t timeout_ms = 30'000;
    /// The communicator's name in messages.
    std::string name = "nccl";
    /// For `communicator::create`, `unknown` means non-blocking, or blocking if `timeout_ms` sets no deadline. A
    /// non-blocking communicator cannot use the default streams.
    blocking_mode mode = blocking_mode::unknown;
    abort_policy abort_on_failure = abort_policy::if_owned;
    /// Asks CUDA for the place of each buffer and for the end of its allocation. Refuses memory of another device,
    /// pageable memory, and a buffer that is longer than its allocation (a count of bytes in the place of one of
    /// elements). comm/nccl/README.md tells of which memory CUDA knows the length; of other memory any is accepted.
    /// Cost: two look-ups a buffer (a third and more only if it seems too long), at each call, because allocations end
    /// and begin. Switch it off if such memory is intended (unified memory systems).
    bool check_buffers = true;
    /// A diagnostic mode: before each collective the ranks compare their calls by a small all-gather, for which the
    /// host waits. NCCL itself does not notice different counts, types, operations or roots: it hangs, or moves wrong
    /// data. Calls in a capture or a group are refused as `unsupported`. A group of `ncclGroupStart` itself is
    /// noticed only when the all-gather does not run: the all-gather is part of that group then, which is harmless if
    /// all ranks do the same.
    bool verify_calls = false;
    /// Looks for a group that the program has opened by `ncclGroupStart` itself. Such a group enqueues nothing before
    /// its end. Probed and reproducible calls would read their results too early, so these calls are refused as
    /// `unsupported`. (Calls of the communicator itself work there as NCCL's do.) Needs NCCL 2.27; with an older NCCL
    /// keep probed and reproducible calls out of such groups. If no group is open, the question causes a warning of
    /// NCCL, so it is asked only at the 1st, 2nd, 4th, 8th ... of those calls. With NCCL_DEBUG=WARN or above the
    /// warning is "ncclSimInfo_t argument not initialized". It is also NCCL's last error until the next one.
    bool watch_groups = true;
};

} // namespace collprobe::nccl
