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
#include <vector>

#include <collprobe/comm/detail/bootstrap_message.hpp>
#include <collprobe/comm/detail/bootstrap_socket.hpp>

namespace collprobe::inline COLLPROBE_ABI::bootstrap::detail {

/// A directory in which ranks leave files for each other. Nothing here waits.
class shared_directory {
public:
    /// Every file of this library begins so; others in the directory are left alone.
    static constexpr std::string_view prefix = "collprobe-";

    shared_directory(const exchange_call& call, std::string path, const hash& own_nonce)
        : call_(call),
          path_(std::move(path)),
          temporary_("collprobe-new-" + std::to_string(call.of.rank) + "-")
    {
        static constexpr char digits[] = "0123456789abcdef";
        for (std::size_t i = 0; i < 8; ++i) {
            temporary_ += digits[own_nonce[i] >> 4];
            temporary_ += digits[own_nonce[i] & 15];
        }
        make();
    }

    const std::string& path() const noexcept { return path_; }
    std::string path_of(const std::string& name) const { return path_ + "/" + name; }

    /// Puts a file there under its name at once, complete, in place of one that is there.
    void write(const std::string& name, const bytes& content) const
    {
        // Rank 0 may clear or remove the directory, at the end of an earlier exchange, in between.
        constexpr int tries = 100;
        for (int i = 0;; ++i) {
            const int code = try_write(name, content);
            if (code == 0) return;
            unlink(path_of(temporary_).c_str());
            if (i == tries || (code != ENOENT && code != ESTALE)) refuse("write", name, code);
            make();
        }
    }

    /// Whether the file is there with at most `most` bytes; its content.
    bool read(const std::string& name, std::size_t most, bytes& content) const
    {
        content.clear();
        // O_NONBLOCK: something that is no file must not stop this rank.
        const descriptor file(open(path_of(name).c_str(), O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC));
        if (!file.open()) {
            if (errno == ENOENT || errno == ESTALE) return false;
            refuse("read", name, errno);
        }
        struct stat about {};
        if (fstat(file.get(), &about) != 0 || !S_ISREG(about.st_mode)) return false;
        if (about.st_size < 0 || static_cast<std::uint64_t>(about.st_size) > most) return false;
        content.resize(static_cast<std::size_t>(about.st_size));
        std::size_t have = 0;
        while (have < content.size()) {
            const ssize_t come = ::read(file.get(), content.data() + have, content.size() - have);
            if (come < 0 && errno == EINTR) continue;
            if (come < 0 && errno != ESTALE) refuse("read", name, errno);
            if (come <= 0) return false;
            have += static_cast<std::size_t>(come);
        }
        return true;
    }

    /// The files of this library that are there. Listing also makes NFS look again.
    std::vector<std::string> names() const
    {
        std::vector<std::string> found;
        DIR* const list = opendir(path_.c_str());
        if (list == nullptr) {
            if (errno == ENOENT || errno == ESTALE) return found;
            refuse("list", "", errno);
        }
        while (const dirent* entry = readdir(list)) {
            const std::string_view name = entry->d_name;
            if (name.substr(0, prefix.size()) == prefix) found.emplace_back(name);
        }
        closedir(list);
        return found;
    }

    void remove(const std::string& name) const noexcept { unlink(path_of(name).c_str()); }
    /// Does nothing while there are files in it.
    void remove_directory() const noexcept { rmdir(path_.c_str()); }

private:
    void make() const
    {
        if (mkdir(path_.c_str(), 0700) == 0 || errno == EEXIST) return;
        refuse("make the directory", "", errno);
    }

    int try_write(const std::string& name, const bytes& content) const
    {
        const std::string temporary = path_of(temporary_);
        descriptor file(
            open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR));
        if (!file.open()) return errno;
        std::size_t gone = 0;
        while (gone < content.size()) {
            const ssize_t now = ::write(file.get(), content.data() + gone, content.size() - gone);
            if (now < 0 && errno == EINTR) continue;
            if (now < 0) return errno;
            gone += static_cast<std::size_t>(now);
        }
        // NFS tells of a full disk here.
        if (fsync(file.get()) != 0 && errno != EINVAL && errno != EROFS) return errno;
        file.close();
        return std::rename(temporary.c_str(), path_of(name).c_str()) == 0 ? 0 : errno;
    }

    [[noreturn]] void refuse(const char* what, const std::string& name, int code) const
    {
        throw call_.failure(status::device_failure,
            std::string("cannot ") + what + " " + (name.empty() ? path_ : path_of(name)) + ": "
                + describe_errno(code));
    }

    exchange_call call_;
    std::string path_;
    std::string temporary_;
};

} // namespace collprobe::bootstrap::detail
