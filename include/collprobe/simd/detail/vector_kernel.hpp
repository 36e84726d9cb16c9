// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// No include guard: dispatch.hpp includes this once per instruction set, for vector.hpp.
#if defined(COLLPROBE_ISA_NAMESPACE)
namespace collprobe::inline COLLPROBE_ABI::detail::COLLPROBE_ISA_NAMESPACE {

inline constexpr int width = COLLPROBE_ISA_WIDTH; // bytes of a vector
using words64 = vector<std::uint64_t, width>;

template <class V>
[[gnu::always_inline]] inline V load(const void* from) noexcept
{
    typedef V unaligned __attribute__((aligned(1), may_alias));
    return *static_cast<const unaligned*>(from);
}

/// The product of the low halves of each 64-bit lane.
[[gnu::always_inline]] inline words64 multiply_low_halves(words64 a, words64 b) noexcept
{
#if COLLPROBE_ISA_WIDTH == 32
    using v8si = vector<int, 32>;
    return reinterpret_cast<words64>(
        __builtin_ia32_pmuludq256(reinterpret_cast<v8si>(a), reinterpret_cast<v8si>(b)));
#elif defined(COLLPROBE_ISA_AVX512) && !defined(__clang__)
    using v16si = vector<int, 64>;
    using v8di = vector<long long, 64>;
    constexpr unsigned char all_lanes = 0xff;
    return reinterpret_cast<words64>(__builtin_ia32_pmuludq512_mask(
        reinterpret_cast<v16si>(a), reinterpret_cast<v16si>(b), v8di{}, all_lanes));
#else
    return (a & 0xffffffffu) * (b & 0xffffffffu); // clang compiles this to the instruction
#endif
}

using shorts = vector<std::int16_t, width>;
using words32 = vector<std::uint32_t, width>;

/// The sum of the squares of the two numbers in each 32-bit lane; they are not both the lowest.
[[gnu::always_inline]] inline words32 squares_of_pairs(shorts x) noexcept
{
#if COLLPROBE_ISA_WIDTH == 32
    using v16hi = vector<short, 32>;
    return reinterpret_cast<words32>(
        __builtin_ia32_pmaddwd256(reinterpret_cast<v16hi>(x), reinterpret_cast<v16hi>(x)));
#elif defined(COLLPROBE_ISA_AVX512)
    using v32hi = vector<short, 64>;
    const auto same = reinterpret_cast<v32hi>(x);
#if defined(__clang__)
    return reinterpret_cast<words32>(__builtin_ia32_pmaddwd512(same, same));
#else
    constexpr unsigned short all_lanes = 0xffff;
    return reinterpret_cast<words32>(__builtin_ia32_pmaddwd512_mask(same, same, vector<int, 64>{}, all_lanes));
#endif
#else
    const auto pairs = reinterpret_cast<vector<std::int32_t, width>>(x);
    const auto low = (pairs << 16) >> 16;
    const auto high = pairs >> 16;
    return reinterpret_cast<words32>(low * low + high * high);
#endif
}

using doubles = vector<double, width>;

/// Hides a product from the optimiser, so that it is not fused with the sum that it enters: see `opaque`.
[[gnu::always_inline]] inline doubles hidden(doubles value) noexcept
{
    asm("" : "+" COLLPROBE_ISA_REGISTER(value));
    return value;
}

/// As many doubles as fill a vector, from floats or integers. GCC's `__builtin_convertvector` would use narrower
/// vectors in between.
template <class Narrow>
[[gnu::always_inline]] inline doubles convert(Narrow x) noexcept
{
#if !defined(__clang__) && COLLPROBE_ISA_WIDTH == 32
    using from = std::remove_cvref_t<decltype(x[0])>;
    if constexpr (std::is_same_v<from, float>) return __builtin_ia32_cvtps2pd256(x);
    else if constexpr (std::is_same_v<from, int>) return __builtin_ia32_cvtdq2pd256(x);
#elif !defined(__clang__) && defined(COLLPROBE_ISA_AVX512)
    using from = std::remove_cvref_t<decltype(x[0])>;
    constexpr int current_direction = 4;
    constexpr char all_lanes = -1;
    if constexpr (std::is_same_v<from, float>)
        return __builtin_ia32_cvtps2pd512_mask(x, doubles{}, all_lanes, current_direction);
    else if constexpr (std::is_same_v<from, int>)
        return __builtin_ia32_cvtdq2pd512_mask(x, doubles{}, static_cast<unsigned char>(all_lanes));
#endif
    return __builtin_convertvector(x, doubles);
}

using eight_words = vector<std::uint32_t, 32>;
using eight_ints = vector<int, 32>;
using eight_floats = vector<float, 32>;

/// Eight halves as floats.
[[gnu::always_inline]] inline eight_floats floats_of_halves(const void* from) noexcept
{
    return reinterpret_cast<eight_floats>(__builtin_ia32_vcvtph2ps256(load<vector<short, 16>>(from)));
}

/// Eight elements of 8-bit floating point as floats. A half has e5m2 in its upper byte; e4m3 fits below its sign and
/// its highest exponent bit, and is then too small by 2^8.
template <class T>
[[gnu::always_inline]] inline eight_floats floats_of_float8(const T* from) noexcept
{
    using eight_shorts = vector<std::int16_t, 16>;
#if defined(__clang__)
    const auto bytes = __builtin_convertvector(load<vector<std::uint8_t, 8>>(from), eight_shorts);
#else
    const vector<long long, 16> loaded{load<long long>(from), 0};
    const auto bytes
        = reinterpret_cast<eight_shorts>(__builtin_ia32_pmovzxbw128(reinterpret_cast<vector<char, 16>>(loaded)));
#endif
    eight_shorts halves = bytes << 8;
    if constexpr (std::is_same_v<T, float8_e5m2>) {
        return floats_of_halves(&halves);
    } else {
        constexpr std::int16_t top_of_exponent = 0x4000;
        halves = (halves >> 1) & static_cast<std::int16_t>(~top_of_exponent);
        // A carry out of all ones, which is NaN, completes the exponent of a NaN.
        halves |= ((halves & std::int16_t{0x3f80}) + std::int16_t{0x80}) & top_of_exponent;
        return floats_of_halves(&halves) * 0x1p8f;
    }
}

/// Stores eight floats, rounded to nearest even, as halves.
[[gnu::always_inline]] inline void store_as_halves(eight_floats from, void* to) noexcept
{
    constexpr int to_nearest_even = 0;
    const auto halves = __builtin_ia32_vcvtps2ph256(from, to_nearest_even);
    __builtin_memcpy(to, &halves, 16);
}

/// Eight unsigned numbers of 16 bits as words.
[[gnu::always_inline]] inline eight_words words_of_shorts(const void* from) noexcept
{
#if defined(__clang__)
    return __builtin_convertvector(load<vector<std::uint16_t, 16>>(from), eight_words);
#else
    return reinterpret_cast<eight_words>(__builtin_ia32_pmovzxwd256(load<vector<short, 16>>(from)));
#endif
}

using sixteen_shorts = vector<std::int16_t, 32>;

/// Sixteen integers of 8 bits as shorts.
template <class Byte>
[[gnu::always_inline]] inline sixteen_shorts shorts_of_bytes(const Byte* from) noexcept
{
#if defined(__clang__)
    return __builtin_convertvector(load<vector<Byte, 16>>(from), sixteen_shorts);
#else
    const auto bytes = load<vector<char, 16>>(from);
    if constexpr (std::is_signed_v<Byte>) return reinterpret_cast<sixteen_shorts>(__builtin_ia32_pmovsxbw256(bytes));
    else return reinterpret_cast<sixteen_shorts>(__builtin_ia32_pmovzxbw256(bytes));
#endif
}

/// Eight integers of 8 bits as ints.
template <class Byte>
[[gnu::always_inline]] inline eight_ints ints_of_bytes(const Byte* from) noexcept
{
#if defined(__clang__)
    return __builtin_convertvector(load<vector<Byte, 8>>(from), eight_ints);
#else
    using v16qi = vector<char, 16>;
    const auto bytes = reinterpret_cast<v16qi>(vector<long long, 16>{load<long long>(from), 0});
    if constexpr (std::is_signed_v<Byte>) return reinterpret_cast<eight_ints>(__builtin_ia32_pmovsxbd256(bytes));
    else return reinterpret_cast<eight_ints>(__builtin_ia32_pmovzxbd256(bytes));
#endif
}

/// The upper four of eight 32-bit lanes. GCC takes a slower instruction for the generic shuffle.
template <class V>
[[gnu::always_inline]] inline auto upper_half(V x) noexcept
{
#if defined(__clang__)
    return __builtin_shufflevector(x, x, 4, 5, 6, 7);
#else
    using lane = std::remove_cvref_t<decltype(x[0])>;
    return reinterpret_cast<vector<lane, 16>>(
        __builtin_ia32_extract128i256(reinterpret_cast<vector<long long, 32>>(x), 1));
#endif
}

/// Vector `k` of the doubles that eight floats or ints give.
template <int k, class Eight>
[[gnu::always_inline]] inline doubles doubles_of_eight(Eight eight) noexcept
{
#if COLLPROBE_ISA_WIDTH == 32
    if constexpr (k % 2 == 0) return convert(__builtin_shufflevector(eight, eight, 0, 1, 2, 3));
    else return convert(upper_half(eight));
#else
    return convert(eight);
#endif
}

/// As many elements as fill a vector of doubles, from memory that is also valid for a wider load.
template <class V>
[[gnu::always_inline]] inline V load_narrow(const void* from) noexcept
{
#if defined(__clang__) && defined(COLLPROBE_ISA_AVX512)
    asm("" : "+r"(from)); // without this clang 14 splits the load
#endif
    return load<V>(from);
}

template <class V>
[[gnu::always_inline]] inline V lanewise_minimum(V a, V b) noexcept
{
    return a < b ? a : b;
}

template <class V>
[[gnu::always_inline]] inline V lanewise_maximum(V a, V b) noexcept
{
    return a > b ? a : b;
}

/// The two halves of a vector. It is copied as a whole: with a copy of each half, g++ would keep the vector in memory
/// from its first use on.
template <class V>
struct halves_of {
    using half = vector<std::remove_cvref_t<decltype(V{}[0])>, int{sizeof(V) / 2}>;
    half both[2];

    [[gnu::always_inline]] explicit halves_of(V v) noexcept { __builtin_memcpy(both, &v, sizeof v); }
};

template <class V>
[[gnu::always_inline]] inline auto lowest_lane(V v) noexcept
{
    if constexpr (sizeof(V) > 16) {
        const halves_of<V> halves(v);
        return lowest_lane(lanewise_minimum(halves.both[0], halves.both[1]));
    } else {
        auto result = v[0];
        for (unsigned lane = 1; lane < sizeof(V) / sizeof(v[0]); ++lane)
            if (v[lane] < result) result = v[lane];
        return result;
    }
}

template <class V>
[[gnu::always_inline]] inline auto highest_lane(V v) noexcept
{
    if constexpr (sizeof(V) > 16) {
        const halves_of<V> halves(v);
        return highest_lane(lanewise_maximum(halves.both[0], halves.both[1]));
    } else {
        auto result = v[0];
        for (unsigned lane = 1; lane < sizeof(V) / sizeof(v[0]); ++lane)
            if (v[lane] > result) result = v[lane];
        return result;
    }
}

/// The sum of all lanes, of integers modulo their range.
template <class V>
[[gnu::always_inline]] inline auto sum_of_lanes(V v) noexcept
{
    if constexpr (sizeof(V) > 16) {
        const halves_of<V> halves(v);
        return sum_of_lanes(halves.both[0] + halves.both[1]);
    } else {
        auto result = v[0];
        for (unsigned lane = 1; lane < sizeof(V) / sizeof(v[0]); ++lane) result += v[lane];
        return result;
    }
}

} // namespace collprobe::detail::COLLPROBE_ISA_NAMESPACE
#endif
