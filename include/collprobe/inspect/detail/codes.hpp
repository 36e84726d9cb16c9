// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <collprobe/core/element.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/inspect/detail/call.hpp>
#include <collprobe/inspect/detail/data.hpp>

/// Probes of reductions that send elements as codes: blocks of elements share a scale, so an element's result depends
/// on its neighbours.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// A run of elements that are rounded together.
struct code_block {
    std::uint64_t first = 0;
    std::uint64_t elements = 0; ///< 0: each element is rounded for itself
};

/// Fills this rank's elements by their index, and sums.
template <element T, class Value>
void sum_of(summing_calls<T>& calls, std::uint64_t count, const Value& value)
{
    for (std::uint64_t i = 0; i < count; ++i) calls.send()[i] = T(value(i));
    calls.all_reduce(count);
}

/// Rank 0 sends units, and two neighbours far larger, of either sign. Where the units do not arrive, elements are
/// rounded together with those two. The pair stands at several places in turn, because the last block of a slice may be
/// short.
template <floating_element T>
code_block find_block(summing_calls<T>& calls, int rank, std::uint64_t count)
{
    constexpr bool wide = element_traits<T>::max_exponent > 100;
    const double unit = power_of_two(wide ? 0 : -24);
    const double large = power_of_two(wide ? 60 : 15);
    code_block found;
    if (count < 4) return found;
    for (const std::uint64_t at : {std::uint64_t{0}, count / 2 & ~std::uint64_t{1}, count / 3 & ~std::uint64_t{1}}) {
        sum_of<T>(calls, count, [&](std::uint64_t i) {
            return rank != 0 ? 0 : i == at ? large : i == at + 1 ? -large : unit;
        });
        const auto lost = [&](std::uint64_t i) {
            const double sum = static_cast<double>(calls.received()[i]);
            return !(is_finite(sum) && absolute(sum - unit) <= unit / 2);
        };
        std::uint64_t first = at;
        std::uint64_t end = at + 2;
        while (first > 0 && lost(first - 1)) --first;
        while (end < count && lost(end)) ++end;
        if (end - first > 2 && end - first > found.elements) found = {first, end - first};
    }
    return found;
}

/// The values that elements of a block can have.
struct code_values {
    static constexpr std::size_t most = 1024;

    std::vector<double> values; ///< in ascending order; empty if there are more than `most`

    int bits() const noexcept
    {
        int bits = 0;
        while (std::size_t{1} << bits < values.size()) ++bits;
        return bits;
    }
    double step(std::size_t from) const noexcept { return values[from + 1] - values[from]; }
    bool is_uniform() const noexcept
    {
        double least = infinity();
        double largest = 0;
        for (std::size_t i = 0; i + 1 < values.size(); ++i) {
            least = step(i) < least ? step(i) : least;
            largest = step(i) > largest ? step(i) : largest;
        }
        return largest < 3 * least;
    }
    /// The largest value over its distance to the next: 14 for e4m3, whose largest numbers are 448 and 416; 7 for e5m2.
    double largest_in_steps() const noexcept { return values.back() / step(values.size() - 2); }

    std::string name() const
    {
        if (values.size() < 3) return "unknown";
        if (is_uniform()) return "int" + std::to_string(bits());
        const double steps = largest_in_steps();
        if (steps > 13 && steps < 15) return "e4m3";
        return steps > 6.5 && steps < 7.5 ? "e5m2" : "unknown";
    }
    /// Whether codes go from the least to the largest element of a block, so that there is one for every bit pattern.
    bool use_all() const noexcept { return is_uniform() && values.size() == std::size_t{1} << bits(); }
    /// Blocks whose largest element is this number times a power of two have an exact scale.
    double exact_element() const noexcept
    {
        if (!is_uniform()) return 7;
        return use_all() ? power_of_two(bits()) - 2 : power_of_two(bits() - 1) - 1;
    }
};

/// Rank 0 sends random elements, with the largest magnitude twice in each block, so that the blocks have one scale.
/// Where the scale is not exact, roundings may add values: the fewest are right.
template <floating_element T>
code_values find_values(
    summing_calls<T>& calls, const code_block& block, int rank, std::uint64_t count, std::uint64_t seed)
{
    const std::uint64_t start = block.first % block.elements;
    const std::uint64_t end = count - (count - start) % block.elements;
    code_values fewest;
    for (const double largest : {127.0, 7.0, 255.0, 15.0}) {
        std::vector<double> seen;
        for (std::uint64_t round = 0; round * (end - start) < 4096 && seen.size() <= code_values::most; ++round) {
            sum_of<T>(calls, count, [&](std::uint64_t i) {
                const std::uint64_t place = (i + block.elements - start) % block.elements;
                const double random = static_cast<double>(mix64(mix64(seed + round) + i) >> 11) * 0x1p-52 - 1;
                return rank != 0 ? 0 : largest * (place == 0 ? 1 : place == 1 ? -1 : random);
            });
            for (std::uint64_t i = start; i < end; ++i) seen.push_back(static_cast<double>(calls.received()[i]) + 0.0);
            std::sort(seen.begin(), seen.end());
            seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
        }
        const bool fewer = fewest.values.empty() || seen.size() < fewest.values.size();
        if (seen.size() <= code_values::most && fewer) fewest.values = seen;
    }
    return fewest;
}

/// How often a value is rounded to codes on its way. Rank 0 sends one large element in a block, another rank its
/// negative, and all others a unit beside it. Units that are lost were added to one of the two, and rounded, before the
/// two met: each number of lost units shows one more rounding in front of the last addition. The result is rounded,
/// too, if a block in which rank 0 has a large element shows the units of no other rank.
template <floating_element T>
int count_code_roundings(summing_calls<T>& calls, const code_block& block, const code_values& codes, int rank,
    int ranks, std::uint64_t count)
{
    constexpr bool wide = element_traits<T>::max_exponent > 100;
    double large = codes.exact_element();
    for (const double most = power_of_two(wide ? 60 : 15); 2 * large <= most;) large *= 2;
    const double unit = codes.exact_element() * power_of_two(wide ? 0 : -24);
    const double opposite = codes.use_all() ? -large / codes.exact_element() : 0; // or the least element needs no code
    const std::uint64_t sample = block.elements < 32 ? block.elements - 2 : 30;
    const auto pair = [&](std::uint64_t i) { return i == block.first ? large : i == block.first + 1 ? opposite : 0; };
    const auto beside = [&](std::uint64_t i) { return i == block.first || i == block.first + 1 ? 0 : unit; };
    const auto units = [&] {
        double sum = 0;
        for (std::uint64_t i = 2; i < 2 + sample; ++i) sum += static_cast<double>(calls.received()[block.first + i]);
        const double mean = sum / static_cast<double>(sample) / unit;
        return mean > 0 && mean < 2 * ranks ? static_cast<int>(mean + 0.5) : 0;
    };
    std::vector<int> arrived;
    bool result_is_rounded = true;
    for (int other = 1; other < ranks; other += (ranks + 31) / 32) {
        sum_of<T>(calls, count, [&](std::uint64_t i) {
            return rank == 0 ? pair(i) : rank == other ? -pair(i) : beside(i);
        });
        arrived.push_back(units());
        sum_of<T>(calls, count, [&](std::uint64_t i) { return rank == 0 ? pair(i) : rank == other ? beside(i) : 0; });
        result_is_rounded = result_is_rounded && units() == 0;
    }
    std::sort(arrived.begin(), arrived.end());
    const auto different = std::unique(arrived.begin(), arrived.end()) - arrived.begin();
    return static_cast<int>(different) + (result_is_rounded ? 1 : 0);
}

} // namespace collprobe::inline COLLPROBE_ABI::detail
