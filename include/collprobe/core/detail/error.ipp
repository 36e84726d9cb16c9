// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include <collprobe/core/error.hpp>

namespace collprobe::inline COLLPROBE_ABI {

COLLPROBE_COLD_INLINE error::error(
    status code, const std::string& message, error_origin origin, std::vector<int> culprits)
    : std::runtime_error(describe(code, message, origin)),
      code_(code),
      origin_(std::move(origin)),
      culprits_(std::move(culprits))
{
}

COLLPROBE_COLD_INLINE std::string error::describe(
    status code, const std::string& message, const error_origin& origin)
{
    std::string text = "collprobe: ";
    if (origin.call[0] != '\0') text += std::string(origin.call) + ": ";
    text += std::string(name(code)) + ": " + message;
    if (origin.rank >= 0) {
        text += " (reported by rank " + std::to_string(origin.rank);
        if (origin.size > 0) text += " of " + std::to_string(origin.size);
        if (!origin.communicator.empty()) text += " of communicator '" + origin.communicator + "'";
        text += ")";
    }
    if (origin.where.line == 0) return text;
    if (origin.where.name[0] != '\0') text += std::string(" ['") + origin.where.name + "']";
    text += std::string(" [") + origin.where.file + ":" + std::to_string(origin.where.line) + "]";
    return text;
}

COLLPROBE_COLD_INLINE void detail::refuse(const char* call, const std::string& message, const call_site& where)
{
    throw error(status::invalid_argument, message, {.call = call, .where = where});
}

} // namespace collprobe::inline COLLPROBE_ABI
