// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
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

/// The length of a vector, `fraction` * 2^exponent: it may lie beyond the numbers of double.
struct vector_length {
    double fraction = 0; ///< in [0.5, 1), or 0
    int exponent = 0;

    double value() const { return std::ldexp(fraction, exponent); }
    /// NaN where `other` is 0 and this is not: a quotient does not exist.
    double over(const vector_length& other) const
    {
        if (fraction == 0) return 0;
        if (other.fraction == 0) return detail::quiet_nan<double>();
        return std::ldexp(fraction / other.fraction, exponent - other.exponent);
    }
    friend bool operator<(const vector_length& a, const vector_length& b)
    {
        if (a.fraction == 0 || b.fraction == 0) return a.fraction < b.fraction;
        return a.exponent != b.exponent ? a.exponent < b.exponent : a.fraction < b.fraction;
    }
};

/// A sum of squares, kept apart by their size, because a square of a large double overflows and that of a small one
/// underflows. `Sum` is double within a block, and exact over all blocks.
template <class Sum>
struct square_sums {
    static constexpr int shift = 600; ///< of small numbers up, and of large ones down
    static constexpr double small = 0x1p-400;
    static constexpr double large = 0x1p400;

    Sum low{}; ///< times 2^(2 * shift)
    Sum middle{};
    Sum high{}; ///< times 2^(-2 * shift)

    /// By how much numbers as large as this are scaled before they are squared.
    static int shift_of(double magnitude)
    {
        return magnitude == 0 || (magnitude >= small && magnitude <= large) ? 0 : magnitude < small ? shift : -shift;
    }
    Sum& of_shift(int by) { return by == 0 ? middle : by > 0 ? low : high; }

    /// `T`: the type whose numbers, or differences of them, are added; of most types no square leaves the range.
    /// Precondition: `Sum` is double.
    template <floating_element T = double>
    void add(double value)
    {
        if constexpr (sizeof(T) < sizeof(double)) {
            middle += value * value;
            return;
        }
        const int by = shift_of(std::abs(value));
        const double scaled = by == 0 ? value : std::ldexp(value, by);
        of_shift(by) += scaled * scaled;
    }
    template <class Other>
    void merge(const square_sums<Other>& other)
    {
        low.add(other.low);
        middle.add(other.middle);
        high.add(other.high);
    }
    vector_length length() const
    {
        // In units of the largest part that is there: the others are too small to overflow.
        const double parts[] = {std::sqrt(high.round()), std::sqrt(middle.round()), std::sqrt(low.round())};
        for (int k = 0; k < 3; ++k) {
            if (parts[k] == 0) continue;
            double whole = parts[k];
            if (k < 2) whole = std::hypot(whole, std::ldexp(parts[k + 1], -shift));
            vector_length found;
            found.fraction = std::frexp(whole, &found.exponent);
            found.exponent += (1 - k) * shift;
            return found;
        }
        return {};
    }
};

/// The squared deviation of a sum of these terms, as their spread lets expect: the variance of a sum of n rows is n
/// times that of a row. Differences from the first row, so that equal rows have none at all.
template <floating_element T>
void add_noise(const std::vector<const T*>& rows, std::size_t i, square_sums<double>& to)
{
    const auto n = static_cast<double>(rows.size());
    const auto first = static_cast<double>(rows[0][i]);
    double largest = 0;
    const auto variance = [&](double scale, double more) {
        double sum = 0, squares = 0;
        for (const T* row : rows) {
            const double from_first = (static_cast<double>(row[i]) * scale - first * scale) * more;
            if constexpr (sizeof(T) == sizeof(double)) largest = std::max(largest, std::abs(from_first));
            sum += from_first;
            squares += from_first * from_first;
        }
        return n * (squares - sum * sum / n) / (n - 1); // loses a factor of n at most: the first difference is 0
    };
    const double plain = variance(1, 1);
    const int by = square_sums<double>::shift_of(largest);
    if (by == 0) to.middle += plain;
    else if (by > 0) to.low += variance(1, 0x1p600);
    else to.high += variance(0x1p-600, 1);
}

/// One method's results. Its sums are exact ones over blocks of sums in double, so their
/// sequence does not matter.
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
        double errors = 0;
        square_sums<double> squares, rights;
        if (of.left_out == nullptr && std::memcmp(static_cast<const void*>(result), right, of.count * sizeof(T)) == 0) {
            distances.add(0, of.count);
            for (std::size_t i = 0; i < of.count; ++i) rights.add<T>(static_cast<double>(right[i]));
            take_in(0);
        } else {
            bool any_right = false;
            for (std::size_t i = 0; i < of.count; ++i) {
                if (of.left_out != nullptr && of.left_out[i] != 0) continue;
                const auto wanted = static_cast<double>(right[i]);
                rights.add<T>(wanted);
                if (to_bits(result[i]) == to_bits(right[i])) {
                    distances.add(0);
                    any_right = true;
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
                squares.add<T>(error);
                take_in(error);
            }
            if (any_right) take_in(0);
        }
        errors_.add(errors);
        squares_.merge(squares);
        rights_.merge(rights);
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
        squares_.merge(other.squares_);
        rights_.merge(other.rights_);
        least_ = std::min(least_, other.least_);
        most_ = std::max(most_, other.most_);
    }

    std::uint64_t digest() const { return digest_.finish(); }
    vector_length error() const { return squares_.length(); }
    /// The length of the vector of errors over that of the correctly rounded sums; NaN if those are all 0.
    double relative_error() const { return error().over(rights_.length()); }
    /// The mean error over its standard error; 0 without errors, NaN if the errors are all alike.
    double bias() const
    {
        const vector_length length = error();
        if (length.fraction == 0) return 0;
        const auto n = static_cast<double>(distances.total());
        const double mean = std::ldexp(errors_.round(), -length.exponent) / n; // in units in which no square is lost
        const double mean_square = length.fraction * length.fraction / n;
        const double variance = mean_square - mean * mean;
        if (least_ == most_ || variance < 0x1p-40 * mean_square) return detail::quiet_nan<double>();
        return mean / std::sqrt(variance / (n - 1));
    }

private:
    void take_in(double error)
    {
        least_ = std::min(least_, error);
        most_ = std::max(most_, error);
    }

    detail::digest_state digest_;
    exact_sum<double> errors_;
    square_sums<exact_sum<double>> squares_, rights_;
    double least_ = std::numeric_limits<double>::infinity(); ///< of the errors
    double most_ = -least_;
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
    std::uint64_t fingerprint = 0; ///< of the results of all permutations, elements left out aside

    /// `results[p]`: the block's sums with permutation p.
    template <floating_element T>
    void add(const block& of, const std::vector<std::vector<T>>& results)
    {
        std::vector<std::uint64_t> seen;
        for (std::size_t i = 0; i < of.count; ++i) {
            if (of.left_out != nullptr && of.left_out[i] != 0) continue;
            ++elements;
            bool alike = true, finite = true;
            std::uint64_t mixed = detail::mix64(of.first + i);
            for (const auto& each : results) {
                mixed = detail::mix64(mixed ^ to_bits(each[i]));
                alike = alike && to_bits(each[i]) == to_bits(results[0][i]);
                finite = finite && is_finite(each[i]);
            }
            fingerprint += mixed; // in any sequence of the blocks
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
        fingerprint += other.fingerprint;
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
