// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/core/record.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/report/findings.hpp>
#include <collprobe/report/sink.hpp>

/// A run as counters and gauges in the text format of Prometheus, in a file for the textfile collector of
/// node_exporter. examples/grafana has a dashboard and alarm rules for them.
namespace collprobe::inline COLLPROBE_ABI::report {

struct prometheus_options {
    int interval_ms = 5000; ///< the file is written at most once in this time, and at the end; 0: at each flush
    bool open_metrics = false; ///< OpenMetrics 1.0; node_exporter reads the other format, version 0.0.4
    /// One process has all ranks of the communicator: what differs between ranks has a series for each of them. The
    /// label `rank` is then the rank in the communicator.
    bool all_ranks = false;
};

/// The numbers of a run, and their text. Each series has the labels `job` (of the scheduler; without one, the run's
/// name), `comm`, `rank` (in the job), `node` (the host) and, with a device and without `all_ranks`, `UUID`. So the
/// files of all ranks can lie in one folder; two communicators of one process need different names.
/// A counter begins with 0, and counts what the records tell. A gauge has the number of the last step that measured it:
/// without statistics in a step it stays. A number that is undefined has no sample; NaN is never written.
/// Cost: up to `most_series` series, whatever happens in the run; with `all_ranks` 8 of these for each rank.
class prometheus_metrics {
public:
    static constexpr int most_series = 40;

    explicit prometheus_metrics(const run_record& run = {}, const prometheus_options& options = {});

    void add(const step_record& record);
    void add(const alarm_record& raised);
    /// The run ended in order: `collprobe_run_ended` tells it from one that died.
    void end() noexcept { ended_ = true; }

    /// The text of the file. Cost: 8 kB and 5 us for one rank, 0.8 kB and 0.4 us for each further one of `all_ranks`.
    std::string text(const record_context& now) const;

private:
    /// What differs between ranks. Undefined numbers are NaN by bits.
    struct rank_numbers {
        std::string labels;
        double loss = collprobe::detail::not_a_number();
        double gradient_norm = collprobe::detail::not_a_number();
        double cosine = collprobe::detail::not_a_number();
        double behind_seconds = collprobe::detail::not_a_number();
        double odds = collprobe::detail::not_a_number();
        std::uint64_t nan = 0;
        std::uint64_t infinite = 0;
        std::uint64_t alarms = 0;
    };
    struct check_count {
        finding what;
        std::uint64_t alarms;
    };

    std::string labels_of(int rank) const;
    void watch(int ranks);
    void add_call(const call_record& call, double& residual);

    prometheus_options options_;
    std::string before_rank_; ///< pieces of the labels
    std::string behind_rank_;
    std::string build_;
    std::string facts_;
    std::string labels_; ///< of what all ranks have in common
    int first_rank_ = 0; ///< in the communicator: that of `ranks_[0]`
    std::vector<rank_numbers> ranks_;

    bool ended_ = false;
    bool knows_inputs_ = false; ///< of each rank: a summary tells only what all ranks sent
    std::uint64_t step_ = 0;
    run_findings found_; ///< counts steps, calls and alarms
    std::uint64_t nonfinite_ = 0;
    std::uint64_t result_mismatches_ = 0;
    std::uint64_t sum_mismatches_ = 0;
    double residual_ratio_ = collprobe::detail::not_a_number();
    double loss_mean_ = collprobe::detail::not_a_number();
    spread gradient_norm_;
    direction cosine_;
    std::vector<check_count> alarms_by_check_; ///< in the order of their first alarms
    std::uint64_t other_alarms_ = 0; ///< of further checks
    std::vector<std::uint64_t> alarms_by_call_;
};

/// Writes `prometheus_metrics` to the file `path`, which must end with ".prom" for node_exporter. An empty path: off.
/// A reader sees a whole text, the old one or the new one. The file stays when the run has ended; remove it then, or
/// its last numbers stay in Prometheus.
class prometheus : public sink {
public:
    explicit prometheus(std::string path, const prometheus_options& options = {})
        : path_(std::move(path)), options_(options)
    {
    }

    std::string target() const override { return path_; }
    COLLPROBE_INLINE void open(const run_record& run) override;
    COLLPROBE_INLINE void on_step(const step_record& record, const record_context& now) override;
    COLLPROBE_INLINE void on_alarm(const alarm_record& raised, const record_context& now) override;
    COLLPROBE_INLINE void flush(const record_context& now) override;
    COLLPROBE_INLINE void close(const record_context& now) override;

private:
    void write(const record_context& now);

    std::string path_;
    prometheus_options options_;
    prometheus_metrics metrics_;
    std::uint64_t written_ns_ = 0;
};

} // namespace collprobe::report

#if COLLPROBE_DEFINITIONS
#include <collprobe/report/detail/prometheus.ipp>
#endif
