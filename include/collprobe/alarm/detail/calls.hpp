// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include <collprobe/alarm/detail/rules.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/detail/math.hpp>

/// Matches the calls of a record with those of an audit of the same step.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// The index in `to` of the call with index `call_index` in `from`; -1 if there is none. The k-th call of its kind
/// (call, type, count) in `from` is the k-th of that kind in `to`. A probe skips integers and an audit skips exchanges,
/// so indices differ; but of each kind that both take, they take the same calls in the same order. O(calls).
template <class From, class To>
int counterpart(const std::vector<From>& from, int call_index, const std::vector<To>& to) noexcept
{
    if (call_index < 0 || static_cast<std::size_t>(call_index) >= from.size()) return -1;
    const From& wanted = from[static_cast<std::size_t>(call_index)];
    const auto alike = [&wanted](const auto& other) {
        return other.call == wanted.call && other.type == wanted.type && other.count == wanted.count;
    };
    int before = 0;
    for (int b = 0; b < call_index; ++b) before += alike(from[static_cast<std::size_t>(b)]) ? 1 : 0;
    for (std::size_t b = 0; b < to.size(); ++b) {
        if (alike(to[b]) && before-- == 0) return static_cast<int>(b);
    }
    return -1;
}

/// As above for a series of suspects, which are ordered by call.
template <class From, class To>
class call_matcher {
public:
    call_matcher(const std::vector<From>& from, const std::vector<To>& to) noexcept : from_(from), to_(to) {}
    int operator()(int call_index) noexcept
    {
        if (call_index != last_) {
            last_ = call_index;
            match_ = counterpart(from_, call_index, to_);
        }
        return match_;
    }

private:
    const std::vector<From>& from_;
    const std::vector<To>& to_;
    int last_ = -1;
    int match_ = -1;
};

/// Whether the audit found the result of a reduction wrong, on all ranks or on some. If so, the cosine of a gradient
/// with that result says nothing about the gradient.
inline bool has_wrong_sum(const step_audit& audit) noexcept
{
    for (const call_audit& judged : audit.calls) {
        const bool reduction = judged.call == collective::all_reduce || judged.call == collective::reduce_scatter;
        if (reduction && !(judged.agree && judged.conserved)) return true;
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
