// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <string>
#include <vector>

#include <collprobe/core/config.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/report/detail/step_series.hpp>

/// Axes of drawings: places and round numbers.
namespace collprobe::inline COLLPROBE_ABI::report::detail {

/// Where numbers lie on an axis.
struct axis {
    double low = 0;
    double high = 1;
    bool is_logarithmic = false;
    std::vector<double> ticks;
    int digits = 5;

    /// From 0 to 1 between `low` and `high`.
    COLLPROBE_COLD_INLINE double place(double value) const noexcept
    {
        using collprobe::detail::natural_log;
        value = std::clamp(value, low, high);
        if (is_logarithmic) return natural_log(value / low) / natural_log(high / low);
        return (value - low) / (high - low);
    }
};

/// The steps below a drawing: label, bin, and place from 0 to 1.
struct step_tick {
    std::string label;
    std::size_t bin = 0;
    double place = 0;
};

/// A number on an axis, with at most `digits` significant digits: "1e6".
COLLPROBE_COLD_INLINE std::string tick_text(double value, int digits)
{
    char buffer[40];
    const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::general, digits);
    std::string text(buffer, end.ptr);
    const std::size_t exponent = text.find('e'); // 1e+06 as 1e6
    if (exponent == text.npos) return text;
    const bool is_negative = text[exponent + 1] == '-';
    std::size_t first = exponent + 2;
    while (first + 1 < text.size() && text[first] == '0') ++first;
    return text.substr(0, exponent + 1) + (is_negative ? "-" : "") + text.substr(first);
}

/// 10^exponent
COLLPROBE_COLD_INLINE double power_of_ten(int exponent) noexcept
{
    double power = 1;
    for (int i = 0; i < exponent; ++i) power *= 10;
    for (int i = 0; i > exponent; --i) power /= 10;
    return power;
}

/// The largest e with 10^e <= value, but for rounding. Precondition: value > 0.
COLLPROBE_COLD_INLINE int decimal_exponent(double value) noexcept
{
    return static_cast<int>(
        __builtin_floor(collprobe::detail::natural_log(value) / 2.302585092994046 + 1e-9));
}

/// Sets about `wanted` round numbers between `low` and `high`, at equal distances of at least `least`.
COLLPROBE_COLD_INLINE void set_ticks(axis& on, int wanted, double least = 0)
{
    on.ticks.clear();
    if (on.is_logarithmic) {
        const int first = decimal_exponent(on.low);
        const int last = decimal_exponent(on.high);
        const int stride = (last - first) / wanted + 1;
        for (int e = first + 1; e <= last; e += stride) on.ticks.push_back(power_of_ten(e));
        if (power_of_ten(first) >= on.low) on.ticks.insert(on.ticks.begin(), power_of_ten(first));
        return;
    }
    const double raw = std::max((on.high - on.low) / wanted, least);
    const double base = power_of_ten(decimal_exponent(raw));
    const double ratio = raw / base;
    const double step = base * (ratio <= 1.001 ? 1 : ratio <= 2.001 ? 2 : ratio <= 5.001 ? 5 : 10);
    const double first = __builtin_ceil(on.low / step - 1e-6);
    for (int i = 0; i < 12 && (first + i) * step <= on.high + step * 1e-6; ++i)
        on.ticks.push_back((first + i) * step);
    const double largest
        = std::max(collprobe::detail::absolute(on.low), collprobe::detail::absolute(on.high));
    on.digits = std::clamp(decimal_exponent(std::max(largest / step, 1.0)) + 2, 5, 12);
}

/// Precondition: there are bins.
COLLPROBE_COLD_INLINE std::vector<step_tick> step_ticks(const step_bins& bins)
{
    std::vector<step_tick> ticks;
    const auto add_bin = [&](std::size_t i) {
        ticks.push_back({tick_text(static_cast<double>(bins[i].first), 7), i, bins.place(i)});
    };
    const auto middle = [&](std::size_t i) {
        return static_cast<double>(bins[i].first) + static_cast<double>(bins[i].last - bins[i].first) / 2;
    };
    const double first = middle(0);
    const double length = middle(bins.last()) - first;
    if (bins.is_ascending() && length > 0) {
        axis on;
        on.low = static_cast<double>(bins[0].first);
        on.high = static_cast<double>(bins[bins.last()].last);
        set_ticks(on, 6, 1);
        std::size_t i = 0;
        for (const double tick : on.ticks) {
            while (i < bins.last() && static_cast<double>(bins[i].last) < tick) ++i;
            ticks.push_back({tick_text(tick, 7), i, std::clamp((tick - first) / length, 0.0, 1.0)});
        }
        if (!ticks.empty()) ticks[0].label = "step " + ticks[0].label;
        return ticks;
    }
    for (std::size_t part = 0; part <= 3; ++part) {
        const std::size_t i = bins.last() * part / 3;
        if (ticks.empty() || i != ticks.back().bin) add_bin(i);
    }
    ticks[0].label = "step " + ticks[0].label;
    return ticks;
}

} // namespace collprobe::inline COLLPROBE_ABI::report::detail
