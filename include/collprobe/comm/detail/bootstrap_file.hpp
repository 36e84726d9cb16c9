// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include <collprobe/comm/detail/bootstrap_file_peer.hpp>
#include <collprobe/comm/detail/bootstrap_file_root.hpp>

namespace collprobe::inline COLLPROBE_ABI::bootstrap::detail {

inline void exchange_file(const exchange_call& call, const std::string& path, std::int64_t timeout_ms)
{
    if (!check_exchange(call)) return;
    if (path.empty()) {
        throw call.failure(status::invalid_argument, "no directory: set COLLPROBE_PATH on all ranks");
    }
    if (call.of.rank == 0) {
        file_root(call, path, timeout_ms).run();
    } else {
        file_peer(call, path, timeout_ms).run();
    }
}

} // namespace collprobe::bootstrap::detail
