// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/step/detail/summary.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// The places in a step's report, one block of memory which is first on the device and, after one copy, on the host:
///     exact direction   n x n doubles, the Gram matrix
///     gather            n messages
///     summary           n messages of totals, up to 16,384 ranks; references, sums and keys; the words of the parts
/// All are whole 8-byte words without gaps.
struct step_report {
    struct shape {
        report_mode mode = report_mode::gather;
        std::uint64_t ranks = 1;
        bool room_for_gram = false;
        message_layout layout = {};
        std::uint64_t part_words = 0; ///< of the summaries of all parts about one call
        std::uint64_t room_for_values = 0; ///< `message_layout::told` at most

        /// A summary has the totals of each rank: a message whose call is the `whole_gradient`.
        bool has_totals() const noexcept { return mode == report_mode::summary && ranks <= most_total_ranks; }
        std::uint64_t total_bytes() const noexcept { return has_totals() ? totals_layout(layout).bytes(1) : 0; }

        shape with_values(std::uint64_t told) const noexcept
        {
            shape of = *this;
            of.layout.told = told;
            return of;
        }
    };

    step_report(unsigned char* block, const shape& form, std::uint64_t calls) noexcept
    {
        auto at = reinterpret_cast<std::uintptr_t>(block);
        const auto take = [&at]<class T>(T*& first, std::uint64_t count) {
            first = reinterpret_cast<T*>(at);
            at += count;
        };
        double* matrix = nullptr;
        take(matrix, form.room_for_gram ? form.ranks * form.ranks * sizeof(double) : 0);
        gram = {matrix, form.ranks * form.ranks};
        const std::uint64_t behind_gram = at;
        if (form.mode == report_mode::gather) {
            take(messages, form.ranks * form.layout.bytes(calls));
        } else {
            take(messages, form.ranks * form.total_bytes());
            take(summary.reference, reference_bytes(calls));
            take(summary.sums, sizeof(step_sums) + (of_first_call + calls) * sizeof(row_sums));
            const std::uint64_t numbers = (at - reinterpret_cast<std::uintptr_t>(summary.sums)) / sizeof(double);
            sums = {reinterpret_cast<double*>(summary.sums), numbers};
            take(summary.keys, sizeof(step_keys) + (of_first_call + calls + form.layout.told) * sizeof(row_keys));
            take(part_words, calls * form.part_words * sizeof(std::uint64_t));
            auto* const first_key = reinterpret_cast<std::uint64_t*>(summary.keys);
            keys = {first_key, (at - reinterpret_cast<std::uintptr_t>(first_key)) / sizeof(std::uint64_t)};
        }
        whole = {block, at - reinterpret_cast<std::uintptr_t>(block)};
        without_gram = {reinterpret_cast<unsigned char*>(behind_gram), at - behind_gram};
    }
    /// Of a report that has room for so many calls, and for all values.
    static std::uint64_t room_bytes(const shape& form, std::uint64_t calls) noexcept
    {
        return step_report(nullptr, form.with_values(form.room_for_values), calls).whole.count();
    }
    static std::uint64_t reference_bytes(std::uint64_t calls) noexcept
    {
        return (of_first_call + calls) * sizeof(double);
    }
    /// The bytes in use: contiguous with and without the matrix.
    view<unsigned char> used(bool with_gram) const noexcept { return with_gram ? whole : without_gram; }

    view<double> gram;
    unsigned char* messages = nullptr;
    summary_parts summary = {};
    view<double> sums; ///< that the all-reduces of a summary combine
    view<std::uint64_t> keys;
    std::uint64_t* part_words = nullptr; ///< of the parts about the first call
    view<unsigned char> whole;
    view<unsigned char> without_gram;
};

/// That of a step in a block of memory.
step_report report_of(const step_report::shape& form, const auto& step, unsigned char* block) noexcept
{
    return {block, form.with_values(step.value_count), step.call_count};
}

} // namespace collprobe::detail
