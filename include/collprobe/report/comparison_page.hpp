// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>

#include <collprobe/core/element.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/hexadecimal.hpp>
#include <collprobe/report/compare.hpp>
#include <collprobe/report/detail/axis.hpp>
#include <collprobe/report/detail/html_style.hpp>
#include <collprobe/report/detail/svg.hpp>
#include <collprobe/report/detail/table_writer.hpp>
#include <collprobe/report/words.hpp>

namespace collprobe::inline COLLPROBE_ABI::report {

namespace detail {

/// The relative differences over the steps of `growth`, on a logarithmic axis; a difference of 0 lies on the floor.
COLLPROBE_COLD_INLINE void write_growth_chart(std::string& out, const run_comparison& of, const std::string& id)
{
    constexpr int width = 440;
    constexpr int height = 200;
    constexpr int left = 52;
    constexpr int right = 16;
    constexpr int top = 12;
    constexpr int bottom = 26;
    axis on;
    on.is_logarithmic = true;
    on.low = on.high = 0;
    for (const step_difference& at : of.growth) {
        if (!is_finite(at.relative) || !(at.relative > 0)) continue;
        on.low = on.high > 0 ? std::min(on.low, at.relative) : at.relative;
        on.high = std::max(on.high, at.relative);
    }
    if (!(on.low > 1e-290) || on.high > 1e290) return; // nothing to draw
    on.low /= 3;
    on.high *= 3;
    set_ticks(on, 5);
    svg_path line;
    svg_path dots;
    svg_path grid;
    std::string labels;
    const int plot_width = 10 * (width - left - right);
    const int plot_height = 10 * (height - top - bottom);
    const auto height_of = [&](double value) {
        return 10 * top + plot_height - static_cast<int>(on.place(value) * plot_height + 0.5);
    };
    const auto label = [&labels](int x, int y, const char* anchor, const std::string& text) {
        labels += "<text x=\"" + std::to_string(x) + "\" y=\"" + std::to_string(y) + "\" text-anchor=\"" + anchor
            + "\">" + text + "</text>";
    };
    for (const double tick : on.ticks) {
        grid.move(10 * left, height_of(tick));
        grid.line(10 * (width - right), height_of(tick));
        label(left - 6, height_of(tick) / 10 + 4, "end", tick_text(tick, 3));
    }
    const std::size_t points = of.growth.size();
    const std::size_t stride = points / 9 + 1; // between labels
    bool is_drawn = false;
    for (std::size_t i = 0; i < points; ++i) {
        const auto share = points == 1 ? 0.5 : static_cast<double>(i) / static_cast<double>(points - 1);
        const int x = 10 * left + static_cast<int>(share * plot_width + 0.5);
        const bool is_last = i + 1 == points;
        if (is_last || (i % stride == 0 && points - i > stride)) {
            const char* const anchor = is_last ? "end" : i == 0 ? "start" : "middle";
            label(x / 10, height - 8, anchor, (i == 0 ? "step " : "") + std::to_string(of.growth[i].step));
        }
        const double value = of.growth[i].relative;
        if (!is_finite(value)) {
            is_drawn = false;
            continue;
        }
        const int y = height_of(value);
        if (is_drawn) line.line(x, y);
        else line.move(x, y);
        is_drawn = true;
        dots.rectangle(x - 25, y - 25, 50, 50);
    }
    const step_difference& last = of.growth.back();
    out += "<h3>How the difference grows</h3>\n<figure><figcaption><span>relative difference of the results, "
           "0, 1, 2, 4 and more steps after the first</span></figcaption><svg viewBox=\"0 0 "
        + std::to_string(width) + ' ' + std::to_string(height) + "\" role=\"img\" aria-labelledby=\"" + id + "-title "
        + id + "-desc\"><title id=\"" + id + "-title\">How the difference grows</title><desc id=\"" + id
        + "-desc\">Relative difference of the results, logarithmic: " + short_number(of.growth.front().relative)
        + " in step " + std::to_string(of.growth.front().step) + ", " + short_number(last.relative) + " in step "
        + std::to_string(last.step) + ".</desc>";
    out += "<g transform=\"scale(.1)\"><path class=\"grid\" d=\"" + grid.text() + "\"/><path class=\"line c1\" d=\""
        + line.text() + "\"/><path class=\"band c1\" d=\"" + dots.text() + "\"/></g>" + labels + "</svg>\n";
    out += "<details><summary>Numbers</summary>";
    {
        table_writer table(out, "How the difference grows",
            {">Step", ">Calls that differ", ">Largest, ulp", ">Relative", ">1 - cosine", ">Loss, relative"});
        for (const step_difference& at : of.growth) {
            table.cell(std::to_string(at.step));
            table.cell(std::to_string(at.differing) + " of " + std::to_string(at.calls));
            table.cell(at.basis == difference_basis::samples ? std::to_string(at.max_ulp) : "-");
            table.cell(short_number(at.relative) + (at.basis == difference_basis::norms ? " (of norms)" : ""));
            table.cell(short_number(at.cosine_distance));
            table.cell(short_number(at.relative_loss));
        }
    }
    out += "</details></figure>\n";
}

COLLPROBE_COLD_INLINE void write_alarm_table(
    std::string& out, const char* title, const std::vector<logged_alarm>& alarms)
{
    constexpr std::size_t most = 50;
    if (alarms.empty()) return;
    out += std::string("<h3>") + title + "</h3>\n";
    if (alarms.size() > most) out += "<p class=\"note\">The first " + std::to_string(most) + " of "
            + std::to_string(alarms.size()) + ".</p>\n";
    table_writer table(out, title, {"Ranks", "What happened", "Where", ">Steps", ">First step"});
    for (std::size_t i = 0; i < alarms.size() && i < most; ++i) {
        const logged_alarm& each = alarms[i];
        table.cell(subject(each.what, each.ranks));
        table.cell(facts_of(each.what).sentence.of(!each.ranks.empty()));
        table.cell(describe_place(each));
        table.cell(std::to_string(each.steps.size()));
        table.cell(std::to_string(each.steps.front()));
    }
}

COLLPROBE_COLD_INLINE void write_comparison(std::string& out, const run_comparison& of, const std::string& id)
{
    const bool is_equal = of.outcome == comparison_outcome::identical;
    const bool is_unknown = of.outcome == comparison_outcome::nothing_to_compare;
    out += "<section><h2>Communicator " + html_text(of.communicator) + "</h2>\n";
    out += std::string("<div class=\"verdict ") + (is_equal ? "fine" : is_unknown ? "none" : "look")
        + "\"><div class=\"sign\"><i aria-hidden=\"true\">"
        + (is_equal ? "=" : is_unknown ? "\xe2\x80\x93" : "?") + "</i>"
        + (is_equal ? "Equal" : is_unknown ? "No data" : "Differ") + "</div><p>" + html_text(report::verdict(of))
        + "</p></div>\n";
    if (of.results_differ) {
        out += "<h3>The first result that differs</h3>\n";
        table_writer table(out, "The first result that differs", {"What", "A", "B"}, "list");
        const compared_call& first = of.first_difference;
        for (const std::string& cell : {std::string("digest"), collprobe::detail::hexadecimal(first.digest_a),
                 collprobe::detail::hexadecimal(first.digest_b)}) {
            table.cell(cell);
        }
    }
    if (!of.growth.empty()) write_growth_chart(out, of, id);
    const auto is_same = [](const metric_difference& each) { return each.verdict == metric_verdict::equal; };
    out += "<h3>Metrics</h3>\n";
    if (std::all_of(of.metrics.begin(), of.metrics.end(), is_same)) {
        out += "<p>All are equal, bit for bit.</p>\n";
    } else {
        out += "<p class=\"note\">Means over the steps from the first that differs. Moved: beyond a score of "
            + short_number(moved_limit) + ", which chance reaches in about one of 1000 comparisons."
            + (of.ranks_a != of.ranks_b ? " Metrics by rank depend on the number of ranks." : "") + "</p>\n";
        table_writer table(
            out, "Metrics", {"Metric", ">A", ">B", ">B - A", ">Standard error", ">Score", ">From step", "Verdict"});
        for (const metric_difference& each : of.metrics) {
            table.cell(name(each.which));
            table.cell(short_number(each.mean_a));
            table.cell(short_number(each.mean_b));
            table.cell(short_number(each.mean_difference));
            table.cell(short_number(each.standard_error));
            table.cell(short_number(each.score));
            table.cell(is_same(each) ? "-" : std::to_string(each.first_step));
            table.cell(verdict_in_words(each));
        }
    }
    write_alarm_table(out, "Alarms only in B", of.new_alarms);
    write_alarm_table(out, "Alarms only in A", of.gone_alarms);
    out += "</section>\n";
}

} // namespace detail

/// Comparisons of two runs, one for each communicator, as one HTML page: the verdict, where the runs part, how the
/// difference grows, metrics and alarms. As `html_page` it has no script and nothing outside of itself;
/// `<script type="application/json" id="collprobe-data">` has an array of the JSON lines' objects.
COLLPROBE_COLD_INLINE std::string comparison_page(view<const run_comparison> all)
{
    using detail::html_text;
    const std::string of_a = all.empty() ? "A" : all[0].run_a;
    const std::string of_b = all.empty() ? "B" : all[0].run_b;
    std::string out = "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
                      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
                      "<meta name=\"generator\" content=\"collprobe\"><title>";
    out += html_text(of_a) + " and " + html_text(of_b) + " - collprobe comparison</title><style>" + detail::html_style
        + "</style></head>\n<body>\n<header><p class=\"kind\">collprobe comparison</p><h1>" + html_text(of_a) + " and "
        + html_text(of_b) + "</h1><ul class=\"facts\">";
    if (!all.empty()) {
        const auto fact = [&out](const char* run, int ranks, std::uint64_t more) {
            out += std::string("<li>") + run + ": " + detail::counted(static_cast<std::uint64_t>(ranks), "rank")
                + (more == 0 ? "" : ", " + detail::counted(more, "step") + " that the other lacks") + "</li>";
        };
        fact("A", all[0].ranks_a, all[0].steps_only_a);
        fact("B", all[0].ranks_b, all[0].steps_only_b);
        out += "<li>" + detail::counted(all[0].steps, "step") + " in both</li>";
    }
    out += "</ul></header>\n<main>\n";
    std::string data;
    for (std::size_t i = 0; i < all.size(); ++i) {
        detail::write_comparison(out, all[i], "growth-" + std::to_string(i));
        const std::string line = json_line(all[i]);
        data += (i == 0 ? "" : ",") + line.substr(0, line.size() - 1);
    }
    return out + "</main>\n<script type=\"application/json\" id=\"collprobe-data\">[" + data
        + "]</script>\n</body></html>\n";
}

} // namespace collprobe::report
