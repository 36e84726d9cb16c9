// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include "say.hpp"

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <unistd.h>

namespace collprobe_mpi {

void say(const char* format, ...) noexcept
{
    const int saved = errno;
    std::va_list arguments;
    va_start(arguments, format);
    char text[2048] = "collprobe: ";
    constexpr int begin = 11;
    int length = std::vsnprintf(text + begin, sizeof text - begin - 1, format, arguments);
    va_end(arguments);
    length = begin + (length < 0 ? 0 : length > int{sizeof text} - begin - 2 ? int{sizeof text} - begin - 2 : length);
    text[length] = '\n';
    // One call, so that lines of several ranks do not mix. What cannot be told cannot be told.
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, static_cast<std::size_t>(length) + 1);
    errno = saved;
}

bool is_first_process() noexcept
{
    for (const char* const name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}) {
        if (const char* const rank = std::getenv(name)) return std::string(rank) == "0";
    }
    return true;
}

} // namespace collprobe_mpi
