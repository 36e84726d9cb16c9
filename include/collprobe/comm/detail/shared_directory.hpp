// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <collprobe/core/error.hpp>

namespace collprobe::inline COLLPROBE_ABI::bootstrap::detail {

/// The reason why an exchange failed, before it becomes an `error` of a rank.
struct failed_exchange {
    status code;
    std::string message;
    std::vector<int> culprits;
};

/// A directory in which ranks leave files for each other. Nothing here waits. Throws `failed_exchange`.
class shared_directory {
public:
    explicit shared_directory(const std::string& path) : path_(path) {}

    std::string path_of(const std::string& name) const { return path_ + "/" + name; }

    /// The files whose names begin with `begin`. Listing also makes NFS look again.
    std::vector<std::string> names(std::string_view begin) const
    {
        std::vector<std::string> found;
        DIR* const list = opendir(path_.c_str());
        if (list == nullptr) {
            if (errno != ENOENT && errno != ESTALE) refuse("list", path_, errno);
            return found;
        }
        while (const dirent* entry = readdir(list)) {
            const std::string_view name = entry->d_name;
            if (name.substr(0, begin.size()) == begin) found.emplace_back(name);
        }
        closedir(list);
        return found;
    }

    /// Puts a complete file there under its name in one step, and replaces an existing one. `temporary` is its name
    /// until then, which no other process uses.
    void write(const std::string& name, const std::string& temporary, std::string_view content) const
    {
        for (int tries = 0;; ++tries) {
            if (mkdir(path_.c_str(), 0700) != 0 && errno != EEXIST) refuse("make the directory", path_, errno);
            const int code = try_write(path_of(temporary), path_of(name), content);
            if (code == 0) return;
            remove(temporary);
            // Rank 0 may have cleared or removed the directory in between.
            if (tries == 100 || (code != ENOENT && code != ESTALE)) refuse("write", path_of(name), code);
        }
    }

    /// Whether the file is there and has at most `most` bytes. If so, its content.
    bool read(const std::string& name, std::uint64_t most, std::string& content) const
    {
        // O_NONBLOCK: something that is not a regular file must not block this rank.
        const int file = open(path_of(name).c_str(), O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
        if (file < 0) {
            if (errno != ENOENT && errno != ESTALE) refuse("read", path_of(name), errno);
            return false;
        }
        struct stat about {};
        bool good = fstat(file, &about) == 0 && S_ISREG(about.st_mode) && about.st_size >= 0
            && static_cast<std::uint64_t>(about.st_size) <= most;
        content.resize(good ? static_cast<std::size_t>(about.st_size) : 0);
        for (std::size_t have = 0; good && have < content.size();) {
            const ssize_t come = ::read(file, content.data() + have, content.size() - have);
            if (come > 0) have += static_cast<std::size_t>(come);
            else good = come < 0 && errno == EINTR;
        }
        close(file);
        return good;
    }

    void remove(const std::string& name) const noexcept { unlink(path_of(name).c_str()); }
    /// Does nothing while the directory has files.
    void remove_itself() const noexcept { rmdir(path_.c_str()); }

private:
    static int try_write(const std::string& temporary, const std::string& path, std::string_view content)
    {
        const int file
            = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR);
        if (file < 0) return errno;
        int code = 0;
        while (code == 0 && !content.empty()) {
            const ssize_t gone = ::write(file, content.data(), content.size());
            if (gone >= 0) content.remove_prefix(static_cast<std::size_t>(gone));
            else if (errno != EINTR) code = errno;
        }
        if (close(file) != 0 && code == 0) code = errno; // NFS reports a full disk here
        return code == 0 && std::rename(temporary.c_str(), path.c_str()) != 0 ? errno : code;
    }

    [[noreturn]] static void refuse(const char* what, const std::string& path, int code)
    {
        throw failed_exchange{status::device_failure,
            std::string("cannot ") + what + " " + path + ": " + std::generic_category().message(code), {}};
    }

    const std::string& path_;
};

} // namespace collprobe::bootstrap::detail
