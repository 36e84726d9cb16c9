// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <collprobe/core/collective.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/ulp.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/simd/rounding.hpp>
#include <collprobe/sum/combine.hpp>
#include <collprobe/sum/exact_sum.hpp>
#include <collprobe/sum/order.hpp>

/// How much a sum depends on the order of its terms: orders to try, and what they do to each element.
namespace collprobe::inline COLLPROBE_ABI {

namespace detail {

/// Orders to try on a sum of n terms: linear, pairwise, and pseudo-random permutations. These depend only on n and on
/// their index, so all ranks try the same.
COLLPROBE_COLD_INLINE std::vector<summation_order> sample_orders(int terms, int orders)
{
    std::vector<summation_order> tried;
    if (orders > 0) tried.push_back(linear_order(terms));
    if (orders > 1) tried.push_back(pairwise_order(terms));
    for (int k = 2; k < orders; ++k) {
        std::vector<int> permutation(static_cast<std::size_t>(terms));
        for (int i = 0; i < terms; ++i) permutation[static_cast<std::size_t>(i)] = i;
        std::uint64_t state = static_cast<std::uint64_t>(k);
        for (int i = terms - 1; i > 0; --i) {
            state = mix64(state + 0x9e3779b97f4a7c15u);
            std::swap(permutation[static_cast<std::size_t>(i)],
                permutation[static_cast<std::size_t>(state % static_cast<std::uint64_t>(i + 1))]);
        }
        tried.push_back(permuted_order(permutation));
    }
    return tried;
}

/// Measures, element by element, how much a sum or an average over ranks depends on the order of its terms if each
/// addition rounds to their type, and how far a given result is from the exact one.
///
/// The spread is that of the hops of a ring or a tree. For an average these add terms multiplied by 1/n and rounded to
/// the type. (A communicator that adds 16-bit terms in a wider type has a smaller spread; the error of its result shows
/// this.) The exact result is that of the original terms. If the exact result, the given one or that of any order is
/// NaN or infinite, the element is counted and left out of everything else.
///
/// Host only. Allocates on construction: 8 bytes a term and order. Cost of `add` with 8 orders of 8, 64 and 256
/// terms: 0.3, 2.4 and 9 us for float, 0.4, 3.7 and 15 us for bfloat16, 1.1, 8 and 33 us for half.
class order_meter {
public:
    /// Starts as for sums of `terms` terms. Each order must have this number of terms.
    order_meter(int terms, std::vector<summation_order> orders)
        : orders_(std::move(orders)), terms_(terms), room_(2 * sizeof(double) * static_cast<std::size_t>(terms))
    {
        start(reduction::sum);
    }

    /// Forgets all elements. The next elements belong to reductions by `operation`, `sum` or `average`.
    void start(reduction operation) noexcept
    {
        operation_ = operation;
        squares_ = 0;
        record_ = {};
        record_.orders = orders_.size();
    }

    /// Adds one element. `terms[i]` is the term of rank i, `result` the communicator's result.
    template <floating_element T, class Terms>
    void add(const Terms& terms, T result) noexcept
    {
        T* const values = reinterpret_cast<T*>(room_.data());
        exact_sum<T> exact;
        for (int i = 0; i < terms_; ++i) exact.add(values[i] = terms[i]);
        const T best = exact.round(operation_ == reduction::average ? static_cast<std::uint32_t>(terms_) : 1);
        const range<T> sums = [&, this] {
            const gradual_underflow as_ieee_has_it;
            return add_in_orders(values, best);
        }();
        if (!sums.is_finite || !is_finite(best) || !is_finite(result)) {
            ++record_.nonfinite;
            return;
        }
        ++record_.elements;
        if (to_bits(sums.lowest) != to_bits(sums.highest)) ++record_.changed;
        const std::uint64_t spread = ulp_distance(sums.lowest, sums.highest);
        record_.max_ulp_spread = spread > record_.max_ulp_spread ? spread : record_.max_ulp_spread;
        const auto error = static_cast<double>(ulp_distance(result, best));
        record_.max_ulp_error = error > record_.max_ulp_error ? error : record_.max_ulp_error;
        squares_ += error * error;
    }

    order_sensitivity finish() const noexcept
    {
        order_sensitivity record = record_;
        if (record.elements != 0)
            record.rms_ulp_error = square_root(squares_ / static_cast<double>(record.elements));
        return record;
    }

private:
    template <class T>
    struct range {
        T lowest;
        T highest;
        bool is_finite = true;
    };

    // Not inlined into the scope that sets the mode of subnormal numbers.
    template <floating_element T>
    __attribute__((noinline)) range<T> add_in_orders(T* values, T if_none) noexcept
    {
        T* const sums = reinterpret_cast<T*>(room_.data() + sizeof(double) * static_cast<std::size_t>(terms_));
        if (operation_ == reduction::average) {
            // As `prepare` does, without its vectors: they would be compiled for every type, for few terms.
            const T scale = average_scale<T>(terms_);
            for (int i = 0; i < terms_; ++i) values[i] = multiply(values[i], scale);
        }
        range<T> all{if_none, if_none};
        for (const summation_order& order : orders_) {
            for (int i = 0; i < terms_; ++i) sums[i] = values[i];
            for (const addition& step : order) sums[step.into] = detail::add(sums[step.into], sums[step.from]);
            const T sum = sums[order.empty() ? 0 : order.back().into];
            if (&order == &orders_.front()) all = {sum, sum};
            all.is_finite = all.is_finite && is_finite(sum);
            if (less(sum, all.lowest)) all.lowest = sum;
            if (less(all.highest, sum)) all.highest = sum;
        }
        return all;
    }

    std::vector<summation_order> orders_;
    int terms_;
    std::vector<unsigned char> room_; ///< for the terms, then for partial sums, of any type
    reduction operation_ = reduction::sum;
    double squares_ = 0;
    order_sensitivity record_;
};

} // namespace detail

} // namespace collprobe
