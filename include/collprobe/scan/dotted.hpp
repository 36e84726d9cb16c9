// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/widen.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/scan/accumulator.hpp>
#include <collprobe/scan/detail/chunk.hpp>
#include <collprobe/scan/detail/float_sums.hpp>
#include <collprobe/simd/rounding.hpp>
#include <collprobe/simd/vector.hpp>

/// The accumulator of the dot product with a second buffer. Added up as `norm` adds up squares. An element that is not
/// finite makes it NaN or infinite. On a GPU it is NaN if there is no second buffer; on the host there must be one.
namespace collprobe::inline COLLPROBE_ABI::detail {

template <floating_element T>
struct dotted {
    using traits = element_traits<T>;
    using bits_type = typename traits::bits_type;

    struct taken {
        double dot = 0;
        COLLPROBE_HD constexpr void merge(const taken& next) noexcept { dot += next.dot; }
    };

    const T* other = nullptr;

    [[gnu::noinline]] void take(taken& into, const T* tile, std::uint64_t count, std::uint64_t first) const noexcept
    {
        const T* const second = other + first;
        double sums[8] = {};
        bits_type seen = 0;
        if constexpr (sizeof(T) < 4) {
            for (std::uint64_t i = 0; i < count; ++i) {
                seen = larger(seen, static_cast<bits_type>(to_bits(tile[i]) & ~traits::sign_mask));
                seen = larger(seen, static_cast<bits_type>(to_bits(second[i]) & ~traits::sign_mask));
            }
            for (std::uint64_t begin = 0; begin < count; begin += float_sums<T>::group) {
                float_sums<T> products;
                for (std::uint64_t i = begin; i < count && i < begin + float_sums<T>::group; ++i)
                    products.add_product(i, static_cast<float>(tile[i]), static_cast<float>(second[i]));
                products.add_to(sums);
            }
        } else {
            for (std::uint64_t i = 0; i < count; ++i) sums[i % 8] += opaque(widen(tile[i]) * widen(second[i]));
        }
        settle(into, sums, seen, tile, second, count);
    }
    /// Takes in a tile whose lane sums are known. `seen`: the bits of the largest magnitude in both buffers.
    static void settle(taken& into, const double (&sums)[8], bits_type seen, const T* tile, const T* second,
        std::uint64_t count) noexcept
    {
        const double dot = add_lanes(sums);
        if (sizeof(T) >= 4 || is_plain_dot(seen, dot)) return void(into.dot += dot);
        double exact = 0;
        for (std::uint64_t i = 0; i < count; ++i) exact += opaque(widen(tile[i]) * widen(second[i]));
        into.dot += exact;
    }
    /// Whether products in float did not leave its range, or what was lost is nothing beside the sum.
    COLLPROBE_HD static bool is_plain_dot(std::uint64_t seen, double dot) noexcept
    {
        return is_plain<T>(seen) && (seen == 0 || absolute(dot) > 0x1p-100);
    }

    struct thread {
        const dotted& of;
        double dot = 0;

        using shared = thread_memory;
        COLLPROBE_HD thread(const dotted& accumulator, shared&, unsigned) noexcept : of(accumulator) {}
        /// Half of the runs at a time: fewer registers.
        COLLPROBE_HD void take(const words16 (&words)[chunk_runs], const chunk& at) noexcept
        {
            if (of.other == nullptr) return;
            const byte_source source{reinterpret_cast<const unsigned char*>(of.other), at.bytes};
            COLLPROBE_UNROLL
            for (unsigned k = 0; k < chunk_runs; k += 2) {
                const words16 x[2] = {words[k], words[k + 1]};
                words16 y[2];
                chunk half = at;
                half.byte += k * round_bytes;
                half.load(source, y);
                take_half(x, y, half);
            }
        }
        using part = taken;
        COLLPROBE_HD part taken_in() const noexcept { return {of.other == nullptr ? not_a_number() : dot}; }
        COLLPROBE_HD static taken whole(const part& of_block, const shared&) noexcept { return of_block; }

    private:
        COLLPROBE_HD void take_half(const words16 (&words)[2], const words16 (&second)[2], const chunk& at) noexcept
        {
            if constexpr (sizeof(T) < 4) {
                const auto take_exactly = [&] {
                    each_element_again<T, 2>(at, [&](T x, std::uint64_t index) {
                        dot = multiply_add(widen(x), widen(of.other[index]), dot);
                    });
                };
                const std::uint64_t seen = larger(largest_magnitude<T>(words), largest_magnitude<T>(second));
                if (!is_plain<T>(seen)) return take_exactly();
                float sum[2] = {};
                COLLPROBE_UNROLL
                for (unsigned word = 0; word < 8; ++word) {
                    const floats_of_word<T> x(words[word / 4].w[word % 4]);
                    const floats_of_word<T> y(second[word / 4].w[word % 4]);
                    COLLPROBE_UNROLL
                    for (unsigned e = 0; e < x.count; ++e)
                        sum[e % 2] = fused_multiply_add(x.of[e], y.of[e], sum[e % 2]);
                }
                const double unit = float_unit<T> * float_unit<T>;
                const double of_half = exact_double(rounded_sum(sum[0], sum[1])) * unit;
                if (!is_plain_dot(seen, of_half)) return take_exactly();
                dot = rounded_sum(dot, of_half);
            } else {
                COLLPROBE_UNROLL
                for (unsigned i = 0; i < 2 * per_words16<T>; ++i) {
                    const unsigned k = i / per_words16<T>, e = i % per_words16<T>;
                    dot = multiply_add(widen(element_of<T>(words[k], e)), widen(element_of<T>(second[k], e)), dot);
                }
            }
        }
    };
};

} // namespace collprobe::detail

#if COLLPROBE_VECTORS
COLLPROBE_BEGIN_VECTORS
namespace collprobe::inline COLLPROBE_ABI::detail::vectors {

template <class T>
struct lanes<dotted<T>, T> {
    const unsigned char* other;
    sums_of_lanes<T> products;
    largest_of_lanes<T> seen; // in both buffers; of elements of less than 32 bits

    [[gnu::always_inline]] lanes(const dotted<T>& of, std::uint64_t first) noexcept
        : other(reinterpret_cast<const unsigned char*>(of.other + first))
    {
    }
    [[gnu::always_inline]] void add_line(const unsigned char* line) noexcept
    {
        __builtin_prefetch(other + 4096);
        add_lines_of_both(line, other);
        other += 64;
    }
    [[gnu::always_inline]] void add_last_line(const unsigned char* line, std::uint64_t bytes) noexcept
    {
        unsigned char last[64] = {};
        __builtin_memcpy(last, other, bytes);
        add_lines_of_both(line, last);
        other += bytes;
    }
    [[gnu::always_inline]] void end_group() noexcept
    {
        products.end_group(float8_in_halves<T> * float8_in_halves<T>);
    }
    [[gnu::always_inline]] void finish(typename dotted<T>::taken& into, const T* tile, std::uint64_t count,
        std::uint64_t, std::uint64_t) noexcept
    {
        end_group();
        double sums[8];
        products.store(sums);
        dotted<T>::settle(into, sums, seen.all(), tile, reinterpret_cast<const T*>(other) - count, count);
    }

private:
    [[gnu::always_inline]] void add_lines_of_both(const unsigned char* line, const unsigned char* second) noexcept
    {
        if constexpr (sizeof(T) < 4) {
            for (int half = 0; half < 64; half += width) {
                seen.add(line + half);
                seen.add(second + half);
            }
        }
        wide<T> x[lane_vectors<T>];
        wide<T> y[lane_vectors<T>];
        load_line<T>(line, x);
        load_line<T>(second, y);
        COLLPROBE_UNROLL_VECTORS
        for (unsigned k = 0; k < lane_vectors<T>; ++k) products.add_product(k, x[k], y[k]);
    }
};

} // namespace collprobe::detail::vectors
COLLPROBE_END_VECTORS
#endif
