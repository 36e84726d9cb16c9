// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include <collprobe/core/record.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/step/detail/summary.hpp>
#include <collprobe/step/detail/step_report.hpp>

/// The records of many ranks without the ranks: messages are made up, packed by the library's own functor, combined as an
/// all-reduce would, and judged.
namespace summary_simulation {

/// What one rank says of a step. Cheap to make up: a hash for a random number.
struct rank_values {
    double loss;
    std::vector<double> norms; ///< per bucket
    std::vector<std::uint64_t> nonfinite;
    std::uint64_t result_digest = 42;
    double told_norm = collprobe::detail::not_given(); ///< of the gradient, by its trainer
};

inline double uniform(std::uint64_t seed, std::uint64_t which)
{
    return static_cast<double>(collprobe::detail::mix64(seed * 0x9e3779b97f4a7c15u + which + 1) >> 11) * 0x1p-53;
}

/// The ranks' own numbers at a step: losses near 2, norms near 1, none alike.
inline void make_up(std::uint64_t step, int rank, rank_values& out)
{
    const std::uint64_t seed = step * 1000003u + static_cast<std::uint64_t>(rank);
    out.loss = 2 + 0.1 * (uniform(seed, 0) - 0.5);
    for (std::size_t b = 0; b < out.norms.size(); ++b) out.norms[b] = 1 + 0.2 * uniform(seed, b + 1);
}

inline std::vector<std::uint64_t> message_of(std::uint64_t step, const rank_values& values)
{
    using namespace collprobe::detail;
    const message_layout layout;
    std::vector<std::uint64_t> words(layout.bytes(values.norms.size()) / 8);
    auto* const bytes = reinterpret_cast<unsigned char*>(words.data());
    *reinterpret_cast<step_header*>(bytes) = {step, values.loss, 1, values.told_norm, 0};
    for (std::size_t b = 0; b < values.norms.size(); ++b) {
        call_entry entry{};
        entry.input.count = 1000;
        entry.input.nan = values.nonfinite.empty() ? 0 : static_cast<std::uint32_t>(values.nonfinite[b]);
        entry.input.sum_of_squares = values.norms[b] * values.norms[b];
        entry.result = {.digest = values.result_digest, .sum_of_squares = 1, .dot = not_a_number(), .nonfinite = 0};
        layout.entry(bytes, b) = entry;
    }
    return words;
}

/// One step of `ranks` ranks in summary form.
class combined_step {
public:
    combined_step(int ranks, std::uint64_t buckets)
        : form_{collprobe::report_mode::summary, static_cast<std::uint64_t>(ranks), false, {}},
          buckets_(buckets),
          flags_((buckets + 15) / 16, 0x1111111111111111u),
          references_(2 + buckets),
          all_(collprobe::detail::step_report(nullptr, form_, buckets).whole.count() / 8),
          own_(all_.size())
    {
    }
    std::uint64_t sums_bytes() { return report(all_).sums.size_bytes(); }
    std::uint64_t keys_bytes() { return report(all_).keys.size_bytes(); }

    void begin() { first_ = true; }
    /// What a rank does before the all-reduces.
    void pack(const std::vector<std::uint64_t>& message, int rank)
    {
        using namespace collprobe::detail;
        const pack_summary pack{reinterpret_cast<const unsigned char*>(message.data()), flags_.data(), buckets_, rank,
            static_cast<int>(form_.ranks), references_.data(), report(own_).summary};
        for (std::uint64_t i = 0; i <= buckets_; ++i) pack(i);
    }
    /// What the all-reduces do with it.
    void combine()
    {
        if (first_) {
            all_ = own_;
            first_ = false;
            return;
        }
        const auto all = report(all_), own = report(own_);
        for (std::size_t i = 0; i < all.sums.size(); ++i) all.sums[i] += own.sums[i];
        for (std::size_t i = 0; i < all.keys.size(); ++i) all.keys[i] = std::max(all.keys[i], own.keys[i]);
    }
    /// What a rank does after them.
    void judge(collprobe::detail::step_judge& judge, int ranks, collprobe::step_record& out)
    {
        using namespace collprobe;
        calls_.assign(buckets_, {collective::all_reduce, element_type::float32, reduction::sum, 1000, true, true, false});
        detail::judge_summary(judge, report(all_).summary, nullptr, ranks, calls_, {}, {}, out);
        const detail::advance_reference advance{report(all_).summary, references_.data()};
        for (std::uint64_t i = 0; i < references_.size(); ++i) advance(i);
    }

private:
    collprobe::detail::step_report report(std::vector<std::uint64_t>& block)
    {
        return {reinterpret_cast<unsigned char*>(block.data()), form_, buckets_};
    }

    collprobe::detail::step_report::shape form_;
    std::uint64_t buckets_;
    std::vector<std::uint64_t> flags_;
    std::vector<double> references_;
    std::vector<std::uint64_t> all_, own_;
    std::vector<collprobe::detail::probed_call> calls_;
    bool first_ = true;
};

} // namespace summary_simulation
