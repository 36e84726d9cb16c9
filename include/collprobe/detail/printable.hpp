// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <collprobe/core/config.hpp>

/// Foreign text (names of calls and tensors, what a file says) as it may be shown.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// The same text, and U+FFFD for bytes that are no UTF-8: one for each longest beginning of a character, as browsers
/// and Python have it.
inline std::string utf8_text(std::string_view bytes)
{
    std::string text;
    text.reserve(bytes.size());
    std::size_t at = 0;
    while (at < bytes.size()) {
        const auto first = static_cast<unsigned char>(bytes[at]);
        if (first < 0x80) {
            text += bytes[at++];
            continue;
        }
        const std::size_t size = first < 0xc2 || first > 0xf4 ? 1u : first < 0xe0 ? 2u : first < 0xf0 ? 3u : 4u;
        std::size_t end = at + 1;
        for (; end < bytes.size() && end < at + size; ++end) {
            const auto next = static_cast<unsigned char>(bytes[end]);
            const bool second = end == at + 1;
            // The second byte must not make a longer form of a shorter character, half a pair, or one above U+10FFFF.
            const unsigned least = second && first == 0xe0 ? 0xa0u : second && first == 0xf0 ? 0x90u : 0x80u;
            const unsigned most = second && first == 0xed ? 0x9fu : second && first == 0xf4 ? 0x8fu : 0xbfu;
            if (next < least || next > most) break;
        }
        if (size > 1 && end == at + size) text += bytes.substr(at, size);
        else text += "\xef\xbf\xbd";
        at = end;
    }
    return text;
}

/// The same for a terminal: a control character (also of C1, and those that turn the direction of the text) becomes
/// "?". Otherwise a name could move the cursor, or look like another line of a report.
/// `lines`: the ends of lines stay, as in a whole report.
inline std::string printable(std::string_view bytes, bool lines = false)
{
    const std::string text = utf8_text(bytes);
    std::string out;
    for (std::size_t i = 0; i < text.size();) {
        const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(at < text.size() ? text[at] : 0); };
        const unsigned char first = byte(i);
        const std::size_t length = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
        const bool is_c1 = first == 0xc2 && byte(i + 1) < 0xa0;
        const bool turns = (first == 0xd8 && byte(i + 1) == 0x9c)
            || (first == 0xe2 && byte(i + 1) == 0x80
                && (byte(i + 2) == 0x8e || byte(i + 2) == 0x8f || (byte(i + 2) >= 0xa8 && byte(i + 2) <= 0xae)))
            || (first == 0xe2 && byte(i + 1) == 0x81 && byte(i + 2) >= 0xa6 && byte(i + 2) <= 0xa9);
        const bool is_control = (first < 0x20 && !(lines && first == '\n')) || first == 0x7f;
        if (is_control || is_c1 || turns) out += '?';
        else out.append(text, i, length);
        i += length;
    }
    return out;
}

/// The beginning of a name, of at most `most` bytes and whole characters, and "..." where more follows.
inline std::string short_name(std::string_view name, std::size_t most = 200)
{
    if (name.size() <= most) return std::string(name);
    std::size_t end = most;
    while (end > 0 && (static_cast<unsigned char>(name[end]) & 0xc0) == 0x80) --end;
    return std::string(name.substr(0, end)) + "...";
}

} // namespace collprobe::inline COLLPROBE_ABI::detail
