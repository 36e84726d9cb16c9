// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <collprobe/order/stream_order.hpp>

namespace collprobe::testing {

using list = std::vector<hazard_kind>;

inline list kinds(const stream_order& checker)
{
    list result;
    for (const stream_hazard& each : checker.hazards()) result.push_back(each.kind);
    return result;
}

inline std::string messages(const stream_order& checker)
{
    std::string text;
    for (const stream_hazard& each : checker.hazards()) text += each.message() + "\n";
    return text;
}

} // namespace collprobe::testing
