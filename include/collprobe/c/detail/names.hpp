// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <set>
#include <string>
#include <string_view>

#include <collprobe/core/config.hpp>

namespace collprobe::inline COLLPROBE_ABI::c {

/// The names of calls and values: copies that last as long as the probe, because records refer to them.
class names {
public:
    static constexpr std::size_t most = 16384;
    static constexpr std::size_t longest = 255; ///< bytes; the rest is cut off

    /// The copy of a name. Null if there is no name, or no room for another one.
    const char* copy_of(const char* name)
    {
        if (name == nullptr) return nullptr;
        std::string_view text(name);
        if (text.empty()) return nullptr;
        if (text.size() > longest) {
            std::size_t end = longest;
            while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end; // not within a letter
            text = text.substr(0, end);
        }
        const auto known = told_.find(text);
        if (known != told_.end()) return known->c_str();
        return told_.size() == most ? nullptr : told_.emplace(text).first->c_str();
    }

    /// "all_reduce#3"
    const char* of_place(const char* kind, std::uint64_t place)
    {
        char text[64];
        const int length = std::snprintf(text, sizeof text, "%s#%llu", kind, static_cast<unsigned long long>(place));
        const std::string_view name(text, static_cast<std::size_t>(length));
        const auto known = made_.find(name);
        return known != made_.end() ? known->c_str() : made_.emplace(name).first->c_str();
    }

private:
    std::set<std::string, std::less<>> told_;
    std::set<std::string, std::less<>> made_; ///< as many as the longest step has calls
};

} // namespace collprobe::c
