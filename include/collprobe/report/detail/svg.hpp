// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <collprobe/report/detail/rank_steps.hpp>
#include <collprobe/report/detail/step_series.hpp>

/// The drawings of a page (report/html.hpp) as inline SVG. Colours, widths and fonts are those of its style
/// sheet.
namespace collprobe::inline COLLPROBE_ABI::report::detail {

/// The `d` of a path, in tenths of a unit: whole numbers, each point relative to the one before.
class svg_path {
public:
    void move(int x, int y);
    /// Precondition: `move` or `line` came before.
    void line(int x, int y);
    void close();
    void rectangle(int x, int y, int width, int height);
    bool empty() const noexcept { return text_.empty(); }
    const std::string& text() const noexcept { return text_; }

private:
    void put(int value);

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

/// Whether any step has a number for it.
bool has_numbers(const chart& of, const step_series& series) noexcept;
bool is_logarithmic(const chart& of, const step_series& series) noexcept;
/// The steps that a point of a drawing stands for.
std::uint64_t steps_a_column(const step_bins& bins) noexcept;
/// Precondition: `has_numbers`.
std::string chart_svg(const chart& of, const step_series& series, const std::string& description);

/// Ranks over steps. Precondition: rows and bins.
std::string map_svg(
    const rank_steps& ranks, const std::vector<const rank_row*>& rows, const std::string& description);

} // namespace collprobe::inline COLLPROBE_ABI::report::detail

#if COLLPROBE_DEFINITIONS
#include <collprobe/report/detail/svg.ipp>
#endif
