// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include <collprobe/alarm/detail/rules.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/detail/math.hpp>

/// What alarms ask of the calls of a record.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// Whether the audit found the result of a reduction wrong, on all ranks or on some. If so, the cosine of a gradient
/// with that result says nothing about the gradient.
inline bool has_wrong_sum(const step_record& record) noexcept
{
    for (const call_record& judged : record.calls) {
        const bool reduction = judged.call == collective::all_reduce || judged.call == collective::reduce_scatter;
        if (reduction && judged.audit.checked && !(judged.results_agree && judged.audit.conserved)) return true;
    }
    return false;
}

/// For each statistical check: the number of ranks with a value that it could compare.
class compared_ranks {
public:
    explicit compared_ranks(const step_record& record) noexcept : record_(record) {}
    int of(const suspect& found) noexcept
    {
        if (found.what == finding::loss) return record_.loss.finite;
        if (found.what == finding::gradient_norm) {
            const std::size_t call_index = static_cast<std::size_t>(found.call);
            return found.call >= 0 && call_index < record_.calls.size() ? record_.calls[call_index].gradient_norm.finite
                                                                        : record_.gradient_norm.finite;
        }
        if (directions_ < 0) {
            directions_ = 0;
            for (const double cosine : record_.cosine.leave_one_out) directions_ += is_finite(cosine) ? 1 : 0;
        }
        return directions_;
    }

private:
    const step_record& record_;
    int directions_ = -1;
};

} // namespace collprobe::detail
