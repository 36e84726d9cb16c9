// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/widen.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/scan/sketch.hpp>
#include <collprobe/sum/combine.hpp>
#include <collprobe/sum/order.hpp>

/// A bound on the distance between the sketch of a result and the sum of the sketches of its inputs.
namespace collprobe::inline COLLPROBE_ABI {

/// The order in which a reduction rounds to the element type.
enum class rounding_order : std::uint8_t {
    linear, ///< after each of n - 1 additions in a row: rings and unknown algorithms; the largest bound
    tree, ///< after each of n - 1 additions in a double binary tree
    single, ///< once, at the end: a wide accumulator, or a contract of `reproducible` other than `native`
};

/// How strictly sums are checked.
struct conservation_options {
    /// At most so many bins, and as many as 4 KiB have elements. A small buffer has fewer: 16 elements or more a bin.
    sketch_options sketch = {};
    rounding_order order = rounding_order::linear; ///< of the communicator; `linear` is the loosest, safe for all
};

namespace detail {

/// The largest allowed residual of a reduction, in standard deviations.
inline constexpr double conservation_limit = 8;

/// The finding of a conservation check on one rank.
struct conservation_result {
    /// Largest distance, over the bins, between the sketches of result and inputs, in standard deviations of the
    /// rounding error. `beyond_measure` if a result is not finite although none of its sums could overflow.
    double residual;
    std::uint32_t bin; ///< the bin of `residual`; it holds elements bin, bin + bins, bin + 2 bins, ... of the buffer
    std::uint32_t bins;
    bool checked; ///< false if no check is possible: not a sum or average, or numbers that are not finite
    bool conserved; ///< residual <= `conservation_limit`; true if not checked
};

inline constexpr double beyond_measure = 0x1p1000;

/// For an order with n - 1 roundings: the sums of m and of m (m - 1) over them, where m is the number of terms in the
/// sum that is rounded.
struct rounded_terms {
    double terms = 0;
    double pairs = 0;

    void add(double m) noexcept
    {
        terms += m;
        pairs += m * (m - 1);
    }
    /// The sum of m m' over all pairs of different roundings. `all`: `terms`, plus one for each rounded product.
    double cross_terms(double all) const noexcept { return all * all - (all + pairs); }
};

inline rounded_terms terms_of_linear(int n) noexcept
{
    const double m = n;
    return {m * (m + 1) / 2 - 1, (m - 1) * m * (m + 1) / 3};
}

inline rounded_terms terms_of(rounding_order order, int n)
{
    if (order == rounding_order::linear) return terms_of_linear(n);
    rounded_terms result;
    if (order == rounding_order::single) {
        result.add(n);
        return result;
    }
    std::vector<std::uint32_t> held(static_cast<std::size_t>(n), 1);
    for (const addition& step : tree_order(n, 0)) result.add(held[step.into] += held[step.from]);
    return result;
}

/// The standard deviation that rounding causes, in a bin, of the distance between the sketch of a result and the sum of
/// the sketches of its n inputs. For sums and averages of floating-point numbers.
///
/// E is the energy (sum of squares) of all ranks' elements of a bin, scaled as the average scales them. E_S is the
/// energy of the result. audit/conservation_bound.md has the model, its measured accuracy, its cost where ranks agree,
/// and its limits.
struct conservation_bound {
    double scale = 1; ///< of the inputs, into the scale of the result
    double unit_roundoff = 0; ///< of the element type
    double of_term = 0; ///< v / u^2 = of_term * a + of_pair * c + (of_end + of_aligned * rho^2) c_0
    double of_pair = 0;
    double of_end = 0;
    double of_aligned = 0;
    double of_sum = 0; ///< the factor for a sketch's own sum, squared
    double floor = 0; ///< what underflow adds to a standard deviation
    double least_aligned = 0; ///< 1 if all ranks are taken to agree
    double ranks = 1;
    double inverse_ranks = 1;
    double inverse_others = 0; ///< 1 / (ranks - 1)
    /// If the energy of the inputs times the number of ranks is below this, no sum can be infinite.
    double no_overflow = 0;

    /// `rows`: elements in a bin. `in_type`: `terms_of` the order; to count those of a tree takes memory and n steps.
    template <floating_element T>
    static conservation_bound of(reduction operation, rounding_order order, int ranks, std::uint64_t rows,
        const rounded_terms& in_type)
    {
        using traits = element_traits<T>;
        constexpr double variance = 0.6 / 3;
        constexpr double u = power_of_two(-traits::digits);
        constexpr double d = power_of_two(-53);
        constexpr double smallest_subnormal_exponent = traits::min_exponent - traits::digits + 1;
        const double n = ranks;
        const double r = static_cast<double>(rows);
        const bool averages = operation == reduction::average;
        const bool scales_terms = averages && order != rounding_order::single;
        conservation_bound bound;
        bound.ranks = n;
        bound.inverse_ranks = 1 / n;
        bound.inverse_others = ranks > 1 ? 1 / (n - 1) : 0;
        bound.unit_roundoff = u;
        bound.scale = !averages ? 1 : scales_terms ? static_cast<double>(average_scale<T>(ranks)) : 1 / n;
        const rounded_terms in_double = terms_of_linear(ranks);
        const double own = variance * (d / u) * (d / u);
        const bool inexact_scale = scales_terms && (ranks & (ranks - 1)) != 0;
        const double terms = in_type.terms + (inexact_scale ? n : 0);
        bound.of_term = variance * terms + own * ((r / 2 + 2) * 2 * n + in_double.terms + n);
        bound.of_sum = own * (r / 2 + 2);
        bound.of_end = variance * n * (n - 1);
        bound.of_pair = variance * in_type.pairs - bound.of_end
            + own * ((r / 2 + 2) * n * (n - 1) + in_double.pairs);
        // Equal terms of 8 bits are lost from some rank on. Then E_S does not tell that they are equal.
        bound.least_aligned = traits::digits < 8 && order == rounding_order::linear && n * u > 1 ? 1 : 0;
        bound.of_aligned = (variance * in_type.cross_terms(terms) + own * in_double.cross_terms(in_double.terms)) / 2;
        if (averages) {
            const double roundings = r * (scales_terms ? n * n : 1); // identical ranks have identical roundings
            // The product is made of two factors: -ffast-math would flush the smallest subnormal double to zero.
            bound.floor = square_root(roundings) * power_of_two(-40)
                * power_of_two(static_cast<int>(smallest_subnormal_exponent) + 39 > -1022
                        ? static_cast<int>(smallest_subnormal_exponent) + 39
                        : -1022);
        }
        if constexpr (traits::digits == 53)
            bound.floor += u * power_of_two(-511)
                * square_root((bound.of_term + bound.of_pair + bound.of_end + bound.of_aligned) * r);
        // The square of a sum is at most the ranks times their energy; the energy of a bin is at most rows times that.
        // Each rank's roundings may make a sum larger by one or two u, of which few ranks of 8-bit elements take much.
        constexpr auto largest_bits = static_cast<typename traits::bits_type>(traits::smallest_nonfinite - 1);
        const double largest = widen(bit_cast<T>(largest_bits));
        bound.no_overflow = traits::digits == 53 ? power_of_two(1000) / r
                                                 : 0.9 * largest * largest * exponential(-4 * u * n);
        return bound;
    }

    /// The standard deviation in a bin. `input`: energy of all ranks' elements, not scaled. `result`: energy of the
    /// result. `input_sum`, `result_sum`: the sums of the same elements.
    COLLPROBE_HD double deviation(double input, double result, double input_sum, double result_sum) const noexcept
    {
        const double a = input * scale * scale / ranks;
        double aligned = 0, c = 0;
        if (ranks > 1) {
            const double share = result / ranks;
            aligned = (share - a) / (ranks - 1);
            aligned = aligned < least_aligned * a ? least_aligned * a : aligned > a ? a : aligned;
            c = aligned > a - 2 * share ? aligned : a - 2 * share;
        }
        const double rho = a > 0 ? aligned / a : 0;
        const double scaled_sum = input_sum * scale;
        const double v = of_term * a + of_pair * c + (of_end + of_aligned * rho * rho) * aligned
            + of_sum * (scaled_sum * scaled_sum + result_sum * result_sum);
        return unit_roundoff * square_root(v) + floor;
    }
    /// Whether a distance is surely less than `residual` deviations; arguments as of `deviation`. It costs neither a
    /// division nor a root, and leaves out a term that is not negative.
    bool is_surely_within(double residual, double distance, double input, double result, double input_sum,
        double result_sum) const noexcept
    {
        const double a = input * scale * scale * inverse_ranks;
        const double share = result * inverse_ranks;
        double aligned = (share - a) * inverse_others;
        aligned = larger(least_aligned * a, aligned > a ? a : aligned); // without a branch
        const double c = larger(a - 2 * share, aligned);
        const double scaled_sum = input_sum * scale;
        const double least = of_term * a + of_pair * c + of_end * aligned
            + of_sum * (scaled_sum * scaled_sum + result_sum * result_sum);
        constexpr double slack = 0.999; // for the roundings of this function
        const double bound = residual * unit_roundoff;
        return of_aligned >= 0 && distance * distance < slack * bound * bound * least;
    }
};

/// Judges the bins of two sketches, of the inputs' sum over the ranks and of a result. A reducer over bins, for the
/// devices' `reduce`. Precondition: `bound` is that of the call and of the rows of the fullest bin.
struct conservation_judge {
    static constexpr std::uint64_t block = 4096; // on the host

    struct partial {
        double worst;
        std::uint64_t bin;
        std::uint64_t unmeasured; ///< bins without a verdict
    };

    const double* input; ///< the sum over the ranks
    const double* result;
    std::uint64_t bins;
    conservation_bound bound;

    COLLPROBE_HD static constexpr partial identity() noexcept { return {-1, 0, 0}; }
    COLLPROBE_HD void add(partial& into, std::uint64_t bin) const noexcept
    {
        double residual = 0;
        const bool measured = measure(bin, residual);
        merge(into, {measured ? residual : -1.0, bin, measured ? 0u : 1u});
    }
    void run(partial& into, std::uint64_t first, std::uint64_t count) const noexcept
    {
        for (std::uint64_t bin = first; bin < first + count; ++bin) {
            if (!is_surely_below(into.worst, bin)) add(into, bin);
        }
    }
    COLLPROBE_HD static void merge(partial& into, const partial& other) noexcept
    {
        if (other.worst > into.worst || (!(other.worst < into.worst) && other.bin < into.bin)) {
            into.worst = other.worst;
            into.bin = other.bin;
        }
        into.unmeasured += other.unmeasured;
    }
    COLLPROBE_HD conservation_result finish(const partial& all) const noexcept
    {
        const double residual = all.worst > 0 ? all.worst : 0;
        const bool violated = residual > conservation_limit;
        // A violation counts even if other bins have no verdict.
        const bool checked = violated || all.unmeasured == 0;
        return {checked ? residual : 0, checked ? static_cast<std::uint32_t>(all.bin) : 0,
            static_cast<std::uint32_t>(bins), checked, !violated};
    }

    /// Whether the residual of a bin is surely less than another, which most are.
    bool is_surely_below(double residual, std::uint64_t bin) const noexcept
    {
        const double distance = bound.scale * input[bin] - result[bin];
        return residual > 0
            && bound.is_surely_within(
                residual, distance, input[bins + bin], result[bins + bin], input[bin], result[bin])
            && is_finite(input[bins + bin]) && is_finite(result[bins + bin]);
    }
    /// The residual of a bin. Returns false if the bin has no verdict.
    COLLPROBE_HD bool measure(std::uint64_t bin, double& residual) const noexcept
    {
        const double energy = input[bins + bin];
        const double result_energy = result[bins + bin];
        if (!is_finite(energy)) return false;
        if (!is_finite(result_energy)) {
            residual = beyond_measure;
            return energy * bound.scale * bound.scale * bound.ranks < bound.no_overflow;
        }
        const double distance = absolute(bound.scale * input[bin] - result[bin]);
        const double deviation = bound.deviation(energy, result_energy, input[bin], result[bin]);
        if (!is_finite(deviation) || !is_finite(distance)) return false;
        // If nothing is rounded, the deviation is 0.
        residual = distance < beyond_measure * deviation ? distance / deviation : distance > 0 ? beyond_measure : 0;
        return true;
    }
};

} // namespace detail

} // namespace collprobe
