// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include <collprobe/core/config.hpp>

/// The two ways in which sinks write files.
namespace collprobe::inline COLLPROBE_ABI::report {

/// A file that whole lines are appended to. Only the last line that a reader sees may be there in part, while it is
/// being written.
class line_file {
public:
    /// Creates the file, or empties it; with `keep` it is appended to. Errors: as `append`.
    explicit line_file(std::string path, bool keep = false);
    /// For a folder that others can write: a file of this user alone (mode 0600), which is appended to if it is there.
    /// A link, another user's file and a file with a second name are refused. Errors: as `append`.
    static line_file own(std::string path);
    line_file(line_file&& other) noexcept;
    line_file& operator=(line_file&& other) noexcept;
    ~line_file();

    /// Writes `lines` with one system call; what was written in part for lack of room is taken back. Nothing is written
    /// where the program has closed the descriptor, which may be another file's by now.
    /// \throws error `device_failure` with the path and the reason.
    void append(std::string_view lines);
    /// Closes the file. Errors: as `append`.
    void close();

private:
    line_file() = default;
    int hold(int file) noexcept; ///< 0, or the reason why not

    std::string path_;
    int file_ = -1;
    unsigned long long device_ = 0; ///< with `inode_`, which file it is
    unsigned long long inode_ = 0;
};

/// Writes a file as a whole: under another name in the same folder, then renamed. A reader sees the old text or the
/// new one, never a part. On an error the old file stays.
/// The other name begins with a dot and ends with ".tmp" and so is none that node_exporter reads. A link is followed; a
/// path that is no regular file, such as a device, is written to as it is.
/// \throws error `device_failure` with the path and the reason.
void replace_file(const std::string& path, std::string_view text);

} // namespace collprobe::report

#if COLLPROBE_DEFINITIONS
#include <collprobe/report/detail/file.ipp>
#endif
