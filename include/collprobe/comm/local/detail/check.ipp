// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/comm/local/detail/check.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

COLLPROBE_COLD_INLINE void argument_check::fail(const std::string& message, status code) const
{
    const error bad(code, message, meet_.origin(rank_, call_, where_), {rank_});
    meet_.fail({status::peer_failure, list_ranks({rank_}) + " gave a bad argument: " + bad.what(), {rank_}});
    throw bad;
}

} // namespace collprobe::inline COLLPROBE_ABI::detail
