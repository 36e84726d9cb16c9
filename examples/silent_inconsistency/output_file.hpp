// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fstream>
#include <stdexcept>
#include <string>

namespace trainer {

/// A text file that does not fail in silence: every error is an exception that names the file.
class output_file {
public:
    explicit output_file(const std::string& path) : path_(path), file_(path) { check(); }
    void write(const std::string& text)
    {
        file_ << text;
        check();
    }
    void close()
    {
        file_.close();
        check();
    }

private:
    void check() const
    {
        if (!file_) throw std::runtime_error("cannot write '" + path_ + "'");
    }

    std::string path_;
    std::ofstream file_;
};

} // namespace trainer
