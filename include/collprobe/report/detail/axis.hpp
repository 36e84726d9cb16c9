// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <collprobe/core/config.hpp>
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
    double place(double value) const noexcept;
};

/// Sets about `wanted` round numbers between `low` and `high`, at equal distances of at least `least`.
void set_ticks(axis& on, int wanted, double least = 0);

/// The steps below a drawing: label, bin, and place from 0 to 1.
struct step_tick {
    std::string label;
    std::size_t bin = 0;
    double place = 0;
};
/// Precondition: there are bins.
std::vector<step_tick> step_ticks(const step_bins& bins);

/// A number on an axis, with at most `digits` significant digits: "1e6".
std::string tick_text(double value, int digits);

} // namespace collprobe::inline COLLPROBE_ABI::report::detail

#if COLLPROBE_DEFINITIONS
#include <collprobe/report/detail/axis.ipp>
#endif
