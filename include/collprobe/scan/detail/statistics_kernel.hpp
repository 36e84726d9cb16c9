// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/simd/vector.hpp>

#if COLLPROBE_VECTORS
COLLPROBE_BEGIN_VECTORS
namespace collprobe::inline COLLPROBE_ABI::detail::vectors {

/// The sum of the squares of the two numbers in each 32-bit lane; they are not both the lowest.
[[gnu::always_inline]] inline words32 squares_of_pairs(shorts x) noexcept
{
    const auto pairs = reinterpret_cast<ints>(x);
    const ints low = (pairs << 16) >> 16;
    const ints high = pairs >> 16;
    return reinterpret_cast<words32>(low * low + high * high);
}
template <class V>
[[gnu::always_inline]] inline auto lowest_lane(V v) noexcept
{
    return over_lanes(v, [](auto a, auto b) { return a < b ? a : b; });
}

/// The number of vectors for eight doubles, the lanes of a sum (see `lane_position`).
inline constexpr int vectors_of_8 = 64 / width;

/// Eight elements of up to 16 bits as floats or ints: those of the sixteen at positions 8 * `group` on.
template <int group, class T>
[[gnu::always_inline]] inline auto widen_8(const T* from) noexcept
{
    if constexpr (std::is_same_v<T, bfloat16>) {
        const auto pairs = load<words32>(from);
        return reinterpret_cast<floats>(group == 0 ? pairs << 16 : pairs & 0xffff0000u);
    } else if constexpr (std::is_same_v<T, float16>) {
        return load_floats(from + 8 * group);
    } else if constexpr (element_traits<T>::is_floating_point) {
        return load_floats(from + 8 * group);
    } else {
        return widened<ints>(load<vector<T, 8>>(from + 8 * group));
    }
}

/// Vector `k` of the doubles of the sixteen elements at `from`. Exact, except for 64-bit integers, which are rounded.
template <int k, class T>
[[gnu::always_inline]] inline doubles load_doubles(const T* from) noexcept
{
    constexpr int lanes = width / 8;
    if constexpr (std::is_same_v<T, double>) {
        return load<doubles>(from + k * lanes);
    } else if constexpr (sizeof(T) <= 2) {
        return doubles_of_eight<k % 2>(widen_8<k / 2>(from));
    } else if constexpr (std::is_same_v<T, std::uint32_t>) {
        // AVX2 converts only signed integers, so the range is shifted, exactly, before and after.
        using narrow = vector<std::uint32_t, width / 2>;
        using signed_narrow = vector<int, width / 2>;
        const auto words = reinterpret_cast<signed_narrow>(load<narrow>(from + k * lanes) ^ 0x80000000u);
        return hidden(widened<doubles>(words) + 0x1p31);
    } else {
        return widened<doubles>(load<vector<T, lanes * int{sizeof(T)}>>(from + k * lanes));
    }
}

/// Extrema of full-width vectors of elements, and whether there are zeros, subnormals or non-finite numbers. Compares
/// the bits if there is an instruction for that.
template <class T>
struct range_lanes {
    using traits = element_traits<T>;
    using bits_type = typename traits::bits_type;
    using signed_type = std::make_signed_t<bits_type>;
    using unsigned_vector = vector<bits_type, width>;
    using signed_vector = vector<signed_type, width>;
    static constexpr bool is_float = traits::is_floating_point;
    static constexpr bool is_double = is_float && sizeof(T) == 8;
    using native = std::conditional_t<is_double, double,
        std::conditional_t<traits::is_signed_type, signed_type, bits_type>>;
    using native_vector = vector<native, width>;
    using dwords = vector<std::uint32_t, width>;

    // Floating point of up to 32 bits: the largest signed pattern is the largest number not below zero, and the
    // largest unsigned pattern is the most negative number. If all numbers have the same sign, the least magnitude is
    // the other end. Other types: plain extrema.
    signed_vector signed_maximum = signed_vector{} + signed_type(bits_type{1} << (sizeof(T) * 8 - 1));
    unsigned_vector unsigned_maximum = {};
    unsigned_vector least_magnitude = ~unsigned_vector{}; // doubled, which drops the sign without a mask
    native_vector minimum = {};
    native_vector maximum = {};
    native_vector least = {}; // doubles: the least |x|
    dwords top = {}; // doubles: odd lanes hold the largest upper half of |x|
    unsigned_vector zeros = {}; // integers

    [[gnu::always_inline]] explicit range_lanes(const T* from) noexcept
    {
        if constexpr (!is_float || is_double) minimum = maximum = load<native_vector>(from);
        if constexpr (is_double)
            least = reinterpret_cast<native_vector>(reinterpret_cast<unsigned_vector>(minimum) & size_mask);
    }

    [[gnu::always_inline]] void add(unsigned_vector bits) noexcept
    {
        if constexpr (!is_float) {
            minimum = lanewise_minimum(reinterpret_cast<native_vector>(bits), minimum);
            maximum = lanewise_maximum(reinterpret_cast<native_vector>(bits), maximum);
            zeros -= reinterpret_cast<unsigned_vector>(bits == 0);
        } else if constexpr (is_double) {
            const unsigned_vector size = bits & size_mask;
            minimum = lanewise_minimum(reinterpret_cast<native_vector>(bits), minimum);
            maximum = lanewise_maximum(reinterpret_cast<native_vector>(bits), maximum);
            least = lanewise_minimum(reinterpret_cast<native_vector>(size), least);
            top = lanewise_maximum(reinterpret_cast<dwords>(size), top);
        } else {
            signed_maximum = lanewise_maximum(reinterpret_cast<signed_vector>(bits), signed_maximum);
            unsigned_maximum = lanewise_maximum(bits, unsigned_maximum);
            least_magnitude = lanewise_minimum(bits + bits, least_magnitude);
        }
    }

    /// False, without further effect, if a NaN or an infinity was among the elements. `any_tiny`: there are zeros or
    /// subnormals to count.
    [[gnu::always_inline]] bool finish(block_sums& out, bool& any_tiny) const noexcept
    {
        if constexpr (is_float && !is_double) {
            const auto high = static_cast<bits_type>(highest_lane(signed_maximum));
            const bits_type low = highest_lane(unsigned_maximum);
            const auto nearest = static_cast<bits_type>(lowest_lane(least_magnitude) / 2);
            const bool any_positive = (high & traits::sign_mask) == 0;
            const bool any_negative = (low & traits::sign_mask) != 0;
            if (any_positive && high >= traits::smallest_nonfinite) return false;
            if (any_negative && bits_type(low & size_mask) >= traits::smallest_nonfinite) return false;
            out.minimum = widen(bit_cast<T>(any_negative ? low : nearest));
            out.maximum = widen(bit_cast<T>(any_positive ? high : bits_type(nearest | traits::sign_mask)));
            any_tiny = nearest <= traits::fraction_mask;
        } else {
            if constexpr (is_double) {
                for (unsigned lane = 1; lane < width / 4; lane += 2)
                    if (top[lane] >= traits::smallest_nonfinite >> 32) return false;
                any_tiny = bit_cast<std::uint64_t>(lowest_lane(least)) <= traits::fraction_mask;
            }
            out.minimum = static_cast<double>(lowest_lane(minimum));
            out.maximum = static_cast<double>(highest_lane(maximum));
            for (unsigned lane = 0; lane < width / sizeof(T); ++lane) out.zero += zeros[lane];
        }
        return true;
    }

private:
    static constexpr auto size_mask = static_cast<bits_type>(~traits::sign_mask);
};

/// Counts zeros and subnormals of a floating-point block, in whole steps. Separate from the main loop, because most
/// blocks have none; this saves that loop five instructions in twenty.
template <class T>
[[gnu::noinline]] void count_tiny(const T* data, std::uint64_t whole, block_sums& out) noexcept
{
    using traits = element_traits<T>;
    using bits_type = typename traits::bits_type;
    using signed_vector = vector<std::make_signed_t<bits_type>, width>;
    using unsigned_vector = vector<bits_type, width>;
    constexpr auto largest_tiny = static_cast<std::make_signed_t<bits_type>>(traits::fraction_mask);
    constexpr std::uint64_t per_vector = width / sizeof(T);

    unsigned_vector nonzero = {};
    unsigned_vector normal = {};
    for (std::uint64_t i = 0; i < whole; i += per_vector) {
        const auto size = reinterpret_cast<signed_vector>(
            load<unsigned_vector>(data + i) & static_cast<bits_type>(~traits::sign_mask));
        nonzero -= reinterpret_cast<unsigned_vector>(size > 0);
        normal -= reinterpret_cast<unsigned_vector>(size > largest_tiny);
    }
    out.zero = whole;
    for (unsigned lane = 0; lane < per_vector; ++lane) {
        out.zero -= nonzero[lane];
        out.subnormal += static_cast<bits_type>(nonzero[lane] - normal[lane]);
    }
}

/// All accumulators of a block, without those of its digest.
template <class T>
struct scan_lanes {
    static constexpr std::uint64_t per_vector = width / sizeof(T);
    static constexpr std::uint64_t step = sizeof(T) < 4 ? 64 / sizeof(T) : 16; // at least a cache line

    range_lanes<T> range;
    doubles sum[vectors_of_8] = {};
    doubles magnitudes[vectors_of_8] = {};
    doubles squares[vectors_of_8] = {};

    [[gnu::always_inline]] explicit scan_lanes(const T* from) noexcept : range(from) {}

    [[gnu::always_inline]] void add_range(const T* data) noexcept
    {
        COLLPROBE_UNROLL_VECTORS
        for (std::uint64_t i = 0; i < step; i += per_vector) {
            const auto bits = load<typename range_lanes<T>::unsigned_vector>(data + i);
            range.add(bits);
        }
    }
    [[gnu::always_inline]] void add_sums(const T* data) noexcept
    {
        COLLPROBE_UNROLL_VECTORS
        for (std::uint64_t i = 0; i < step; i += 16) add_pair<0>(data + i);
    }

    /// False, without further effect, if a NaN or an infinity was among the elements, `whole` from `data` on.
    [[gnu::always_inline]] bool finish(const T* data, std::uint64_t whole, block_sums& out) const noexcept
    {
        bool any_tiny = false;
        if (!range.finish(out, any_tiny)) return false;
        if constexpr (element_traits<T>::is_floating_point)
            if (any_tiny) count_tiny(data, whole, out);
        __builtin_memcpy(out.sum, sum, sizeof out.sum);
        __builtin_memcpy(out.magnitudes, magnitudes, sizeof out.magnitudes);
        __builtin_memcpy(out.squares, squares, sizeof out.squares);
        return true;
    }

private:
    /// Vector `k` of the first and of the second eight of sixteen elements.
    template <int k>
    [[gnu::always_inline]] void add_pair(const T* data) noexcept
    {
        const doubles x = load_doubles<k>(data);
        const doubles y = load_doubles<k + vectors_of_8>(data);
        sum[k] += x;
        sum[k] += y;
        // Exact products: the same bits with an FMA or without. With one vector for a sum the latency of an FMA would
        // limit the speed; with two it is the number of instructions.
        if constexpr (squares_are_exact<T> && vectors_of_8 > 1) {
            squares[k] += x * x;
            squares[k] += y * y;
        } else {
            squares[k] += hidden(x * x);
            squares[k] += hidden(y * y);
        }
        magnitudes[k] += magnitude(x);
        magnitudes[k] += magnitude(y);
        if constexpr (k + 1 < vectors_of_8) add_pair<k + 1>(data);
    }
    [[gnu::always_inline]] static doubles magnitude(doubles x) noexcept
    {
        return reinterpret_cast<doubles>(reinterpret_cast<words64>(x) & 0x7fffffffffffffffu);
    }
};

/// The same for integers of 8 bits. All sums of a block of 4096 are integers below 2^53, exact in any order. So they
/// are computed as integers of 16 and 32 bits, and the whole sum stands in the first lane.
template <class T>
    requires(sizeof(T) == 1 && !element_traits<T>::is_floating_point)
struct scan_lanes<T> {
    static constexpr std::uint64_t step = 64;
    static constexpr bool is_signed = std::is_signed_v<T>;
    using bytes = vector<T, width>;
    using patterns = vector<std::uint8_t, width>;
    using unsigned_shorts = vector<std::uint16_t, width>;

    bytes minimum;
    bytes maximum;
    patterns nonzero = {}; // at most 4096 / width = 128
    unsigned_shorts sum = {}; // in a lane at most 2 * 128 * 255; if signed, modulo 2^16 and from 2 * 128 * -128 on
    unsigned_shorts magnitudes = {}; // if signed
    words32 squares = {};

    [[gnu::always_inline]] explicit scan_lanes(const T* from) noexcept
        : minimum(load<bytes>(from)), maximum(minimum)
    {
    }

    /// Range and sums.
    [[gnu::always_inline]] void add_range(const T* data) noexcept
    {
        COLLPROBE_UNROLL_VECTORS
        for (std::uint64_t i = 0; i < step; i += width) {
            const auto x = load<bytes>(data + i);
            minimum = lanewise_minimum(x, minimum);
            maximum = lanewise_maximum(x, maximum);
            nonzero += lanewise_minimum(reinterpret_cast<patterns>(x), patterns{} + std::uint8_t{1});
            const auto pairs = reinterpret_cast<shorts>(x);
            if constexpr (is_signed) {
                add_numbers((pairs << 8) >> 8);
                add_numbers(pairs >> 8);
            } else {
                add_numbers(pairs & std::int16_t{0xff});
                add_numbers(reinterpret_cast<shorts>(reinterpret_cast<unsigned_shorts>(pairs) >> 8));
            }
        }
    }

    [[gnu::always_inline]] void add_sums(const T*) noexcept {}

    [[gnu::always_inline]] bool finish(const T*, std::uint64_t whole, block_sums& out) const noexcept
    {
        out.minimum = static_cast<double>(lowest_lane(minimum));
        out.maximum = static_cast<double>(highest_lane(maximum));
        const auto pairs = reinterpret_cast<unsigned_shorts>(nonzero);
        out.zero = whole - total_unsigned((pairs & std::uint16_t{0xff}) + (pairs >> 8));
        out.squares[0] = static_cast<double>(sum_of_lanes(squares));
        if constexpr (is_signed) {
            const auto lanes = reinterpret_cast<vector<std::int32_t, width>>(sum);
            const std::uint32_t total = sum_of_lanes(reinterpret_cast<words32>(((lanes << 16) >> 16) + (lanes >> 16)));
            out.sum[0] = static_cast<double>(static_cast<std::int32_t>(total));
            out.magnitudes[0] = static_cast<double>(total_unsigned(magnitudes));
        } else {
            out.sum[0] = out.magnitudes[0] = static_cast<double>(total_unsigned(sum));
        }
        return true;
    }

private:
    [[gnu::always_inline]] void add_numbers(shorts x) noexcept
    {
        sum += reinterpret_cast<unsigned_shorts>(x);
        if constexpr (is_signed) magnitudes += reinterpret_cast<unsigned_shorts>(lanewise_maximum(x, -x));
        squares += squares_of_pairs(x);
    }
    [[gnu::always_inline]] static std::uint32_t total_unsigned(unsigned_shorts x) noexcept
    {
        const auto lanes = reinterpret_cast<words32>(x);
        return sum_of_lanes((lanes & 0xffffu) + (lanes >> 16));
    }
};

/// Prefetches the lines of a step that follows later.
template <std::uint64_t bytes>
[[gnu::always_inline]] inline void prefetch_ahead(const void* step) noexcept
{
    constexpr std::uint64_t ahead = width == 64 ? 12288 : 4096; // bytes, found by measurement
    COLLPROBE_UNROLL_VECTORS
    for (std::uint64_t line = 0; line < bytes; line += 64)
        __builtin_prefetch(static_cast<const unsigned char*>(step) + ahead + line);
}

/// Adds `whole` elements, which fill whole steps, to lanes and digest. `first_byte`, a multiple of 128, is the offset
/// of `data` in its buffer, which the digest needs.
template <bool with_digest, class Lanes, class T>
[[gnu::always_inline]] inline void add_steps(Lanes& lanes, const T* data, std::uint64_t whole,
    [[maybe_unused]] digest_state& digest, [[maybe_unused]] std::uint64_t first_byte) noexcept
{
    constexpr std::uint64_t step = Lanes::step;
    constexpr std::uint64_t step_bytes = step * sizeof(T);
    if constexpr (with_digest) {
        for (std::uint64_t first = 0; first < whole;) {
            const std::uint64_t word = first_byte / 4 + first * sizeof(T) / 4;
            const std::uint64_t in_period = word % digest_period;
            const std::uint64_t room = (digest_period - in_period) * 4 / sizeof(T);
            const std::uint64_t end = whole - first < room ? whole : first + room;
            const std::uint32_t* keys = digest_keys.key + in_period;
            digest_lanes digests;
            for (std::uint64_t i = first; i < end; i += step, keys += step_bytes / 4) {
                // In this order. With the digest first or last, memory is read a third slower.
                prefetch_ahead<step_bytes>(data + i);
                lanes.add_range(data + i);
                COLLPROBE_UNROLL_VECTORS
                for (std::uint64_t line = 0; line < step_bytes; line += 64)
                    digests.add_line(reinterpret_cast<const unsigned char*>(data + i) + line, keys + line / 4);
                lanes.add_sums(data + i);
            }
            digest_sums sums;
            digests.add_to(sums, in_period, (end - first) * sizeof(T) / 64);
            digest.add_sums(word / digest_period, sums);
            first = end;
        }
        digest.bytes += whole * sizeof(T);
    } else {
        for (std::uint64_t i = 0; i < whole; i += step) {
            prefetch_ahead<step_bytes>(data + i);
            lanes.add_range(data + i);
            lanes.add_sums(data + i);
        }
    }
}

/// Scans the leading elements that fill whole steps, and returns their number. `finite`: false if a NaN or an infinity
/// is among the elements; then only the digest is valid.
template <class T, bool with_digest>
[[gnu::noinline]] std::uint64_t scan(const T* data, std::uint64_t count, block_sums& out, digest_state& digest,
    std::uint64_t first_byte, bool& finite) noexcept
{
    const std::uint64_t whole = count - count % scan_lanes<T>::step;
    if (whole == 0) return 0;
    scan_lanes<T> lanes(data);
    add_steps<with_digest>(lanes, data, whole, digest, first_byte);
    finite = lanes.finish(data, whole, out);
    return whole;
}

/// Sums of distances from a number and of their squares.
struct distance_lanes {
    doubles sum[vectors_of_8] = {};
    doubles squares[vectors_of_8] = {};

    [[gnu::always_inline]] distance_lanes() noexcept {}

    template <int k, class T>
    [[gnu::always_inline]] void add(const T* data, doubles pivot) noexcept
    {
        const doubles d = hidden(load_doubles<k>(data) - pivot);
        sum[k % vectors_of_8] += d;
        squares[k % vectors_of_8] += hidden(d * d);
        if constexpr (k + 1 < 2 * vectors_of_8) add<k + 1>(data, pivot);
    }
};

/// Takes in the leading elements that fill groups of sixteen, all finite, and returns their number.
template <class T>
[[gnu::noinline]] std::uint64_t scan_distances(
    const T* data, std::uint64_t count, double pivot, distance_sums& out) noexcept
{
    const std::uint64_t whole = count - count % 16;
    distance_lanes lanes;
    for (std::uint64_t i = 0; i < whole; i += 16) lanes.add<0>(data + i, doubles{} + pivot);
    __builtin_memcpy(out.sum, lanes.sum, sizeof out.sum);
    __builtin_memcpy(out.squares, lanes.squares, sizeof out.squares);
    return whole;
}

} // namespace collprobe::detail::vectors
COLLPROBE_END_VECTORS
#endif
