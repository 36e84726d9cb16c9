// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/core/record.hpp>
#include <collprobe/core/record/inspection.hpp>
#include <collprobe/report/detail/rank_steps.hpp>
#include <collprobe/report/detail/step_series.hpp>
#include <collprobe/report/findings.hpp>
#include <collprobe/report/sink.hpp>

namespace collprobe::inline COLLPROBE_ABI::report {

struct html_options {
    std::int64_t interval_ms = 30000; ///< from one writing to the next; 0: not before the end
};

/// A run as one HTML page: the verdict, who was named and what to do, charts over the steps, the ranks, settings and
/// coverage. It has no script and nothing outside of itself; light and dark, on paper and on a telephone.
/// For tools, `<script type="application/json" id="collprobe-data">` has `schema`, `kind` ("report"), `run`, `verdict`
/// (the same sentence), `level` ("none", "fine", "look", "act"), `finished`, counts, `alarms`, `findings` and `series`:
/// arrays alike in length, `first_step`, `steps`, and of each number `mean`, `low`, `high`.
/// Cost: a microsecond a step and 0.1 a rank; at most 1.5 MB, 5 KB a rank, and the findings. A page takes some
/// milliseconds, and has less than 2 MB.
class html_page {
public:
    void add(const step_record& record);

    /// Precondition: its step was added before.
    COLLPROBE_COLD_INLINE void add(const finding& raised)
    {
        found_.add(raised);
        ranks_.add(raised);
        series_.mark(raised.step,
            raised.action >= advice::skip ? detail::step_mark::alarm_to_act : detail::step_mark::alarm);
    }

    void add(const inspection& found);

    const run_findings& found() const noexcept { return found_; }
    /// `finished`: false says that the run was still going on.
    std::string text(const record_context& at, bool finished = true) const;

private:
    struct audit_total {
        std::uint64_t calls = 0;
        std::uint64_t without_majority = 0;
        std::uint64_t sums = 0;
        std::uint64_t wrong_sums = 0;
        double worst_ratio = -1; ///< residual over its limit
        std::uint64_t worst_step = 0;
        int worst_call = -1;
        call_site worst_site = {};
    };
    struct quantised_total {
        call_site site = {};
        call_quantisation worst; ///< by verdict
        std::uint64_t quantised = 0; ///< steps
        std::uint64_t unquantised = 0;
        std::uint64_t with_worst = 0; ///< steps with that verdict
    };

    std::string data(const record_context& at, bool finished) const;
    void write_title(std::string& out, const record_context& at, bool finished) const;
    void write_findings(std::string& out, const run_record& run) const;
    void write_calls(std::string& out) const;
    void write_facts(std::string& out, const record_context& at) const;

    run_findings found_;
    detail::step_series series_;
    detail::rank_steps ranks_;
    audit_total audits_;
    std::vector<quantised_total> quantised_; ///< by call
    std::vector<inspection> inspections_;
    std::uint64_t more_inspections_ = 0;
    std::uint64_t first_step_ = 0;
    std::uint64_t last_step_ = 0;
    report_mode mode_ = report_mode::gather;
    std::string late_ranks_; ///< of the last step in which a rank stood out by its arrival
    std::string unequal_losses_; ///< of the last step whose mean loss over tokens is not that over ranks
};

/// A file with the page of a run.
/// File: replaced as a whole, at the beginning, while the run goes on, and at the end. An empty path: no file.
class html : public sink {
public:
    explicit html(std::string path, const html_options& options = {})
        : path_(std::move(path)), options_(options)
    {
    }

    std::string target() const override { return path_; }
    // Inline already here, so that only files that make an object compile its functions.
    inline void open(const run_record& run) override;

    COLLPROBE_COLD_INLINE void on_step(const step_record& record, const record_context&) override
    {
        if (path_.empty()) return;
        page_.add(record);
        is_new_ = true;
    }

    COLLPROBE_COLD_INLINE void on_alarm(const finding& raised, const record_context&) override
    {
        if (path_.empty()) return;
        page_.add(raised);
        is_new_ = true;
    }

    COLLPROBE_COLD_INLINE void on_inspection(const inspection& found, const record_context&) override
    {
        if (path_.empty()) return;
        page_.add(found);
        is_new_ = true;
    }

    inline void flush(const record_context& context) override;
    inline void close(const record_context& context) override;

private:
    std::string path_;
    html_options options_;
    html_page page_;
    std::uint64_t written_ns_ = 0; ///< since 1970
    bool is_new_ = false; ///< records came since then
};

} // namespace collprobe::inline COLLPROBE_ABI::report

#include <collprobe/report/detail/html.hpp>
