// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include <collprobe/comm/detail/bootstrap_tcp_peer.hpp>
#include <collprobe/comm/detail/bootstrap_tcp_root.hpp>

namespace collprobe::inline COLLPROBE_ABI::bootstrap::detail {

inline void exchange_tcp(const exchange_call& call, std::int64_t timeout_ms, std::int64_t handshake_ms)
{
    if (!check_exchange(call)) return;
    const job& of = call.of;
    if (of.master_address.empty()) {
        throw call.failure(status::invalid_argument, "no address of rank 0: set MASTER_ADDR on all ranks");
    }
    if (of.port < 1 || of.port > 65535) {
        throw call.failure(status::invalid_argument,
            "port " + std::to_string(of.port)
                + ": expected 1 to 65535; set COLLPROBE_PORT or MASTER_PORT on all ranks");
    }
    if (of.rank == 0) {
        tcp_root(call, timeout_ms, handshake_ms).run();
    } else {
        tcp_peer(call, timeout_ms, handshake_ms).run();
    }
}

} // namespace collprobe::bootstrap::detail
