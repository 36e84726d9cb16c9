// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/core/element.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/detail/middle.hpp>
#include <collprobe/report/summary.hpp>

namespace collprobe::inline COLLPROBE_ABI::report {

namespace detail {

/// An integer with the same order as the number, infinities included, so that no comparison of doubles is left for
/// `-ffast-math` to change. NaNs have no place in the order.
constexpr std::int64_t to_ordered(double value) noexcept
{
    const auto bits = static_cast<std::int64_t>(to_bits(value));
    return bits < 0 ? bits ^ 0x7fffffffffffffff : bits;
}
constexpr double from_ordered(std::int64_t key) noexcept
{
    return collprobe::detail::bit_cast<double>(key < 0 ? key ^ 0x7fffffffffffffff : key);
}

} // namespace detail

COLLPROBE_COLD_INLINE double median(const std::vector<double>& values)
{
    std::vector<std::int64_t> keys;
    keys.reserve(values.size());
    for (const double value : values) {
        if (!is_nan(value)) keys.push_back(detail::to_ordered(value));
    }
    if (keys.empty()) return collprobe::detail::not_a_number();
    const auto middle = collprobe::detail::middle_of(view(keys));
    const double upper = detail::from_ordered(middle.at);
    if (keys.size() % 2 != 0) return upper;
    const double lower = detail::from_ordered(middle.below);
    if (is_finite(lower) && is_finite(upper)) return 0.5 * lower + 0.5 * upper;
    if (is_finite(lower)) return upper;
    return is_finite(upper) || middle.below == middle.at ? lower : collprobe::detail::not_a_number();
}

COLLPROBE_COLD_INLINE void run_history::add(const step_record& record)
{
    found_.add(record);
    for (int which = 0; which < detail::metric_count; ++which) {
        series_[static_cast<std::size_t>(which)].push_back(detail::value_of(static_cast<metric>(which), record));
    }
    const std::vector<double>& cosines = record.cosine.leave_one_out;
    if (leave_one_out_.size() < cosines.size()) leave_one_out_.resize(cosines.size());
    for (std::size_t rank = 0; rank < cosines.size(); ++rank) leave_one_out_[rank].push_back(cosines[rank]);
}

COLLPROBE_COLD_INLINE run_summary run_history::summarize() const
{
    run_summary result{run_, found_.ranks(), found_.steps(), found_.suspicious_steps(), {}, {}, found_.findings(),
        found_.verdict()};
    for (std::size_t which = 0; which < series_.size(); ++which)
        result.medians[which] = median(series_[which]);
    for (const std::vector<double>& cosines : leave_one_out_) result.leave_one_out.push_back(median(cosines));
    return result;
}

} // namespace collprobe::inline COLLPROBE_ABI::report
