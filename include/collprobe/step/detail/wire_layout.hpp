// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/step/detail/message.hpp>
#include <collprobe/step/detail/summary.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// The layout of a step's report in one block of memory, which is first on the device and, after one copy, on the host:
///     exact direction   n x n doubles, the Gram matrix
///     gather            n messages
///     summary           reference, sums and keys, each of the step and then of its calls; the words of the parts; the
///                       keys of the values
/// All parts are whole 8-byte words without gaps.
class step_report {
public:
    struct shape {
        report_mode mode = report_mode::gather;
        std::uint64_t ranks = 1;
        bool room_for_gram = false;
        message_layout layout = {};
        std::uint64_t part_words = 0; ///< of the summaries of all parts about one call
        std::uint64_t room_for_values = 0; ///< `message_layout::told` at most

        shape with_values(std::uint64_t told) const noexcept
        {
            shape of = *this;
            of.layout.told = told;
            return of;
        }
    };

    step_report(unsigned char* block, const shape& form, std::uint64_t call_count) noexcept
        : block_(block), form_(form), call_count_(call_count)
    {
    }

    static std::uint64_t bytes(const shape& form, std::uint64_t call_count) noexcept
    {
        return gram_bytes(form)
            + (form.mode == report_mode::gather
                    ? form.ranks * form.layout.bytes(call_count)
                    : reference_bytes(call_count) + sums_bytes(call_count) + keys_bytes(form, call_count));
    }
    /// Of a report that has room for so many calls, and for all values.
    static std::uint64_t room_bytes(const shape& form, std::uint64_t call_count) noexcept
    {
        return bytes(form.with_values(form.room_for_values), call_count);
    }
    static std::uint64_t reference_bytes(std::uint64_t call_count) noexcept
    {
        return sizeof(step_reference) + call_count * sizeof(double);
    }

    view<double> gram() const noexcept { return {reinterpret_cast<double*>(block_), form_.ranks * form_.ranks}; }
    view<unsigned char> messages() const noexcept
    {
        return {block_ + gram_bytes(form_), form_.ranks * form_.layout.bytes(call_count_)};
    }
    summary_parts summary() const noexcept
    {
        unsigned char* const reference = block_ + gram_bytes(form_);
        unsigned char* const sums = reference + reference_bytes(call_count_);
        return {reinterpret_cast<step_reference*>(reference), reinterpret_cast<step_sums*>(sums),
            reinterpret_cast<step_keys*>(sums + sums_bytes(call_count_))};
    }
    /// The words of the parts about the first call.
    std::uint64_t* part_words() const noexcept
    {
        return reinterpret_cast<std::uint64_t*>(&summary().call_extrema(call_count_));
    }
    value_keys* told_keys() const noexcept
    {
        return reinterpret_cast<value_keys*>(part_words() + call_count_ * form_.part_words);
    }
    /// The numbers that the all-reduces of a summary combine.
    view<double> sums() const noexcept
    {
        return {reinterpret_cast<double*>(summary().sums), sums_bytes(call_count_) / sizeof(double)};
    }
    view<std::uint64_t> keys() const noexcept
    {
        return {
            reinterpret_cast<std::uint64_t*>(summary().keys), keys_bytes(form_, call_count_) / sizeof(std::uint64_t)};
    }
    /// The bytes in use. The Gram matrix comes first, so the bytes are contiguous with and without it.
    view<unsigned char> used(bool with_gram) const noexcept
    {
        const std::uint64_t first = with_gram ? 0 : gram_bytes(form_);
        return {block_ + first, bytes(form_, call_count_) - first};
    }

private:
    static std::uint64_t gram_bytes(const shape& form) noexcept
    {
        return form.room_for_gram ? form.ranks * form.ranks * sizeof(double) : 0;
    }
    static std::uint64_t sums_bytes(std::uint64_t call_count) noexcept
    {
        return sizeof(step_sums) + call_count * sizeof(call_sums);
    }
    static std::uint64_t keys_bytes(const shape& form, std::uint64_t call_count) noexcept
    {
        return sizeof(step_keys) + call_count * (sizeof(call_keys) + form.part_words * sizeof(std::uint64_t))
            + form.layout.told * sizeof(value_keys);
    }

    unsigned char* block_;
    shape form_;
    std::uint64_t call_count_;
};

} // namespace collprobe::detail
