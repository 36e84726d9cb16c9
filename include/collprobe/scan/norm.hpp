// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/record/statistics.hpp>
#include <collprobe/core/widen.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/detail/target.hpp>
#include <collprobe/scan/accumulator.hpp>
#include <collprobe/scan/detail/chunk.hpp>
#include <collprobe/scan/detail/float_sums.hpp>
#include <collprobe/simd/rounding.hpp>
#include <collprobe/simd/vector.hpp>

/// The accumulator of values: sum, sum of squares and largest magnitude of the finite elements, number of zeros, and
/// the number and the first index of elements that are not finite.
///
/// Elements of 32 and 64 bits are added up in double. Elements of 8 and 16 bits, and their squares, are added up in
/// float, at most 32 in a row, and these sums in double. If a square could leave the range of a float, they are added
/// up in double, too. Elements that are not finite are rare: all paths find them by the largest magnitude, and then
/// look at the elements one by one.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// `has_sum`: whether sum and zeros are wanted; without them their numbers are 0, and a read is faster.
template <floating_element T, bool has_sum = true>
struct norm {
    using traits = element_traits<T>;
    using bits_type = typename traits::bits_type;

    struct taken {
        double sum = 0;
        double squares = 0;
        std::uint64_t zero = 0;
        std::uint64_t first_nonfinite = no_index;
        bits_type largest = 0; ///< of the largest magnitude
        std::uint32_t nan = 0; ///< these three: 2^32 - 1 stands for more, too
        std::uint32_t positive_infinity = 0;
        std::uint32_t negative_infinity = 0;

        COLLPROBE_HD constexpr void merge(const taken& next) noexcept
        {
            sum += next.sum;
            squares += next.squares;
            largest = larger(largest, next.largest);
            zero += next.zero;
            nan = saturated_sum(nan, next.nan);
            positive_infinity = saturated_sum(positive_infinity, next.positive_infinity);
            negative_infinity = saturated_sum(negative_infinity, next.negative_infinity);
            first_nonfinite = lesser(first_nonfinite, next.first_nonfinite);
        }
        COLLPROBE_HD constexpr void add_nonfinite(T element, std::uint64_t index) noexcept
        {
            std::uint32_t& kind = is_nan(element)             ? nan
                : (to_bits(element) & traits::sign_mask) != 0 ? negative_infinity
                                                              : positive_infinity;
            kind = saturated_sum(kind, 1);
            first_nonfinite = lesser(first_nonfinite, index);
        }
        COLLPROBE_HD constexpr std::uint64_t nonfinite() const noexcept
        {
            return std::uint64_t{nan} + positive_infinity + negative_infinity;
        }
    };

    static void take(taken& into, const T* tile, std::uint64_t count, std::uint64_t first) noexcept
    {
        settle(into, sums_of(tile, count), tile, count, first, &sums_of);
    }

    /// What the lanes of a tile hold.
    struct lane_sums {
        double sum[8] = {};
        double squares[8] = {};
        bits_type largest = 0; ///< of those that are not finite, too
        std::uint64_t zero = 0;
    };
    /// Takes in a tile whose lane sums are known. `sums_of`: makes those of other elements on the same path.
    static void settle(taken& into, const lane_sums& sums, const T* tile, std::uint64_t count, std::uint64_t first,
        lane_sums (*sums_of)(const T*, std::uint64_t)) noexcept
    {
        if (!is_plain<T>(sums.largest)) return settle_rare(into, tile, count, first, sums_of);
        into.merge(taken{.sum = add_lanes(sums.sum),
            .squares = add_lanes(sums.squares),
            .zero = sums.zero,
            .largest = sums.largest});
    }

    /// A thread of a GPU. What is rare is counted by the block.
    struct thread {
        struct shared : thread_memory {
            std::uint64_t first_nonfinite;
            std::uint32_t nan;
            std::uint32_t positive_infinity;
            std::uint32_t negative_infinity;

            COLLPROBE_HD void begin_slot(unsigned lane) noexcept
            {
                if (lane != 0) return;
                first_nonfinite = no_index;
                nan = positive_infinity = negative_infinity = 0;
            }
        };
        COLLPROBE_HD thread(const norm&, shared& memory, unsigned) noexcept : rare_(&memory) {}

        COLLPROBE_HD void take(const words16 (&words)[chunk_runs], const chunk& at) noexcept
        {
            if constexpr (sizeof(T) >= 4) {
                double sum = 0;
                double squares = 0;
                each_value<T>(words, [&](T element) {
                    const double x = widen(element);
                    if constexpr (has_sum) sum = rounded_sum(sum, x);
                    squares = multiply_add(x, x, squares);
                });
                take(sum, squares, words, at);
            } else {
                float sum[2] = {};
                float squares[2] = {};
                each_float<T>(words, [&](unsigned i, float x) {
                    if constexpr (has_sum) sum[i % 2] = rounded_sum(sum[i % 2], x);
                    squares[i % 2] = fused_multiply_add(x, x, squares[i % 2]);
                });
                take(exact_double(rounded_sum(sum[0], sum[1])) * float_unit<T>,
                    exact_double(rounded_sum(squares[0], squares[1])) * (float_unit<T> * float_unit<T>), words, at);
            }
        }
        /// What the threads of a block merge.
        struct part {
            double sum = 0;
            double squares = 0;
            std::uint64_t zero = 0;
            bits_type largest = 0;

            COLLPROBE_HD void merge(const part& next) noexcept
            {
                sum += next.sum;
                squares += next.squares;
                zero += next.zero;
                largest = larger(largest, next.largest);
            }
        };
        COLLPROBE_HD part taken_in() const noexcept { return {sum_, squares_, zero_, largest_}; }
        COLLPROBE_HD static taken whole(const part& of_block, const shared& rare) noexcept
        {
            return {of_block.sum, of_block.squares, of_block.zero, rare.first_nonfinite, of_block.largest, rare.nan,
                rare.positive_infinity, rare.negative_infinity};
        }

    private:
        shared* rare_;
        double sum_ = 0;
        double squares_ = 0;
        bits_type largest_ = 0;
        std::uint32_t zero_ = 0; // of a thread's part of a slot

        COLLPROBE_HD void take(
            double sum, double squares, const words16 (&words)[chunk_runs], const chunk& at) noexcept
        {
            const auto largest = static_cast<bits_type>(largest_magnitude<T>(words));
            if (!is_plain<T>(largest))
                return each_element_again<T, chunk_runs>(at, [&](T x, std::uint64_t index) { take_rare(x, index); });
            if constexpr (has_sum) sum_ = rounded_sum(sum_, sum);
            squares_ = rounded_sum(squares_, squares);
            largest_ = larger(largest_, largest);
            if constexpr (has_sum) zero_ += count_zeros<T>(words) - at.missing<T>();
        }
        COLLPROBE_HD void take_rare(T element, std::uint64_t index) noexcept
        {
            if (!is_finite(element)) {
                add_to(is_nan(element)                                      ? rare_->nan
                        : (to_bits(element) & traits::sign_mask) != 0 ? rare_->negative_infinity
                                                                            : rare_->positive_infinity,
                    1);
                return lower_to(rare_->first_nonfinite, index);
            }
            const double x = widen(element);
            const auto size = static_cast<bits_type>(to_bits(element) & ~traits::sign_mask);
            if constexpr (has_sum) sum_ = rounded_sum(sum_, x);
            squares_ = multiply_add(x, x, squares_);
            largest_ = larger(largest_, size);
            if constexpr (has_sum) zero_ += size == 0 ? 1u : 0u;
        }
    };

private:
    [[gnu::noinline]] static lane_sums sums_of(const T* tile, std::uint64_t count) noexcept
    {
        lane_sums all;
        bits_type largest = 0;
        for (std::uint64_t i = 0; i < count; ++i) {
            const auto size = static_cast<bits_type>(to_bits(tile[i]) & ~traits::sign_mask);
            largest = size > largest ? size : largest;
            if (has_sum && size == 0) ++all.zero;
        }
        all.largest = largest;
        if constexpr (sizeof(T) >= 4) {
            for (std::uint64_t i = 0; i < count; ++i) {
                const double x = widen(tile[i]);
                if constexpr (has_sum) all.sum[i % 8] += x;
                all.squares[i % 8] += opaque(x * x);
            }
        } else {
            for (std::uint64_t begin = 0; begin < count; begin += float_sums<T>::group) {
                float_sums<T> sum, squares;
                for (std::uint64_t i = begin; i < count && i < begin + float_sums<T>::group; ++i) {
                    const float x = static_cast<float>(tile[i]);
                    if constexpr (has_sum) sum.add(i, x);
                    squares.add_product(i, x, x);
                }
                sum.add_to(all.sum);
                squares.add_to(all.squares);
            }
        }
        return all;
    }

    /// Elements that are not finite count as zeros in the sums, or squares need the range of a double.
    [[gnu::noinline, gnu::cold]] static void settle_rare(taken& into, const T* tile, std::uint64_t count,
        std::uint64_t first, lane_sums (*sums_of)(const T*, std::uint64_t)) noexcept
    {
        T finite[tile_elements<T>];
        std::memcpy(static_cast<void*>(finite), tile, static_cast<std::size_t>(count) * sizeof(T));
        std::uint64_t cleared = 0;
        for (std::uint64_t i = 0; i < count; ++i) {
            if (is_finite(tile[i])) continue;
            into.add_nonfinite(tile[i], first + i);
            finite[i] = bit_cast<T>(bits_type{0});
            ++cleared;
        }
        lane_sums sums = sums_of(finite, count);
        if constexpr (has_sum) sums.zero -= cleared;
        if (!is_plain<T>(sums.largest)) {
            for (unsigned lane = 0; lane < 8; ++lane) sums.sum[lane] = sums.squares[lane] = 0;
            for (std::uint64_t i = 0; i < count; ++i) {
                const double x = widen(finite[i]);
                if constexpr (has_sum) sums.sum[i % 8] += x;
                sums.squares[i % 8] += opaque(x * x);
            }
        }
        into.merge(taken{.sum = add_lanes(sums.sum),
            .squares = add_lanes(sums.squares),
            .zero = sums.zero,
            .largest = sums.largest});
    }
};

} // namespace collprobe::detail

#if COLLPROBE_VECTORS
COLLPROBE_BEGIN_VECTORS
namespace collprobe::inline COLLPROBE_ABI::detail::vectors {

template <class T, bool has_sum>
struct lanes<norm<T, has_sum>, T> {
    using accumulator = norm<T, has_sum>;
    using patterns = typename largest_of_lanes<T>::patterns;

    sums_of_lanes<T> sum;
    sums_of_lanes<T> squares;
    largest_of_lanes<T> largest;
    patterns zeros = {}; // at most 256 in a lane; of 8-bit elements 16, until the end of a group
    words64 zero = {};

    [[gnu::always_inline]] explicit lanes(const accumulator&, std::uint64_t) noexcept {}

    [[gnu::always_inline]] void add_line(const unsigned char* line) noexcept
    {
        COLLPROBE_UNROLL_VECTORS
        for (int half = 0; half < 64; half += width) {
            const patterns size = largest.add(line + half);
            if constexpr (has_sum) zeros -= reinterpret_cast<patterns>(size == 0);
        }
        wide<T> x[lane_vectors<T>];
        load_line<T>(line, x);
        COLLPROBE_UNROLL_VECTORS
        for (unsigned k = 0; k < lane_vectors<T>; ++k) {
            if constexpr (has_sum) sum.add(k, x[k]);
            squares.add_product(k, x[k], x[k]);
        }
    }
    [[gnu::always_inline]] void add_last_line(const unsigned char* line, std::uint64_t) noexcept { add_line(line); }
    [[gnu::always_inline]] void end_group() noexcept
    {
        constexpr float unit = float8_in_halves<T>;
        if constexpr (has_sum) sum.end_group(unit);
        squares.end_group(unit * unit);
        count_zeros();
    }
    [[gnu::always_inline]] typename accumulator::lane_sums sums(std::uint64_t padding) noexcept
    {
        end_group();
        typename accumulator::lane_sums all;
        sum.store(all.sum);
        squares.store(all.squares);
        all.largest = largest.all();
        if constexpr (has_sum) all.zero = sum_of_lanes(zero) - padding;
        if constexpr (has_sum && sizeof(T) != 1)
            for (unsigned lane = 0; lane < width / sizeof(T); ++lane)
                all.zero += static_cast<std::uint64_t>(zeros[lane]);
        return all;
    }
    /// `padding`: zeros behind the last element.
    [[gnu::always_inline]] void finish(typename accumulator::taken& into, const T* tile, std::uint64_t count,
        std::uint64_t first, std::uint64_t padding) noexcept
    {
        accumulator::settle(into, sums(padding), tile, count, first, &sums_of);
    }
    [[gnu::noinline]] static typename accumulator::lane_sums sums_of(const T* tile, std::uint64_t count) noexcept
    {
        lanes again(accumulator(), 0);
        const std::uint64_t padding = add_lines(again, reinterpret_cast<const unsigned char*>(tile), count * sizeof(T));
        return again.sums(padding / sizeof(T));
    }

private:
    [[gnu::always_inline]] void count_zeros() noexcept
    {
        if constexpr (has_sum && sizeof(T) == 1) {
            zero += sums_of_bytes(zeros);
            zeros = patterns{};
        }
    }
};

} // namespace collprobe::detail::vectors
COLLPROBE_END_VECTORS
#endif
