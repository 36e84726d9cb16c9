// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/// Files of lines, as they are found and while they grow.
namespace tools {

/// A file or an option that cannot be followed; the message says why.
struct bad_input : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// The file itself, or the files *.jsonl of a folder, by name.
inline std::vector<std::string> files_of(const std::string& path)
{
    namespace fs = std::filesystem;
    std::error_code problem;
    if (!fs::is_directory(path, problem)) return {path};
    std::vector<std::string> files;
    for (const fs::directory_entry& each : fs::directory_iterator(path, problem)) {
        if (each.path().extension() == ".jsonl" && each.is_regular_file(problem)) files.push_back(each.path().string());
    }
    if (problem) throw bad_input("cannot read '" + path + "': " + problem.message());
    if (files.empty()) throw bad_input("'" + path + "' has no file *.jsonl");
    std::sort(files.begin(), files.end());
    return files;
}

/// The signal that ends the program; 0: none came.
inline volatile std::sig_atomic_t was_interrupted = 0;

inline double seconds(clockid_t clock)
{
    timespec now{};
    ::clock_gettime(clock, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

inline void end_by_signals()
{
    struct sigaction action{};
    action.sa_handler = [](int which) { was_interrupted = which; };
    ::sigaction(SIGINT, &action, nullptr);
    ::sigaction(SIGTERM, &action, nullptr);
}

inline void pause(double time)
{
    timespec length{};
    length.tv_sec = static_cast<std::time_t>(time);
    length.tv_nsec = static_cast<long>(1e9 * (time - static_cast<double>(length.tv_sec)));
    ::nanosleep(&length, nullptr); // a signal ends it
}

/// A file that grows. It need not exist yet, may be emptied, and may be replaced by another.
class growing_file {
public:
    explicit growing_file(std::string path) : path_(std::move(path)) {}
    growing_file(const growing_file&) = delete;
    growing_file(growing_file&& other) noexcept
        : path_(std::move(other.path_)), file_(std::exchange(other.file_, -1)), offset_(other.offset_),
          partial_(std::move(other.partial_)), number_(other.number_)
    {
    }
    ~growing_file()
    {
        if (file_ >= 0) ::close(file_);
    }

    /// Calls `use(line, number)` for each new line that is complete, but returns after half a second, or when it has
    /// read so many bytes. Calls `began()` before the first line of a file that was emptied or replaced. Returns
    /// whether there may be more to read now.
    /// \throws std::runtime_error if the file is there, but cannot be read
    template <class Began, class Use>
    bool read(Began began, Use use, std::uint64_t most_bytes = std::numeric_limits<std::uint64_t>::max())
    {
        struct stat named{};
        struct stat opened{};
        const bool is_there = ::stat(path_.c_str(), &named) == 0;
        if (!is_there && errno != ENOENT) fail();
        if (is_there && S_ISDIR(named.st_mode)) throw std::runtime_error("cannot read '" + path_ + "': Is a directory");
        if (file_ >= 0 && ::fstat(file_, &opened) == 0) {
            const bool is_replaced = is_there && (named.st_ino != opened.st_ino || named.st_dev != opened.st_dev);
            const bool is_emptied = S_ISREG(opened.st_mode) && opened.st_size < offset_;
            if (is_replaced || is_emptied) {
                ::close(std::exchange(file_, -1));
                began();
            }
        }
        if (file_ < 0) {
            if (!is_there) return false;
            file_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); // a pipe without a writer would wait
            if (file_ < 0) fail();
            offset_ = 0;
            number_ = 0;
            partial_.clear();
        }
        char buffer[1 << 16];
        const double end_of_turn = seconds(CLOCK_MONOTONIC) + 0.5;
        std::uint64_t bytes = 0;
        while (was_interrupted == 0 && bytes < most_bytes && seconds(CLOCK_MONOTONIC) < end_of_turn) {
            const ssize_t length = ::read(file_, buffer, sizeof buffer);
            if (length == 0 || (length < 0 && (errno == EINTR || errno == EAGAIN))) return false;
            if (length < 0) fail();
            offset_ += length;
            bytes += static_cast<std::uint64_t>(length);
            for (std::string_view rest(buffer, static_cast<std::size_t>(length)); !rest.empty();) {
                const std::size_t end = rest.find('\n');
                partial_ += rest.substr(0, end);
                if (end == rest.npos) break;
                rest.remove_prefix(end + 1);
                ++number_;
                use(partial_, number_);
                partial_.clear();
            }
        }
        return true;
    }
    /// Whether the last line has no end yet.
    bool has_partial_line() const noexcept { return !partial_.empty(); }
    const std::string& path() const noexcept { return path_; }

private:
    [[noreturn]] void fail() const { throw std::runtime_error("cannot read '" + path_ + "': " + std::strerror(errno)); }

    std::string path_;
    int file_ = -1;
    off_t offset_ = 0;
    std::string partial_; ///< the beginning of a line that is not complete yet
    std::uint64_t number_ = 0; ///< of lines read
};

} // namespace tools
