// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <collprobe/core/config.hpp>
#include <collprobe/core/error.hpp>

/// The two ways in which sinks write files.
namespace collprobe::inline COLLPROBE_ABI::report {

namespace detail {

[[noreturn]] COLLPROBE_COLD_INLINE void fail_to_write(const std::string& path, int reason)
{
    throw error(status::device_failure, "cannot write '" + path + "': " + std::strerror(reason),
        {.call = "report", .where = {}}); // of the writing thread no line of the caller is known
}

/// Writes all of `text`; 0, or the reason why not.
COLLPROBE_COLD_INLINE int write_all(int file, std::string_view text)
{
    while (!text.empty()) {
        const ssize_t written = ::write(file, text.data(), text.size());
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return written == 0 ? EIO : errno;
        text.remove_prefix(static_cast<std::size_t>(written));
    }
    return 0;
}

// O_NONBLOCK: a pipe that nobody reads is an error, and not a wait.
inline constexpr int to_append = O_WRONLY | O_CREAT | O_CLOEXEC | O_APPEND | O_NONBLOCK;

inline std::atomic<unsigned> files_replaced{0}; // in this process

} // namespace detail

/// A file that whole lines are appended to. Only the last line that a reader sees may be there in part, while it is
/// being written.
class line_file {
public:
    /// Creates the file, or empties it; with `keep` it is appended to. Errors: as `append`.
    explicit line_file(std::string path, bool keep = false) : path_(std::move(path))
    {
        const int reason = hold(::open(path_.c_str(), detail::to_append | (keep ? 0 : O_TRUNC), 0666));
        if (reason != 0) detail::fail_to_write(path_, reason);
    }
    /// For a folder that others can write: a file of this user alone (mode 0600), which is appended to if it is there.
    /// A link, another user's file and a file with a second name are refused. Errors: as `append`.
    COLLPROBE_COLD_INLINE static line_file own(std::string path)
    {
        line_file made;
        made.path_ = std::move(path);
        int reason = made.hold(::open(made.path_.c_str(), detail::to_append | O_EXCL | O_NOFOLLOW, 0600));
        if (reason == EEXIST) {
            reason = made.hold(::open(made.path_.c_str(), (detail::to_append & ~O_CREAT) | O_NOFOLLOW));
            const struct stat& found = made.opened_;
            const bool is_own = S_ISREG(found.st_mode) && found.st_uid == ::geteuid() && found.st_nlink == 1;
            if (reason == 0 && !is_own) reason = EEXIST;
        }
        if (reason != 0) detail::fail_to_write(made.path_, reason);
        return made;
    }

    line_file(line_file&& other) noexcept { *this = std::move(other); }

    COLLPROBE_COLD_INLINE line_file& operator=(line_file&& other) noexcept
    {
        std::swap(path_, other.path_);
        std::swap(file_, other.file_);
        std::swap(opened_, other.opened_);
        return *this;
    }

    ~line_file() { if (file_ >= 0) ::close(file_); }

    /// Writes `lines` with one system call; what was written in part for lack of room is taken back. Nothing is written
    /// where the program has closed the descriptor, which may be another file's by now.
    /// \throws error `device_failure` with the path and the reason.
    COLLPROBE_COLD_INLINE void append(std::string_view lines)
    {
        struct stat before {};
        if (::fstat(file_, &before) != 0 || before.st_dev != opened_.st_dev || before.st_ino != opened_.st_ino) {
            file_ = -1; // it is not ours to close
            detail::fail_to_write(path_, EBADF);
        }
        const int reason = detail::write_all(file_, lines);
        if (reason == 0) return;
        struct stat after {};
        // Another writer's lines behind ours stay, and with them the part of our own.
        const bool is_known = S_ISREG(before.st_mode) && ::fstat(file_, &after) == 0;
        const off_t grown = is_known ? after.st_size - before.st_size : 0;
        if (grown > 0 && grown < static_cast<off_t>(lines.size()) && ::ftruncate(file_, before.st_size) != 0) {
            detail::fail_to_write(path_, errno);
        }
        detail::fail_to_write(path_, reason);
    }
    /// Closes the file. Errors: as `append`.
    COLLPROBE_COLD_INLINE void close()
    {
        if (file_ < 0) return;
        if (::close(std::exchange(file_, -1)) != 0 && errno != EINTR) detail::fail_to_write(path_, errno);
    }

private:
    line_file() = default;

    /// 0, or the reason why not.
    COLLPROBE_COLD_INLINE int hold(int file) noexcept
    {
        file_ = file;
        return file_ < 0 || ::fstat(file_, &opened_) != 0 ? errno : 0;
    }

    std::string path_;
    int file_ = -1;
    struct stat opened_ {}; ///< which file it is
};

/// Writes a file as a whole: under another name in the same folder, then renamed. A reader sees the old text or the
/// new one, never a part. On an error the old file stays.
/// The other name begins with a dot and ends with ".tmp" and so is none that node_exporter reads. A link is followed; a
/// path that is no regular file, such as a device, is written to as it is.
/// \throws error `device_failure` with the path and the reason.
COLLPROBE_COLD_INLINE void replace_file(const std::string& path, std::string_view text)
{
    struct stat there {};
    const bool exists = ::stat(path.c_str(), &there) == 0;
    if (exists && !S_ISREG(there.st_mode)) { // such as /dev/null: to rename a file to it would remove it
        line_file(path).append(text);
        return;
    }
    std::string target = path;
    if (char* const real = exists ? ::realpath(path.c_str(), nullptr) : nullptr) { // a link stays one
        target = real;
        std::free(real);
    }
    timespec now{}; // no two writers share a name, in this process or in another, on this host or on another
    ::clock_gettime(CLOCK_REALTIME, &now);
    const std::size_t folder = target.rfind('/') == target.npos ? 0 : target.rfind('/') + 1;
    const std::string other = target.substr(0, folder) + '.' + target.substr(folder) + '.' + std::to_string(::getpid())
        + '.' + std::to_string(detail::files_replaced.fetch_add(1, std::memory_order_relaxed)) + '.'
        + std::to_string(now.tv_nsec) + ".tmp";
    const int file = ::open(other.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_EXCL, 0666);
    if (file < 0) detail::fail_to_write(path, errno);
    int reason = detail::write_all(file, text);
    if (::close(file) != 0 && reason == 0 && errno != EINTR) reason = errno;
    if (reason == 0 && std::rename(other.c_str(), target.c_str()) != 0) reason = errno;
    if (reason == 0) return;
    ::unlink(other.c_str());
    detail::fail_to_write(path, reason);
}

} // namespace collprobe::report
