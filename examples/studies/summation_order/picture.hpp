// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "../digits/svg.hpp"
#include "answer.hpp"
#include "report.hpp"

namespace summation {

/// An SVG picture: the errors in ulp as a bar of shares for each method, and the share of elements that change from one
/// number of ranks to the next. Its colours follow the reader's scheme, light or dark.
class picture {
public:
    explicit picture(const answer& of) : of_(of), lines_(alike(of)) {}

    std::string text() const
    {
        const double bars = 60 + row_height * static_cast<double>(lines_.size());
        const bool with_ranks = of_.asked.ranks.size() > 1;
        const double height = std::max(bars + 60, with_ranks ? 340.0 : 0.0);
        const double whole = with_ranks ? 1130 : 620;
        return "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 " + at(whole) + ' ' + at(height) + "' width='" + at(whole)
            + "' height='" + at(height) + "' font-family='sans-serif' font-size='12'>\n<title>Errors of sums by method</title>\n"
            + style + "<rect class='page' width='100%' height='100%'/>\n" + error_bars()
            + (with_ranks ? changes() : std::string()) + "</svg>\n";
    }

private:
    /// Errors of [first, end) numbers of the type.
    struct stretch {
        std::uint64_t first, end;
        const char* text;
    };
    static constexpr stretch stretches[] = {{0, 1, "0"}, {1, 2, "1"}, {2, 4, "2-3"}, {4, 16, "4-15"}, {16, 256, "16-255"},
        {256, ~std::uint64_t{0}, "256 on"}};
    static constexpr double row_height = 20;
    static constexpr double left = 230;
    static constexpr double width = 370;

    // One hue from the page's colour on, and one of its own for overflows; lines by Okabe and Ito's palette.
    static constexpr const char* style = R"(<style>
.page { fill: #ffffff; } text { fill: #1b1e23; } .soft { fill: #555c66; } .grid { stroke: #d5d8dd; }
.e0 { fill: #e3e8ee; } .e1 { fill: #b3cde3; } .e2 { fill: #7fb0d6; } .e3 { fill: #4a90c4; } .e4 { fill: #0072b2; } .e5 { fill: #003f66; }
.over { fill: #d55e00; } .line { fill: none; stroke-width: 2; }
.l0 { stroke: #0072b2; } .l1 { stroke: #d55e00; } .l2 { stroke: #009e73; } .l3 { stroke: #cc79a7; } .l4 { stroke: #1b1e23; }
@media (prefers-color-scheme: dark) {
.page { fill: #16181d; } text { fill: #e8eaed; } .soft { fill: #a8afba; } .grid { stroke: #3a3f48; }
.e0 { fill: #2d333c; } .e1 { fill: #1f4a68; } .e2 { fill: #2a6c99; } .e3 { fill: #3d90c8; } .e4 { fill: #7cc0ee; } .e5 { fill: #d2ebfb; }
.l0 { stroke: #56b4e9; } .l4 { stroke: #e8eaed; }
}
</style>
)";

    static std::string at(double value) { return trainer::svg::at(value); }
    static std::string words(double x, double y, const char* anchor, const std::string& what, const char* kind = "")
    {
        return "<text class='" + std::string(kind) + "' x='" + at(x) + "' y='" + at(y) + "' text-anchor='" + anchor + "'>" + what
            + "</text>\n";
    }
    static std::string box(const std::string& kind, double x, double y, double w, double h)
    {
        return "<rect class='" + kind + "' x='" + at(x) + "' y='" + at(y) + "' width='" + at(w) + "' height='" + at(h) + "'/>\n";
    }

    std::string error_bars() const
    {
        std::string out = words(left, 20, "start", "elements by error in ulp, " + std::to_string(of_.asked.ranks.back()) + " ranks, "
            + collprobe::name(of_.type));
        double y = 36;
        for (const alike_methods& line : lines_) {
            const method_measures& own = of_.table()[line.first];
            const auto whole = static_cast<double>(own.distances.total() + own.overflows);
            out += words(left - 8, y + 13, "end", line_name(of_, line));
            double x = left;
            const auto part = [&](const std::string& kind, std::uint64_t elements) {
                const double w = whole == 0 ? 0 : width * static_cast<double>(elements) / whole;
                if (w > 0) out += box(kind, x, y, w, row_height - 4);
                x += w;
            };
            for (std::size_t k = 0; k < std::size(stretches); ++k) {
                part("e" + std::to_string(k), own.distances.count(stretches[k].first, stretches[k].end));
            }
            part("over", own.overflows);
            y += row_height;
        }
        y += 14;
        double x = left;
        for (std::size_t k = 0; k <= std::size(stretches); ++k) {
            const bool over = k == std::size(stretches);
            out += box(over ? "over" : "e" + std::to_string(k), x, y, 12, 12)
                + words(x + 16, y + 10, "start", over ? "overflow" : stretches[k].text, "soft");
            x += k >= 4 ? 66 : k >= 2 ? 52 : 34;
        }
        return out;
    }

    std::string changes() const
    {
        constexpr double panel = 670, top = 36, panel_width = 240, height = 260;
        std::string out = words(panel, 20, "start", "elements that change with the number of ranks, %");
        for (int share = 0; share <= 100; share += 20) {
            const double y = top + height * (1 - share / 100.0);
            out += "<line class='grid' x1='" + at(panel) + "' y1='" + at(y) + "' x2='" + at(panel + panel_width) + "' y2='" + at(y)
                + "'/>\n" + words(panel - 6, y + 4, "end", std::to_string(share), "soft");
        }
        const std::size_t steps = of_.found.changes.size();
        const auto x_of = [&](std::size_t r) {
            return steps == 1 ? panel + panel_width / 2
                              : panel + 12 + (panel_width - 24) * static_cast<double>(r) / static_cast<double>(steps - 1);
        };
        for (std::size_t r = 0; r < steps; ++r) {
            if (steps > 6 && r % 2 != 0) continue;
            out += words(x_of(r), top + height + 18, "middle",
                std::to_string(of_.asked.ranks[r]) + " to " + std::to_string(of_.asked.ranks[r + 1]), "soft");
        }
        double y = top;
        for (std::size_t i = 0; i < lines_.size(); ++i) {
            std::string points, marks;
            const std::string colour = " l" + std::to_string(i % 5);
            for (std::size_t r = 0; r < steps; ++r) {
                const double share = static_cast<double>(of_.found.changes[r][lines_[i].first].changed)
                    / static_cast<double>(std::max<std::uint64_t>(of_.counted(), 1));
                const std::string x = at(x_of(r)), at_share = at(top + height * (1 - share));
                points += x + ',' + at_share + ' ';
                marks += "<circle class='line" + colour + "' cx='" + x + "' cy='" + at_share + "' r='3'/>\n";
            }
            const std::string dashes = i < 5 ? "" : i < 10 ? " stroke-dasharray='6 3'" : " stroke-dasharray='2 3'";
            out += "<polyline class='line" + colour + "'" + dashes + " points='" + points + "'/>\n" + marks;
            const double key = panel + panel_width + 14;
            out += "<line class='line" + colour + "'" + dashes + " x1='" + at(key) + "' y1='" + at(y) + "' x2='" + at(key + 22)
                + "' y2='" + at(y) + "'/>\n" + words(key + 28, y + 4, "start", line_name(of_, lines_[i]));
            y += 18;
        }
        return out;
    }

    const answer& of_;
    std::vector<alike_methods> lines_;
};

} // namespace summation
