// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/detail/math.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// What the sketches of a reduction tell of its error. Energies are of the mean over the ranks: estimates without
/// bias, with a relative standard deviation of sqrt(2 / bins).
struct aggregate_error {
    double error_squares = 0; ///< of the result minus the mean of the inputs
    double mean_squares = 0; ///< of the mean of the inputs
    double result_squares = 0;
    double drift = 0; ///< cosine of the error with that of the step before; NaN if there is none
    std::uint64_t measured = 0; ///< bins; 0: the call was not measured, or has numbers that are not finite
    std::uint64_t spoiled = 0; ///< bins of a result with numbers that are not finite, of inputs that all are
};

/// Compares the sketches of a reduction bin by bin. A reducer over bins, for the devices' `reduce`.
struct aggregate_reducer {
    static constexpr std::uint64_t block = 4096; // on the host

    struct partial {
        double error = 0;
        double mean = 0;
        double result = 0;
        double with_last = 0;
        double last = 0;
    };

    const double* input; ///< the sums of the bins, added over the ranks
    const double* result;
    double input_to_mean;
    double result_to_mean;
    double* error; ///< that of the step before, which this one's replaces; or null
    bool has_last;
    std::uint64_t bins;

    COLLPROBE_HD static constexpr partial identity() noexcept { return {}; }
    COLLPROBE_HD void add(partial& into, std::uint64_t bin) const noexcept
    {
        const double mean = input[bin] * input_to_mean;
        const double of_result = result[bin] * result_to_mean;
        const double off = of_result - mean;
        double before = 0;
        if (error != nullptr) {
            if (has_last) before = error[bin];
            error[bin] = off;
        }
        merge(into, {off * off, mean * mean, of_result * of_result, off * before, before * before});
    }
    void run(partial& into, std::uint64_t first, std::uint64_t count) const noexcept
    {
        for (std::uint64_t bin = first; bin < first + count; ++bin) add(into, bin);
    }
    COLLPROBE_HD static constexpr void merge(partial& into, const partial& next) noexcept
    {
        into.error += next.error;
        into.mean += next.mean;
        into.result += next.result;
        into.with_last += next.with_last;
        into.last += next.last;
    }
    COLLPROBE_HD aggregate_error finish(const partial& all) const noexcept
    {
        if (!is_finite(all.mean)) return {};
        if (!is_finite(all.error) || !is_finite(all.result)) return {.spoiled = bins};
        const double length = square_root(all.error) * square_root(all.last);
        const bool comparable = is_finite(length) && length > 0;
        return {all.error, all.mean, all.result, comparable ? all.with_last / length : not_a_number(),
            bins, 0};
    }
};

} // namespace collprobe::inline COLLPROBE_ABI::detail
