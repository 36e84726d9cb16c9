// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <collprobe/core/element.hpp>
#include <collprobe/core/record/inspection.hpp>
#include <collprobe/core/ulp.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/inspect/detail/probes.hpp>
#include <collprobe/simd/rounding.hpp>
#include <collprobe/sum/exact_sum.hpp>
#include <collprobe/sum/sum_rows.hpp>

/// Random terms, and the evaluation of their sums.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// Term `id` of `rank`: of either sign, below 2. Even ids have terms of similar size. The terms of odd ids differ by up
/// to 2^30 (half: 2^13), so that wide accumulators round too.
template <floating_element T>
T random_term(std::uint64_t seed, std::uint32_t rank, std::uint64_t id) noexcept
{
    constexpr std::uint64_t spread = element_traits<T>::max_exponent > 100 ? 31 : 14;
    const std::uint64_t draw = mix64(mix64(mix64(seed) + rank) + id);
    const std::uint64_t exponent = 1023 - (draw >> 1) % 64 % (id % 2 == 0 ? 4 : spread);
    return T(bit_cast<double>((draw << 63) | (exponent << 52) | (draw >> 12)));
}

/// Computes the sum with the order and accumulator that were found. `partial` contains the terms.
/// Each partial sum is kept in Wide; it is rounded to T if it was found to have no more bits than T.
template <class Wide, floating_element T>
T follow(const group_arithmetic& group, std::vector<Wide>& partial)
{
    const sum_tree& tree = group.shown.tree;
    for (std::size_t k = 0; k < tree.size(); ++k) {
        Wide& sum = partial[tree[k][0]];
        sum = rounded_sum(sum, partial[tree[k][1]]);
        if (k + 1 < tree.size() && group.bits[k] <= element_traits<T>::digits) {
            sum = static_cast<Wide>(widened_to<Wide>(narrowed<T>(sum)));
        }
    }
    return narrowed<T>(partial[0]);
}

/// Predicts one sum of `group`. Returns false if the group's arithmetic is unknown, or if it adds more than two partial
/// sums at once (unknown alignment).
template <floating_element T>
bool predict(const group_arithmetic& group, const std::vector<T>& terms, T exact, T& sum)
{
    if (group.shown.kind == order_class::exact) {
        sum = exact;
        return true;
    }
    constexpr int own = element_traits<T>::digits;
    if (group.shown.tree.size() + 1 != terms.size() || group.bits.size() + 2 < terms.size()) return false;
    int most = own;
    for (const int bits : group.bits) {
        if (bits != own && bits != 24 && bits != 53) return false;
        if (bits < own) return false;
        most = bits > most ? bits : most;
    }
    const auto in = [&]<class Wide>(Wide) {
        std::vector<Wide> partial;
        for (const T term : terms) partial.push_back(widened_to<Wide>(term));
        return follow<Wide, T>(group, partial);
    };
    if constexpr (own > 24) {
        sum = in(0.0);
    } else {
        sum = most > 24 ? in(0.0) : in(0.0f);
    }
    return true;
}

/// Errors of sums compared with the exact sums, over a sample of elements.
struct sum_errors {
    double max_ulp = 0;
    double squares = 0;
    std::uint64_t elements = 0;
    std::uint64_t predicted = 0; ///< elements whose sum `predict` knows
    std::uint64_t reproduced = 0; ///< of those, elements whose sum has the predicted bits

    /// Adds `sum`, the sum of the terms `id` of all ranks, at a position of `group`.
    template <floating_element T>
    void add(T sum, std::uint64_t seed, std::uint64_t id, int ranks, const group_arithmetic& group)
    {
        exact_sum<T> exact;
        std::vector<T> terms;
        double largest = 0;
        for (int rank = 0; rank < ranks; ++rank) {
            terms.push_back(random_term<T>(seed, static_cast<std::uint32_t>(rank), id));
            exact.add(terms.back());
            const double size = absolute(static_cast<double>(terms.back()));
            largest = size > largest ? size : largest;
        }
        const T nearest = exact.round();
        ++elements;
        if (T expected{}; predict(group, terms, nearest, expected)) {
            ++predicted;
            reproduced += to_bits(expected) == to_bits(sum) ? 1 : 0;
        }
        if (!is_finite(sum)) {
            max_ulp = squares = infinity();
            return;
        }
        // The difference is rounded once, to double.
        exact.add(bit_cast<T>(static_cast<typename element_traits<T>::bits_type>(
            to_bits(sum) ^ element_traits<T>::sign_mask)));
        const double own_unit = ulp(nearest);
        const double largest_unit = ulp(T(largest));
        const double error
            = absolute(exact.template round<double>()) / (own_unit > largest_unit ? own_unit : largest_unit);
        max_ulp = error > max_ulp ? error : max_ulp;
        squares += error * error;
    }
};

} // namespace collprobe::detail
