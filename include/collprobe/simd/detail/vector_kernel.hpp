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

/// Whether a register holds such a vector. A test computes with vectors that none holds.
template <class V>
inline constexpr bool in_register = sizeof(V) <= 32 || COLLPROBE_ISA_REGISTER[0] == 'v';

#if defined(COLLPROBE_ISA_AVX512)
/// The bytes whose bits are set in `wanted`, and zeros for the others, which are not read.
[[gnu::always_inline]] inline words64 load_bytes(const void* from, std::uint64_t wanted) noexcept
{
    words64 bytes;
    asm("vmovdqu8 {%1, %0%{%2%}%{z%}|%0%{%2%}%{z%}, %1}"
        : "=v"(bytes)
        : "m"(*static_cast<const char(*)[64]>(from)), "Yk"(wanted));
    return bytes;
}
#endif

/// The words whose sign is set in `wanted`, and zeros for the others, which are not read.
[[gnu::always_inline]] inline vector<int, 32> load_words(const void* from, vector<int, 32> wanted) noexcept
{
    vector<int, 32> words;
    asm("vpmaskmovd {%1, %2, %0|%0, %2, %1}"
        : "=x"(words)
        : "m"(*static_cast<const char(*)[32]>(from)), "x"(wanted));
    return words;
}

/// The product of the low halves of each 64-bit lane.
template <class Words>
[[gnu::always_inline]] inline Words multiply_low_halves(Words a, Words b) noexcept
{
#if !defined(__clang__)
    if constexpr (in_register<Words>) {
        Words product;
        asm("vpmuludq {%2, %1, %0|%0, %1, %2}" : "=v"(product) : "%v"(a), "vm"(b));
        return product;
    }
#endif
    return (a & 0xffffffffu) * (b & 0xffffffffu); // clang compiles this to the instruction
}

using shorts = vector<std::int16_t, width>;
using words32 = vector<std::uint32_t, width>;

/// The sum of the squares of the two numbers in each 32-bit lane; they are not both the lowest.
template <class Shorts>
[[gnu::always_inline]] inline auto squares_of_pairs(Shorts x) noexcept
{
    using sums_of = vector<std::uint32_t, int{sizeof(Shorts)}>;
    if constexpr (in_register<Shorts>) {
        sums_of sums;
        asm("vpmaddwd {%1, %1, %0|%0, %1, %1}" : "=v"(sums) : "v"(x));
        return sums;
    } else {
        const auto pairs = reinterpret_cast<vector<std::int32_t, int{sizeof(Shorts)}>>(x);
        const auto low = (pairs << 16) >> 16;
        const auto high = pairs >> 16;
        return reinterpret_cast<sums_of>(low * low + high * high);
    }
}

using doubles = vector<double, width>;

/// Hides a product from the optimiser, so that it is not fused with the sum that it enters: see `opaque`.
[[gnu::always_inline]] inline doubles hidden(doubles value) noexcept
{
    asm("" : "+" COLLPROBE_ISA_REGISTER(value));
    return value;
}

/// Each element as a wider one. g++ would split the vector, so it is given the instruction.
template <class To, class From>
[[gnu::always_inline]] inline To widened(From x) noexcept
{
#if !defined(__clang__)
    using from = std::remove_cvref_t<decltype(x[0])>;
    using to = std::remove_cvref_t<decltype(To{}[0])>;
    constexpr bool to_double = std::is_same_v<to, double>;
    constexpr bool is_float = std::is_same_v<from, float>;
    constexpr bool is_int = std::is_same_v<from, int>;
    if constexpr (in_register<To> && (!to_double || is_float || is_int)) {
        To wide;
        if constexpr (is_float) asm("vcvtps2pd {%1, %0|%0, %1}" : "=v"(wide) : "vm"(x));
        else if constexpr (is_int) asm("vcvtdq2pd {%1, %0|%0, %1}" : "=v"(wide) : "vm"(x));
        else if constexpr (sizeof(from) == 2) asm("vpmovzxwd {%1, %0|%0, %1}" : "=v"(wide) : "vm"(x));
        else if constexpr (sizeof(to) == 2 && std::is_signed_v<from>)
            asm("vpmovsxbw {%1, %0|%0, %1}" : "=v"(wide) : "vm"(x));
        else if constexpr (sizeof(to) == 2) asm("vpmovzxbw {%1, %0|%0, %1}" : "=v"(wide) : "vm"(x));
        else if constexpr (std::is_signed_v<from>) asm("vpmovsxbd {%1, %0|%0, %1}" : "=v"(wide) : "vm"(x));
        else asm("vpmovzxbd {%1, %0|%0, %1}" : "=v"(wide) : "vm"(x));
        return wide;
    }
#endif
    return __builtin_convertvector(x, To);
}

/// The two halves of a vector. It is copied as a whole: with a copy of each half, g++ would keep the vector in memory
/// from its first use on.
template <class V>
struct halves_of {
    using half = vector<std::remove_cvref_t<decltype(V{}[0])>, int{sizeof(V) / 2}>;
    half both[2];

    [[gnu::always_inline]] explicit halves_of(V v) noexcept { __builtin_memcpy(both, &v, sizeof v); }
};

using eight_words = vector<std::uint32_t, 32>;
using eight_ints = vector<int, 32>;
using eight_floats = vector<float, 32>;

/// Numbers of 16-bit floating point, each in a short, as floats.
template <class Floats, class Shorts>
[[gnu::always_inline]] inline Floats floats_of_half_bits(Shorts x) noexcept
{
#if defined(__clang__)
    typedef __fp16 halves __attribute__((vector_size(sizeof(Shorts))));
    return __builtin_convertvector(reinterpret_cast<halves>(x), Floats);
#else
    Floats floats;
    asm("vcvtph2ps {%1, %0|%0, %1}" : "=v"(floats) : "vm"(x));
    return floats;
#endif
}

/// Eight halves as floats.
[[gnu::always_inline]] inline eight_floats floats_of_halves(const void* from) noexcept
{
    return floats_of_half_bits<eight_floats>(load<vector<std::int16_t, 16>>(from));
}

/// Floats as halves: rounded to nearest even, or towards zero.
template <bool nearest, class Floats>
[[gnu::always_inline]] inline auto half_bits_of_floats(Floats x) noexcept
{
    vector<std::int16_t, int{sizeof(Floats) / 2}> halves;
    asm("vcvtps2ph {%2, %1, %0|%0, %1, %2}" : "=v"(halves) : "v"(x), "i"(nearest ? 0 : 3));
    return halves;
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

/// As many elements of 8-bit floating point as floats fill a vector.
template <class Floats = eight_floats, class T>
[[gnu::always_inline]] inline Floats floats_of_float8(const T* from) noexcept
{
    const auto bytes = widened<vector<std::int16_t, int{sizeof(Floats) / 2}>>(
        load<vector<std::uint8_t, int{sizeof(Floats) / 4}>>(from));
    return floats_of_half_bits<Floats>(halves_of_float8<T>(bytes)) * float8_in_halves<T>;
}

/// Stores eight floats, rounded to nearest even, as halves.
[[gnu::always_inline]] inline void store_as_halves(eight_floats from, void* to) noexcept
{
    const auto halves = half_bits_of_floats<true>(from);
    __builtin_memcpy(to, &halves, sizeof halves);
}

/// Eight unsigned numbers of 16 bits as words.
[[gnu::always_inline]] inline eight_words words_of_shorts(const void* from) noexcept
{
    return widened<eight_words>(load<vector<std::uint16_t, 16>>(from));
}

using sixteen_shorts = vector<std::int16_t, 32>;

/// Sixteen integers of 8 bits as shorts.
template <class Byte>
[[gnu::always_inline]] inline sixteen_shorts shorts_of_bytes(const Byte* from) noexcept
{
    return widened<sixteen_shorts>(load<vector<Byte, 16>>(from));
}

/// Eight integers of 8 bits as ints.
template <class Byte>
[[gnu::always_inline]] inline eight_ints ints_of_bytes(const Byte* from) noexcept
{
    return widened<eight_ints>(load<vector<Byte, 8>>(from));
}

/// The lower halves of words or shorts, whose upper halves are zero.
template <class V>
[[gnu::always_inline]] inline auto lower_halves(V x) noexcept
{
    using half = std::conditional_t<sizeof(x[0]) == 4, std::uint16_t, std::uint8_t>;
    const halves_of<V> halves(x);
    vector<half, int{sizeof(V) / 2}> lower;
    if constexpr (sizeof(V) == 64) asm("vpmovdw {%1, %0|%0, %1}" : "=v"(lower) : "v"(x));
    else if constexpr (sizeof(half) == 2)
        asm("vpackusdw {%2, %1, %0|%0, %1, %2}" : "=v"(lower) : "v"(halves.both[0]), "v"(halves.both[1]));
    else asm("vpackuswb {%2, %1, %0|%0, %1, %2}" : "=v"(lower) : "v"(halves.both[0]), "v"(halves.both[1]));
    return lower;
}

/// Vector `k` of the doubles that eight floats or ints give.
template <int k, class Eight>
[[gnu::always_inline]] inline doubles doubles_of_eight(Eight eight) noexcept
{
#if COLLPROBE_ISA_WIDTH == 32
    return widened<doubles>(halves_of<Eight>(eight).both[k % 2]);
#else
    return widened<doubles>(eight);
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
    return widened<ints>(load<vector<std::uint16_t, width / 2>>(from));
}

/// As many elements of float, bfloat16 or float16 as fill a vector of floats.
template <class T>
[[gnu::always_inline]] inline floats load_floats(const T* from) noexcept
{
    if constexpr (std::is_same_v<T, float>) return load<floats>(from);
    else if constexpr (std::is_same_v<T, bfloat16>) return reinterpret_cast<floats>(ints_of_shorts(from) << 16);
    else return floats_of_half_bits<floats>(load<vector<std::int16_t, width / 2>>(from));
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
template <class Floats, class T>
[[gnu::always_inline]] inline void store_floats(Floats x, T* to) noexcept
{
    if constexpr (std::is_same_v<T, float>) {
        __builtin_memcpy(to, &x, sizeof x);
    } else if constexpr (std::is_same_v<T, bfloat16>) {
        const auto narrow = lower_halves(rounded_to_bfloat16(x) >> 16);
        __builtin_memcpy(static_cast<void*>(to), &narrow, sizeof narrow);
    } else {
        const auto narrow = half_bits_of_floats<true>(x);
        __builtin_memcpy(static_cast<void*>(to), &narrow, sizeof narrow);
    }
}

/// The nearest integers, ties to even.
template <class Floats>
[[gnu::always_inline]] inline auto nearest_ints(Floats x) noexcept
{
    vector<int, int{sizeof(Floats)}> nearest;
    asm("vcvtps2dq {%1, %0|%0, %1}" : "=v"(nearest) : "v"(x));
    return nearest;
}

/// Sixteen numbers of 8 bits, as floats: integers, or of the type `Code`.
template <class Code>
[[gnu::always_inline]] inline void floats_of_sixteen(
    vector<signed char, 16> bytes, floats (&to)[16 / float_lanes]) noexcept
{
    for (std::uint32_t k = 0; k < 16 / float_lanes; ++k) {
        const auto* const from = reinterpret_cast<const signed char*>(&bytes) + float_lanes * k;
        if constexpr (std::is_integral_v<Code>)
            to[k] = __builtin_convertvector(widened<ints>(load<vector<signed char, float_lanes>>(from)), floats);
        else to[k] = floats_of_float8<floats>(reinterpret_cast<const Code*>(from));
    }
}

/// Thirty-two ints as bytes, which they fit in.
template <class Ints, std::uint32_t count>
[[gnu::always_inline]] inline vector<signed char, 32> bytes_of_ints(const Ints (&x)[count]) noexcept
{
    if constexpr (count == 2) {
        using half = vector<long long, 16>;
        const auto low = reinterpret_cast<half>(__builtin_convertvector(x[0], vector<signed char, 16>));
        const auto high = reinterpret_cast<half>(__builtin_convertvector(x[1], vector<signed char, 16>));
        return reinterpret_cast<vector<signed char, 32>>(vector<long long, 32>{low[0], low[1], high[0], high[1]});
    } else {
        Ints low;
        Ints high;
        Ints bytes;
        asm("vpackssdw {%2, %1, %0|%0, %1, %2}" : "=v"(low) : "v"(x[0]), "v"(x[1]));
        asm("vpackssdw {%2, %1, %0|%0, %1, %2}" : "=v"(high) : "v"(x[2]), "v"(x[3]));
        asm("vpacksswb {%2, %1, %0|%0, %1, %2}" : "=v"(bytes) : "v"(low), "v"(high));
        return reinterpret_cast<vector<signed char, 32>>(
            __builtin_shufflevector(bytes, bytes, 0, 4, 1, 5, 2, 6, 3, 7));
    }
}

/// The sums of eight bytes each, without signs.
[[gnu::always_inline]] inline vector<std::uint64_t, 32> sums_of_bytes(vector<unsigned char, 32> x) noexcept
{
    vector<std::uint64_t, 32> sums;
    asm("vpsadbw {%2, %1, %0|%0, %1, %2}" : "=v"(sums) : "v"(x), "v"(vector<unsigned char, 32>{}));
    return sums;
}

/// The sums of two neighbours each, from the lower half of `a`, of `b`, then from their upper halves.
[[gnu::always_inline]] inline eight_floats sums_of_pairs(eight_floats a, eight_floats b) noexcept
{
    return __builtin_shufflevector(a, b, 0, 2, 8, 10, 4, 6, 12, 14)
        + __builtin_shufflevector(a, b, 1, 3, 9, 11, 5, 7, 13, 15);
}

/// a * b + c, rounded once.
[[gnu::always_inline]] inline eight_floats fused_multiply_add(eight_floats a, eight_floats b, eight_floats c) noexcept
{
    asm("vfmadd231ps {%2, %1, %0|%0, %1, %2}" : "+v"(c) : "v"(a), "v"(b));
    return c;
}

[[gnu::always_inline]] inline eight_floats square_roots(eight_floats x) noexcept
{
    eight_floats roots;
    asm("vsqrtps {%1, %0|%0, %1}" : "=v"(roots) : "v"(x));
    return roots;
}

/// Whether any bit of a vector of 16 or 32 bytes is set.
template <class V>
[[gnu::always_inline]] inline bool any_bit(V x) noexcept
{
    bool any;
    asm("vptest %1, %1" : "=@ccnz"(any) : "x"(x));
    return any;
}

/// Correctly rounded, whatever the flags of the build: for floats g++ may take an estimate instead.
template <class Floats>
[[gnu::always_inline]] inline Floats rounded_quotient(Floats a, Floats b) noexcept
{
    Floats quotient;
    asm("vdivps {%2, %1, %0|%0, %1, %2}" : "=v"(quotient) : "v"(a), "v"(b));
    return quotient;
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
