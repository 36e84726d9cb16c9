// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <collprobe/report/file.hpp>
#include <collprobe/report/findings.hpp>
#include <collprobe/report/json.hpp>
#include <collprobe/report/sink.hpp>

namespace collprobe::inline COLLPROBE_ABI::report {

struct json_lines_options {
    bool keep = false; ///< append to a file that is there; else it is emptied
};

/// A file with a JSON line for the beginning of the run (`kind` "run"), each record, and the end ("end"), which the
/// file of a run that was killed lacks. The program `collprobe` makes pages and traces of it (examples/programs).
/// File: whole lines are appended as the records come. An empty path: no file.
class json_lines : public sink {
public:
    explicit json_lines(std::string path, const json_lines_options& options = {})
        : path_(std::move(path)), options_(options)
    {
    }

    std::string target() const override { return path_; }

    COLLPROBE_COLD_INLINE void open(const run_record& run) override
    {
        if (path_.empty()) return;
        file_.emplace_back(path_, options_.keep);
        file_[0].append(json_line(run));
    }

    COLLPROBE_COLD_INLINE void on_step(const step_record& record, const record_context& context) override
    {
        found_.add(record);
        write(context, record);
    }
    COLLPROBE_COLD_INLINE void on_alarm(const finding& raised, const record_context& context) override
    {
        found_.add(raised);
        write(context, raised);
    }
    COLLPROBE_COLD_INLINE void on_inspection(const inspection& found, const record_context& context) override
    {
        write(context, found);
    }

    COLLPROBE_COLD_INLINE void flush(const record_context&) override
    {
        if (lines_.empty()) return;
        file_[0].append(lines_);
        lines_.clear();
    }

    COLLPROBE_COLD_INLINE void close(const record_context& context) override
    {
        if (path_.empty()) return;
        write(context, found_);
        flush(context);
        file_[0].close();
    }

private:
    template <class Record>
    void write(const record_context& context, const Record& record)
    {
        if (!path_.empty()) lines_ += json_line(context, record);
    }

    std::string path_;
    json_lines_options options_;
    std::vector<line_file> file_; ///< one, or none
    std::string lines_; ///< not written yet
    run_findings found_;
};

} // namespace collprobe::report
