// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>

/// What nvcc puts the device code of a translation unit into.
namespace collprobe::stand_in::detail {

/// The PTX of the newest architecture in a fat binary (`data` of the wrapper that the host code registers).
/// \throws std::runtime_error if there is none, or if it is compressed.
inline std::string find_ptx(const unsigned char* data)
{
    // As nvcc 11 to 13 write it. A header of the file (magic, version, its own size, size of the rest), then entries:
    // kind, version, size of the header, size of the payload, and at byte 28 the architecture.
    const auto read = [](const unsigned char* at, auto value) {
        std::memcpy(&value, at, sizeof value);
        return value;
    };
    constexpr std::uint32_t magic = 0xBA55ED50;
    constexpr std::uint16_t kind_ptx = 1;
    if (read(data, std::uint32_t{}) != magic) throw std::runtime_error("this is no fat binary of nvcc");
    const unsigned char* entry = data + read(data + 6, std::uint16_t{});
    const unsigned char* const end = entry + read(data + 8, std::uint64_t{});
    std::string found;
    std::uint32_t newest = 0;
    while (entry < end) {
        const auto kind = read(entry, std::uint16_t{});
        const auto architecture = read(entry + 28, std::uint32_t{});
        const unsigned char* const payload = entry + read(entry + 4, std::uint32_t{});
        const auto bytes = static_cast<std::size_t>(read(entry + 8, std::uint64_t{}));
        if (kind == kind_ptx && architecture >= newest) {
            const std::string_view text(reinterpret_cast<const char*>(payload), bytes);
            found = text.substr(0, text.find('\0'));
            newest = architecture;
            if (found.find(".version") == std::string::npos)
                throw std::runtime_error("the PTX is compressed: nvcc needs --no-compress");
        }
        entry = payload + bytes;
    }
    if (found.empty()) throw std::runtime_error("there is no PTX: nvcc needs -gencode arch=compute_90,code=compute_90");
    return found;
}

} // namespace collprobe::stand_in::detail
