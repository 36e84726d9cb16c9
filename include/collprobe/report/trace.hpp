// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/core/record.hpp>
#include <collprobe/core/record/inspection.hpp>
#include <collprobe/report/file.hpp>
#include <collprobe/report/json.hpp>
#include <collprobe/report/sink.hpp>

/// The calls of a run on a time line: a Chrome trace, which Perfetto (ui.perfetto.dev) and chrome://tracing show.
namespace collprobe::inline COLLPROBE_ABI::report {

struct trace_options {
    /// Every rank has a track. false: only the calls of the rank that writes, for a run in which each rank writes a
    /// file and the files are joined. Then what is about all ranks (counters, alarms, inspections) is in the file of
    /// rank 0 only, and its alarms point at the calls of rank 0.
    bool all_ranks = true;
    /// Once the file is larger, steps are left out and a last event says from which one on. Alarms are still written.
    /// Viewers hold a trace in memory; a call of a rank takes about 550 bytes.
    std::uint64_t most_bytes = std::uint64_t{1} << 30;
};

namespace detail {

/// Linux has less than 2^22 process ids.
inline constexpr std::uint64_t first_trace_process = 10'000'000;
/// Of ranks whose rank in the job the writer does not know.
inline constexpr std::uint64_t first_unknown_process = 20'000'000;

/// The text of a trace, event by event.
///
/// Places on the time line. Each rank notes times by the clock of its own device, and these clocks have nothing to do
/// with each other. But all ranks leave a call that waits for all of them at about the same time. So in each step the
/// first such call sets the clocks: its end is the same moment on all tracks. Ends of calls are thus comparable to a
/// few microseconds, and begins tell who came late.
/// Rank 0's clock runs through from step to step. The clock wraps around after 18 minutes; if two steps are farther
/// apart, the times of their records tell how often it did.
/// The end of the first step is set to the time at which its record came, which is a little later than the truth. After
/// that, records correct the time line only if it is wrong by more than a second: at once if a step seems to end after
/// its record came, and if the records of 64 steps all came later.
/// Nothing on a track runs backwards: if a correction would let a rank's step begin before its previous one ended, the
/// step moves forward as a whole on that rank.
class trace_text {
public:
    explicit trace_text(const trace_options& options) noexcept : options_(options) {}

    /// These append to `out`. Their texts, one after the other, are a JSON document.
    void begin(std::string& out, const run_record& run);
    void add(std::string& out, const step_record& record, const record_context& context);
    void add(std::string& out, const finding& raised, const record_context& context);
    void add(std::string& out, const inspection& found, const record_context& context);
    /// An event for the first step that is left out.
    void tell_left_out(std::string& out, const step_record& record, const record_context& context);
    static void end(std::string& out) { out += "\n]}\n"; }

private:
    enum thread : int { calls_thread = 1, steps_thread = 2, alarms_thread = 3 };

    /// A thread of a process of the trace; the point `at` of it is inside a slice.
    struct point {
        std::uint64_t process = 0;
        std::uint64_t thread = 0;
        std::int64_t at = -1; ///< nanoseconds since 1970; -1: nowhere
    };
    /// A rank's clock: at `tick` it was `ns`.
    struct clock {
        std::uint32_t tick = 0;
        std::int64_t ns = 0;

        std::int64_t time_of(std::uint32_t other) const noexcept
        {
            return ns + 256 * std::int64_t{static_cast<std::int32_t>(other - tick)};
        }
    };
    /// The last slice of a track. Slices of one do not overlap.
    struct slice {
        std::int64_t begin = 0;
        std::int64_t end = 0;
    };
    /// Points in the slices of a step, for the alarms that come after it.
    struct places {
        std::uint64_t step = 0;
        std::size_t ranks = 0; ///< tracks that are written
        std::vector<std::int64_t> in_call; ///< [call][track]
        std::int64_t in_step = -1;
    };

    COLLPROBE_COLD_INLINE std::uint64_t process_of(int rank) const noexcept
    {
        const bool is_known = rank == run_rank_ || global_rank_ == run_rank_;
        return is_known ? first_trace_process + static_cast<std::uint64_t>(rank == run_rank_ ? global_rank_ : rank)
                        : first_unknown_process + static_cast<std::uint64_t>(rank);
    }

    std::uint64_t thread_of(thread which) const noexcept { return first_thread_ + static_cast<std::uint64_t>(which); }
    bool tells_about_all() const noexcept { return options_.all_ranks || run_rank_ == 0; }
    int first_track() const noexcept { return options_.all_ranks ? 0 : run_rank_; }
    std::uint64_t next_id() noexcept { return id_base_ | ++ids_; }

    json_writer event(std::string& out, std::string_view name, char phase, const point& on);
    void name_tracks(std::string& out, const run_record& run, int ranks);
    void set_clocks(const step_record& record, std::int64_t arrived);
    std::int64_t correction(std::int64_t end, std::int64_t arrived) noexcept;
    void write_calls(std::string& out, const step_record& record, places& noted);
    void write_step(std::string& out, const step_record& record, std::int64_t arrived, places& noted);
    void write_counters(std::string& out, const step_record& record, std::int64_t at);
    point point_of(const finding& raised) const noexcept;

    COLLPROBE_COLD_INLINE void append_time(std::string& out, std::int64_t ns) const
    {
        const std::int64_t thousandths = ns % 1000;
        out += std::to_string(ns / 1000) + (thousandths < 10 ? ".00" : thousandths < 100 ? ".0" : ".")
            + std::to_string(thousandths);
    }

    trace_options options_;
    std::string communicator_;
    int run_rank_ = 0;
    int global_rank_ = 0;
    std::int64_t base_ = 0; ///< the trace's zero, in nanoseconds since 1970
    std::uint64_t first_thread_ = 0;
    std::uint64_t id_base_ = 0;
    std::uint32_t ids_ = 0;
    bool is_first_ = true;
    int named_ = 0; ///< ranks whose tracks have names
    std::string all_ranks_; ///< "[0, 1, 2]"

    std::vector<clock> clocks_; ///< per rank; empty before the first call with times
    std::int64_t arrived_ = 0; ///< the record of the last step with times
    std::int64_t least_lag_ = std::numeric_limits<std::int64_t>::max();
    int lag_steps_ = 0;
    std::vector<slice> last_; ///< per track
    std::int64_t steps_end_ = 0;
    std::int64_t alarms_end_ = 0;
    std::int64_t counted_ = 0; ///< when the counters changed last
    std::array<places, 8> recent_{};
    std::size_t next_recent_ = 0;
    std::string arguments_; ///< of a call, alike for all ranks
};

} // namespace detail

/// Writes a Chrome trace: `sinks out(run, trace("run.trace.json"))`.
///
/// Each rank is a process, "rank 3", with the number 10,000,000 + its rank in the job, which is nobody's process id or
/// device, so that the file can be joined with a profiler's. (Of a communicator that is a part of the job only the
/// writer's rank in the job is known; the others have 20,000,000 + their rank in the communicator.) Each probed call is
/// a slice `nccl:all_reduce`, `nccl:_reduce_scatter_base` ... with PyTorch's arguments and the probe's. A call that
/// begins before an earlier one of its rank ended is an asynchronous slice. Calls without times (integers, empty ones,
/// audited all-gathers, in `summary` mode, without `probe_options::times`) are listed in a slice for the step, from its
/// predecessor's record to its own. Counters: loss, gradient norm, its spread, cosine. An alarm is a slice on the track
/// "alarms", an instant through all tracks, and an arrow from the call.
/// Times are microseconds since `baseTimeNanoseconds`, which is PyTorch's for runs that began in the same quarter.
///
/// An empty path: writes nothing. After a crash the file lacks its end, "]}"; Perfetto and Chrome read it all the same.
/// Memory: the last 8 steps' places, 8 bytes for each call of each rank.
class trace : public sink {
public:
    explicit trace(std::string path, const trace_options& options = {})
        : path_(std::move(path)), most_bytes_(options.most_bytes), text_(options)
    {
    }

    std::string target() const override { return path_; }

    COLLPROBE_COLD_INLINE void open(const run_record& run) override
    {
        if (path_.empty()) return;
        file_.emplace(path_);
        text_.begin(out_, run);
        write();
    }

    COLLPROBE_COLD_INLINE void on_step(const step_record& record, const record_context& context) override
    {
        if (!file_) return;
        if (bytes_ < most_bytes_) {
            text_.add(out_, record, context);
        } else if (!is_full_) {
            is_full_ = true;
            text_.tell_left_out(out_, record, context);
        }
        write();
    }

    COLLPROBE_COLD_INLINE void on_alarm(const finding& raised, const record_context& context) override
    {
        if (!file_) return;
        text_.add(out_, raised, context);
        write();
    }

    COLLPROBE_COLD_INLINE void on_inspection(const inspection& found, const record_context& context) override
    {
        if (!file_) return;
        text_.add(out_, found, context);
        write();
    }

    COLLPROBE_COLD_INLINE void close(const record_context&) override
    {
        if (!file_) return;
        detail::trace_text::end(out_);
        write();
        file_->close();
    }

private:
    COLLPROBE_COLD_INLINE void write()
    {
        if (out_.empty()) return;
        file_->append(out_);
        bytes_ += out_.size();
        out_.clear();
    }

    std::string path_;
    std::uint64_t most_bytes_;
    detail::trace_text text_;
    std::optional<line_file> file_;
    std::string out_; ///< what is not in the file yet
    std::uint64_t bytes_ = 0; ///< in the file
    bool is_full_ = false;
};

} // namespace collprobe::report

#include <collprobe/report/detail/trace.hpp>
