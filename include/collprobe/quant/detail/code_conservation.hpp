// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/detail/math.hpp>

/// Whether the result of a quantised sum is that of the codes that the ranks sent.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// The finding of one rank about its result.
struct code_conservation {
    double residual = 0; ///< the largest distance over the bins, in deviations of the rounding to float
    std::uint64_t bin = 0; ///< of the residual: the elements bin, bin + bins and so on
    std::uint64_t checked = 0; ///< bins; 0: a number was not finite, or nobody looked
};

/// The variance of the roundings to float between codes and result, in units of the energies of a bin: each of `ranks`
/// additions rounds a partial sum, whose square is at most the number of its terms times their energy. On top of it
/// the division, and the rounding of what is left behind; for a rotation the additions of the way back, of each
/// rank's elements, of roundings and of results.
struct code_rounding_bound {
    double of_sent; ///< energy of all ranks' decoded elements, in units of the result
    double of_result;
    double floor; ///< variance by underflow, for each element and rank
    double no_overflow; ///< energy of the decoded elements up to which the result is finite

    static code_rounding_bound of(element_type type, int ranks, bool averages, bool rotates) noexcept
    {
        int largest_exponent = 0;
        with_floating_type(
            type, [&](auto one) { largest_exponent = element_traits<decltype(one)>::max_exponent; });
        const double n = ranks;
        const double variance = power_of_two(-48) / 3; // of a number of magnitude 1
        const double turns = rotates ? 16 : 0;
        const double unit = averages ? 1 / (n * n) : 1;
        return {variance * unit * (n * (n + 1) / 2 + 4 * n + turns), variance * (2 + turns),
            n * power_of_two(-298), power_of_two(2 * (largest_exponent - 1)) / n};
    }
};

/// Adds up the energies of all bins. A body for `sum_each`, of one item.
struct total_energy {
    const double* energies;
    std::uint64_t bins;
    double* to;

    COLLPROBE_HD double part(std::uint64_t, unsigned lane, unsigned lanes) const noexcept
    {
        double sum = 0;
        for (std::uint64_t bin = lane; bin < bins; bin += lanes) sum += energies[bin];
        return sum;
    }
    COLLPROBE_HD void store(std::uint64_t, double sum) const noexcept { *to = sum; }
};

/// Compares a result with the shares of all ranks, bin by bin. A reducer over bins, for the devices' `reduce`. A bin's
/// roundings are those of its own elements, and, by codes that are far larger than their elements, of others: so its
/// energies are taken as at least those of a mean bin.
struct code_conservation_reducer {
    static constexpr std::uint64_t block = 4096; // on the host
    static constexpr double beyond_measure = 0x1p1000;

    struct partial {
        double worst = -1;
        std::uint64_t bin = 0;
        std::uint64_t unmeasured = 0;
    };

    const double* share; ///< of all ranks: sums, then energies
    const double* result; ///< the same of the result
    const double* total; ///< the energy of all bins of `share`
    std::uint64_t bins;
    std::uint64_t rows; ///< elements in a bin
    code_rounding_bound bound;

    COLLPROBE_HD static constexpr partial identity() noexcept { return {}; }
    COLLPROBE_HD void add(partial& into, std::uint64_t bin) const noexcept
    {
        const double energy = share[bins + bin];
        const double of_result = result[bins + bin];
        if (!is_finite(energy) || !is_finite(share[bin]) || !is_finite(*total)) {
            merge(into, {-1, bin, 1});
        } else if (!is_finite(of_result)) {
            // Of any bin: where a rule has no code for NaN, one sum beyond its type makes a whole block NaN.
            const bool overflows = *total >= bound.no_overflow;
            merge(into, {overflows ? -1 : beyond_measure, bin, overflows ? 1u : 0u});
        } else {
            const double mean = *total / static_cast<double>(bins);
            const double deviation = square_root(bound.of_sent * (energy + mean) + bound.of_result * of_result
                + bound.floor * static_cast<double>(rows));
            merge(into, {absolute(share[bin] - result[bin]) / deviation, bin, 0});
        }
    }
    void run(partial& into, std::uint64_t first, std::uint64_t count) const noexcept
    {
        for (std::uint64_t bin = first; bin < first + count; ++bin) add(into, bin);
    }
    COLLPROBE_HD static constexpr void merge(partial& into, const partial& next) noexcept
    {
        if (next.worst > into.worst || (next.worst == into.worst && next.bin < into.bin)) {
            into.worst = next.worst;
            into.bin = next.bin;
        }
        into.unmeasured += next.unmeasured;
    }
    COLLPROBE_HD code_conservation finish(const partial& all) const noexcept
    {
        // A result that is not finite counts, whatever the other bins have.
        if (all.worst < 0 || (all.unmeasured != 0 && all.worst < beyond_measure)) return {};
        return {all.worst, all.bin, bins};
    }
};

} // namespace collprobe::inline COLLPROBE_ABI::detail
