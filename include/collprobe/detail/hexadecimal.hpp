// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include <collprobe/core/config.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// "0x1f" for 31.
inline std::string hexadecimal(std::uint64_t number)
{
    std::string digits;
    do {
        digits.insert(digits.begin(), "0123456789abcdef"[number % 16]);
        number /= 16;
    } while (number != 0);
    return "0x" + digits;
}

} // namespace collprobe::detail
