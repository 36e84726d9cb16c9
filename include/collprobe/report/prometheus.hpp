// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <collprobe/core/element.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/report/file.hpp>
#include <collprobe/report/findings.hpp>
#include <collprobe/report/sink.hpp>
#include <collprobe/report/words.hpp>

/// A run as counters and gauges in the text format of Prometheus, in a file for the textfile collector of
/// node_exporter. examples/grafana has a dashboard and alarm rules for them.
namespace collprobe::inline COLLPROBE_ABI::report {

struct prometheus_options {
    int interval_ms = 5000; ///< the file is written at most once in this time, and at the end; 0: at each flush
    /// One process has all ranks of the communicator: what differs between ranks has a series for each of them. The
    /// label `rank` is then the rank in the communicator.
    bool all_ranks = false;
};

namespace detail {

/// `name="value"` with the escapes of both formats.
COLLPROBE_COLD_INLINE std::string prometheus_label(const char* label, std::string_view value)
{
    std::string text = std::string(label) + "=\"";
    for (const char character : utf8_text(value)) {
        if (character == '\n') {
            text += "\\n";
            continue;
        }
        if (character == '"' || character == '\\') text += '\\';
        text += character;
    }
    return text + '"';
}

/// Writes families of series. A family without a sample leaves no trace.
class family_writer {
public:
    explicit family_writer(std::string& out) noexcept : out_(out) {}

    family_writer& gauge(const char* family, const char* help) { return begin(family, "gauge", "", help); }
    family_writer& counter(const char* family, const char* help) { return begin(family, "counter", "_total", help); }
    /// Constant facts, as labels of a series with the value 1.
    family_writer& info(const char* family, const char* help) { return begin(family, "gauge", "_info", help); }

    /// `more`: further labels, each begins with a comma.
    family_writer& sample(std::string_view labels, std::uint64_t value, std::string_view more = {})
    {
        return write(labels, more, std::to_string(value));
    }
    family_writer& sample(std::string_view labels, double value)
    {
        if (is_nan(value)) return *this;
        // Under -ffast-math only the bits show reliably whether a number is infinite.
        if (!is_finite(value)) return write(labels, {}, (to_bits(value) >> 63) != 0 ? "-Inf" : "+Inf");
        char text[40];
        const char* const end = std::to_chars(text, text + sizeof text, value).ptr;
        return write(labels, {}, std::string_view(text, static_cast<std::size_t>(end - text)));
    }

private:
    family_writer& begin(const char* family, const char* type, const char* suffix, const char* help)
    {
        name_ = std::string("collprobe_") + family + suffix;
        head_ = "# HELP " + name_ + ' ' + help + "\n# TYPE " + name_ + ' ' + type + '\n';
        return *this;
    }
    family_writer& write(std::string_view labels, std::string_view more, std::string_view value)
    {
        out_ += head_;
        head_.clear();
        out_ += name_;
        ((out_ += '{') += labels) += more;
        ((out_ += "} ") += value) += '\n';
        return *this;
    }

    std::string& out_;
    std::string head_;
    std::string name_;
};

} // namespace detail

/// The numbers of a run, and their text. Each series has the labels `job` (of the scheduler; without one, the run's
/// name), `comm`, `rank` (in the job), `node` (the host) and, with a device and without `all_ranks`, `UUID`. So the
/// files of all ranks can lie in one folder; two communicators of one process need different names.
/// A counter begins with 0, and counts what the records tell. A gauge has the number of the last step that measured it:
/// without statistics in a step it stays. A number that is undefined has no sample; NaN is never written.
/// Cost: up to `most_series` series, whatever happens in the run; with `all_ranks` 8 of these for each rank. Of more
/// than `most_ranks` ranks each has `alarms_naming_rank`; the other 7 have those that an alarm names, up to as many.
class prometheus_metrics {
public:
    static constexpr int most_series = 40, most_ranks = 1024;

    explicit prometheus_metrics(
        const run_record& run = {}, const prometheus_options& options = {})
        : options_(options)
    {
        before_rank_ = detail::prometheus_label("job", run.job.empty() ? run.name : run.job) + ','
            + detail::prometheus_label("comm", run.communicator) + ",rank=\"";
        behind_rank_ = "\"," + detail::prometheus_label("node", run.host);
        if (!run.device.empty() && !options.all_ranks) {
            behind_rank_ += ',' + detail::prometheus_label("UUID", run.device);
        }
        build_ = ',' + detail::prometheus_label("version", run.library);
        facts_ = ',' + detail::prometheus_label("run", run.name) + ",ranks=\"" + std::to_string(run.ranks) + "\","
            + detail::prometheus_label("comm_id", run.communicator_id);
        labels_ = labels_of(options.all_ranks ? run.rank : run.rank_of_job());
        if (options.all_ranks) {
            watch(run.ranks);
        } else {
            first_rank_ = run.rank;
            ranks_.emplace_back().labels = labels_;
        }
    }

    COLLPROBE_COLD_INLINE void add(const step_record& record)
    {
        if (options_.all_ranks) watch(record.ranks);
        knows_inputs_ = knows_inputs_ || record.mode == report_mode::gather;
        last_.step = record.step;
        found_.add(record);
        double residual = collprobe::detail::not_a_number();
        for (const call_record& call : record.calls) add_call(call, residual);
        if (!is_nan(residual)) residual_ratio_ = residual;

        const auto is_bad_loss = [](const finding& of) { return of.what == finding_kind::non_finite && of.call < 0; };
        if (record.loss.finite > 0 || std::any_of(record.findings.begin(), record.findings.end(), is_bad_loss)) {
            last_.loss = record.loss;
            last_.losses = record.losses;
        }
        if (record.gradient_norm.finite > 0 || !record.gradient_norms.empty()) {
            last_.gradient_norm = record.gradient_norm;
            last_.gradient_norms = record.gradient_norms;
            last_.cosine = record.cosine;
        }
        if (!record.lateness_by_rank.empty()) last_.lateness_by_rank = record.lateness_by_rank;
        if (!record.evidence_by_rank.empty()) last_.evidence_by_rank = record.evidence_by_rank;
    }
    COLLPROBE_COLD_INLINE void add(const finding& raised)
    {
        constexpr std::size_t most_checks = 7; // all further ones share a series, to stay within `most_series`
        constexpr int most_calls = 1 << 16;
        found_.add(raised);
        for (const int named : raised.ranks) {
            const int i = named - first_rank_;
            if (i < 0 || i >= static_cast<int>(ranks_.size())) continue;
            rank_counts& of = ranks_[static_cast<std::size_t>(i)];
            if (++of.alarms == 1 && !of.is_shown) of.is_shown = named_++ < most_ranks;
        }
        if (raised.call >= 0 && raised.call < most_calls) {
            const auto call = static_cast<std::size_t>(raised.call);
            if (alarms_by_call_.size() <= call) alarms_by_call_.resize(call + 1);
            ++alarms_by_call_[call];
        }
        for (auto& [what, alarms] : alarms_by_check_) {
            if (what == raised.what) return void(++alarms);
        }
        if (alarms_by_check_.size() < most_checks) alarms_by_check_.push_back({raised.what, 1});
        else ++other_alarms_;
    }
    /// The run ended in order: `collprobe_run_ended` tells it from one that died.
    void end() noexcept { ended_ = true; }

    /// The text of the file. Cost: 8 kB and 5 us for one rank, 0.8 kB and 0.4 us for each further one of `all_ranks`.
    COLLPROBE_COLD_INLINE std::string text(const record_context& now) const
    {
        std::string out;
        detail::family_writer families(out);
        const auto gauge = [&, this](const char* family, double value, const char* help) {
            families.gauge(family, help).sample(labels_, value);
        };
        const auto counter = [&, this](const char* family, std::uint64_t value, const char* help) {
            families.counter(family, help).sample(labels_, value);
        };

        families.info("build", "Version of collprobe, as a label.").sample(labels_, std::uint64_t{1}, build_);
        families.info("run", "Name of the run, number of ranks and id of the communicator, as labels.")
            .sample(labels_, std::uint64_t{1}, facts_);
        gauge("run_ended", ended_ ? 1 : 0, "1 once the run has ended in order, else 0.");
        gauge("last_write_timestamp_seconds", static_cast<double>(now.unix_ns / 1'000'000) / 1e3,
            "Time at which these numbers were written, in seconds since 1970.");
        counter("records_dropped", now.dropped, "Records of the run that were dropped because too many waited.");

        if (found_.steps != 0) families.gauge("step", "Number of the last recorded step.").sample(labels_, last_.step);
        counter("steps", found_.steps, "Recorded steps.");
        counter("suspicious_steps", found_.suspicious_steps, "Recorded steps in which a check found something.");
        counter("calls", found_.calls, "Collective calls of the recorded steps, measured or not.");
        families.counter("skipped_calls",
            "Calls that were not measured: full, because a captured step had no room, or unread, because nothing in "
            "the step reads them.");
        families.sample(labels_, found_.unprobed_calls, ",reason=\"full\"");
        families.sample(labels_, found_.unread_calls, ",reason=\"unread\"");

        counter("all_ranks_nonfinite_elements", nonfinite_, "NaN and infinite elements that all ranks sent.");
        families.counter("nonfinite_elements", "NaN or infinite elements that this rank sent.");
        for (const rank_counts& each : ranks_) {
            if (!knows_inputs_ || !each.is_shown) continue;
            families.sample(each.labels, each.nan, ",kind=\"nan\"").sample(each.labels, each.infinite, ",kind=\"inf\"");
        }
        counter("result_mismatch", result_mismatches_, "Calls whose result differs between ranks.");
        counter("sum_mismatch", sum_mismatches_, "Calls whose result is not the sum of the inputs.");
        gauge("conservation_residual_ratio", residual_ratio_,
            "Largest distance of a sum from that of its inputs in the last audited step, over the limit; above 1 it is "
            "wrong.");

        counter("alarms", found_.alarm_count, "Alarms.");
        families.counter("alarms_naming_rank", "Alarms that name this rank.");
        for (const rank_counts& each : ranks_) families.sample(each.labels, each.alarms);
        families.counter(
            "alarms_by_check", "Alarms by check; those of the eighth check and of further ones are other.");
        for (const auto& [what, alarms] : alarms_by_check_) {
            families.sample(labels_, alarms, std::string(",kind=\"") + name(what) + '"');
        }
        if (other_alarms_ != 0) families.sample(labels_, other_alarms_, ",kind=\"other\"");
        if (!alarms_by_call_.empty()) {
            const std::vector<std::uint64_t>& all = alarms_by_call_;
            const auto worst = std::max_element(all.begin(), all.end()) - all.begin();
            families.gauge("worst_call_index", "Index in its step of the call with the most alarms.")
                .sample(labels_, static_cast<std::uint64_t>(worst));
        }

        const auto of_ranks = [&, this](const char* family, const auto& values, const auto& number, const char* help) {
            families.gauge(family, help);
            for (std::size_t i = 0, rank = static_cast<std::size_t>(first_rank_); i < ranks_.size(); ++i, ++rank)
                if (rank < values.size() && ranks_[i].is_shown) families.sample(ranks_[i].labels, number(values[rank]));
        };
        const auto itself = [](double value) { return value; };
        const auto behind = [](const rank_lateness& of) { return is_nan(of.behind) ? of.behind : of.behind * 1e-9; };
        of_ranks("loss", last_.losses, itself, "Loss of this rank.");
        gauge("loss_mean", last_.loss.mean, "Mean loss of the ranks.");
        of_ranks("gradient_norm", last_.gradient_norms, itself, "L2 norm of this rank's gradient.");
        gauge("gradient_norm_mean", last_.gradient_norm.mean, "Mean of the ranks' gradient norms.");
        gauge("gradient_norm_spread_ratio", last_.gradient_norm.cv,
            "Standard deviation of the ranks' gradient norms over their mean.");
        of_ranks("cosine_leave_one_out", last_.cosine.leave_one_out, itself,
            "Cosine of this rank's gradient with the sum of all others.");
        gauge("cosine_mean", last_.cosine.mean_pairwise, "Mean cosine of two ranks' gradients.");
        gauge("cosine_pooled", last_.cosine.pooled, "Mean cosine of two ranks' gradients, weighted by their norms.");
        gauge("cosine_predicted", last_.cosine.predicted_cosine,
            "Mean cosine that the noise of healthy gradients explains.");
        gauge("noise_scale", last_.cosine.noise_scale, "Gradient noise scale, in batches of one rank.");
        of_ranks("behind_seconds", last_.lateness_by_rank, behind,
            "Arrival of this rank at the calls of a step after the median of the others: median over the last steps.");
        of_ranks("evidence_odds", last_.evidence_by_rank, [](const rank_evidence& of) { return of.odds; },
            "Odds against chance that this rank is unlike the others, over the run; 1 / odds bounds the probability "
            "that alike ranks reach them.");
        return out;
    }

private:
    struct rank_counts {
        std::string labels;
        bool is_shown = true; ///< with more than its alarms
        std::uint64_t nan = 0;
        std::uint64_t infinite = 0;
        std::uint64_t alarms = 0;
    };

    std::string labels_of(int rank) const { return before_rank_ + std::to_string(rank) + behind_rank_; }

    COLLPROBE_COLD_INLINE void watch(int ranks)
    {
        while (static_cast<int>(ranks_.size()) < ranks)
            ranks_.push_back({labels_of(static_cast<int>(ranks_.size())), ranks <= most_ranks});
    }

    COLLPROBE_COLD_INLINE void add_call(const call_record& call, double& residual)
    {
        nonfinite_ += call.nonfinite;
        result_mismatches_ += call.results_agree ? 0u : 1u;
        for (std::size_t i = 0; i < ranks_.size(); ++i) {
            const std::size_t rank = static_cast<std::size_t>(first_rank_) + i;
            if (rank >= call.inputs.size()) break;
            ranks_[i].nan += call.inputs[rank].nan;
            ranks_[i].infinite += call.inputs[rank].infinite();
        }
        const call_audit& audit = call.audit;
        if (!audit.checked || !audit.sum_checked) return;
        sum_mismatches_ += audit.conserved ? 0u : 1u;
        if (is_nan(audit.residual)) return;
        double ratio = 0;
        if (audit.residual > 0) { // the limit of integers is 0
            ratio = audit.residual_limit > 0 ? audit.residual / audit.residual_limit : collprobe::detail::infinity();
        }
        // Bits of positive numbers have the order of the numbers, infinity included.
        if (is_nan(residual) || to_bits(ratio) > to_bits(residual)) residual = ratio;
    }

    prometheus_options options_;
    std::string before_rank_; ///< pieces of the labels
    std::string behind_rank_;
    std::string build_;
    std::string facts_;
    std::string labels_; ///< of what all ranks have in common
    int first_rank_ = 0; ///< in the communicator: that of `ranks_[0]`
    std::vector<rank_counts> ranks_;
    int named_ = 0; ///< ranks beyond `most_ranks` that an alarm has named

    bool ended_ = false;
    bool knows_inputs_ = false; ///< of each rank: a summary tells only what all ranks sent
    run_findings found_; ///< counts steps, calls and alarms
    std::uint64_t nonfinite_ = 0;
    std::uint64_t result_mismatches_ = 0;
    std::uint64_t sum_mismatches_ = 0;
    double residual_ratio_ = collprobe::detail::not_a_number();
    step_record last_; ///< of each number the last that was measured
    std::vector<std::pair<finding_kind, std::uint64_t>> alarms_by_check_; ///< in the order of their first alarms
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
    COLLPROBE_COLD_INLINE void open(const run_record& run) override
    {
        metrics_ = prometheus_metrics(run, options_);
        written_ns_ = 0;
    }
    COLLPROBE_COLD_INLINE void on_step(const step_record& record, const record_context&) override
    {
        metrics_.add(record);
    }
    COLLPROBE_COLD_INLINE void on_alarm(const finding& raised, const record_context&) override { metrics_.add(raised); }
    COLLPROBE_COLD_INLINE void flush(const record_context& now) override
    {
        const std::uint64_t interval_ns
            = options_.interval_ms < 0 ? 0 : static_cast<std::uint64_t>(options_.interval_ms) * 1'000'000u;
        // The difference is large, too, if the clock was set back.
        if (written_ns_ == 0 || now.unix_ns - written_ns_ >= interval_ns) write(now);
    }

    COLLPROBE_COLD_INLINE void close(const record_context& now) override
    {
        metrics_.end();
        write(now);
    }

private:
    COLLPROBE_COLD_INLINE void write(const record_context& now)
    {
        if (path_.empty()) return;
        replace_file(path_, metrics_.text(now));
        written_ns_ = now.unix_ns;
    }

    std::string path_;
    prometheus_options options_;
    prometheus_metrics metrics_;
    std::uint64_t written_ns_ = 0;
};

} // namespace collprobe::report
