// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include <collprobe/core/config.hpp>

namespace collprobe::inline COLLPROBE_ABI::nccl {

/// Whether calls on an `ncclComm_t` return when their work is enqueued (`ncclConfig_t::blocking` 1, NCCL's default)
/// or perhaps before. NCCL has no call that tells this. NCCL's environment variable NCCL_COMM_BLOCKING, if set,
/// overrides this option.
enum class blocking_mode : std::uint8_t { unknown, blocking, non_blocking };

/// The time-out and the name of an NCCL communicator, and its kind.
struct options {
    /// The time limit of each wait: for a call to be enqueued (non-blocking communicators), and in `synchronize`. A
    /// negative number means for ever.
    std::int64_t timeout_ms = 30'000;
    /// The communicator's name in messages.
    std::string name = "nccl";
    /// The kind of the `ncclComm_t`. A non-blocking one cannot use the default streams.
    blocking_mode mode = blocking_mode::unknown;
};

} // namespace collprobe::nccl
