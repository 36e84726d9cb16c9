// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include <collprobe/alarm/detail/rules.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/detail/math.hpp>

/// What a record and an audit of the same step say of the same call.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// The index in `to` of the call that has index `call_index` in `from`: as the k-th of its kind (call, type, count) there
/// it is the k-th here. -1 where there is none. A probe passes over integers, an audit over exchanges, so that
/// indices differ; of each kind that both take they take the same calls in the same order. O(calls).
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

/// The same for one suspect after the other, which come call by call.
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

/// Whether the audit found the result of a reduction wrong, on all ranks or on some: then what a rank's gradient has
/// to do with that result tells nothing of the gradient.
inline bool has_wrong_sum(const step_audit& audit) noexcept
{
    for (const call_audit& judged : audit.calls) {
        const bool reduction = judged.call == collective::all_reduce || judged.call == collective::reduce_scatter;
        if (reduction && !(judged.agree && judged.conserved)) return true;
    }
    return false;
}

/// How many ranks had a number that a statistical check could compare, for each of them.
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
