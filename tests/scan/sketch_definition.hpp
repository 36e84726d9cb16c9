// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include <collprobe/scan/sketch.hpp>

namespace collprobe::testing {

/// The definition of a sketch, element by element, in long double.
struct sketch_definition {
    std::vector<long double> sums, energies, magnitudes;

    template <class T>
    sketch_definition(view<const T> values, const sketch_options& options, std::uint64_t first)
        : sums(options.bins), energies(options.bins), magnitudes(options.bins)
    {
        for (std::uint64_t k = 0; k < values.count(); ++k) {
            const std::uint64_t i = first + k;
            const std::uint64_t word = collprobe::detail::mix64(options.seed + (i / 64 + 1) * 0x9e3779b97f4a7c15u);
            const bool minus = (word >> (i % 64) & 1) != 0;
            const auto x = static_cast<long double>(static_cast<double>(values[k]));
            sums[i % options.bins] += minus ? -x : x;
            energies[i % options.bins] += x * x;
            magnitudes[i % options.bins] += x < 0 ? -x : x;
        }
    }
    void check(const std::vector<double>& found, long double tolerance) const
    {
        REQUIRE(found.size() == 2 * sums.size());
        std::size_t wrong = 0;
        for (std::size_t bin = 0; bin < sums.size(); ++bin) {
            const auto is_near = [&](double value, long double expected, long double size) {
                return std::fabs(value - expected) <= tolerance * size + 1e-319L; // squares below the least double
            };
            wrong += is_near(found[bin], sums[bin], magnitudes[bin])
                    && is_near(found[sums.size() + bin], energies[bin], energies[bin]) ? 0 : 1;
        }
        CHECK(wrong == 0);
    }
};

} // namespace collprobe::testing
