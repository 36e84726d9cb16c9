// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <charconv>
#include <ctime>

#include <collprobe/core/element.hpp>
#include <collprobe/report/detail/html_charts.hpp>
#include <collprobe/report/detail/html_style.hpp>
#include <collprobe/report/detail/finding_rows.hpp>
#include <collprobe/report/detail/table_writer.hpp>
#include <collprobe/report/file.hpp>
#include <collprobe/report/html.hpp>
#include <collprobe/report/inspection.hpp>
#include <collprobe/report/json.hpp>
#include <collprobe/report/table.hpp>
#include <collprobe/report/words.hpp>

namespace collprobe::inline COLLPROBE_ABI::report {

namespace detail {

inline constexpr std::size_t most_finding_rows = 50;

inline constexpr std::size_t most_quantised_calls = 256;

inline constexpr std::size_t most_inspections = 64;

/// "2026-03-04 10:25:13"
COLLPROBE_COLD_INLINE std::string utc_time(std::uint64_t unix_ns)
{
    const auto seconds = static_cast<std::time_t>(unix_ns / 1'000'000'000u);
    std::tm parts{};
    char text[40] = "";
    if (::gmtime_r(&seconds, &parts) == nullptr) return "unknown";
    std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts);
    return text;
}

/// "3 h 12 min", "12.5 s"
COLLPROBE_COLD_INLINE std::string duration(std::uint64_t nanoseconds)
{
    const std::uint64_t seconds = nanoseconds / 1'000'000'000u;
    if (seconds < 60) return short_number(static_cast<double>(nanoseconds / 1'000'000u) / 1e3) + " s";
    const std::uint64_t minutes = seconds / 60;
    if (minutes < 60) return std::to_string(minutes) + " min " + std::to_string(seconds % 60) + " s";
    if (minutes < 48 * 60)
        return std::to_string(minutes / 60) + " h " + std::to_string(minutes % 60) + " min";
    return std::to_string(minutes / 1440) + " days " + std::to_string(minutes % 1440 / 60) + " h";
}

/// Six significant digits: enough for a picture, and a third of the bytes.
COLLPROBE_COLD_INLINE void append_number(std::string& out, double value)
{
    char buffer[40];
    const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::general, 6);
    out.append(buffer, end.ptr);
}

COLLPROBE_COLD_INLINE void write_series(
    std::string& text, json_writer& json, const char* name, const step_series& series, track which)
{
    if (series.count(which) == 0) return;
    const step_bins& bins = series.bins();
    const auto array = [&](const char* key, const auto& value) {
        json.key(key).open('[');
        for (std::size_t i = 0; i < bins.size(); ++i) {
            json.element();
            const track_point& point = series.at(which, i);
            if (point.count == 0) text += "null";
            else append_number(text, value(point));
        }
        json.close(']');
    };
    const bool is_range = which == track::loss_of_ranks || which == track::norm_of_ranks;
    json.key(name).open('{');
    if (!is_range) array("mean", [](const track_point& point) { return point.mean(); });
    if (is_range || bins.width() > 1) {
        array("low", [](const track_point& point) { return point.low; });
        array("high", [](const track_point& point) { return point.high; });
    }
    json.close('}');
}

} // namespace detail

COLLPROBE_COLD_INLINE void html_page::add(const step_record& record)
{
    if (found_.steps() == 0) first_step_ = last_step_ = record.step;
    first_step_ = std::min(first_step_, record.step);
    last_step_ = std::max(last_step_, record.step);
    mode_ = record.mode;
    found_.add(record);
    if (const std::string losses = detail::loss_text(record); !losses.empty())
        unequal_losses_
            = "In step " + std::to_string(record.step) + ' ' + losses + ". The chart has the mean over ranks.";
    if (const std::string last = detail::lateness_text(record); !last.empty())
        late_ranks_ = "In step " + std::to_string(record.step) + ' ' + last + '.';
    series_.add(record);
    ranks_.add(record);
    for (std::size_t c = 0; c < record.calls.size(); ++c) {
        const call_record& call = record.calls[c];
        if (const call_audit& audit = call.audit; audit.checked) {
            ++audits_.calls;
            audits_.without_majority += audit.majority ? 0 : 1;
            audits_.sums += audit.sum_checked ? 1 : 0;
            audits_.wrong_sums += audit.sum_checked && !audit.conserved ? 1 : 0;
            const bool has_ratio = audit.sum_checked && audit.residual_limit > 0 && !is_nan(audit.residual);
            const double ratio = has_ratio ? audit.residual / audit.residual_limit : -1;
            if (ratio > audits_.worst_ratio) {
                audits_.worst_ratio = ratio;
                audits_.worst_step = record.step;
                audits_.worst_call = static_cast<int>(c);
                audits_.worst_site = call.site;
            }
        }
        if (!call.quantisation.seen || c >= detail::most_quantised_calls) continue;
        if (quantised_.size() <= c) quantised_.resize(c + 1);
        quantised_total& total = quantised_[c];
        const call_quantisation& next = call.quantisation;
        total.site = call.site;
        if (!next.outcome.quantised()) {
            if (++total.unquantised; total.quantised == 0) total.worst = next;
            continue;
        }
        if (total.quantised++ == 0 || next.verdict < total.worst.verdict) {
            total.worst = next;
            total.with_worst = 0;
        }
        total.with_worst += next.verdict == total.worst.verdict ? 1 : 0;
    }
}

COLLPROBE_COLD_INLINE void html_page::add(const inspection& found)
{
    if (inspections_.size() == detail::most_inspections) {
        ++more_inspections_;
        return;
    }
    inspections_.push_back(found);
    inspections_.back().orders.clear(); // long, and not shown
}

COLLPROBE_COLD_INLINE std::string html_page::data(const record_context& at, bool finished) const
{
    using detail::track;
    std::string text;
    detail::json_writer json(text);
    detail::write_head(json, "report", at);
    json.key("verdict").text(found_.verdict()).key("level").text(detail::name(detail::level_of(found_)));
    json.key("finished").boolean(finished).key("ranks").index(found_.ranks());
    json.key("steps").integer(found_.steps()).key("first_step").integer(first_step_);
    json.key("last_step").integer(last_step_).key("suspicious_steps").integer(found_.suspicious_steps());
    json.key("calls").integer(found_.calls()).key("unprobed_calls").integer(found_.unprobed_calls());
    json.key("unread_calls").integer(found_.unread_calls()).key("alarm_count").integer(found_.alarm_count());
    const auto list = [&json](const char* what, const std::vector<repeated_finding>& all) {
        json.key(what).open('[');
        for (std::size_t i = 0; i < all.size() && i < detail::most_finding_rows; ++i)
            detail::write_finding(json, all[i]);
        json.close(']');
    };
    list("alarms", found_.alarms());
    list("findings", found_.findings());
    json.key("series").open('{').key("first_step").open('[');
    const detail::step_bins& bins = series_.bins();
    for (std::size_t i = 0; i < bins.size(); ++i) json.element().integer(bins[i].first);
    json.close(']').key("steps").open('[');
    for (std::size_t i = 0; i < bins.size(); ++i) json.element().integer(bins[i].steps);
    json.close(']');
    detail::write_series(text, json, "loss", series_, track::loss);
    detail::write_series(text, json, "loss_of_ranks", series_, track::loss_of_ranks);
    detail::write_series(text, json, "grad_norm", series_, track::norm);
    detail::write_series(text, json, "grad_norm_of_ranks", series_, track::norm_of_ranks);
    detail::write_series(text, json, "grad_norm_cv", series_, track::norm_cv);
    detail::write_series(text, json, "cosine", series_, series_.cosine());
    detail::write_series(text, json, "cosine_predicted", series_, track::cosine_predicted);
    detail::write_series(text, json, "noise_scale", series_, track::noise_scale);
    detail::write_series(text, json, "behind_ms", series_, track::behind_ms);
    detail::write_series(text, json, "evidence", series_, track::evidence);
    detail::write_series(text, json, "wrong_calls", series_, track::wrong_calls);
    detail::write_series(text, json, "nonfinite_calls", series_, track::nonfinite_calls);
    detail::write_series(text, json, "nonfinite_elements", series_, track::nonfinite_elements);
    json.close('}').close('}');
    return text;
}

COLLPROBE_COLD_INLINE void html_page::write_title(
    std::string& out, const record_context& at, bool finished) const
{
    using detail::html_text;
    const run_record& run = at.run;
    const detail::run_level level = detail::level_of(found_);
    out += "<header><p class=\"kind\">collprobe report</p><h1>" + html_text(run.name)
        + "</h1><ul class=\"facts\">";
    const auto fact = [&out](const std::string& text) { out += "<li>" + html_text(text) + "</li>"; };
    const int ranks = found_.steps() == 0 ? run.ranks : found_.ranks();
    fact(detail::counted(static_cast<std::uint64_t>(ranks), "rank")
        + (run.nodes > 0 ? " on " + detail::counted(static_cast<std::uint64_t>(run.nodes), "node") : ""));
    if (found_.steps() != 0) {
        fact(detail::counted(found_.steps(), "step") + ": " + detail::step_range(first_step_, last_step_));
    }
    if (!run.host.empty()) fact("written by rank " + std::to_string(run.rank) + " on " + run.host);
    if (!run.job.empty()) fact("job " + run.job);
    if (run.started_ns != 0) {
        const bool has_length = at.unix_ns > run.started_ns;
        fact(detail::utc_time(run.started_ns) + " UTC"
            + (has_length ? ", " + detail::duration(at.unix_ns - run.started_ns) : ""));
    }
    out += "</ul></header>\n";
    const char* word = "No data";
    const char* glyph = "\xe2\x80\x93";
    if (level == detail::run_level::fine) word = "Fine", glyph = "\xe2\x9c\x93";
    if (level == detail::run_level::look) word = "Look", glyph = "?";
    if (level == detail::run_level::act) word = "Act", glyph = "!";
    out += std::string("<section class=\"verdict ") + detail::name(level)
        + "\" aria-label=\"Verdict\"><div class=\"sign\">" + "<i aria-hidden=\"true\">" + glyph + "</i>"
        + word + "</div><p id=\"verdict\">" + html_text(found_.verdict()) + "</p></section>\n";
    if (!finished) {
        out += "<p class=\"note\">The run was still going on when this page was written, at "
            + detail::utc_time(at.unix_ns) + " UTC.</p>\n";
    }
}

COLLPROBE_COLD_INLINE void html_page::write_findings(std::string& out, const run_record& run) const
{
    using detail::html_text;
    out += "<section><h2>Findings</h2>\n";
    const std::vector<detail::finding_row> rows = detail::finding_rows(found_);
    if (rows.empty()) {
        out += std::string("<p>")
            + (found_.steps() == 0 ? "No step was recorded." : "No check named a rank or a call.")
            + "</p></section>\n";
        return;
    }
    const std::size_t shown = std::min(rows.size(), detail::most_finding_rows);
    out += "<p class=\"note\">The gravest first. A row is one check with the same ranks and call, in one "
           "step or many.";
    if (shown < rows.size()) {
        out += " The table has " + std::to_string(shown) + " of " + detail::counted(rows.size(), "row") + '.';
    }
    const bool is_full
        = found_.alarms().size() == run_findings::most || found_.findings().size() == run_findings::most;
    if (is_full)
        out += " There were more than " + std::to_string(run_findings::most)
            + "; those behind are not listed.";
    out += "</p>\n";
    {
        detail::table_writer table(out, "Findings",
            {"Rank", "What happened", "What to do", "Where", "Evidence", "Steps", "False alarms"}, "wide");
        for (std::size_t i = 0; i < shown; ++i) {
            const repeated_finding& row = *rows[i].of;
            const finding& found = row.first;
            const std::string host = detail::host_of(found.ranks, run);
            table.raw(html_text(detail::subject(found.what, found.ranks))
                + (host.empty() ? std::string() : " <span class=\"note\">on " + html_text(host) + "</span>"));
            table.raw(html_text(facts_of(found.what).sentence.of(found.is_named())) + " <span class=\"note\">("
                + name(found.what) + ")</span>");
            table.cell(rows[i].is_alarm ? detail::advise(found) : "no alarm was raised: watch it");
            table.cell(detail::describe_place(found.call, found.site));
            table.cell(detail::row_evidence(rows[i]));
            table.cell(std::to_string(row.steps) + " of " + std::to_string(found_.steps()) + ": "
                + detail::step_range(row.first_step, row.last_step));
            table.cell(detail::false_alarms_of(found));
        }
    }
    out += "</section>\n";
}

COLLPROBE_COLD_INLINE void html_page::write_calls(std::string& out) const
{
    if (audits_.calls != 0) {
        out += "<section><h2>Audits</h2>\n<p class=\"note\">Results are compared between ranks, bit by bit; "
               "sums by a "
               "checksum of inputs and result.</p>\n";
        {
            detail::table_writer table(out, "Audits", {"Audited", "Number"}, "list");
            const auto row = [&table](const char* what, const std::string& value) {
                table.cell(what);
                table.cell(value);
            };
            row("calls whose results were compared", std::to_string(audits_.calls));
            row("of them without a result that most ranks hold", std::to_string(audits_.without_majority));
            row("sums checked", std::to_string(audits_.sums));
            row("of them wrong", std::to_string(audits_.wrong_sums));
            if (audits_.worst_ratio >= 0) {
                row("largest residual, as a share of its limit",
                    short_number(100 * audits_.worst_ratio) + " %" + ", step "
                        + std::to_string(audits_.worst_step) + ", "
                        + describe_call(audits_.worst_call, audits_.worst_site));
            }
        }
        out += "</section>\n";
    }
    if (!quantised_.empty()) {
        out += "<section><h2>Quantised calls</h2>\n<p class=\"note\">Each call with its worst verdict of all "
               "steps, and the "
               "numbers of that step.</p>\n";
        {
            detail::table_writer table(out, "Quantised calls",
                {"Call", "Verdict", "Advice", ">Steps with it", "Codes", ">Error, dB", ">Noise ratio",
                    ">Bytes"},
                "wide");
            for (std::size_t c = 0; c < quantised_.size(); ++c) {
                const quantised_total& total = quantised_[c];
                if (total.quantised + total.unquantised == 0) continue;
                const call_quantisation& worst = total.worst;
                const quantised_outcome& did = worst.outcome;
                table.cell(describe_call(static_cast<int>(c), total.site));
                if (total.quantised == 0) {
                    table.cell(std::string("not quantised: ") + name(did.why_not));
                    for (const char* empty : {"-", "-", "-", "-", "-", "-"}) table.cell(empty);
                    continue;
                }
                table.cell(name(worst.verdict));
                const std::string advice = quantisation_advice(worst);
                table.cell(advice.empty() ? "-" : advice);
                table.cell(std::to_string(total.with_worst) + " of " + std::to_string(total.quantised));
                table.cell(std::string(name(did.within))
                    + (did.levels == 2 ? std::string(", then ") + name(did.across) : std::string())
                    + " in blocks of " + std::to_string(did.block));
                table.cell(short_number(worst.sqnr_db));
                table.cell(short_number(worst.noise_ratio));
                table.cell(did.bytes_plain == 0 ? "-"
                                                : short_number(100 * static_cast<double>(did.bytes_sent)
                                                      / static_cast<double>(did.bytes_plain))
                            + " %");
            }
        }
        out += "</section>\n";
    }
    if (inspections_.empty()) return;
    out += "<section><h2>Inspected all-reduces</h2>\n<p class=\"note\">How the library adds. Same bits: for "
           "what the result "
           "keeps its bits.";
    if (more_inspections_ != 0) out += " Not shown: " + std::to_string(more_inspections_) + " more.";
    out += "</p>\n";
    {
        detail::table_writer table(out, "Inspected all-reduces",
            {"Communicator", "Type", ">Elements", ">Ranks", "Order", "Partial sums, bits", "Same bits",
                ">Error, ulp", ">Time, us", ">Bus, GB/s"});
        for (const inspection& each : inspections_) {
            table.cell(each.communicator);
            table.cell(name(each.element));
            table.cell(std::to_string(each.count));
            table.cell(std::to_string(each.ranks));
            table.cell(name(each.order));
            table.cell(detail::partial_sum_precision(each));
            std::string same;
            const auto add = [&same](bool holds, const char* what) {
                if (holds) same += (same.empty() ? "" : ", ") + std::string(what);
            };
            add(each.run_stable, "each call");
            add(each.size_stable, "other sizes");
            add(each.permutation_stable, "values dealt otherwise");
            if (!each.ranks_agree) same += std::string(same.empty() ? "" : "; ") + "the ranks differ";
            table.cell(same.empty() ? "none" : same);
            table.cell(short_number(each.max_ulp));
            table.cell(short_number(each.time_us));
            table.cell(short_number(each.busbw_gbs));
        }
    }
    out += "</section>\n";
}

COLLPROBE_COLD_INLINE void html_page::write_facts(std::string& out, const record_context& at) const
{
    const run_record& run = at.run;
    out += "<section><h2>Settings</h2>\n";
    if (run.settings.empty()) {
        out += "<p>None were recorded (<code>run_record::settings</code>).</p>\n";
    } else {
        detail::table_writer table(out, "Settings", {"Setting", "Value"}, "list");
        for (const auto& [setting, value] : run.settings) {
            table.cell(setting);
            table.cell(value);
        }
    }
    out += "</section>\n<section><h2>Coverage</h2>\n";
    {
        detail::table_writer table(out, "Coverage", {"What", ">Number", "Remark"}, "list");
        const auto row = [&table](const char* what, std::uint64_t number, const char* remark) {
            table.cell(what);
            table.cell(std::to_string(number));
            table.cell(remark);
        };
        const std::uint64_t unprobed = found_.unprobed_calls();
        const std::uint64_t unread = found_.unread_calls();
        row("steps recorded", found_.steps(),
            mode_ == report_mode::summary ? "summary mode: sums and extrema, no numbers of single ranks"
                                          : "");
        row("steps with findings", found_.suspicious_steps(), "");
        row("alarms, with repetitions", found_.alarm_count(), "");
        row("calls made", found_.calls(), "");
        row("calls looked at", found_.calls() - unprobed - unread, "");
        row("calls not looked at: no room", unprobed,
            unprobed == 0 ? "" : "there was no room: raise probe_options::calls of a captured step, or largest_step");
        row("calls not looked at: not read", unread,
            unread == 0 ? "" : "they carry integers, which are not read, or the step takes no statistics");
        row("records dropped", at.dropped,
            at.dropped == 0
                ? ""
                : "the writer fell behind: raise sinks_options::room. These steps are missing above.");
    }
    out += "</section>\n<section><h2>Versions</h2>\n";
    {
        detail::table_writer table(out, "Versions", {"What", "Value"}, "list");
        const auto row = [&table](const char* what, const std::string& value) {
            if (value.empty()) return;
            table.cell(what);
            table.cell(value);
        };
        row("collprobe", run.library.empty() ? "unknown" : run.library);
        row("communicator",
            run.communicator + (run.communicator_id.empty() ? "" : " (" + run.communicator_id + ")"));
        row("device", run.device);
        row("process", run.process == 0 ? "" : std::to_string(run.process));
        row("page written", at.unix_ns == 0 ? "" : detail::utc_time(at.unix_ns) + " UTC");
    }
    out += "</section>\n";
}

COLLPROBE_COLD_INLINE std::string html_page::text(const record_context& at, bool finished) const
{
    using detail::html_text;
    std::string out = "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
                      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
                      "<meta name=\"generator\" content=\"collprobe\"><title>";
    out += html_text(at.run.name) + ": " + detail::name(detail::level_of(found_))
        + " - collprobe report</title><style>" + detail::html_style + "</style></head>\n<body>\n";
    write_title(out, at, finished);
    out += "<main>\n";
    write_findings(out, at.run);
    detail::write_charts(out, series_, {unequal_losses_, late_ranks_});
    detail::write_ranks(out, ranks_, mode_);
    write_calls(out);
    write_facts(out, at);
    out += "</main>\n<script type=\"application/json\" id=\"collprobe-data\">" + data(at, finished)
        + "</script>\n";
    return out + "</body></html>\n";
}

COLLPROBE_COLD_INLINE void html::open(const run_record& run)
{
    page_ = {};
    written_ns_ = run.started_ns;
    // A path that cannot be written is told now, and not after a day.
    if (!path_.empty()) replace_file(path_, page_.text({run, run.started_ns, 0}, false));
}

COLLPROBE_COLD_INLINE void html::flush(const record_context& context)
{
    if (path_.empty() || options_.interval_ms <= 0 || !is_new_) return;
    // A clock that was set back must not silence the page.
    const std::uint64_t passed
        = context.unix_ns < written_ns_ ? ~std::uint64_t{0} : context.unix_ns - written_ns_;
    if (passed / 1'000'000u < static_cast<std::uint64_t>(options_.interval_ms)) return;
    replace_file(path_, page_.text(context, false));
    written_ns_ = context.unix_ns;
    is_new_ = false;
}

COLLPROBE_COLD_INLINE void html::close(const record_context& context)
{
    if (!path_.empty()) replace_file(path_, page_.text(context));
}

} // namespace collprobe::inline COLLPROBE_ABI::report
