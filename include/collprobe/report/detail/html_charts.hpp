// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>

#include <collprobe/core/record.hpp>
#include <collprobe/report/detail/rank_steps.hpp>
#include <collprobe/report/detail/step_series.hpp>
#include <collprobe/report/detail/svg.hpp>
#include <collprobe/report/detail/table_writer.hpp>
#include <collprobe/report/summary.hpp>
#include <collprobe/report/words.hpp>

/// The sections of a page with drawings: each with its numbers in a table below.
namespace collprobe::inline COLLPROBE_ABI::report::detail {

/// "17", "17 to 93"
COLLPROBE_COLD_INLINE std::string step_range(std::uint64_t first, std::uint64_t last)
{
    return std::to_string(first) + (first == last ? std::string() : " to " + std::to_string(last));
}

inline constexpr std::size_t most_number_rows = 40; ///< below a drawing

COLLPROBE_COLD_INLINE std::vector<chart> charts_of(const step_series& series)
{
    const track cosine = series.cosine();
    std::vector<chart> all(8);
    all[0] = {.id = "loss",
        .title = "Loss",
        .lines = {{track::loss, "mean of the ranks"}},
        .has_band = true,
        .band = track::loss_of_ranks,
        .band_name = "least to largest rank",
        .may_be_logarithmic = true};
    all[1] = {.id = "norm",
        .title = "Gradient norm",
        .lines = {{track::norm, "mean of the ranks"}},
        .has_band = true,
        .band = track::norm_of_ranks,
        .band_name = "least to largest rank",
        .may_be_logarithmic = true};
    all[2] = {.id = "cv",
        .title = "Spread of the gradient norm",
        .lines = {{track::norm_cv, "standard deviation over mean"}},
        .from_zero = true};
    all[3] = {.id = "cosine",
        .title = "Cosine between the ranks' gradients",
        .lines = {{cosine, cosine == track::cosine_pairwise ? "mean over pairs" : "all ranks, pooled"},
            {track::cosine_predicted, "predicted by the noise scale", "c2"}}};
    all[4] = {.id = "noise",
        .title = "Gradient noise scale",
        .lines = {{track::noise_scale, "in batches of one rank"}},
        .from_zero = true,
        .may_be_logarithmic = true};
    all[5] = {.id = "lateness",
        .title = "Lateness of the last rank, ms",
        .lines = {{track::behind_ms, "behind the median of the other ranks"}},
        .from_zero = true};
    all[6] = {.id = "evidence",
        .title = "Evidence that a rank is unlike the others",
        .lines = {{track::evidence, "odds against chance of the strongest rank, power of ten"}},
        .from_zero = true};
    all[7] = {.id = "faults",
        .title = "Damaged calls in a step",
        .lines = {{track::wrong_calls, "wrong, or not the same for all", "c3"},
            {track::nonfinite_calls, "NaN or infinity", "c2"}},
        .from_zero = true,
        .has_stems = true};
    return all;
}

/// A chart in words, for those who cannot see it.
COLLPROBE_COLD_INLINE std::string chart_in_words(const chart& of, const step_series& series)
{
    const step_bins& bins = series.bins();
    std::string text = "Steps " + step_range(bins[0].first, bins[bins.last()].last) + '.';
    const auto add = [&](track which, const char* name) {
        std::size_t highest = 0;
        std::size_t lowest = 0;
        std::size_t first = bins.size();
        std::size_t last = 0;
        for (std::size_t i = 0; i < bins.size(); ++i) {
            const track_point& point = series.at(which, i);
            if (point.count == 0) continue;
            if (first == bins.size()) first = highest = lowest = i;
            last = i;
            if (point.high > series.at(which, highest).high) highest = i;
            if (point.low < series.at(which, lowest).low) lowest = i;
        }
        text += std::string(" ") + name + ": ";
        if (first == bins.size()) {
            text += "no number.";
            return;
        }
        text += "from " + short_number(series.at(which, first).mean()) + " to "
            + short_number(series.at(which, last).mean()) + "; lowest "
            + short_number(series.at(which, lowest).low) + " in step "
            + step_range(bins[lowest].first, bins[lowest].last) + ", highest "
            + short_number(series.at(which, highest).high) + " in step "
            + step_range(bins[highest].first, bins[highest].last) + '.';
    };
    for (const chart_line& line : of.lines) add(line.data, line.name);
    if (of.has_band && series.count(of.band) != 0) add(of.band, of.band_name);
    std::string marked;
    std::size_t count = 0;
    for (std::size_t i = 0; i < bins.size(); ++i) {
        if (series.mark_at(i) < step_mark::alarm) continue;
        if (++count <= 10) marked += (count == 1 ? " " : ", ") + step_range(bins[i].first, bins[i].last);
    }
    if (count != 0) text += " Alarms in steps" + marked + (count > 10 ? " and others." : ".");
    return text;
}

/// The numbers of a chart.
COLLPROBE_COLD_INLINE void write_numbers(std::string& out, const chart& of, const step_series& series)
{
    const step_bins& bins = series.bins();
    const std::size_t group = (bins.size() + most_number_rows - 1) / most_number_rows;
    const bool is_single = group == 1 && bins.width() == 1;
    const bool is_mean_alone = is_single || of.has_band; // the band goes beyond the mean's least and largest
    std::vector<std::string> headings{"Step"};
    std::vector<std::pair<track, bool>> columns; // whether it has a mean
    const auto add = [&](track which, const std::string& name, bool has_mean) {
        if (series.count(which) == 0) return;
        columns.push_back({which, has_mean});
        if (has_mean) headings.push_back('>' + name);
        if (has_mean && is_mean_alone) return;
        headings.push_back(std::string(">least") + (has_mean ? "" : " rank"));
        headings.push_back(std::string(">largest") + (has_mean ? "" : " rank"));
    };
    for (const chart_line& line : of.lines) add(line.data, line.name, true);
    if (of.has_band) add(of.band, "", false);
    out += "<details><summary>Numbers</summary>";
    if (!is_single) {
        out += "<p>" + counted((bins.size() + group - 1) / group, "row") + " for "
            + counted(bins.size(), "point")
            + ": the mean, the least and the largest of the steps of a row.</p>";
    }
    table_writer table(out, of.title, headings);
    for (std::size_t first = 0; first < bins.size(); first += group) {
        const std::size_t end = std::min(first + group, bins.size());
        table.cell(step_range(bins[first].first, bins[end - 1].last));
        for (const auto& [which, has_mean] : columns) {
            const track_point all = series.merged(which, first, end);
            const bool is_known = all.count != 0;
            if (has_mean) table.cell(is_known ? short_number(all.mean()) : "-");
            if (has_mean && is_mean_alone) continue;
            table.cell(is_known ? short_number(all.low) : "-");
            table.cell(is_known ? short_number(all.high) : "-");
        }
    }
}

COLLPROBE_COLD_INLINE const char* in_words(rank_state state) noexcept
{
    switch (state) {
    case rank_state::unknown: return "-";
    case rank_state::usual: return "usual";
    case rank_state::apart_4: return "over 4";
    case rank_state::apart_8: return "over 8";
    case rank_state::apart_16: return "over 16";
    case rank_state::named: return "named";
    }
    return "-";
}

/// `notes`: what belongs below the charts; may be empty.
COLLPROBE_COLD_INLINE void write_charts(
    std::string& out, const step_series& series, const std::vector<std::string>& notes)
{
    const step_bins& bins = series.bins();
    out += "<section><h2>Over the steps</h2>\n";
    if (bins.empty()) {
        out += "<p>No step was recorded.</p></section>\n";
        return;
    }
    bool has[4] = {};
    for (std::size_t i = 0; i < bins.size(); ++i) has[static_cast<std::size_t>(series.mark_at(i))] = true;
    out += "<p class=\"note\">";
    const auto glyph = [&out](const char* which, const char* text) {
        out += std::string("<span class=\"key\"><span class=\"glyph\" aria-hidden=\"true\">") + which
            + "</span> " + text + "</span> ";
    };
    if (has[3]) glyph("\xe2\x96\xbc", "alarm that asks to act;");
    if (has[2]) glyph("\xe2\x96\xbd", "alarm to look at;");
    if (has[1]) glyph("\xe2\x97\x87", "a check named a rank, without an alarm;");
    if (has[1] || has[2] || has[3]) out += "a bar joins several in a row. ";
    if (const std::uint64_t steps = steps_a_column(bins); steps > 1) {
        out += "Each point stands for up to " + std::to_string(steps)
            + " steps: the line is their mean, the area goes from the least to the largest, so no single "
              "step is lost. ";
    }
    if (!bins.is_ascending())
        out += "Steps came more than once or went back: points are in the order of arrival. ";
    out += "</p>\n<div class=\"charts\">\n";
    std::string missing;
    std::string none;
    for (chart each : charts_of(series)) {
        if (!has_numbers(each, series)) {
            missing += std::string(missing.empty() ? "" : "; ") + each.title;
            continue;
        }
        each.has_band = each.has_band && series.count(each.band) != 0;
        std::string key;
        bool is_zero = each.has_stems;
        for (const chart_line& line : each.lines) {
            const track_point all = series.merged(line.data, 0, bins.size());
            if (all.count == 0) continue;
            is_zero = is_zero && !(all.high > 0);
            key += "<span class=\"key\"><i class=\"k" + std::string(line.style + 1) + "\"></i></span>"
                + html_text(line.name) + " ";
        }
        if (each.has_band)
            key += "<span class=\"key\"><i class=\"kb\"></i></span>" + html_text(each.band_name) + " ";
        if (is_zero) {
            none += std::string(each.title) + ": none. ";
            continue;
        }
        if (is_logarithmic(each, series)) key += "(logarithmic) ";
        const std::uint64_t known = series.count(each.lines[0].data);
        if (known < bins.records() && known != 0) {
            key += "in " + std::to_string(known) + " of " + counted(bins.records(), "step");
        }
        out += "<figure><figcaption><b>" + html_text(each.title) + "</b><span>" + key
            + "</span></figcaption>\n" + chart_svg(each, series, chart_in_words(each, series)) + "\n";
        write_numbers(out, each, series);
        out += "</details></figure>\n";
    }
    out += "</div>\n";
    if (!missing.empty()) none += "Not recorded in this run: " + missing + '.';
    for (const std::string& note : notes)
        if (!note.empty()) out += "<p class=\"note\">" + html_text(note) + "</p>\n";
    if (!none.empty()) out += "<p class=\"note\">" + html_text(none) + "</p>\n";
    out += "</section>\n";
}

/// The map of the ranks, if there is anything to show.
COLLPROBE_COLD_INLINE void write_map(
    std::string& out, const rank_steps& ranks, const std::vector<const rank_row*>& rows)
{
    const step_bins& bins = ranks.bins();
    bool has[6] = {};
    std::string named;
    for (const rank_row* row : rows) {
        for (const rank_state state : row->states) has[static_cast<std::size_t>(state)] = true;
        if (row->named_steps == 0) continue;
        named
            += " Rank " + std::to_string(row->rank) + ": named in " + counted(row->named_steps, "step") + '.';
    }
    if (std::find(has + 1, has + 6, true) == has + 6) return;
    const std::string description = "Rows are ranks, columns are steps "
        + step_range(bins[0].first, bins[bins.last()].last) + '.'
        + (named.empty() ? " No rank was named." : named);
    out += "<figure class=\"map\"><figcaption><b>Ranks over the steps</b><span>Each row is a rank. ";
    std::string keys;
    const auto key = [&](rank_state state, const char* style, const char* text) {
        if (!has[static_cast<std::size_t>(state)]) return;
        keys += std::string(keys.empty() ? "" : ", ") + "<span class=\"key\"><i class=\"cell " + style
            + "\"></i>" + text + "</span>";
    };
    key(rank_state::usual, "h0", "loss and gradient norm near the median of the ranks");
    key(rank_state::apart_4, "h1", "over 4 times the usual distance from it");
    key(rank_state::apart_8, "h2", "over 8 times the usual distance");
    key(rank_state::apart_16, "h3", "over 16 times the usual distance");
    key(rank_state::named, "h4", "named by a check, with \xe2\x97\x84 and its number");
    out += keys + '.';
    if (bins.width() > 1) out += " A cell is the worst of up to " + counted(bins.width(), "step") + '.';
    out += "</span></figcaption>\n" + map_svg(ranks, rows, description)
        + "\n<details><summary>Numbers</summary><p>The worst of the steps in each column. Distances are in "
          "robust "
          "deviations of the ranks.</p>";
    constexpr std::size_t most_groups = 12;
    const std::size_t group = (bins.size() + most_groups - 1) / most_groups;
    std::vector<std::string> headings{"Rank"};
    for (std::size_t first = 0; first < bins.size(); first += group) {
        const std::size_t end = std::min(first + group, bins.size());
        headings.push_back(step_range(bins[first].first, bins[end - 1].last));
    }
    {
        table_writer table(out, "Ranks over the steps", headings);
        for (const rank_row* row : rows) {
            table.cell(std::to_string(row->rank));
            for (std::size_t first = 0; first < bins.size(); first += group) {
                table.cell(in_words(rank_steps::worst(*row, first, std::min(first + group, bins.size()))));
            }
        }
    }
    out += "</details></figure>\n";
}

COLLPROBE_COLD_INLINE void write_rank_table(std::string& out, const std::vector<const rank_row*>& rows)
{
    using member = thinned_values rank_row::*; // written out in `column`, nvcc makes of it what g++ warns about
    struct column {
        const char* heading;
        member values;
    };
    std::vector<column> columns;
    std::vector<std::string> headings{"Rank"};
    for (const column& each : {column{">Loss", &rank_row::loss}, {">Gradient norm", &rank_row::norm},
             {">Cosine with the others", &rank_row::cosine}, {">Lateness, ms", &rank_row::late_ms}}) {
        const bool has_any = std::any_of(rows.begin(), rows.end(),
            [&](const rank_row* row) { return !(row->*each.values).values().empty(); });
        if (!has_any) continue;
        columns.push_back(each);
        headings.push_back(each.heading);
    }
    headings.push_back(">Steps named");
    headings.push_back(">Alarms");
    out += "<h3>Rank by rank</h3>\n";
    if (!columns.empty()) {
        out += "<p class=\"note\">Medians over the steps, of up to " + std::to_string(thinned_values::most)
            + " at equal distances. Lateness: after the median of the other ranks.</p>\n";
    }
    table_writer table(out, "Rank by rank", headings);
    for (const rank_row* row : rows) {
        const bool is_named = row->named_steps + row->alarms != 0;
        table.raw(std::to_string(row->rank)
            + (is_named ? " <span class=\"glyph\" role=\"img\" aria-label=\"named\">\xe2\x97\x84</span>"
                        : ""));
        for (const column& each : columns) table.cell(short_number(median((row->*each.values).values())));
        table.cell(std::to_string(row->named_steps));
        table.cell(std::to_string(row->alarms));
    }
}

COLLPROBE_COLD_INLINE void write_ranks(std::string& out, const rank_steps& ranks, report_mode mode)
{
    out += "<section><h2>The ranks</h2>\n";
    const std::vector<const rank_row*> rows = ranks.shown();
    const bool is_summary = mode == report_mode::summary && !ranks.bins().empty();
    if (is_summary) {
        out += "<p>In summary mode the ranks' own numbers do not travel: only ranks that a check named are "
               "here.</p>\n";
    }
    if (rows.empty() || ranks.bins().empty()) {
        out += is_summary ? "<p>None was named.</p>" : "<p>No numbers of single ranks were recorded.</p>";
        out += "</section>\n";
        return;
    }
    if (rows.size() < ranks.size()) {
        out += "<p>These are the " + std::to_string(rows.size()) + " ranks of " + std::to_string(ranks.size())
            + " that were named, or stood apart, most.</p>\n";
    }
    write_map(out, ranks, rows);
    write_rank_table(out, rows);
    out += "</section>\n";
}

} // namespace collprobe::inline COLLPROBE_ABI::report::detail
