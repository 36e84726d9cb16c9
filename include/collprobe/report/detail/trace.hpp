// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/core/element.hpp>
#include <collprobe/detail/hexadecimal.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/report/alarm.hpp>
#include <collprobe/report/inspection.hpp>
#include <collprobe/report/metric.hpp>
#include <collprobe/report/trace.hpp>
#include <collprobe/report/words.hpp>

namespace collprobe::inline COLLPROBE_ABI::report {

namespace detail {

inline constexpr std::int64_t trace_second = 1'000'000'000;

inline constexpr std::int64_t trace_tick = 256; ///< the clock's resolution in nanoseconds

inline constexpr std::int64_t alarm_length = 100'000; ///< of its slice: enough to be seen and hit

inline constexpr std::size_t most_listed_calls = 32;

/// As PyTorch's profiler names the calls on its time line.
COLLPROBE_COLD_INLINE const char* trace_name(collective call) noexcept
{
    switch (call) {
    case collective::all_reduce: return "nccl:all_reduce";
    case collective::reduce_scatter: return "nccl:_reduce_scatter_base";
    case collective::all_gather: return "nccl:_all_gather_base";
    case collective::all_to_all: return "nccl:all_to_all";
    case collective::broadcast: return "nccl:broadcast";
    case collective::barrier:
    case collective::split: break;
    }
    return "nccl:other";
}

/// As PyTorch's `record_param_comms` names them.
COLLPROBE_COLD_INLINE const char* comms_name(collective call) noexcept
{
    switch (call) {
    case collective::all_reduce: return "allreduce";
    case collective::reduce_scatter: return "_reduce_scatter_base";
    case collective::all_gather: return "_allgather_base";
    case collective::all_to_all: return "all_to_all";
    case collective::broadcast: return "broadcast";
    case collective::barrier:
    case collective::split: break;
    }
    return "other";
}

COLLPROBE_COLD_INLINE const char* comms_type(element_type type) noexcept
{
    switch (type) {
    case element_type::int8: return "Char";
    case element_type::uint8: return "Byte";
    case element_type::int32: return "Int";
    case element_type::uint32: return "UInt32";
    case element_type::int64: return "Long";
    case element_type::uint64: return "UInt64";
    case element_type::float16: return "Half";
    case element_type::bfloat16: return "BFloat16";
    case element_type::float32: return "Float";
    case element_type::float64: return "Double";
    case element_type::float8_e4m3: return "Float8_e4m3fn";
    case element_type::float8_e5m2: return "Float8_e5m2";
    }
    return "Undefined";
}

/// Viewers draw no strings, so an undefined number is left out.
COLLPROBE_COLD_INLINE void write_finite(json_writer& json, std::string_view name, double value)
{
    if (is_finite(value)) json.key(name).number(value);
}

COLLPROBE_COLD_INLINE std::int64_t trace_time(std::uint64_t unix_ns) noexcept
{
    return static_cast<std::int64_t>(collprobe::detail::lesser(unix_ns, std::uint64_t{1} << 62));
}

/// "[0, 1, 2]"; of many ranks the first 29 and the last.
COLLPROBE_COLD_INLINE std::string rank_list(int ranks)
{
    std::string text = "[";
    for (int rank = 0; rank < ranks; ++rank) {
        if (rank > 0) text += ", ";
        if (ranks > 30 && rank == 29) {
            text += "..., ";
            rank = ranks - 1;
        }
        text += std::to_string(rank);
    }
    return text + ']';
}

/// Writes an event's first members. Without a time (a negative one) it has none.
COLLPROBE_COLD_INLINE json_writer trace_text::event(
    std::string& out, std::string_view name, char phase, const point& on)
{
    out += is_first_ ? "\n" : ",\n"; // before the event, so that the file ends with one at any time
    is_first_ = false;
    json_writer json(out);
    json.open('{').key("name").text(name).key("ph").text(std::string_view(&phase, 1));
    json.key("pid").integer(on.process).key("tid").integer(on.thread);
    if (on.at >= 0) {
        json.key("ts");
        append_time(out, on.at < base_ ? 0 : on.at - base_);
    }
    return json;
}

COLLPROBE_COLD_INLINE void trace_text::begin(std::string& out, const run_record& run)
{
    // PyTorch's profiler counts from the begin of a quarter of a mean year, so that times need few digits.
    constexpr std::int64_t quarter = 7'889'238 * trace_second;
    base_ = trace_time(run.started_ns) / quarter * quarter;
    communicator_ = run.communicator;
    run_rank_ = run.rank < 0 ? 0 : run.rank;
    global_rank_ = run.rank_of_job() < 0 ? 0 : run.rank_of_job();
    // Communicators of one process have different threads in it.
    const std::uint64_t hash = hash_of_text(run.communicator_id.empty() ? run.communicator : run.communicator_id);
    first_thread_ = hash % 1'000'000 * 10;
    id_base_ = collprobe::detail::mix64(hash ^ process_of(run_rank_)) & 0xffffffff00000000u;
    steps_end_ = alarms_end_ = counted_ = base_;

    json_writer json(out);
    json.open('{').key("displayTimeUnit").text("ns");
    json.key("baseTimeNanoseconds").integer(static_cast<std::uint64_t>(base_));
    json.key("otherData").open('{').key("schema").integer(json_schema).key("kind").text("trace");
    json.key("run").text(run.name).key("job").text(run.job).key("communicator").text(run.communicator);
    json.key("communicator_id").text(run.communicator_id).key("host").text(run.host).key("device").text(run.device);
    json.key("rank").index(run.rank).key("ranks").index(run.ranks);
    json.key("process").text(std::to_string(run.process));
    json.key("started_ns").text(std::to_string(run.started_ns)).key("library").text(run.library);
    json.key("settings").open('{');
    for (const auto& [name, value] : run.settings) json.key(name).text(value);
    json.close('}').close('}').key("traceEvents").open('[');
    name_tracks(out, run, run.ranks);
}

/// Names the tracks of ranks that have no name yet.
COLLPROBE_COLD_INLINE void trace_text::name_tracks(std::string& out, const run_record& run, int ranks)
{
    const auto name = [&](const char* what, point on, std::string_view text) {
        event(out, what, 'M', on).key("args").open('{').key("name").text(text).close('}').close('}');
    };
    const bool is_first = named_ == 0;
    const int most = ranks < run_rank_ + 1 ? run_rank_ + 1 : ranks;
    for (int rank = named_; rank < most; ++rank) {
        const bool is_own = rank == run_rank_;
        if (!is_own && !options_.all_ranks) continue;
        const point on{process_of(rank), thread_of(calls_thread), -1};
        const bool is_part = global_rank_ != run_rank_;
        std::string title = "rank " + std::to_string(is_own ? global_rank_ : rank);
        if (is_own) title += " (" + run.host + (run.device.empty() ? "" : ", ") + run.device + ")";
        else if (is_part) title += " of " + communicator_;
        name("process_name", on, title);
        event(out, "process_sort_index", 'M', on)
            .key("args")
            .open('{')
            .key("sort_index")
            .integer(on.process - first_trace_process)
            .close('}')
            .close('}');
        name("thread_name", on, communicator_ + (is_part ? ", rank " + std::to_string(rank) : std::string()));
    }
    if (named_ < most) {
        named_ = most;
        all_ranks_ = rank_list(ranks);
        last_.resize(static_cast<std::size_t>(options_.all_ranks ? most : 1), {base_, base_});
    }
    if (!is_first) return;
    point own{process_of(run_rank_), thread_of(steps_thread), -1};
    name("thread_name", own, communicator_ + ", steps");
    own.thread = thread_of(alarms_thread);
    name("thread_name", own, communicator_ + ", alarms");
}

COLLPROBE_COLD_INLINE std::int64_t trace_text::correction(std::int64_t end, std::int64_t arrived) noexcept
{
    const std::int64_t lag = arrived - end;
    std::int64_t result = lag < -trace_second ? lag : 0;
    if (lag < least_lag_) least_lag_ = lag;
    if (result == 0 && ++lag_steps_ < 64) return 0;
    if (least_lag_ > trace_second) result = least_lag_;
    least_lag_ = std::numeric_limits<std::int64_t>::max();
    lag_steps_ = 0;
    return result;
}

/// Places the clocks of all ranks on the time line, by the calls of a step whose record came at `arrived`.
COLLPROBE_COLD_INLINE void trace_text::set_clocks(const step_record& record, std::int64_t arrived)
{
    const bool is_new = clocks_.size() != static_cast<std::size_t>(record.ranks);
    const call_record* common = nullptr;
    const call_record* any = nullptr;
    for (const call_record& call : record.calls) {
        if (!has_times(call, record.ranks)) continue;
        if (any == nullptr) any = &call;
        if (common == nullptr && waits_for_all(call.call)) common = &call;
    }
    if (common == nullptr && is_new) common = any;
    const bool is_anchored = !clocks_.empty();
    if (common != nullptr) {
        const std::uint32_t tick = common->intervals[0].left;
        std::int64_t now = is_anchored ? clocks_[0].time_of(tick) : arrived;
        if (is_anchored) {
            // Turns of the clock that its ticks do not show.
            constexpr std::int64_t turn = trace_tick << 32;
            const std::int64_t missing = arrived - arrived_ - (now - clocks_[0].ns);
            if (missing > turn / 2) now += (missing + turn / 2) / turn * turn;
        }
        clocks_.resize(static_cast<std::size_t>(record.ranks));
        for (std::size_t rank = 0; rank < clocks_.size(); ++rank) clocks_[rank] = {common->intervals[rank].left, now};
    }
    std::int64_t end = std::numeric_limits<std::int64_t>::min();
    for (const call_record& call : record.calls) {
        if (!has_times(call, record.ranks)) continue;
        const std::int64_t left = clocks_[0].time_of(call.intervals[0].left);
        if (left > end) end = left;
    }
    const std::int64_t shift = is_anchored ? correction(end, arrived) : arrived - end;
    for (clock& each : clocks_) each.ns += shift;
    arrived_ = arrived;
}

COLLPROBE_COLD_INLINE void trace_text::write_calls(std::string& out, const step_record& record, places& noted)
{
    const int first = first_track();
    const int end = options_.all_ranks ? record.ranks : first + 1;
    // What moves a rank's step behind its previous one.
    std::vector<std::int64_t> moved(noted.ranks);
    for (int rank = first; rank < end; ++rank) {
        const auto r = static_cast<std::size_t>(rank);
        std::int64_t begin = std::numeric_limits<std::int64_t>::max();
        for (const call_record& call : record.calls) {
            if (!has_times(call, record.ranks)) continue;
            for (const std::uint32_t tick : {call.intervals[r].entered, call.intervals[r].left}) {
                const std::int64_t at = clocks_[r].time_of(tick);
                if (at < begin) begin = at;
            }
        }
        const std::int64_t busy = last_[static_cast<std::size_t>(rank - first)].end;
        if (begin < busy) moved[static_cast<std::size_t>(rank - first)] = busy - begin;
    }
    for (std::size_t b = 0; b < record.calls.size(); ++b) {
        const call_record& call = record.calls[b];
        if (!has_times(call, record.ranks)) continue;
        std::int64_t longest = 0;
        for (const call_interval& each : call.intervals) {
            const std::int64_t length = std::int64_t{static_cast<std::int32_t>(each.left - each.entered)};
            if (length > longest) longest = length;
        }
        arguments_.clear();
        json_writer common(arguments_);
        common.key("Collective name").text(comms_name(call.call)).key("In msg nelems").integer(call.count);
        common.key("Out msg nelems").integer(call.result_count);
        common.key("Group size").index(record.ranks).key("dtype").text(comms_type(call.type));
        common.key("Process Group Name").text(communicator_).key("Process Group Ranks").text(all_ranks_);
        common.key("Seq").integer(record.first_call + b).key("step").integer(record.step).key("bucket").integer(b);
        write_site(common, call.site);
        common.key("agree").boolean(call.results_agree);
        if (call.has_result_digest) {
            common.key("digest").bits(call.result_digest);
        }
        write_finite(common, "cosine", call.pooled_cosine);

        for (int rank = first; rank < end; ++rank) {
            const auto r = static_cast<std::size_t>(rank);
            const auto track = static_cast<std::size_t>(rank - first);
            const call_interval& times = call.intervals[r];
            std::int64_t begin = clocks_[r].time_of(times.entered) + moved[track];
            std::int64_t left = clocks_[r].time_of(times.left) + moved[track];
            slice& before = last_[track];
            if (begin < before.end && before.end - begin < trace_tick) begin = before.end; // the same tick
            if (left <= begin) left = begin + 1; // viewers take a slice of no length for an instant
            const bool overlaps = begin < before.end;
            if (!overlaps) before = {begin, left};

            const point on{process_of(rank), thread_of(calls_thread), begin};
            const std::string id = overlaps ? collprobe::detail::hexadecimal(next_id()) : std::string();
            json_writer json = event(out, trace_name(call.call), overlaps ? 'b' : 'X', on);
            json.key("cat").text("collprobe");
            if (overlaps) {
                json.key("id").text(id);
            } else {
                json.key("dur");
                append_time(out, left - begin);
            }
            json.key("args").open('{').element();
            out += arguments_;
            json.key("Rank").index(rank);
            write_finite(json, "norm", call.inputs[r].l2());
            json.key("nonfinite").integer(call.inputs[r].nonfinite());
            if (waits_for_all(call.call)) {
                const std::int64_t length = std::int64_t{static_cast<std::int32_t>(times.left - times.entered)};
                const std::int64_t after = longest - (length < 0 ? 0 : length);
                json.key("lateness_ns").integer(static_cast<std::uint64_t>(trace_tick * after));
            }
            json.close('}').close('}');
            if (overlaps) {
                json_writer closing = event(out, trace_name(call.call), 'e', {on.process, on.thread, left});
                closing.key("cat").text("collprobe").key("id").text(id).close('}');
            }
            // An arrow needs a slice of the track. Where the call is none, that is the one in which it begins.
            noted.in_call[b * noted.ranks + track]
                = overlaps ? (begin < before.begin ? before.begin : begin) : begin + (left - begin) / 2;
        }
    }
}

/// A slice for the calls without times.
COLLPROBE_COLD_INLINE void trace_text::write_step(
    std::string& out, const step_record& record, std::int64_t arrived, places& noted)
{
    std::size_t untimed = 0;
    for (const call_record& call : record.calls) untimed += has_times(call, record.ranks) ? 0 : 1;
    if (untimed == 0 && !record.calls.empty()) return;
    // Of the first step nobody knows when it began.
    const std::int64_t begin = steps_end_ > base_ ? steps_end_ : arrived - 1000;
    const std::int64_t length = arrived > begin ? arrived - begin : 1;
    noted.in_step = begin + length / 2;
    steps_end_ = begin + length;
    json_writer json = event(out, "step " + std::to_string(record.step), 'X',
        {process_of(run_rank_), thread_of(steps_thread), begin});
    json.key("cat").text("collprobe").key("dur");
    append_time(out, length);
    json.key("args").open('{').key("step").integer(record.step).key("ranks").index(record.ranks);
    json.key("calls").open('[');
    std::size_t listed = 0;
    for (std::size_t b = 0; b < record.calls.size() && listed < most_listed_calls; ++b) {
        const call_record& call = record.calls[b];
        if (has_times(call, record.ranks)) continue;
        json.element().text(describe_call(static_cast<int>(b), call.site) + ": " + name(call.call) + " of "
            + std::to_string(call.count) + ' ' + comms_type(call.type));
        ++listed;
    }
    json.close(']');
    if (listed < untimed) json.key("calls_left_out").integer(untimed - listed);
    json.close('}').close('}');
}

COLLPROBE_COLD_INLINE void trace_text::write_counters(std::string& out, const step_record& record, std::int64_t at)
{
    if (at < counted_) at = counted_;
    counted_ = at;
    const auto count = [&](const char* what, double value) {
        if (!is_finite(value)) return;
        json_writer json = event(out, what, 'C', {process_of(run_rank_), thread_of(calls_thread), at});
        json.key("args").open('{').key("value").number(value).close('}').close('}');
    };
    count("loss", value_of(metric::loss_mean, record));
    count("gradient norm", value_of(metric::norm_mean, record));
    count("gradient norm, std / mean", value_of(metric::norm_cv, record));
    count("cosine", value_of(metric::cosine_mean_pairwise, record));
}

COLLPROBE_COLD_INLINE void trace_text::add(
    std::string& out, const step_record& record, const record_context& context)
{
    const std::int64_t arrived = trace_time(context.unix_ns);
    name_tracks(out, context.run, record.ranks);
    places& noted = recent_[next_recent_++ % recent_.size()];
    noted.step = record.step;
    noted.ranks = options_.all_ranks ? static_cast<std::size_t>(record.ranks < 0 ? 0 : record.ranks) : 1;
    noted.in_call.assign(record.calls.size() * noted.ranks, -1);
    noted.in_step = -1;
    bool has_any = false;
    for (const call_record& call : record.calls) has_any = has_any || has_times(call, record.ranks);
    std::int64_t at = arrived;
    if (has_any && (options_.all_ranks || run_rank_ < record.ranks)) {
        set_clocks(record, arrived);
        write_calls(out, record, noted);
        at = last_[0].end;
    }
    write_step(out, record, arrived, noted);
    if (steps_end_ < arrived) steps_end_ = arrived;
    if (tells_about_all()) write_counters(out, record, at);
}

COLLPROBE_COLD_INLINE trace_text::point trace_text::point_of(const alarm_record& raised) const noexcept
{
    for (const places& noted : recent_) {
        if (noted.step != raised.step || noted.ranks == 0) continue;
        const int named = raised.ranks.empty() || !options_.all_ranks ? first_track() : raised.ranks.front();
        const auto track = static_cast<std::size_t>(named - first_track());
        if (named >= first_track() && track < noted.ranks) {
            const std::size_t calls = noted.in_call.size() / noted.ranks;
            // Of an alarm about the whole step: the last call.
            for (std::size_t b = calls; b-- > 0;) {
                if (raised.call >= 0 && b != static_cast<std::size_t>(raised.call)) continue;
                const std::int64_t at = noted.in_call[b * noted.ranks + track];
                if (at >= 0) return {process_of(named), thread_of(calls_thread), at};
            }
        }
        return {process_of(run_rank_), thread_of(steps_thread), noted.in_step};
    }
    return {};
}

COLLPROBE_COLD_INLINE void trace_text::add(
    std::string& out, const alarm_record& raised, const record_context& context)
{
    if (!tells_about_all()) return;
    const point from = point_of(raised);
    point to{process_of(run_rank_), thread_of(alarms_thread), trace_time(context.unix_ns)};
    if (to.at < alarms_end_) to.at = alarms_end_;
    if (to.at < from.at) to.at = from.at; // an arrow does not go backwards
    alarms_end_ = to.at + alarm_length;

    const std::string title = std::string(name(raised.what)) + ": " + list_named(raised);
    std::string arguments;
    json_writer common(arguments);
    common.open('{').key("text").text(describe(raised)).key("advice").text(advise(raised)).key("record");
    arguments += json_line(context.run.name, raised);
    arguments.back() = '}'; // instead of the newline
    json_writer json = event(out, title, 'X', to);
    json.key("cat").text("alarm").key("dur");
    append_time(out, alarm_length);
    json.key("args");
    out += arguments;
    json.close('}');
    json_writer instant = event(out, title, 'i', to);
    instant.key("cat").text("alarm").key("s").text("g").key("args");
    out += arguments;
    instant.close('}');
    if (from.at < 0) return;
    const std::string id = collprobe::detail::hexadecimal(next_id());
    event(out, "alarm", 's', from).key("cat").text("alarm").key("id").text(id).close('}');
    to.at += alarm_length / 2;
    event(out, "alarm", 'f', to).key("cat").text("alarm").key("id").text(id).key("bp").text("e").close('}');
}

COLLPROBE_COLD_INLINE void trace_text::add(
    std::string& out, const inspection& found, const record_context& context)
{
    if (!tells_about_all()) return;
    const point at{process_of(run_rank_), thread_of(steps_thread), trace_time(context.unix_ns)};
    json_writer json = event(out, "collprobe:inspection", 'i', at);
    json.key("cat").text("collprobe").key("s").text("p").key("args");
    out += json_line(context.run.name, found);
    out.back() = '}'; // instead of the newline
}

COLLPROBE_COLD_INLINE void trace_text::tell_left_out(
    std::string& out, const step_record& record, const record_context& context)
{
    const point at{process_of(run_rank_), thread_of(steps_thread), trace_time(context.unix_ns)};
    json_writer json = event(out, "collprobe: the trace is full", 'i', at);
    json.key("cat").text("collprobe").key("s").text("g").key("args").open('{');
    json.key("left_out_from_step").integer(record.step).key("most_bytes").integer(options_.most_bytes);
    json.close('}').close('}');
}

} // namespace detail

} // namespace collprobe::inline COLLPROBE_ABI::report
