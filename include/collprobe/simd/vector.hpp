// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/simd/dispatch.hpp>
#include <collprobe/simd/gradual_underflow.hpp>

/// Vectors of 32 bytes and the operations on them that kernels use: the compilers' vector extensions, and single
/// instructions where they have none, or g++ would take several. No `__builtin_ia32_*`: each year's compilers drop
/// some. No <immintrin.h>: with it a file that includes collprobe.hpp compiles a sixth longer.
#if COLLPROBE_VECTORS
namespace collprobe::inline COLLPROBE_ABI::detail {

template <class Element, int bytes>
struct vector_of {
    typedef Element type __attribute__((vector_size(bytes)));
};
template <class Element, int bytes>
using vector = typename vector_of<Element, bytes>::type;

} // namespace collprobe::detail

COLLPROBE_BEGIN_VECTORS
namespace collprobe::inline COLLPROBE_ABI::detail::vectors {

inline constexpr int width = 32; // bytes of a vector
using words64 = vector<std::uint64_t, width>;
using words32 = vector<std::uint32_t, width>;
using ints = vector<int, width>;
using shorts = vector<std::int16_t, width>;
using floats = vector<float, width>;
using doubles = vector<double, width>;
inline constexpr std::uint32_t float_lanes = width / 4;

template <class V>
[[gnu::always_inline]] inline V load(const void* from) noexcept
{
    typedef V unaligned __attribute__((aligned(1), may_alias));
    return *static_cast<const unaligned*>(from);
}
template <class V>
[[gnu::always_inline]] inline void store(void* to, V value) noexcept
{
    __builtin_memcpy(to, &value, sizeof value);
}

/// The two halves of a vector. It is copied as a whole: with a copy of each half, g++ would keep the vector in memory
/// from its first use on.
template <class V>
struct halves_of {
    using half = vector<std::remove_cvref_t<decltype(V{}[0])>, int{sizeof(V) / 2}>;
    half both[2];

    [[gnu::always_inline]] explicit halves_of(V v) noexcept { __builtin_memcpy(both, &v, sizeof v); }
};

/// The same value, of which the optimiser knows nothing: see `opaque`.
template <class V>
[[gnu::always_inline]] inline V hidden(V value) noexcept
{
#if defined(__x86_64__)
    asm("" : "+x"(value));
    return value;
#else
    halves_of<V> halves(value);
    asm("" : "+w"(halves.both[0]), "+w"(halves.both[1]));
    return load<V>(&halves);
#endif
}

/// `of(half)` of both halves, as one vector: how an instruction of ARM64 takes in a vector.
#if !defined(__x86_64__)
template <class To, class From, class Operation>
[[gnu::always_inline]] inline To by_halves(From x, Operation of) noexcept
{
    const halves_of<From> halves(x);
    const decltype(of(halves.both[0])) results[2] = {of(halves.both[0]), of(halves.both[1])};
    static_assert(sizeof results == sizeof(To));
    return load<To>(results);
}
#endif

/// The product of the low halves of each 64-bit lane.
[[gnu::always_inline]] inline words64 multiply_low_halves(words64 a, words64 b) noexcept
{
#if defined(__x86_64__) && !defined(__clang__)
    words64 product;
    asm("vpmuludq {%2, %1, %0|%0, %1, %2}" : "=x"(product) : "%x"(a), "xm"(b));
    return product;
#elif defined(__x86_64__)
    return (a & 0xffffffffu) * (b & 0xffffffffu); // clang compiles this to the instruction
#else
    using narrow = vector<std::uint32_t, 16>;
    return __builtin_convertvector(__builtin_convertvector(a, narrow), words64)
        * __builtin_convertvector(__builtin_convertvector(b, narrow), words64);
#endif
}

/// Each element as a wider one. g++ would split the vector, so it is given the instruction.
template <class To, class From>
[[gnu::always_inline]] inline To widened(From x) noexcept
{
#if defined(__x86_64__) && !defined(__clang__)
    using from = std::remove_cvref_t<decltype(x[0])>;
    using to = std::remove_cvref_t<decltype(To{}[0])>;
    if constexpr (std::is_same_v<to, double> && !std::is_same_v<from, float> && !std::is_same_v<from, int>)
        return __builtin_convertvector(x, To);
    To wide;
    if constexpr (std::is_same_v<from, float>) asm("vcvtps2pd {%1, %0|%0, %1}" : "=x"(wide) : "xm"(x));
    else if constexpr (std::is_same_v<to, double>) asm("vcvtdq2pd {%1, %0|%0, %1}" : "=x"(wide) : "xm"(x));
    else if constexpr (sizeof(from) == 2 && std::is_signed_v<from>)
        asm("vpmovsxwd {%1, %0|%0, %1}" : "=x"(wide) : "xm"(x));
    else if constexpr (sizeof(from) == 2) asm("vpmovzxwd {%1, %0|%0, %1}" : "=x"(wide) : "xm"(x));
    else if constexpr (sizeof(to) == 2 && std::is_signed_v<from>)
        asm("vpmovsxbw {%1, %0|%0, %1}" : "=x"(wide) : "xm"(x));
    else if constexpr (sizeof(to) == 2) asm("vpmovzxbw {%1, %0|%0, %1}" : "=x"(wide) : "xm"(x));
    else if constexpr (std::is_signed_v<from>) asm("vpmovsxbd {%1, %0|%0, %1}" : "=x"(wide) : "xm"(x));
    else asm("vpmovzxbd {%1, %0|%0, %1}" : "=x"(wide) : "xm"(x));
    return wide;
#else
    return __builtin_convertvector(x, To);
#endif
}

/// Half `k` of eight floats or ints, as doubles.
template <int k, class Eight>
[[gnu::always_inline]] inline doubles doubles_of_eight(Eight eight) noexcept
{
    return widened<doubles>(halves_of<Eight>(eight).both[k]);
}

/// Eight unsigned numbers of 16 bits as ints.
[[gnu::always_inline]] inline ints ints_of_shorts(const void* from) noexcept
{
    return widened<ints>(load<vector<std::uint16_t, 16>>(from));
}

/// Eight numbers of 16-bit floating point, each in a short, as floats.
[[gnu::always_inline]] inline floats floats_of_half_bits(vector<std::int16_t, 16> x) noexcept
{
#if defined(__x86_64__) && !defined(__clang__)
    floats wide;
    asm("vcvtph2ps {%1, %0|%0, %1}" : "=x"(wide) : "xm"(x));
    return wide;
#else
    typedef __fp16 halves __attribute__((vector_size(16)));
    return __builtin_convertvector(reinterpret_cast<halves>(x), floats);
#endif
}

/// Eight floats as halves, rounded to nearest even.
[[gnu::always_inline]] inline vector<std::int16_t, 16> half_bits_of_floats(floats x) noexcept
{
#if defined(__x86_64__)
    vector<std::int16_t, 16> halves;
    asm("vcvtps2ph {$0, %1, %0|%0, %1, 0}" : "=x"(halves) : "x"(x));
    return halves;
#else
    return by_halves<vector<std::int16_t, 16>>(x, [](vector<float, 16> half) {
        vector<std::int16_t, 8> four;
        asm("fcvtn %0.4h, %1.4s" : "=w"(four) : "w"(half));
        return four;
    });
#endif
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
inline constexpr float float8_in_halves = std::is_same_v<T, float8_e4m3> ? 0x1p8f : 1.0f;

/// Eight elements of floating point of at most 32 bits, as floats.
template <class T>
[[gnu::always_inline]] inline floats load_floats(const T* from) noexcept
{
    if constexpr (std::is_same_v<T, float>) {
        return load<floats>(from);
    } else if constexpr (std::is_same_v<T, bfloat16>) {
        return reinterpret_cast<floats>(ints_of_shorts(from) << 16);
    } else if constexpr (std::is_same_v<T, float16>) {
        return floats_of_half_bits(load<vector<std::int16_t, 16>>(from));
    } else {
        const auto bytes = widened<vector<std::int16_t, 16>>(load<vector<std::uint8_t, 8>>(from));
        return floats_of_half_bits(halves_of_float8<T>(bytes)) * float8_in_halves<T>;
    }
}

/// The lower halves of words or shorts, whose upper halves are zero.
template <class V>
[[gnu::always_inline]] inline auto lower_halves(V x) noexcept
{
    using half = std::conditional_t<sizeof(x[0]) == 4, std::uint16_t, std::uint8_t>;
    using narrow = vector<half, int{sizeof(V) / 2}>;
#if defined(__x86_64__)
    const halves_of<V> halves(x);
    narrow lower;
    if constexpr (sizeof(half) == 2)
        asm("vpackusdw {%2, %1, %0|%0, %1, %2}" : "=x"(lower) : "x"(halves.both[0]), "x"(halves.both[1]));
    else asm("vpackuswb {%2, %1, %0|%0, %1, %2}" : "=x"(lower) : "x"(halves.both[0]), "x"(halves.both[1]));
    return lower;
#else
    return __builtin_convertvector(x, narrow);
#endif
}

/// Rounds to bfloat16, in the upper half of each word. A NaN needs no care if its lower half is zero, as it is of one
/// that comes from a bfloat16 or from the processor.
template <class Floats>
[[gnu::always_inline]] inline words32 rounded_to_bfloat16(Floats x) noexcept
{
    const auto bits = reinterpret_cast<words32>(x);
    return bits + 0x7fffu + ((bits >> 16) & 1u);
}

/// Stores eight floats, rounded to T.
template <class T>
[[gnu::always_inline]] inline void store_floats(floats x, T* to) noexcept
{
    if constexpr (std::is_same_v<T, float>) store(to, x);
    else if constexpr (std::is_same_v<T, bfloat16>)
        store(static_cast<void*>(to), lower_halves(rounded_to_bfloat16(x) >> 16));
    else store(static_cast<void*>(to), half_bits_of_floats(x));
}

/// The nearest integers, ties to even.
[[gnu::always_inline]] inline ints nearest_ints(floats x) noexcept
{
#if defined(__x86_64__)
    ints nearest;
    asm("vcvtps2dq {%1, %0|%0, %1}" : "=x"(nearest) : "x"(x));
    return nearest;
#else
    return by_halves<ints>(x, [](vector<float, 16> half) {
        vector<int, 16> nearest;
        asm("fcvtns %0.4s, %1.4s" : "=w"(nearest) : "w"(half));
        return nearest;
    });
#endif
}

/// Sixteen numbers of 8 bits, as floats: integers, or of the type `Code`.
template <class Code>
[[gnu::always_inline]] inline void floats_of_sixteen(vector<signed char, 16> bytes, floats (&to)[2]) noexcept
{
    for (std::uint32_t k = 0; k < 2; ++k) {
        const auto* const from = reinterpret_cast<const signed char*>(&bytes) + float_lanes * k;
        if constexpr (std::is_integral_v<Code>)
            to[k] = __builtin_convertvector(widened<ints>(load<vector<signed char, float_lanes>>(from)), floats);
        else to[k] = load_floats(reinterpret_cast<const Code*>(from));
    }
}

/// Thirty-two ints as bytes, which they fit in.
[[gnu::always_inline]] inline vector<signed char, 32> bytes_of_ints(const ints (&x)[4]) noexcept
{
#if defined(__x86_64__)
    ints low, high, bytes;
    asm("vpackssdw {%2, %1, %0|%0, %1, %2}" : "=x"(low) : "x"(x[0]), "x"(x[1]));
    asm("vpackssdw {%2, %1, %0|%0, %1, %2}" : "=x"(high) : "x"(x[2]), "x"(x[3]));
    asm("vpacksswb {%2, %1, %0|%0, %1, %2}" : "=x"(bytes) : "x"(low), "x"(high));
    return reinterpret_cast<vector<signed char, 32>>(__builtin_shufflevector(bytes, bytes, 0, 4, 1, 5, 2, 6, 3, 7));
#else
    signed char bytes[32];
    for (int k = 0; k < 4; ++k) store(bytes + 8 * k, __builtin_convertvector(x[k], vector<signed char, 8>));
    return load<vector<signed char, 32>>(bytes);
#endif
}

/// The sums of eight bytes each, without signs.
[[gnu::always_inline]] inline words64 sums_of_bytes(vector<unsigned char, 32> x) noexcept
{
#if defined(__x86_64__)
    words64 sums;
    asm("vpsadbw {%2, %1, %0|%0, %1, %2}" : "=x"(sums) : "x"(x), "x"(vector<unsigned char, 32>{}));
    return sums;
#else
    return by_halves<words64>(x, [](vector<unsigned char, 16> half) {
        vector<std::uint64_t, 16> sums;
        asm("uaddlp %0.8h, %1.16b\n\tuaddlp %0.4s, %0.8h\n\tuaddlp %0.2d, %0.4s" : "=w"(sums) : "w"(half));
        return sums;
    });
#endif
}

/// The sums of two neighbours each, from the lower half of `a`, of `b`, then from their upper halves.
[[gnu::always_inline]] inline floats sums_of_pairs(floats a, floats b) noexcept
{
    return __builtin_shufflevector(a, b, 0, 2, 8, 10, 4, 6, 12, 14)
        + __builtin_shufflevector(a, b, 1, 3, 9, 11, 5, 7, 13, 15);
}

/// a * b + c, rounded once.
[[gnu::always_inline]] inline floats fused_multiply_add(floats a, floats b, floats c) noexcept
{
#if defined(__x86_64__)
    asm("vfmadd231ps {%2, %1, %0|%0, %1, %2}" : "+x"(c) : "x"(a), "x"(b));
#else
    for (int i = 0; i < 8; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
#endif
    return c;
}

/// Whether any bit of a vector of 16 or 32 bytes is set.
template <class V>
[[gnu::always_inline]] inline bool any_bit(V x) noexcept
{
#if defined(__x86_64__)
    bool any;
    asm("vptest %1, %1" : "=@ccnz"(any) : "x"(x));
    return any;
#else
    std::uint64_t words[sizeof(V) / 8];
    __builtin_memcpy(words, &x, sizeof x);
    std::uint64_t any = 0;
    for (const std::uint64_t word : words) any |= word;
    return any != 0;
#endif
}

/// Correctly rounded, whatever the flags of the build: for floats g++ may take an estimate instead.
[[gnu::always_inline]] inline floats rounded_quotient(floats a, floats b) noexcept
{
#if defined(__x86_64__)
    floats quotient;
    asm("vdivps {%2, %1, %0|%0, %1, %2}" : "=x"(quotient) : "x"(a), "x"(b));
    return quotient;
#else
    halves_of<floats> x(a);
    const halves_of<floats> y(b);
    for (int k = 0; k < 2; ++k) asm("fdiv %0.4s, %0.4s, %1.4s" : "+w"(x.both[k]) : "w"(y.both[k]));
    return load<floats>(&x);
#endif
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

/// An operation over all lanes: of halves, until one is left.
template <class V, class Operation>
[[gnu::always_inline]] inline auto over_lanes(V v, Operation of) noexcept
{
    if constexpr (sizeof(V) > 16) {
        const halves_of<V> halves(v);
        return over_lanes(of(halves.both[0], halves.both[1]), of);
    } else if constexpr (sizeof(v[0]) == 4) {
        const V pairs = of(v, __builtin_shufflevector(v, v, 2, 3, 0, 1));
        return of(pairs, __builtin_shufflevector(pairs, pairs, 1, 0, 3, 2))[0];
    } else {
        auto result = v[0];
        for (unsigned lane = 1; lane < sizeof(V) / sizeof(v[0]); ++lane)
            result = static_cast<decltype(result)>(of(result, v[lane]));
        return result;
    }
}
template <class V>
[[gnu::always_inline]] inline auto highest_lane(V v) noexcept
{
    return over_lanes(v, [](auto a, auto b) __attribute__((always_inline)) { return lanewise_maximum(a, b); });
}
/// Of integers modulo their range.
template <class V>
[[gnu::always_inline]] inline auto sum_of_lanes(V v) noexcept
{
    return over_lanes(v, [](auto a, auto b) __attribute__((always_inline)) { return a + b; });
}

} // namespace collprobe::detail::vectors
COLLPROBE_END_VECTORS
#endif
