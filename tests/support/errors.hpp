// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>

#include <collprobe/core/error.hpp>

/// What tests check with, in programs without doctest too.
namespace collprobe::testing {

/// A wait that no test but a hanging one needs.
inline constexpr std::int64_t soon_ms = 60'000;

/// A check on a rank's thread: an exception ends the rank, and its peers. The message has the line.
inline void require(bool condition, const std::string& what, call_site where = call_site::current())
{
    if (condition) return;
    throw std::runtime_error(std::string(where.file) + ":" + std::to_string(where.line) + ": " + what);
}

inline bool contains(const std::string& text, const std::string& part)
{
    return text.find(part) != std::string::npos;
}

/// The error that `body` throws, if it throws one.
template <class Body>
std::optional<error> error_of(Body body)
{
    try {
        body();
    } catch (const error& failure) {
        return failure;
    }
    return std::nullopt;
}

inline bool mentions(const std::optional<error>& failure, const std::string& part)
{
    return failure && contains(failure->what(), part);
}

/// What `body` was refused with as an invalid argument; "accepted" if it was not.
template <class Body>
std::string refusal(Body body)
{
    const std::optional<error> failure = error_of(body);
    return failure && failure->code() == status::invalid_argument ? failure->what() : "accepted";
}

} // namespace collprobe::testing
