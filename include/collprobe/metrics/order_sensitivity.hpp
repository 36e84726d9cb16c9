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
#include <collprobe/core/view.hpp>
#include <collprobe/detail/fixed_array.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/sum/combine.hpp>
#include <collprobe/sum/exact_sum.hpp>
#include <collprobe/sum/order.hpp>
#include <collprobe/sum/partial_sum.hpp>
#include <collprobe/simd/rounding.hpp>
#include <collprobe/sum/ulp.hpp>

namespace collprobe::inline COLLPROBE_ABI {

namespace detail {

/// Orders to try on a sum of n terms: linear, pairwise, and pseudo-random permutations that depend on nothing
/// but n and their number, so that all ranks try the same.
std::vector<summation_order> sample_orders(int terms, int orders);

/// Measures, element by element, how much a sum or an average over ranks depends on the order of its terms when
/// each addition rounds to their type, and how far a given result is from the exact one.
///
/// The spread is that of what the hops of a ring or a tree do: of an average they add terms that were multiplied by
/// 1/n, rounded to the type. (A communicator that adds 16-bit terms in a wider type spreads less than that; the
/// error of its result tells.) The exact one is that of the terms as they are. An element of which the exact
/// result, the given one or that of any order is NaN or infinite is counted, and left out of all the rest.
///
/// Host only. Allocates on construction: 8 bytes a term and order. Cost of `add` with 8 orders of 8, 64 and 256
/// terms: 0.3, 2.4 and 9 us for float, 0.4, 3.7 and 15 for bfloat16, 1.1, 8 and 33 for half.
class order_meter {
public:
    /// Starts as for sums of `terms` terms, which is what each order has to be of.
    order_meter(int terms, std::vector<summation_order> orders)
        : orders_(std::move(orders)), terms_(terms), room_(2 * sizeof(double) * static_cast<std::size_t>(terms))
    {
        start(reduction::sum);
    }

    /// Forgets what it took in. `operation` of what comes is `sum` or `average`.
    void start(reduction operation) noexcept
    {
        operation_ = operation;
        squares_ = 0;
        record_ = {};
        record_.orders = orders_.size();
    }

    /// Takes in one element: `terms[i]` is the term of rank i, `result` what the communicator made of them.
    template <floating_element T, class Terms>
    void add(const Terms& terms, T result) noexcept
    {
        T* const values = reinterpret_cast<T*>(room_.data());
        exact_sum<T> exact;
        for (int i = 0; i < terms_; ++i) exact.add(values[i] = terms[i]);
        const T best = exact.round(operation_ == reduction::average ? static_cast<std::uint32_t>(terms_) : 1);
        const range<T> sums = over_orders(values, best);
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
        if (record.elements != 0) {
            record.rms_ulp_error = square_root(squares_ / static_cast<double>(record.elements));
        }
        return record;
    }

private:
    template <class T>
    struct range {
        T lowest;
        T highest;
        bool is_finite = true;
    };

    template <floating_element T>
    range<T> over_orders(T* values, T if_none) const noexcept
    {
        const gradual_underflow as_ieee_has_it;
        return add_in_orders(values, if_none);
    }

    // Out of the scope that sets the mode of subnormal numbers.
    template <floating_element T>
    __attribute__((noinline)) range<T> add_in_orders(T* values, T if_none) const noexcept
    {
        using partial = partial_sum<accumulation::native, T>;
        auto* const sums = reinterpret_cast<partial*>(room_.data() + sizeof(double) * static_cast<std::size_t>(terms_));
        prepare(operation_, values, values, terms_, terms_);
        range<T> all{if_none, if_none};
        for (const summation_order& order : orders_) {
            const T sum = add_partial_sums(values, order, sums);
            if (&order == &orders_.front()) all = {sum, sum};
            all.is_finite = all.is_finite && is_finite(sum);
            if (less(sum, all.lowest)) all.lowest = sum;
            if (less(all.highest, sum)) all.highest = sum;
        }
        return all;
    }

    std::vector<summation_order> orders_;
    int terms_;
    fixed_array<unsigned char> room_; ///< for the terms, then for partial sums, of whatever type
    reduction operation_ = reduction::sum;
    double squares_ = 0;
    order_sensitivity record_;
};

/// Where sample `i` of `samples` lies among `count` elements: evenly spaced, the same on all ranks. Where there
/// are fewer elements than samples, the last samples do not exist: the place is `count`.
COLLPROBE_HD constexpr std::uint64_t sample_place(std::uint64_t i, std::uint64_t samples, std::uint64_t count) noexcept
{
    if (count <= samples) return i < count ? i : count;
    const std::uint64_t step = count / samples;
    const std::uint64_t rest = count % samples;
    return i * step + i * rest / samples + step / 2;
}

/// Copies a sample of a buffer of `whole` elements, of which `here` begins with element `first`; the bits of each
/// in a word of its own, 0 for those that lie elsewhere. A body for `for_each`, called for each sample.
template <floating_element T>
struct take_sample {
    view<const T> here;
    std::uint64_t first;
    std::uint64_t whole;
    std::uint64_t samples;
    std::uint64_t* words;

    COLLPROBE_HD void operator()(std::uint64_t i) const noexcept
    {
        const std::uint64_t place = sample_place(i, samples, whole);
        const bool is_here = place < whole && place >= first && place - first < here.count();
        words[i] = is_here ? to_bits(here[place - first]) : 0;
    }
};

} // namespace detail

} // namespace collprobe

#if COLLPROBE_DEFINITIONS
#include <collprobe/metrics/detail/order_sensitivity.ipp>
#endif
