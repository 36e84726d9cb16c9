// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <collprobe/detail/math.hpp>
#include <collprobe/report/detail/axis.hpp>
#include <collprobe/report/detail/rank_steps.hpp>
#include <collprobe/report/detail/step_series.hpp>
#include <collprobe/report/words.hpp>

/// The drawings of a page (report/html.hpp) as inline SVG. Colours, widths and fonts are those of its style
/// sheet.
namespace collprobe::inline COLLPROBE_ABI::report::detail {

/// The `d` of a path, in tenths of a unit: whole numbers, each point relative to the one before.
class svg_path {
public:
    COLLPROBE_COLD_INLINE void move(int x, int y)
    {
        text_ += 'm';
        put(x - x_);
        put(y - y_);
        start_x_ = x_ = x;
        start_y_ = y_ = y;
    }

    /// Precondition: `move` or `line` came before.
    void line(int x, int y);

    COLLPROBE_COLD_INLINE void close()
    {
        text_ += 'z';
        x_ = start_x_;
        y_ = start_y_;
    }

    COLLPROBE_COLD_INLINE void rectangle(int x, int y, int width, int height)
    {
        move(x, y);
        text_ += 'h';
        put(width);
        text_ += 'v';
        put(height);
        text_ += 'h';
        put(-width);
        close();
    }

    bool empty() const noexcept { return text_.empty(); }
    const std::string& text() const noexcept { return text_; }

private:
    COLLPROBE_COLD_INLINE void put(int value)
    {
        const bool follows_digit = !text_.empty() && text_.back() >= '0' && text_.back() <= '9';
        if (value >= 0 && follows_digit) text_ += ' ';
        text_ += std::to_string(value);
    }

    std::string text_;
    int x_ = 0;
    int y_ = 0;
    int start_x_ = 0;
    int start_y_ = 0;
};

/// A line of a chart: the mean of each bin.
struct chart_line {
    track data = track::loss;
    const char* name = "";
    const char* style = "c1"; ///< class in the style sheet: colour and dashes
};

/// A chart over the steps.
struct chart {
    const char* id = "";
    const char* title = "";
    std::vector<chart_line> lines;
    bool has_band = false;
    track band = track::loss; ///< an area from its low to its high
    const char* band_name = "";
    bool from_zero = false;
    bool may_be_logarithmic
        = false; ///< it is, if all is positive and the largest is over 100 times the least
    bool has_stems = false; ///< counts, as stems in place of lines
};

COLLPROBE_COLD_INLINE void svg_path::line(int x, int y) // the letter of a line behind a move may be left out
{
    put(x - x_);
    put(y - y_);
    x_ = x;
    y_ = y;
}

/// Numbers beyond this are drawn as this, so that differences stay finite. Numbers below its inverse count as
/// zero.
inline constexpr double most_drawn = 1e280;

COLLPROBE_COLD_INLINE track_point range_of(const chart& of, const step_series& series) noexcept
{
    track_point all;
    const std::size_t bins = series.bins().size();
    const auto add = [&](track which) {
        const track_point found = series.merged(which, 0, bins);
        if (found.count == 0) return;
        all.low = all.count == 0 ? found.low : std::min(all.low, found.low);
        all.high = all.count == 0 ? found.high : std::max(all.high, found.high);
        all.count += found.count;
    };
    for (const chart_line& line : of.lines) add(line.data);
    if (of.has_band) add(of.band);
    all.low = std::clamp(all.low, -most_drawn, most_drawn);
    all.high = std::clamp(all.high, -most_drawn, most_drawn);
    return all;
}

/// Whether any step has a number for it.
COLLPROBE_COLD_INLINE bool has_numbers(const chart& of, const step_series& series) noexcept
{
    return range_of(of, series).count != 0;
}

COLLPROBE_COLD_INLINE bool is_logarithmic(const chart& of, const step_series& series) noexcept
{
    const track_point range = range_of(of, series);
    return of.may_be_logarithmic && range.low > 1 / most_drawn && range.high / 100 > range.low;
}

COLLPROBE_COLD_INLINE axis value_axis(const chart& of, const step_series& series)
{
    const track_point range = range_of(of, series);
    axis on;
    on.low = range.low;
    on.high = range.high;
    on.is_logarithmic = is_logarithmic(of, series);
    if (on.is_logarithmic) {
        on.low /= 1.2;
        on.high *= 1.2;
        set_ticks(on, 5);
        return on;
    }
    if (of.from_zero) {
        on.low = std::min(on.low, 0.0);
        on.high = std::max(on.high, 0.0);
    }
    const double largest
        = std::max(collprobe::detail::absolute(on.low), collprobe::detail::absolute(on.high));
    double room = (on.high - on.low) * 0.05;
    if (!(largest > 1 / most_drawn)) {
        on.low = on.high = 0;
        room = 1;
    } else if (!(on.high - on.low > largest * 1e-9)) {
        room = largest * 0.1;
    }
    if (on.low < 0 || !of.from_zero) on.low -= room;
    if (on.high > 0 || !of.from_zero || on.high <= on.low) on.high += room;
    if (of.has_stems) on.high = std::max(on.high, 1.05);
    set_ticks(on, 5, of.has_stems ? 1 : 0);
    return on;
}

COLLPROBE_COLD_INLINE std::string text_at(double x, double y, const char* anchor, const std::string& text)
{
    return "<text x=\"" + tick_text(x, 5) + "\" y=\"" + tick_text(y, 5) + "\" text-anchor=\"" + anchor + "\">"
        + text + "</text>";
}

/// The middle of a label at `x` that must not be cut at the edges. `half`: of the width of a letter.
COLLPROBE_COLD_INLINE double centre_of(const std::string& label, int x, int width, double half)
{
    const double room = half * static_cast<double>(label.size()) + 1;
    return std::clamp<double>(x, room, width - room);
}

COLLPROBE_COLD_INLINE std::string path_of(const svg_path& path, const std::string& style)
{
    return path.empty() ? std::string() : "<path class=\"" + style + "\" d=\"" + path.text() + "\"/>";
}

/// The beginning of a drawing, with its name and description.
COLLPROBE_COLD_INLINE std::string svg_head(
    const std::string& id, const std::string& title, const std::string& description, int width, int height)
{
    return "<svg viewBox=\"0 0 " + std::to_string(width) + ' ' + std::to_string(height) + "\" role=\"img\""
        + " aria-labelledby=\"" + id + "-title " + id + "-desc\"><title id=\"" + id + "-title\">"
        + html_text(title) + "</title><desc id=\"" + id + "-desc\">" + html_text(description) + "</desc>";
}

/// Steps with alarms or findings, above the plot: one head for those too close to tell apart, with a bar to
/// the last.
struct mark_run {
    int from = 0; ///< tenths of a unit
    int to = 0;
    step_mark level = step_mark::none;
};

COLLPROBE_COLD_INLINE std::vector<mark_run> mark_runs(const step_series& series, int width)
{
    constexpr int too_close = 90;
    std::vector<mark_run> runs;
    for (std::size_t i = 0; i < series.bins().size(); ++i) {
        const step_mark level = series.mark_at(i);
        if (level == step_mark::none) continue;
        const int x = static_cast<int>(series.bins().place(i) * width);
        if (!runs.empty() && x - runs.back().to < too_close) {
            runs.back().to = x;
            runs.back().level = std::max(runs.back().level, level);
        } else {
            runs.push_back({x, x, level});
        }
    }
    return runs;
}

COLLPROBE_COLD_INLINE std::string mark_heads(const std::vector<mark_run>& runs, int y)
{
    svg_path bars;
    svg_path filled;
    svg_path hollow;
    svg_path small;
    for (const mark_run& run : runs) {
        const int x = run.from;
        if (run.to > run.from) bars.rectangle(run.from, y, run.to - run.from, 22);
        if (run.level == step_mark::named) {
            small.move(x, y - 12);
            small.line(x + 32, y + 20);
            small.line(x, y + 52);
            small.line(x - 32, y + 20);
            small.close();
            continue;
        }
        svg_path& head = run.level == step_mark::alarm_to_act ? filled : hollow;
        head.move(x - 48, y);
        head.line(x + 48, y);
        head.line(x, y + 84);
        head.close();
    }
    return path_of(bars, "mark") + path_of(small, "hollow") + path_of(hollow, "hollow")
        + path_of(filled, "mark");
}

/// So many columns a drawing has at most: more would share a pixel.
inline constexpr std::size_t most_columns = 400;

/// The bins of one track, drawn into a plot of `width` times `height` tenths.
class track_drawing {
public:
    track_drawing(const step_series& series, track which, const axis& on, int width, int height)
        : on_(on), height_(height)
    {
        const step_bins& bins = series.bins();
        const std::size_t group = group_of(bins);
        const std::size_t longest_gap = bins.size() / group / 20 + 1; // that the line crosses
        std::size_t gap = 0;
        for (std::size_t first = 0; first < bins.size(); first += group, ++gap) {
            const std::size_t end = std::min(first + group, bins.size());
            const track_point all = series.merged(which, first, end);
            if (all.count == 0) continue;
            if (pieces_.empty() || gap > longest_gap) pieces_.emplace_back();
            gap = 0;
            const double place = (bins.place(first) + bins.place(end - 1)) / 2;
            pieces_.back().push_back({static_cast<int>(place * width + 0.5), all});
        }
    }
    static std::size_t group_of(const step_bins& bins) noexcept
    {
        return (bins.size() - 1) / most_columns + 1;
    }

    /// The means, with a gap where a twentieth of all bins in a row has none.
    svg_path line() const
    {
        svg_path path;
        for (const piece& each : pieces_) {
            const int wider = each.size() == 1 ? 40 : 0;
            path.move(each[0].x - wider, height_of(each[0].point.mean()));
            if (wider != 0) path.line(each[0].x + wider, height_of(each[0].point.mean()));
            for (std::size_t k = 1; k < each.size(); ++k)
                path.line(each[k].x, height_of(each[k].point.mean()));
        }
        return path;
    }
    /// The area between the lowest and the highest numbers.
    svg_path area() const
    {
        svg_path path;
        for (const piece& each : pieces_) {
            if (each.size() == 1) {
                const int top = height_of(each[0].point.high);
                path.rectangle(each[0].x - 40, top, 80, height_of(each[0].point.low) - top);
                continue;
            }
            path.move(each[0].x, height_of(each[0].point.high));
            for (std::size_t k = 1; k < each.size(); ++k) path.line(each[k].x, height_of(each[k].point.high));
            for (std::size_t k = each.size(); k-- > 0;) path.line(each[k].x, height_of(each[k].point.low));
            path.close();
        }
        return path;
    }
    std::size_t stem_count() const noexcept
    {
        std::size_t count = 0;
        for (const piece& each : pieces_) {
            for (const column& at : each) count += at.point.high > 0 ? 1 : 0;
        }
        return count;
    }
    /// A stem for each column that is not zero, `shift` to the right; heads are added to `heads`.
    svg_path stems(int shift, bool is_square, svg_path& heads) const
    {
        constexpr int r = 28;
        svg_path path;
        for (const piece& each : pieces_) {
            for (const column& at : each) {
                if (!(at.point.high > 0)) continue;
                const int x = at.x + shift;
                const int top = height_of(at.point.high);
                path.move(x, height_);
                path.line(x, top);
                if (is_square) {
                    heads.rectangle(x - r, top - r, 2 * r, 2 * r);
                    continue;
                }
                heads.move(x, top - r - 10);
                heads.line(x + r + 10, top);
                heads.line(x, top + r + 10);
                heads.line(x - r - 10, top);
                heads.close();
            }
        }
        return path;
    }

private:
    struct column {
        int x = 0;
        track_point point;
    };
    using piece = std::vector<column>;

    int height_of(double value) const noexcept
    {
        return height_ - static_cast<int>(on_.place(value) * height_ + 0.5);
    }

    const axis& on_;
    int height_;
    std::vector<piece> pieces_;
};

/// The steps that a point of a drawing stands for.
COLLPROBE_COLD_INLINE std::uint64_t steps_a_column(const step_bins& bins) noexcept
{
    return bins.width() * track_drawing::group_of(bins);
}

/// Precondition: `has_numbers`.
COLLPROBE_COLD_INLINE std::string chart_svg(
    const chart& of, const step_series& series, const std::string& description)
{
    constexpr int width = 380;
    constexpr int height = 176;
    constexpr int top = 18; // above the plot: marks
    constexpr int bottom = 24;
    constexpr int right = 10;
    const axis on = value_axis(of, series);
    std::vector<std::string> labels;
    std::size_t longest = 4; // "step"
    for (const double tick : on.ticks) {
        labels.push_back(tick_text(tick, on.digits));
        longest = std::max(longest, labels.back().size());
    }
    const int left = 10 + static_cast<int>(longest) * 7;
    const int w = 10 * (width - left - right);
    const int h = 10 * (height - top - bottom);

    std::string svg = svg_head(of.id, std::string(of.title) + " by step", description, width, height);
    std::string texts;
    svg_path grid;
    for (std::size_t i = 0; i < on.ticks.size(); ++i) {
        const double up = on.place(on.ticks[i]);
        const int y = h - static_cast<int>(up * h + 0.5);
        grid.move(0, y);
        grid.line(w, y);
        if (i > 0 && labels[i] == labels[i - 1]) continue;
        texts += text_at(left - 6, top + y / 10 + 4, "end", labels[i]);
    }
    svg_path frame;
    frame.move(0, h);
    frame.line(w, h);
    for (const step_tick& tick : step_ticks(series.bins())) {
        const int x = static_cast<int>(tick.place * w + 0.5);
        frame.move(x, h);
        frame.line(x, h + 40);
        texts += text_at(centre_of(tick.label, left + x / 10, width, 3.5), height - 6, "middle", tick.label);
    }

    const std::vector<mark_run> marks = mark_runs(series, w);
    svg_path rules;
    for (const mark_run& run : marks) {
        if (run.level == step_mark::named) continue;
        rules.move(run.from, 0);
        rules.line(run.from, h);
    }
    svg += "<g transform=\"translate(" + std::to_string(left) + ' ' + std::to_string(top) + ") scale(.1)\">";
    svg += path_of(grid, "grid") + path_of(rules, "rule");
    if (of.has_band) svg += path_of(track_drawing(series, of.band, on, w, h).area(), "band c1");
    int shift = of.has_stems ? -10 * (static_cast<int>(of.lines.size()) - 1) : 0;
    for (const chart_line& line : of.lines) {
        const track_drawing drawing(series, line.data, on, w, h);
        if (of.has_stems) {
            svg_path heads;
            const svg_path stems = drawing.stems(shift, &line == &of.lines[0], heads);
            svg += path_of(stems, std::string("line ") + line.style);
            if (drawing.stem_count() <= 60) svg += path_of(heads, std::string("head ") + line.style);
            shift += 20;
            continue;
        }
        if (!of.has_band && steps_a_column(series.bins()) > 1) {
            svg += path_of(drawing.area(), std::string("band ") + line.style);
        }
        svg += path_of(drawing.line(), std::string("line ") + line.style);
    }
    return svg + path_of(frame, "frame") + mark_heads(marks, -140) + "</g>" + texts + "</svg>";
}

/// Ranks over steps. Precondition: rows and bins.
COLLPROBE_COLD_INLINE std::string map_svg(
    const rank_steps& ranks, const std::vector<const rank_row*>& rows, const std::string& description)
{
    constexpr int width = 400;
    constexpr int left = 30;
    constexpr int right = 34;
    constexpr int top = 4;
    constexpr int bottom = 16;
    const int count = static_cast<int>(rows.size());
    const int pitch = std::clamp(2600 / count, 25, 140); // tenths of a unit
    const int w = 10 * (width - left - right);
    const int h = pitch * count;
    const int height = top + h / 10 + bottom;
    const std::size_t bins = ranks.bins().size();

    // A cell is as high as its state is bad, so that colour alone tells nothing.
    const auto cell_height = [pitch](rank_state state) {
        switch (state) {
        case rank_state::unknown: return 0;
        case rank_state::usual: return pitch;
        case rank_state::apart_4: return pitch * 30 / 100;
        case rank_state::apart_8: return pitch * 55 / 100;
        case rank_state::apart_16: return pitch * 80 / 100;
        case rank_state::named: return pitch;
        }
        return 0;
    };
    svg_path known;
    svg_path apart;
    svg_path named;
    const auto x = [&](std::size_t bin) {
        return static_cast<int>(static_cast<double>(bin) / static_cast<double>(bins) * w + 0.5);
    };
    const int gap = pitch > 40 ? 10 : 0;
    for (int r = 0; r < count; ++r) {
        const rank_row& row = *rows[static_cast<std::size_t>(r)];
        const int y = r * pitch;
        for (std::size_t first = 0; first < bins;) {
            const rank_state state = row.at(first);
            std::size_t end = first + 1;
            while (end < bins && row.at(end) == state) ++end;
            const int high = std::max(cell_height(state) - gap, 1);
            svg_path& path = state == rank_state::named ? named : apart;
            if (state > rank_state::usual)
                path.rectangle(x(first), y + pitch - gap - high, x(end) - x(first), high);
            first = end;
        }
        for (std::size_t first = 0; first < bins;) { // below all of them, in one piece
            std::size_t end = first;
            while (end < bins && row.at(end) != rank_state::unknown) ++end;
            if (end > first) known.rectangle(x(first), y, x(end) - x(first), std::max(pitch - gap, 1));
            first = end + 1;
        }
    }

    std::string texts;
    const auto baseline = [&](int r) { return top + (r * pitch + pitch / 2) / 10.0 + 2.5; };
    int stride = 1;
    while (stride * pitch < 100) stride *= 2;
    for (int r = 0; r < count; ++r) {
        const rank_row& row = *rows[static_cast<std::size_t>(r)];
        if (r % stride == 0) texts += text_at(left - 4, baseline(r), "end", std::to_string(row.rank));
        if (row.named_steps + row.alarms == 0) continue;
        // Labels that would touch become one: "1-3", or "1 ..." if ranks between them are not named.
        std::string label = std::to_string(row.rank);
        bool is_range = true;
        const int first = r;
        int last = r;
        while (r + 1 < count && baseline(r + 1) - baseline(first) < 10) {
            const rank_row& next = *rows[static_cast<std::size_t>(++r)];
            if (r % stride == 0) texts += text_at(left - 4, baseline(r), "end", std::to_string(next.rank));
            if (next.named_steps + next.alarms == 0) continue;
            is_range = is_range && last == r - 1;
            last = r;
        }
        const std::string end = std::to_string(rows[static_cast<std::size_t>(last)]->rank);
        if (last != first) label += is_range ? '-' + end : std::string(" ...");
        texts += "<text class=\"named\" x=\"" + std::to_string(width - right + 3) + "\" y=\""
            + tick_text(baseline(first), 5) + "\">\xe2\x97\x84 " + label + "</text>";
    }
    svg_path frame;
    frame.move(0, h);
    frame.line(w, h);
    for (const step_tick& tick : step_ticks(ranks.bins())) {
        const int middle = (x(tick.bin) + x(tick.bin + 1)) / 2;
        frame.move(middle, h);
        frame.line(middle, h + 25);
        texts
            += text_at(centre_of(tick.label, left + middle / 10, width, 3), height - 4, "middle", tick.label);
    }
    return svg_head("map", "Ranks over the steps", description, width, height) + "<g transform=\"translate("
        + std::to_string(left) + ' ' + std::to_string(top) + ") scale(.1)\">" + path_of(known, "known")
        + path_of(apart, "apart") + path_of(named, "mark") + path_of(frame, "frame") + "</g>" + texts
        + "</svg>";
}

} // namespace collprobe::inline COLLPROBE_ABI::report::detail
