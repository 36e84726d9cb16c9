// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include <collprobe/core/config.hpp>
#include <collprobe/core/widen.hpp>
#include <collprobe/detail/math.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// What a rank knows of a step beside its gradients. Each number is a value, or in memory that the device reads (for
/// CUDA: device, pinned or managed memory) at the end of the step, and again at the end of each replay of a captured
/// step: `{.loss = loss_on_device, .weight = tokens}`.
struct step_observation {
    /// A number, or the address of one in single or double precision.
    class number {
    public:
        template <class Number>
            requires std::is_arithmetic_v<Number>
        constexpr number(Number value) noexcept : value_(static_cast<double>(value)) {}
        constexpr number(const float* address) noexcept : single_(address), is_read_(true) {}
        constexpr number(const double* address) noexcept : double_(address), is_read_(true) {}

        /// Whether the device reads it: `value` is not known then.
        constexpr bool is_read() const noexcept { return is_read_; }
        constexpr double value() const noexcept { return value_; }
        constexpr bool is_null() const noexcept { return is_read_ && single_ == nullptr && double_ == nullptr; }
        constexpr const float* single() const noexcept { return single_; }
        /// Whether it is a value, and not the one that says that there is none.
        bool is_given() const noexcept { return !is_read_ && to_bits(value_) != to_bits(detail::not_given()); }
        COLLPROBE_HD double read() const noexcept
        {
            if (single_ != nullptr) return detail::widen(*single_);
            return double_ != nullptr ? *double_ : value_;
        }

    private:
        double value_ = detail::not_given();
        const float* single_ = nullptr;
        const double* double_ = nullptr;
        bool is_read_ = false;
    };

    number loss = detail::not_given(); ///< mean loss of the rank's batch; if not given, the record has none (NaN)
    number weight = 1; ///< number of samples or tokens in that mean
    /// The L2 norm of the gradient as the trainer computed it behind the collectives, before clipping, of exactly the
    /// tensors that this step sums or averages, as they are there: times the loss scale, if the trainer takes that out
    /// later. A norm that is not that of their results is a finding. If not given: none.
    number gradient_norm = detail::not_given();
    bool loss_is_sum = false; ///< `loss` is the sum over the batch: the record has it divided by `weight`; 0 of 0: none
    double loss_scale = 1; ///< a factor in `loss`, such as that of mixed precision: the record has it divided out
};

} // namespace collprobe
