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

#if defined(COLLPROBE_ISA_AVX512)
/// The bytes whose bits are set in `wanted`, and zeros for the others, which are not read.
[[gnu::always_inline]] inline words64 load_bytes(const void* from, std::uint64_t wanted) noexcept
{
    using v64qi = vector<char, 64>;
#if defined(__clang__)
    const auto* const bytes = static_cast<const v64qi*>(from);
#else
    const auto* const bytes = static_cast<const char*>(from);
#endif
    return reinterpret_cast<words64>(__builtin_ia32_loaddquqi512_mask(bytes, v64qi{}, wanted));
}
#endif

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

/// Elements of 8-bit floating point, each in a short, as halves. A half has e5m2 in its upper byte; e4m3 fits below its
/// sign and its highest exponent bit, and is then too small by 2^8.
template <class T, class Shorts>
[[gnu::always_inline]] inline Shorts halves_of_float8(Shorts bytes) noexcept
{
    Shorts halves = bytes << 8;
    if constexpr (!std::is_same_v<T, float8_e5m2>) {
        constexpr std::int16_t top_of_exponent = 0x4000;
        halves = (halves >> 1) & static_cast<std::int16_t>(~top_of_exponent);
        // A carry out of all ones, which is NaN, completes the exponent of a NaN.
        halves |= ((halves & std::int16_t{0x3f80}) + std::int16_t{0x80}) & top_of_exponent;
    }
    return halves;
}
template <class T>
inline constexpr float float8_in_halves = std::is_same_v<T, float8_e5m2> ? 1.0f : 0x1p8f;

/// Eight elements of 8-bit floating point as floats.
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
    const eight_shorts halves = halves_of_float8<T>(bytes);
    return floats_of_halves(&halves) * float8_in_halves<T>;
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

using floats = vector<float, width>;
using ints = vector<int, width>;
inline constexpr std::uint32_t float_lanes = width / 4;

/// As many unsigned numbers of 16 bits as a vector has lanes, as ints.
[[gnu::always_inline]] inline ints ints_of_shorts(const void* from) noexcept
{
#if defined(COLLPROBE_ISA_AVX512) && !defined(__clang__)
    constexpr unsigned short all_lanes = 0xffff;
    return __builtin_ia32_pmovzxwd512_mask(load<vector<short, 32>>(from), ints{}, all_lanes);
#else
    ints wide;
    for (int k = 0; k < width / 32; ++k) {
        const eight_words eight = words_of_shorts(static_cast<const char*>(from) + 16 * k);
        __builtin_memcpy(reinterpret_cast<char*>(&wide) + 32 * k, &eight, 32);
    }
    return wide;
#endif
}

/// As many elements of float, bfloat16 or float16 as fill a vector of floats.
template <class T>
[[gnu::always_inline]] inline floats load_floats(const T* from) noexcept
{
    if constexpr (std::is_same_v<T, float>) {
        return load<floats>(from);
    } else if constexpr (std::is_same_v<T, bfloat16>) {
        return reinterpret_cast<floats>(ints_of_shorts(from) << 16);
    } else {
#if defined(COLLPROBE_ISA_AVX512)
        constexpr unsigned short all_lanes = 0xffff;
        constexpr int current_direction = 4;
        return __builtin_ia32_vcvtph2ps512_mask(
            load<vector<short, 32>>(from), floats{}, all_lanes, current_direction);
#else
        floats wide;
        for (int k = 0; k < width / 32; ++k) {
            const eight_floats eight = floats_of_halves(from + 8 * k);
            __builtin_memcpy(reinterpret_cast<char*>(&wide) + 32 * k, &eight, 32);
        }
        return wide;
#endif
    }
}

/// Rounds to bfloat16, in the upper half of each word. A NaN needs no care if its lower half is zero, as it is of one
/// that comes from a bfloat16 or from the processor.
template <class Floats>
[[gnu::always_inline]] inline auto rounded_to_bfloat16(Floats x) noexcept
{
    const auto bits = reinterpret_cast<vector<std::uint32_t, int{sizeof(Floats)}>>(x);
    return bits + 0x7fffu + ((bits >> 16) & 1u);
}

/// Stores a vector of floats, rounded to T.
template <class T>
[[gnu::always_inline]] inline void store_floats(floats x, T* to) noexcept
{
    if constexpr (std::is_same_v<T, float>) {
        __builtin_memcpy(to, &x, sizeof x);
    } else if constexpr (std::is_same_v<T, bfloat16>) {
#if defined(COLLPROBE_ISA_AVX512)
        constexpr unsigned short all_lanes = 0xffff;
        const auto rounded = reinterpret_cast<ints>(rounded_to_bfloat16(x) >> 16);
        const auto shorts16 = __builtin_ia32_pmovdw512_mask(rounded, vector<short, 32>{}, all_lanes);
        __builtin_memcpy(static_cast<void*>(to), &shorts16, sizeof shorts16);
#else
        const auto rounded = reinterpret_cast<ints>(rounded_to_bfloat16(x) >> 16);
        for (int k = 0; k < width / 32; ++k) {
            const auto low = load<vector<int, 16>>(reinterpret_cast<const char*>(&rounded) + 32 * k);
            const auto high = load<vector<int, 16>>(reinterpret_cast<const char*>(&rounded) + 32 * k + 16);
            const auto packed = __builtin_ia32_packusdw128(low, high);
            __builtin_memcpy(static_cast<void*>(to + 8 * k), &packed, sizeof packed);
        }
#endif
    } else {
        for (int k = 0; k < width / 32; ++k)
            store_as_halves(load<eight_floats>(reinterpret_cast<const char*>(&x) + 32 * k), to + 8 * k);
    }
}

/// The nearest integers, ties to even.
[[gnu::always_inline]] inline ints nearest_ints(floats x) noexcept
{
#if COLLPROBE_ISA_WIDTH == 32
    return __builtin_ia32_cvtps2dq256(x);
#elif defined(COLLPROBE_ISA_AVX512)
    constexpr unsigned short all_lanes = 0xffff;
    constexpr int current_direction = 4;
    return __builtin_ia32_cvtps2dq512_mask(x, ints{}, all_lanes, current_direction);
#else
    ints all;
    for (int k = 0; k < width / 32; ++k) {
        const eight_ints eight
            = __builtin_ia32_cvtps2dq256(load<eight_floats>(reinterpret_cast<const char*>(&x) + 32 * k));
        __builtin_memcpy(reinterpret_cast<char*>(&all) + 32 * k, &eight, 32);
    }
    return all;
#endif
}

/// Sixteen numbers of 8 bits, as floats: integers, or of the type `Code`.
template <class Code>
[[gnu::always_inline]] inline void floats_of_sixteen(
    vector<signed char, 16> bytes, floats (&to)[16 / float_lanes]) noexcept
{
#if defined(COLLPROBE_ISA_AVX512)
    constexpr unsigned short all_lanes = 0xffff;
    if constexpr (std::is_integral_v<Code>) {
#if defined(__clang__)
        const auto wide = __builtin_convertvector(bytes, ints);
#else
        const ints wide
            = __builtin_ia32_pmovsxbd512_mask(reinterpret_cast<vector<char, 16>>(bytes), ints{}, all_lanes);
#endif
        to[0] = __builtin_convertvector(wide, floats);
    } else {
        constexpr int current_direction = 4;
        const auto* const from = reinterpret_cast<const std::uint8_t*>(&bytes);
        const sixteen_shorts halves = halves_of_float8<Code>(shorts_of_bytes(from));
        to[0] = __builtin_ia32_vcvtph2ps512_mask(
                    reinterpret_cast<vector<short, 32>>(halves), floats{}, all_lanes, current_direction)
            * float8_in_halves<Code>;
    }
#else
    for (int k = 0; k < 2; ++k) {
        const auto* const eight = reinterpret_cast<const signed char*>(&bytes) + 8 * k;
        eight_floats x;
        if constexpr (std::is_integral_v<Code>) x = __builtin_convertvector(ints_of_bytes(eight), eight_floats);
        else x = floats_of_float8(reinterpret_cast<const Code*>(eight));
        __builtin_memcpy(reinterpret_cast<char*>(&to[0]) + 32 * k, &x, 32);
    }
#endif
}

/// Thirty-two ints as bytes, which they fit in.
[[gnu::always_inline]] inline vector<signed char, 32> bytes_of_ints(const ints (&x)[32 / float_lanes]) noexcept
{
#if COLLPROBE_ISA_WIDTH == 32
    using v8si = vector<int, 32>;
    const vector<short, 32> low = __builtin_ia32_packssdw256(x[0], x[1]);
    const vector<short, 32> high = __builtin_ia32_packssdw256(x[2], x[3]);
    const auto bytes = reinterpret_cast<v8si>(__builtin_ia32_packsswb256(low, high));
    return reinterpret_cast<vector<signed char, 32>>(
        __builtin_ia32_permvarsi256(bytes, v8si{0, 4, 1, 5, 2, 6, 3, 7}));
#elif defined(COLLPROBE_ISA_AVX512)
    constexpr unsigned short all_lanes = 0xffff;
    const auto low = reinterpret_cast<vector<int, 16>>(
        __builtin_ia32_pmovdb512_mask(x[0], vector<char, 16>{}, all_lanes));
    const auto high = reinterpret_cast<vector<int, 16>>(
        __builtin_ia32_pmovdb512_mask(x[1], vector<char, 16>{}, all_lanes));
#if defined(__clang__)
    const auto both = __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
#else
    const auto both = __builtin_ia32_vinsertf128_si256(__builtin_ia32_si256_si(low), high, 1);
#endif
    return reinterpret_cast<vector<signed char, 32>>(both);
#else
    vector<signed char, 32> bytes;
    for (std::uint32_t i = 0; i < 32; ++i) bytes[i] = static_cast<signed char>(x[i / float_lanes][i % float_lanes]);
    return bytes;
#endif
}

/// The sums of eight bytes each, without signs.
[[gnu::always_inline]] inline vector<std::uint64_t, 32> sums_of_bytes(vector<unsigned char, 32> x) noexcept
{
    using v32qi = vector<char, 32>;
    return reinterpret_cast<vector<std::uint64_t, 32>>(__builtin_ia32_psadbw256(reinterpret_cast<v32qi>(x), v32qi{}));
}

/// Correctly rounded, whatever the flags of the build: for floats g++ may take an estimate instead.
template <class Floats>
[[gnu::always_inline]] inline Floats rounded_quotient(Floats a, Floats b) noexcept
{
    if constexpr (COLLPROBE_ISA_REGISTER[0] == 'm') { // no register has such a vector
        return a / b;
    } else {
        Floats quotient;
        asm("vdivps %2, %1, %0"
            : "=" COLLPROBE_ISA_REGISTER(quotient)
            : COLLPROBE_ISA_REGISTER(a), COLLPROBE_ISA_REGISTER(b));
        return quotient;
    }
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

struct lane_minimum {
    template <class V>
    [[gnu::always_inline]] static V of(V a, V b) noexcept
    {
        return a < b ? a : b;
    }
};
struct lane_maximum {
    template <class V>
    [[gnu::always_inline]] static V of(V a, V b) noexcept
    {
        return a > b ? a : b;
    }
};
struct lane_sum {
    template <class V>
    [[gnu::always_inline]] static V of(V a, V b) noexcept
    {
        return a + b;
    }
};

/// An operation over all lanes: of halves, until one is left.
template <class Operation, class V>
[[gnu::always_inline]] inline auto over_lanes(V v) noexcept
{
    if constexpr (sizeof(V) > 16) {
        const halves_of<V> halves(v);
        return over_lanes<Operation>(Operation::of(halves.both[0], halves.both[1]));
    } else if constexpr (sizeof(v[0]) == 4) {
        const V pairs = Operation::of(v, __builtin_shufflevector(v, v, 2, 3, 0, 1));
        return Operation::of(pairs, __builtin_shufflevector(pairs, pairs, 1, 0, 3, 2))[0];
    } else {
        auto result = v[0];
        for (unsigned lane = 1; lane < sizeof(V) / sizeof(v[0]); ++lane)
            result = static_cast<decltype(result)>(Operation::of(result, v[lane]));
        return result;
    }
}
template <class V>
[[gnu::always_inline]] inline auto lowest_lane(V v) noexcept
{
    return over_lanes<lane_minimum>(v);
}
template <class V>
[[gnu::always_inline]] inline auto highest_lane(V v) noexcept
{
    return over_lanes<lane_maximum>(v);
}
/// Of integers modulo their range.
template <class V>
[[gnu::always_inline]] inline auto sum_of_lanes(V v) noexcept
{
    return over_lanes<lane_sum>(v);
}

} // namespace collprobe::detail::COLLPROBE_ISA_NAMESPACE
#endif
