// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include <collprobe/core/element.hpp>
#include <collprobe/core/ulp.hpp>
#include <collprobe/scan/digest.hpp>
#include <collprobe/sum/exact_sum.hpp>

/// What sums are measured by, against the correctly rounded ones. Everything is taken in block by block, by several
/// threads, and merged: the numbers depend neither on the threads nor on the sequence of the blocks.
namespace summation {

using namespace collprobe;

/// How many elements lie how many numbers of the type apart. Distances below 256 are counted one by one, others by
/// sixteenths of a power of two.
class distance_histogram {
public:
    static constexpr std::size_t buckets = 256 + 16 * 56;

    void add(std::uint64_t distance, std::uint64_t times = 1) { counts_[bucket_of(distance)] += times; }
    void merge(const distance_histogram& other)
    {
        for (std::size_t i = 0; i < buckets; ++i) counts_[i] += other.counts_[i];
    }
    std::uint64_t total() const
    {
        std::uint64_t all = 0;
        for (const std::uint64_t each : counts_) all += each;
        return all;
    }
    /// The least distance that at least this share of the elements does not exceed; from 256 on rounded down to its
    /// sixteenth. 0 if there are no elements.
    std::uint64_t quantile(double share) const
    {
        const auto wanted = static_cast<std::uint64_t>(std::ceil(share * static_cast<double>(total())));
        std::uint64_t below = 0;
        for (std::size_t i = 0; i < buckets; ++i) {
            below += counts_[i];
            if (below >= wanted && below != 0) return least_of(i);
        }
        return 0;
    }
    /// The number of elements at a distance from `first` up to `end`, by whole buckets.
    std::uint64_t count(std::uint64_t first, std::uint64_t end) const
    {
        std::uint64_t all = 0;
        for (std::size_t i = 0; i < buckets; ++i) {
            if (least_of(i) >= first && least_of(i) < end) all += counts_[i];
        }
        return all;
    }

private:
    static std::size_t bucket_of(std::uint64_t distance)
    {
        if (distance < 256) return static_cast<std::size_t>(distance);
        const int power = detail::highest_bit(distance); // 8 or more
        const std::uint64_t sixteenth = (distance >> (power - 4)) & 15;
        return 256 + 16 * static_cast<std::size_t>(power - 8) + static_cast<std::size_t>(sixteenth);
    }
    static std::uint64_t least_of(std::size_t bucket)
    {
        if (bucket < 256) return bucket;
        const std::size_t power = (bucket - 256) / 16 + 8;
        return (std::uint64_t{16} + (bucket - 256) % 16) << (power - 4);
    }

    std::uint64_t counts_[buckets] = {};
};

/// The largest of some distances, and the first element that has it.
struct largest_distance {
    std::uint64_t ulp = 0;
    std::uint64_t index = 0;
    bool found = false; ///< some distance is not 0

    void add(std::uint64_t distance, std::uint64_t at)
    {
        if (distance == 0 || distance < ulp || (found && distance == ulp && at > index)) return;
        *this = {distance, at, true};
    }
    void merge(const largest_distance& other)
    {
        if (other.found) add(other.ulp, other.index);
    }
};

/// A block of elements: where it begins in the whole, and which of its elements are left out of the statistics.
struct block {
    std::uint64_t first = 0;
    std::size_t count = 0;
    const unsigned char* left_out = nullptr; ///< not 0 for those; null if there are none
};

/// One method's results. `sum` etc. are exact sums over blocks of sums in double, so their sequence does not matter.
class method_measures {
public:
    std::uint64_t differ = 0; ///< elements with other bits than the correctly rounded sum
    std::uint64_t overflows = 0; ///< elements that are not finite although the correctly rounded sum is
    distance_histogram distances; ///< in numbers of the type, without overflows
    largest_distance largest;
    double nanoseconds = 0; ///< of a processor

    /// `result` and `right`: the block's sums by this method, and the correctly rounded ones.
    template <floating_element T>
    void add(const block& of, const T* result, const T* right)
    {
        digest_.merge(detail::digest_bytes(detail::best_isa(), reinterpret_cast<const unsigned char*>(result),
            of.count * sizeof(T), of.first * sizeof(T)));
        double errors = 0, squares = 0, rights = 0;
        if (of.left_out == nullptr && std::memcmp(static_cast<const void*>(result), right, of.count * sizeof(T)) == 0) {
            distances.add(0, of.count);
            for (std::size_t i = 0; i < of.count; ++i) rights += squared(static_cast<double>(right[i]));
        } else {
            for (std::size_t i = 0; i < of.count; ++i) {
                if (of.left_out != nullptr && of.left_out[i] != 0) continue;
                const auto wanted = static_cast<double>(right[i]);
                rights += squared(wanted);
                if (to_bits(result[i]) == to_bits(right[i])) {
                    distances.add(0);
                    continue;
                }
                ++differ;
                if (!is_finite(result[i])) {
                    ++overflows;
                    continue;
                }
                const std::uint64_t distance = ulp_distance(result[i], right[i]);
                distances.add(distance);
                largest.add(distance, of.first + i);
                const double error = static_cast<double>(result[i]) - wanted;
                errors += error;
                squares += squared(error);
            }
        }
        errors_.add(errors);
        squares_.add(squares);
        rights_.add(rights);
    }
    void merge(const method_measures& other)
    {
        differ += other.differ;
        overflows += other.overflows;
        distances.merge(other.distances);
        largest.merge(other.largest);
        nanoseconds += other.nanoseconds;
        digest_.merge(other.digest_);
        errors_.add(other.errors_);
        squares_.add(other.squares_);
        rights_.add(other.rights_);
    }

    std::uint64_t digest() const { return digest_.finish(); }
    double error_squares() const { return squares_.round(); }
    /// The length of the vector of errors over that of the correctly rounded sums.
    double relative_error() const
    {
        const double right = rights_.round();
        return squares_.round() == 0 ? 0 : std::sqrt(squares_.round() / right);
    }
    /// The mean error over its standard error; 0 without errors.
    double bias() const
    {
        const auto n = static_cast<double>(distances.total());
        const double mean = errors_.round() / n;
        const double variance = squares_.round() / n - mean * mean;
        if (squares_.round() == 0 || n < 2) return 0;
        return mean / std::sqrt(variance / (n - 1));
    }

private:
    static double squared(double value) { return value * value; }

    detail::digest_state digest_;
    exact_sum<double> errors_, squares_, rights_;
};

/// How two results of the same elements differ.
struct difference {
    std::uint64_t changed = 0;
    largest_distance largest; ///< of elements that are finite in both

    template <floating_element T>
    void add(const block& of, const T* a, const T* b)
    {
        if (std::memcmp(static_cast<const void*>(a), b, of.count * sizeof(T)) == 0) return;
        for (std::size_t i = 0; i < of.count; ++i) {
            if (to_bits(a[i]) == to_bits(b[i]) || (of.left_out != nullptr && of.left_out[i] != 0)) continue;
            ++changed;
            if (is_finite(a[i]) && is_finite(b[i])) largest.add(ulp_distance(a[i], b[i]), of.first + i);
        }
    }
    void merge(const difference& other)
    {
        changed += other.changed;
        largest.merge(other.largest);
    }
};

/// The number of elements that differ, without anything else: for a matrix of many pairs.
template <floating_element T>
std::uint64_t count_different(const block& of, const T* a, const T* b)
{
    if (std::memcmp(static_cast<const void*>(a), b, of.count * sizeof(T)) == 0) return 0;
    std::uint64_t count = 0;
    for (std::size_t i = 0; i < of.count; ++i) count += to_bits(a[i]) != to_bits(b[i]) ? 1 : 0;
    for (std::size_t i = 0; of.left_out != nullptr && i < of.count; ++i) {
        if (of.left_out[i] != 0 && to_bits(a[i]) != to_bits(b[i])) --count;
    }
    return count;
}

/// The results of one method over permutations of the ranks.
struct permutation_measures {
    std::uint64_t elements = 0;
    std::uint64_t distinct = 0; ///< different results, summed over the elements
    std::uint64_t most_distinct = 0;
    std::uint64_t changed = 0; ///< elements with more than one result
    largest_distance spread; ///< from the smallest to the largest result, if all are finite

    /// `results[p]`: the block's sums with permutation p.
    template <floating_element T>
    void add(const block& of, const std::vector<std::vector<T>>& results)
    {
        std::vector<std::uint64_t> seen;
        for (std::size_t i = 0; i < of.count; ++i) {
            if (of.left_out != nullptr && of.left_out[i] != 0) continue;
            ++elements;
            bool alike = true, finite = true;
            for (const auto& each : results) {
                alike = alike && to_bits(each[i]) == to_bits(results[0][i]);
                finite = finite && is_finite(each[i]);
            }
            std::uint64_t own = 1;
            if (!alike) {
                seen.clear();
                for (const auto& each : results) seen.push_back(to_bits(each[i]));
                std::sort(seen.begin(), seen.end());
                own = static_cast<std::uint64_t>(std::unique(seen.begin(), seen.end()) - seen.begin());
                ++changed;
                if (finite) spread.add(spread_of(results, i), of.first + i);
            }
            distinct += own;
            most_distinct = std::max(most_distinct, own);
        }
    }
    void merge(const permutation_measures& other)
    {
        elements += other.elements;
        distinct += other.distinct;
        most_distinct = std::max(most_distinct, other.most_distinct);
        changed += other.changed;
        spread.merge(other.spread);
    }

private:
    template <floating_element T>
    static std::uint64_t spread_of(const std::vector<std::vector<T>>& results, std::size_t i)
    {
        T low = results[0][i], high = low;
        for (const auto& each : results) {
            if (static_cast<double>(each[i]) < static_cast<double>(low)) low = each[i];
            if (static_cast<double>(each[i]) > static_cast<double>(high)) high = each[i];
        }
        return ulp_distance(low, high);
    }
};

/// NaN results get one pattern, because their payload is the processor's choice.
template <floating_element T>
void canonical_nans(T* values, std::size_t count)
{
    for (std::size_t i = 0; i < count; ++i) {
        if (is_nan(values[i])) values[i] = detail::quiet_nan<T>();
    }
}

} // namespace summation
