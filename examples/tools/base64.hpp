// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

/// Base64 of RFC 4648, with padding.
namespace tools {

/// The bytes that a text stands for, if it is one.
constexpr std::size_t bytes_of_base64(std::string_view text) noexcept
{
    if (text.size() % 4 != 0) return 0;
    const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
    return text.size() / 4 * 3 - padding;
}

/// Writes `bytes_of_base64(text)` bytes to `out`. Returns false, having written any bytes, if the text is not base64.
inline bool decode_base64(std::string_view text, unsigned char* out) noexcept
{
    constexpr unsigned char none = 0xff;
    static constexpr std::array<unsigned char, 256> value = [] {
        std::array<unsigned char, 256> table{};
        for (unsigned char& each : table) each = none;
        unsigned char next = 0;
        for (const char c : std::string_view("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")) {
            table[static_cast<unsigned char>(c)] = next++;
        }
        return table;
    }();
    if (text.size() % 4 != 0) return false;
    const auto at = [&](std::size_t i) -> std::uint32_t { return value[static_cast<unsigned char>(text[i])]; };
    std::size_t left = bytes_of_base64(text);
    std::uint32_t bad = 0;
    std::size_t i = 0;
    for (; left >= 3; i += 4, left -= 3) {
        const std::uint32_t a = at(i), b = at(i + 1), c = at(i + 2), d = at(i + 3);
        bad |= a | b | c | d;
        const std::uint32_t bits = a << 18 | b << 12 | c << 6 | d;
        *out++ = static_cast<unsigned char>(bits >> 16);
        *out++ = static_cast<unsigned char>(bits >> 8);
        *out++ = static_cast<unsigned char>(bits);
    }
    if (left != 0) {
        const std::uint32_t a = at(i), b = at(i + 1), c = left == 2 ? at(i + 2) : 0;
        bad |= a | b | c;
        *out++ = static_cast<unsigned char>(a << 2 | b >> 4);
        if (left == 2) *out++ = static_cast<unsigned char>(b << 4 | c >> 2);
    }
    return (bad & 0x80) == 0;
}

} // namespace tools
