// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/core/config.hpp>
#include <collprobe/detail/names.hpp>

/// The library's one exception, and the place in the caller's source that errors and records tell.
namespace collprobe::inline COLLPROBE_ABI {

/// The kind of an error, for code that must branch on it.
enum class status : std::uint8_t {
    invalid_argument, ///< a bad argument of this call on this rank
    mismatch, ///< ranks called with different counts, types, operations or roots
    timeout, ///< a rank did not arrive, or work did not finish, before its deadline
    peer_failure, ///< another rank threw or aborted
    device_failure, ///< work on a stream failed, or a device call did
    unsupported, ///< the communicator, device or build cannot do this
};

template <>
inline constexpr auto names_of<status> = name_list<status::unsupported>{"invalid argument", "mismatch",
    "timeout", "peer failure", "device failure", "unsupported"};

/// A line of the caller's source. Public functions take one as their last argument; the default is the line of the
/// call. (Some supported compilers have no usable `std::source_location`.) With a name, such as that of the tensor,
/// `comm.all_reduce(..., stream, call_site::named("wte"))`, records and alarms tell the call by it.
struct call_site {
    const char* file = "";
    const char* function = "";
    unsigned line = 0;
    const char* name = ""; ///< not copied: it must stay valid as long as probe and records, as a literal does

    COLLPROBE_HD static constexpr call_site current(const char* file = __builtin_FILE(),
        const char* function = __builtin_FUNCTION(), unsigned line = __builtin_LINE()) noexcept
    {
        return {file, function, line, ""};
    }
    COLLPROBE_HD static constexpr call_site named(const char* name, const char* file = __builtin_FILE(),
        const char* function = __builtin_FUNCTION(), unsigned line = __builtin_LINE()) noexcept
    {
        return {file, function, line, name};
    }
};

/// The place of an error, as far as the throwing code knows it.
struct error_origin {
    const char* call = ""; ///< the public function, "all_reduce"
    int rank = -1; ///< the rank that reports, -1 if none
    int size = 0; ///< ranks in the communicator, 0 if none
    std::string communicator = {}; ///< its name, empty if none
    call_site where = call_site::current(); ///< the caller's line
};

/// The only exception of this library: every error is one. Catch it by reference and branch on `code()`. `what()`
/// names call, rank, communicator and the caller's line.
class error : public std::runtime_error {
public:
    error(
        status code, const std::string& message, error_origin origin, std::vector<int> culprits = {})
        : std::runtime_error(describe(code, message, origin)),
          code_(code),
          origin_(std::move(origin)),
          culprits_(std::move(culprits))
    {
    }

    status code() const noexcept { return code_; }
    /// The rank that reports the error; -1 if no communicator is involved.
    int rank() const noexcept { return origin_.rank; }
    const std::string& communicator() const noexcept { return origin_.communicator; }
    const char* call() const noexcept { return origin_.call; }
    const call_site& where() const noexcept { return origin_.where; }
    /// The ranks that caused the error, ascending; empty if no rank can be named.
    const std::vector<int>& culprits() const noexcept { return culprits_; }

private:
    COLLPROBE_COLD_INLINE static std::string describe(
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

    status code_;
    error_origin origin_;
    std::vector<int> culprits_;
};

namespace detail {

/// Throws `invalid_argument`, from a function without a communicator.
[[noreturn]] COLLPROBE_COLD_INLINE void refuse(const char* call, const std::string& message, const call_site& where)
{
    throw error(status::invalid_argument, message, {.call = call, .where = where});
}

inline void require(bool condition, const char* call, const char* message, const call_site& where)
{
    if (!condition) refuse(call, message, where);
}

} // namespace detail
} // namespace collprobe
