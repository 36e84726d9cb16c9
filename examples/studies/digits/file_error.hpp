// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <stdexcept>
#include <string>
#include <system_error>

#include <collprobe/detail/printable.hpp>

namespace trainer {

/// "cannot read 'x.csv': Permission denied". Streams do not say why they failed, but leave the system's
/// reason in errno: set that to 0 before, and call this at once.
inline std::runtime_error file_error(const std::string& what, const std::string& path)
{
    const int reason = errno;
    return std::runtime_error("cannot " + what + " '" + collprobe::detail::printable(path) + "'"
        + (reason == 0 ? "" : ": " + std::generic_category().message(reason)));
}

} // namespace trainer
