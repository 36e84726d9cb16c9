// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <fstream>
#include <string>

#include "file_error.hpp"

namespace trainer {

/// A text file that does not fail in silence: every error is an exception that names the file and the
/// reason. Each write reaches the file at once: a full disk is noticed at the first line, and a reader
/// sees all that was written so far.
class output_file {
public:
    explicit output_file(const std::string& path) : path_(path)
    {
        errno = 0;
        file_.open(path);
        check();
    }
    void write(const std::string& text)
    {
        errno = 0;
        file_ << text << std::flush;
        check();
    }
    void close()
    {
        errno = 0;
        file_.close();
        check();
    }

private:
    void check() const
    {
        if (!file_) throw file_error("write", path_);
    }

    std::string path_;
    std::ofstream file_;
};

} // namespace trainer
