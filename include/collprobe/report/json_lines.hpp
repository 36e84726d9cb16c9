// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <collprobe/core/element.hpp>
#include <collprobe/report/alarm.hpp>
#include <collprobe/report/file.hpp>
#include <collprobe/report/findings.hpp>
#include <collprobe/report/inspection.hpp>
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

    COLLPROBE_COLD_INLINE void open(const run_record& run) override
    {
        if (path_.empty()) return;
        file_.emplace_back(path_, options_.keep);
        if (!is_inspector()) file_[0].append(json_line(run));
    }

    inline void on_step(const step_record& record, const record_context& context) override;
    inline void on_alarm(const finding& raised, const record_context& context) override;
    inline void on_inspection(const inspection& found, const record_context& context) override;

    COLLPROBE_COLD_INLINE void flush(const record_context&) override
    {
        if (lines_.empty()) return;
        file_[0].append(lines_);
        lines_.clear();
    }

    COLLPROBE_COLD_INLINE void close(const record_context& context) override
    {
        if (path_.empty()) return;
        if (!is_inspector()) lines_ += json_line(context, found_);
        flush(context);
        file_[0].close();
    }

private:
    bool is_inspector() const noexcept { return options_.dialect == json_dialect::inspector; }

    std::string path_;
    json_lines_options options_;
    std::vector<line_file> file_; ///< one, or none
    std::string lines_; ///< not written yet
    run_findings found_;
};

namespace detail {

/// As NCCL names its functions.
COLLPROBE_COLD_INLINE const char* nccl_name(collective call) noexcept
{
    switch (call) {
    case collective::all_reduce: return "AllReduce";
    case collective::reduce_scatter: return "ReduceScatter";
    case collective::all_gather: return "AllGather";
    case collective::all_to_all: return "AlltoAll";
    case collective::broadcast: return "Broadcast";
    case collective::barrier:
    case collective::split: break;
    }
    return "Unknown";
}

/// The beginning of a line in Inspector's dialect, up to its own object.
COLLPROBE_COLD_INLINE void write_inspector_head(json_writer& json, const record_context& context)
{
    const run_record& run = context.run;
    json.open('{').key("header").open('{').key("id");
    if (run.communicator_id.empty()) json.bits(hash_of_text(run.job + '/' + run.communicator));
    else json.text(run.communicator_id);
    json.key("comm_name").text(run.communicator.empty() ? "unknown" : run.communicator);
    json.key("rank").index(run.rank).key("n_ranks").index(run.ranks);
    json.key("nnodes").index(run.nodes < 1 ? 1 : run.nodes).close('}');
    json.key("metadata").open('{').key("inspector_output_format_version").text("v4.0");
    json.key("git_rev").text(run.library).key("rec_mechanism").text("collprobe");
    json.key("dump_timestamp_us").integer(context.unix_ns / 1000).key("hostname").text(run.host);
    json.key("pid").integer(static_cast<std::uint64_t>(run.process)).close('}');
    json.key("schema").integer(json_schema).key("run").text(run.name);
    json.key("records_dropped").integer(context.dropped);
}

/// A line of ours as the member `name` of a line in Inspector's dialect.
COLLPROBE_COLD_INLINE std::string inspector_line_of(
    const record_context& context, const char* name, std::string_view line)
{
    std::string text;
    json_writer json(text);
    write_inspector_head(json, context);
    json.key(name);
    text.append(line.substr(0, line.size() - 1)); // without its newline
    return text + "}\n";
}

/// What Inspector says of a call: bytes as NCCL counts them (what a rank sends to an all-gather, and what it gets of a
/// reduce-scatter), the time on the writer's rank, bandwidths as nccl-tests defines them.
COLLPROBE_COLD_INLINE void write_performance(
    json_writer& json, const run_record& run, const step_record& record, std::size_t c)
{
    const call_record& call = record.calls[c];
    const bool is_shared = call.call == collective::all_gather || call.call == collective::reduce_scatter
        || call.call == collective::all_to_all;
    const auto ranks = static_cast<std::uint64_t>(record.ranks < 1 ? 1 : record.ranks);
    const bool counts_sent = call.call == collective::all_gather || call.call == collective::all_to_all;
    const std::uint64_t bytes
        = (counts_sent ? call.count : call.result_count) * static_cast<std::uint64_t>(bytes_of(call.type));
    const auto writer = static_cast<std::size_t>(run.rank);
    if (run.rank < 0 || writer >= call.intervals.size()) return;
    const double ns = call.intervals[writer].nanoseconds();
    const std::uint64_t all = is_shared && call.call != collective::all_to_all ? bytes * ranks : bytes;
    const double traffic = static_cast<double>(all);
    const double share = static_cast<double>(ranks - 1) / static_cast<double>(ranks);
    const double factor = call.call == collective::all_reduce ? 2 * share : is_shared ? share : 1;
    json.key("coll_perf").open('{').key("coll").text(nccl_name(call.call));
    json.key("coll_sn").integer(record.first_call + c).key("coll_msg_size_bytes").integer(bytes);
    json.key("coll_exec_time_us").integer(ns > 0 ? static_cast<std::uint64_t>(ns / 1000 + 0.5) : 0);
    json.key("coll_timing_source").text(run.device.empty() ? "collective_cpu" : "kernel_gpu");
    json.key("coll_algobw_gbs").number(ns > 0 ? traffic / ns : 0);
    json.key("coll_busbw_gbs").number(ns > 0 ? traffic / ns * factor : 0).close('}');
}

/// A step as lines in Inspector's dialect: one for each call, then the step.
COLLPROBE_COLD_INLINE std::string inspector_lines(const record_context& context, const step_record& record)
{
    std::string lines;
    for (std::size_t c = 0; c < record.calls.size(); ++c) {
        std::string line;
        json_writer json(line);
        write_inspector_head(json, context);
        write_performance(json, context.run, record, c);
        json.key("coll_values").open('{').key("step").integer(record.step);
        write_call(json, record, c);
        json.close('}').close('}');
        lines += line + '\n';
    }
    return lines + inspector_line_of(context, "step", step_line(context, record, false));
}

COLLPROBE_COLD_INLINE std::string inspector_line(const record_context& context, const finding& raised)
{
    return inspector_line_of(context, "alarm", json_line(context, raised));
}

COLLPROBE_COLD_INLINE std::string inspector_line(const record_context& context, const inspection& found)
{
    return inspector_line_of(context, "inspection", json_line(context, found));
}

} // namespace detail

COLLPROBE_COLD_INLINE void json_lines::on_step(const step_record& record, const record_context& context)
{
    if (path_.empty()) return;
    found_.add(record);
    lines_ += is_inspector() ? detail::inspector_lines(context, record) : json_line(context, record);
}

COLLPROBE_COLD_INLINE void json_lines::on_alarm(const finding& raised, const record_context& context)
{
    if (path_.empty()) return;
    found_.add(raised);
    lines_ += is_inspector() ? detail::inspector_line(context, raised) : json_line(context, raised);
}

COLLPROBE_COLD_INLINE void json_lines::on_inspection(const inspection& found, const record_context& context)
{
    if (path_.empty()) return;
    lines_ += is_inspector() ? detail::inspector_line(context, found) : json_line(context, found);
}

} // namespace collprobe::report
