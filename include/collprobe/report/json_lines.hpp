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

/// The keys that JSON lines have.
enum class json_dialect {
    collprobe, ///< those of json.hpp
    /// Those of NCCL Inspector v4.0: each line has `header` (communicator, rank) and `metadata` (host, process, time),
    /// and a call has a line of its own, with `coll_perf` (`coll_sn`, size, time, bandwidths) if its time is known.
    /// Our numbers are in a third object, `coll_values`, `step`, `alarm` or `inspection`.
    inspector,
};

struct json_lines_options {
    json_dialect dialect = json_dialect::collprobe;
    bool keep = false; ///< append to a file that is there; else it is emptied
};

namespace detail {

/// A step as lines in Inspector's dialect: one for each call, then the step.
std::string inspector_lines(const record_context& context, const step_record& record);
std::string inspector_line(const record_context& context, const alarm_record& raised);
std::string inspector_line(const record_context& context, const inspection& found);

} // namespace detail

/// A file with a JSON line for the beginning of the run (`kind` "run"), each record, and the end ("end"), which the
/// file of a run that was killed lacks. In Inspector's dialect there is neither beginning nor end.
/// File: whole lines are appended as the records come. An empty path: no file.
class json_lines : public sink {
public:
    explicit json_lines(std::string path, const json_lines_options& options = {})
        : path_(std::move(path)), options_(options)
    {
    }

    std::string target() const override { return path_; }
    COLLPROBE_INLINE void open(const run_record& run) override;
    COLLPROBE_INLINE void on_step(const step_record& record, const record_context& context) override;
    COLLPROBE_INLINE void on_alarm(const alarm_record& raised, const record_context& context) override;
    COLLPROBE_INLINE void on_inspection(const inspection& found, const record_context& context) override;
    COLLPROBE_INLINE void flush(const record_context& context) override;
    COLLPROBE_INLINE void close(const record_context& context) override;

private:
    bool is_inspector() const noexcept { return options_.dialect == json_dialect::inspector; }

    std::string path_;
    json_lines_options options_;
    std::vector<line_file> file_; ///< one, or none
    std::string lines_; ///< not written yet
    run_findings found_;
};

} // namespace collprobe::report

#if COLLPROBE_DEFINITIONS
#include <collprobe/report/detail/json_lines.ipp>
#endif
