// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

namespace trainer {

/// Says on stderr how far a long run is: on a terminal one line, rewritten once a second at most;
/// elsewhere a line per tenth of the work. Silent in the first second.
class progress {
public:
    /// `unit`: what the total is a number of.
    explicit progress(std::uint64_t total, const char* unit = "step")
        : total_(total), unit_(unit), terminal_(isatty(STDERR_FILENO) == 1)
    {
    }
    ~progress() { clear(); }
    progress(const progress&) = delete;
    progress& operator=(const progress&) = delete;

    /// One more unit of work is done; `what` names the present part.
    void advance(const char* what)
    {
        ++done_;
        const auto now = clock::now();
        if (now - shown_at_ < std::chrono::seconds(1)) return;
        const std::uint64_t tenth = 10 * done_ / total_;
        if (!terminal_ && tenth == shown_tenth_) return;
        std::fprintf(stderr, "%s%s: %s %llu of %llu (%llu %%)%s", terminal_ ? "\r\033[K" : "", what, unit_,
            static_cast<unsigned long long>(done_), static_cast<unsigned long long>(total_),
            static_cast<unsigned long long>(100 * done_ / total_), terminal_ ? "" : "\n");
        std::fflush(stderr);
        line_open_ = terminal_;
        shown_at_ = now;
        shown_tenth_ = tenth;
    }

    /// Takes the line away before something else is printed.
    void clear()
    {
        if (line_open_) std::fputs("\r\033[K", stderr);
        line_open_ = false;
    }

private:
    using clock = std::chrono::steady_clock;

    std::uint64_t total_;
    const char* unit_;
    bool terminal_;
    std::uint64_t done_ = 0;
    std::uint64_t shown_tenth_ = 0;
    bool line_open_ = false;
    clock::time_point shown_at_ = clock::now();
};

} // namespace trainer
