// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <collprobe/comm/detail/rendezvous.hpp>
#include <collprobe/core/collective.hpp>
#include <collprobe/core/error.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// Refuses bad arguments of one rank's call. Throws on this rank and fails the communicator, because the peers that
/// have called, or will call, can no longer complete their call.
class argument_check {
public:
    /// \throws error the communicator's failure, if it has one.
    argument_check(rendezvous& meet, int rank, collective call, call_site where)
        : meet_(meet), rank_(rank), call_(call), where_(where)
    {
        meet.require_usable(rank, call, where);
    }

    [[noreturn]] void fail(const std::string& message, status code = status::invalid_argument) const;
    /// Accepts any memory of the process.
    void places(const collective_call&) const noexcept {}

private:
    rendezvous& meet_;
    int rank_;
    collective call_;
    call_site where_;
};

} // namespace collprobe::detail

#if COLLPROBE_DEFINITIONS
#include <collprobe/comm/local/detail/check.ipp>
#endif
