// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <collprobe/comm/detail/combine.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/element.hpp>
#include <collprobe/record.hpp>
#include <collprobe/sum/exact_sum.hpp>
#include <collprobe/sum/order.hpp>
#include <collprobe/sum/ulp.hpp>
#include <collprobe/view.hpp>

namespace collprobe {

/// Orders to try on a sum of n terms: linear, pairwise, and pseudo-random permutations that depend on nothing
/// but n and their number, so that all ranks try the same.
inline std::vector<summation_order> sample_orders(int terms, int orders)
{
    std::vector<summation_order> tried;
    if (orders > 0) tried.push_back(linear_order(terms));
    if (orders > 1) tried.push_back(pairwise_order(terms));
    for (int k = 2; k < orders; ++k) {
        std::vector<int> permutation(static_cast<std::size_t>(terms));
        for (int i = 0; i < terms; ++i) permutation[static_cast<std::size_t>(i)] = i;
        std::uint64_t state = static_cast<std::uint64_t>(k);
        for (int i = terms - 1; i > 0; --i) {
            state = detail::mix64(state + 0x9e3779b97f4a7c15u);
            std::swap(permutation[static_cast<std::size_t>(i)],
                permutation[static_cast<std::size_t>(state % static_cast<std::uint64_t>(i + 1))]);
        }
        tried.push_back(permuted_order(permutation));
    }
    return tried;
}

/// Measures, element by element, how much a sum of `T` depends on the order of its terms when each addition
/// rounds to T, and how far a given result is from the exact one.
///
/// The spread is that of sums in T over the orders given: what the hops of a ring or a tree do. (A communicator
/// that adds 16-bit terms in a wider type spreads less than that; the error of its result tells.)
/// Host only; allocates on construction. Cost of `add`: (orders + 1) * n additions, about 10 ns each.
template <floating_element T>
class order_meter {
public:
    /// `average`: results to be compared are sums over their number of terms.
    order_meter(int terms, bool average, const std::vector<summation_order>& orders)
        : orders_(orders), divisor_(average ? static_cast<std::uint32_t>(terms) : 1)
    {
        record_.orders = orders.size();
    }

    /// Takes in one element: its n terms, and what the communicator made of them.
    void add(const T* terms, T result)
    {
        exact_sum<T> exact;
        const std::size_t n = orders_.empty() ? 1 : orders_.front().size() + 1;
        for (std::size_t i = 0; i < n; ++i) exact.add(terms[i]);
        const T best = exact.round(divisor_);
        if (!is_finite(best)) {
            ++record_.nonfinite;
            return;
        }
        ++record_.elements;
        T lowest = best;
        T highest = best;
        for (std::size_t k = 0; k < orders_.size(); ++k) {
            const T sum = sum_in_order<accumulation::native>(terms, orders_[k]);
            lowest = k == 0 || detail::less(sum, lowest) ? sum : lowest;
            highest = k == 0 || detail::less(highest, sum) ? sum : highest;
        }
        if (to_bits(lowest) != to_bits(highest)) ++record_.changed;
        const std::uint64_t spread = ulp_distance(lowest, highest);
        record_.max_ulp_spread = spread > record_.max_ulp_spread ? spread : record_.max_ulp_spread;
        const auto error = static_cast<double>(ulp_distance(result, best));
        record_.max_ulp_error = error > record_.max_ulp_error ? error : record_.max_ulp_error;
        squares_ += error * error;
    }

    order_sensitivity finish() const noexcept
    {
        order_sensitivity record = record_;
        if (record.elements != 0) {
            record.rms_ulp_error = detail::square_root(squares_ / static_cast<double>(record.elements));
        }
        return record;
    }

private:
    const std::vector<summation_order>& orders_;
    std::uint32_t divisor_;
    double squares_ = 0;
    order_sensitivity record_;
};

namespace detail {

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
