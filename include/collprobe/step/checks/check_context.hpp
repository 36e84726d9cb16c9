// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/step/detail/message.hpp>

/// What all checks of a step are given, and their small helpers. A check is a class of its own, with what it remembers
/// of earlier steps. Every rank runs the same ones on the same messages, so all ranks get the same record.
namespace collprobe::inline COLLPROBE_ABI::detail {

constexpr std::size_t at_rank(int rank) noexcept { return static_cast<std::size_t>(rank); }

/// By rank: whether its numbers are compared with no other's.
struct rank_marks {
    std::vector<bool> left_out; ///< `step_record::left_out`
    std::vector<bool> without_direction; ///< it is left out, or has a twin, of which alone its cosine tells
};

/// A step that is judged, for its checks: what they read, and the record that they complete.
struct check_context {
    const gathered_step& messages;
    view<const probed_call> calls;
    view<const series_place> series; ///< of the calls
    step_record& out;
    bool is_of_totals = false; ///< its call is the `whole_gradient`

    int ranks() const noexcept { return messages.ranks(); }
    const call_entry& entry(int rank, std::size_t call) const noexcept { return messages.entry(rank, call); }
    const statistics& input(int rank, std::size_t call) const noexcept { return entry(rank, call).input; }
    const result_record& result(int rank, std::size_t call) const noexcept { return entry(rank, call).result; }
    bool has_no_result(int rank, std::size_t call) const noexcept
    {
        return detail::has_no_result(calls[call], result(rank, call));
    }
};

/// -1: none.
inline std::vector<int> ranks_of(int rank) { return rank < 0 ? std::vector<int>() : std::vector<int>{rank}; }

inline bool is_zero(const statistics& input) noexcept { return input.count != 0 && input.zero == input.count; }

inline double total(view<const double> values) noexcept
{
    double sum = 0;
    for (const double value : values) sum += value;
    return sum;
}

} // namespace collprobe::inline COLLPROBE_ABI::detail
