// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// No include guard: for_each_isa.hpp includes this once per instruction set, after digest_kernel.hpp.
#if defined(COLLPROBE_ISA_NAMESPACE)
namespace collprobe::detail::COLLPROBE_ISA_NAMESPACE {

/// Eight doubles: the lanes of a block (see `lane_position`).
struct doubles8 {
#if COLLPROBE_ISA_WIDTH == 32
    using part = vector<double, 32>;
    part low = {};
    part high = {};
#else
    using part = vector<double, 64>;
    part all = {};
#endif
};

#if COLLPROBE_ISA_WIDTH == 32
#define COLLPROBE_ISA_EACH(statement, result, a, b) \
    do { \
        statement(result.low, a.low, b.low); \
        statement(result.high, a.high, b.high); \
    } while (false)
#else
#define COLLPROBE_ISA_EACH(statement, result, a, b) statement(result.all, a.all, b.all)
#endif

/// Keeps a product apart from the sum it enters: see `opaque`.
[[gnu::always_inline]] inline doubles8::part hidden(doubles8::part value) noexcept
{
    asm("" : "+" COLLPROBE_ISA_REGISTER(value));
    return value;
}

[[gnu::always_inline]] inline void accumulate(doubles8& sum, const doubles8& x) noexcept
{
#define COLLPROBE_STATEMENT(r, a, b) r = a + b
    COLLPROBE_ISA_EACH(COLLPROBE_STATEMENT, sum, sum, x);
#undef COLLPROBE_STATEMENT
}

[[gnu::always_inline]] inline void accumulate_magnitude(doubles8& sum, const doubles8& x) noexcept
{
    using bits = vector<std::uint64_t, width>;
#define COLLPROBE_STATEMENT(r, a, b) r = a + (doubles8::part)((bits)b & 0x7fffffffffffffffu)
    COLLPROBE_ISA_EACH(COLLPROBE_STATEMENT, sum, sum, x);
#undef COLLPROBE_STATEMENT
}

/// `exact`: squares of this type are exact in a double, so an FMA gives the same bits.
template <bool exact>
[[gnu::always_inline]] inline void accumulate_square(doubles8& sum, const doubles8& x) noexcept
{
    if constexpr (exact) {
#define COLLPROBE_STATEMENT(r, a, b) r = a + b * b
        COLLPROBE_ISA_EACH(COLLPROBE_STATEMENT, sum, sum, x);
#undef COLLPROBE_STATEMENT
    } else {
#define COLLPROBE_STATEMENT(r, a, b) r = a + hidden(b * b)
        COLLPROBE_ISA_EACH(COLLPROBE_STATEMENT, sum, sum, x);
#undef COLLPROBE_STATEMENT
    }
}

[[gnu::always_inline]] inline doubles8 distance(const doubles8& x, double pivot) noexcept
{
    doubles8 result;
    const doubles8::part center = doubles8::part{} + pivot;
#define COLLPROBE_STATEMENT(r, a, b) r = hidden(a - center)
    COLLPROBE_ISA_EACH(COLLPROBE_STATEMENT, result, x, x);
#undef COLLPROBE_STATEMENT
    return result;
}

#undef COLLPROBE_ISA_EACH

[[gnu::always_inline]] inline void store(double* to, const doubles8& x) noexcept
{
    __builtin_memcpy(to, &x, sizeof x);
}

/// As many doubles as `part` holds, from a vector of floats or ints. GCC's `__builtin_convertvector`
/// would go by way of narrower vectors.
template <class Narrow>
[[gnu::always_inline]] inline doubles8::part convert(Narrow x) noexcept
{
    using part = doubles8::part;
#if !defined(__clang__) && COLLPROBE_ISA_WIDTH == 32
    using element_type = std::remove_cvref_t<decltype(x[0])>;
    if constexpr (std::is_same_v<element_type, float>) return __builtin_ia32_cvtps2pd256(x);
    else if constexpr (std::is_same_v<element_type, int>) return __builtin_ia32_cvtdq2pd256(x);
#elif !defined(__clang__) && defined(COLLPROBE_ISA_AVX512)
    using element_type = std::remove_cvref_t<decltype(x[0])>;
    constexpr int current_direction = 4;
    constexpr char all_lanes = -1;
    if constexpr (std::is_same_v<element_type, float>)
        return __builtin_ia32_cvtps2pd512_mask(x, part{}, all_lanes, current_direction);
    else if constexpr (std::is_same_v<element_type, int>) return __builtin_ia32_cvtdq2pd512_mask(x, part{}, all_lanes);
#endif
    return __builtin_convertvector(x, part);
}

template <class Narrow>
[[gnu::always_inline]] inline doubles8 widen_from(const void* from) noexcept
{
    doubles8 result;
#if COLLPROBE_ISA_WIDTH == 32
    using narrow = vector<Narrow, 4 * sizeof(Narrow)>;
    const auto* const bytes = static_cast<const unsigned char*>(from);
    result.low = convert(load<narrow>(bytes));
    result.high = convert(load<narrow>(bytes + sizeof(narrow)));
#else
    using narrow = vector<Narrow, 8 * sizeof(Narrow)>;
    result.all = convert(load<narrow>(from));
#endif
    return result;
}

template <class Narrow>
[[gnu::always_inline]] inline doubles8 widen(vector<Narrow, 32> x) noexcept
{
    doubles8 result;
#if COLLPROBE_ISA_WIDTH == 32
    result.low = convert(__builtin_shufflevector(x, x, 0, 1, 2, 3));
    result.high = convert(__builtin_shufflevector(x, x, 4, 5, 6, 7));
#else
    result.all = convert(x);
#endif
    return result;
}

/// Eight consecutive elements as doubles; exact, except for 64-bit integers, which round.
template <class T>
[[gnu::always_inline]] inline doubles8 load8(const T* from) noexcept
{
    if constexpr (std::is_same_v<T, double>) {
        doubles8 result;
#if COLLPROBE_ISA_WIDTH == 32
        result.low = load<doubles8::part>(from);
        result.high = load<doubles8::part>(from + 4);
#else
        result.all = load<doubles8::part>(from);
#endif
        return result;
    } else if constexpr (std::is_same_v<T, half>) {
        using v8hi = vector<short, 16>;
        return widen<float>((vector<float, 32>)__builtin_ia32_vcvtph2ps256(load<v8hi>(from)));
    } else if constexpr (sizeof(T) == 1) {
        using wide = vector<int, 32>;
#if defined(__clang__)
        return widen<int>(__builtin_convertvector(load<vector<T, 8>>(from), wide));
#else
        using v16qi = vector<char, 16>;
        v16qi bytes = {};
        __builtin_memcpy(&bytes, from, 8);
        if constexpr (std::is_same_v<T, std::int8_t>) return widen<int>((wide)__builtin_ia32_pmovsxbd256(bytes));
        else return widen<int>((wide)__builtin_ia32_pmovzxbd256(bytes));
#endif
    } else if constexpr (std::is_same_v<T, std::uint32_t>) {
        // AVX2 converts signed integers only: shift the range, exactly, before and after.
        using wide = vector<std::uint32_t, 32>;
        const auto shifted = (vector<int, 32>)(load<wide>(from) ^ 0x80000000u);
        return distance(widen<int>(shifted), -0x1p31);
    } else {
        return widen_from<T>(from);
    }
}

/// Sixteen consecutive elements: `x` holds positions 0 to 7 of `lane_position`, `y` 8 to 15.
template <class T>
[[gnu::always_inline]] inline void load16(const T* from, doubles8& x, doubles8& y) noexcept
{
    if constexpr (std::is_same_v<T, bfloat16>) {
        using wide = vector<std::uint32_t, 32>;
        const wide bits = load<wide>(from);
        x = widen<float>((vector<float, 32>)(bits << 16));
        y = widen<float>((vector<float, 32>)(bits & 0xffff0000u));
    } else {
        x = load8(from);
        y = load8(from + 8);
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

template <class V>
[[gnu::always_inline]] inline auto lowest_lane(V v) noexcept
{
    auto result = v[0];
    for (unsigned lane = 1; lane < sizeof(V) / sizeof(v[0]); ++lane)
        if (v[lane] < result) result = v[lane];
    return result;
}

template <class V>
[[gnu::always_inline]] inline auto highest_lane(V v) noexcept
{
    auto result = v[0];
    for (unsigned lane = 1; lane < sizeof(V) / sizeof(v[0]); ++lane)
        if (v[lane] > result) result = v[lane];
    return result;
}

/// Extrema of full-width vectors of elements, taken on their bits where an instruction for that
/// exists, and whether there are zeros, subnormals, non-finite numbers.
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

    // 16- and 32-bit floats: the largest signed pattern is the largest number not below zero and the
    // largest unsigned one the most negative number; where all numbers have the same sign, the least
    // magnitude is the other end. Others: plain extrema.
    signed_vector signed_maximum = signed_vector{} + signed_type(bits_type{1} << (sizeof(T) * 8 - 1));
    unsigned_vector unsigned_maximum = {};
    unsigned_vector least_magnitude = ~unsigned_vector{};
    native_vector minimum = {};
    native_vector maximum = {};
    native_vector least = {}; // doubles: of |x|
    dwords top = {}; // doubles: odd lanes hold the largest upper half of |x|
    unsigned_vector zeros = {}; // integers

    [[gnu::always_inline]] explicit range_lanes(const T* from) noexcept
    {
        if constexpr (!is_float || is_double) minimum = maximum = load<native_vector>(from);
        if constexpr (is_double) least = (native_vector)((unsigned_vector)minimum & size_mask);
    }

    [[gnu::always_inline]] void add(unsigned_vector bits) noexcept
    {
        if constexpr (!is_float) {
            minimum = lanewise_minimum((native_vector)bits, minimum);
            maximum = lanewise_maximum((native_vector)bits, maximum);
            zeros -= (unsigned_vector)(bits == 0);
        } else if constexpr (is_double) {
            const unsigned_vector size = bits & size_mask;
            minimum = lanewise_minimum((native_vector)bits, minimum);
            maximum = lanewise_maximum((native_vector)bits, maximum);
            least = lanewise_minimum((native_vector)size, least);
            top = lanewise_maximum((dwords)size, top);
        } else {
            signed_maximum = lanewise_maximum((signed_vector)bits, signed_maximum);
            unsigned_maximum = lanewise_maximum(bits, unsigned_maximum);
            least_magnitude = lanewise_minimum(bits & size_mask, least_magnitude);
        }
    }

    /// False, and nothing else done, if a NaN or an infinity was among the elements. `any_tiny`: there
    /// are zeros or subnormals to count.
    [[gnu::always_inline]] bool finish(block_sums& out, bool& any_tiny) const noexcept
    {
        if constexpr (is_float && !is_double) {
            const auto high = static_cast<bits_type>(highest_lane(signed_maximum));
            const bits_type low = highest_lane(unsigned_maximum);
            const bits_type nearest = lowest_lane(least_magnitude);
            const bool any_positive = (high & traits::sign_mask) == 0;
            const bool any_negative = (low & traits::sign_mask) != 0;
            if (any_positive && high >= traits::exponent_mask) return false;
            if (any_negative && bits_type(low & size_mask) >= traits::exponent_mask) return false;
            out.minimum = to_double(bit_cast<T>(any_negative ? low : nearest));
            out.maximum = to_double(bit_cast<T>(any_positive ? high : bits_type(nearest | traits::sign_mask)));
            any_tiny = nearest <= traits::fraction_mask;
        } else {
            if constexpr (is_double) {
                for (unsigned lane = 1; lane < width / 4; lane += 2)
                    if (top[lane] >= 0x7ff00000u) return false;
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

/// Counts zeros and subnormals of a floating-point block, whole steps of it. Apart from the main loop:
/// most blocks have none, and it saves that loop five instructions in twenty.
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
        const auto size = (signed_vector)(load<unsigned_vector>(data + i) & static_cast<bits_type>(~traits::sign_mask));
        nonzero -= (unsigned_vector)(size > 0);
        normal -= (unsigned_vector)(size > largest_tiny);
    }
    out.zero = whole;
    for (unsigned lane = 0; lane < per_vector; ++lane) {
        out.zero -= nonzero[lane];
        out.subnormal += static_cast<bits_type>(nonzero[lane] - normal[lane]);
    }
}

#if defined(__clang__)
#define COLLPROBE_ISA_UNROLL _Pragma("unroll")
#else
#define COLLPROBE_ISA_UNROLL _Pragma("GCC unroll 8")
#endif

/// All accumulators of a block.
template <class T>
struct scan_lanes {
    static constexpr std::uint64_t per_vector = width / sizeof(T);
    static constexpr std::uint64_t step = sizeof(T) < 4 ? 64 / sizeof(T) : 16; // at least a cache line

    range_lanes<T> range;
    digest_lanes digest;
    doubles8 sum, magnitudes, even_squares, odd_squares;

    [[gnu::always_inline]] explicit scan_lanes(const T* from) noexcept : range(from) {}

    template <bool with_digest>
    [[gnu::always_inline]] void add(const T* data, [[maybe_unused]] const std::uint32_t* keys) noexcept
    {
        constexpr bool exact = squares_are_exact<T>;
        constexpr int ahead = 4096; // bytes, found by measurement
        const auto* const bytes = reinterpret_cast<const unsigned char*>(data);
        COLLPROBE_ISA_UNROLL
        for (std::uint64_t line = 0; line < step * sizeof(T); line += 64) __builtin_prefetch(bytes + ahead + line);
        COLLPROBE_ISA_UNROLL
        for (std::uint64_t i = 0; i < step; i += per_vector) {
            const auto bits = load<typename range_lanes<T>::unsigned_vector>(data + i);
            range.add(bits);
            if constexpr (with_digest) digest.add((words64)bits, keys + i * sizeof(T) / 4);
        }
        COLLPROBE_ISA_UNROLL
        for (std::uint64_t i = 0; i < step; i += 16) {
            doubles8 x, y;
            load16(data + i, x, y);
            accumulate(sum, x);
            accumulate_square<exact>(even_squares, x);
            accumulate_magnitude(magnitudes, x);
            accumulate(sum, y);
            accumulate_square<exact>(odd_squares, y);
            accumulate_magnitude(magnitudes, y);
        }
    }
};

/// Scans the leading elements that fill whole steps; returns how many. With a digest, `data` begins
/// the digest period `period`. `finite`: false if a NaN or an infinity is among them, and then only
/// the digest is of use.
template <class T, bool with_digest>
[[gnu::noinline]] std::uint64_t scan(const T* data, std::uint64_t count, block_sums& out,
    [[maybe_unused]] digest_state& digest, [[maybe_unused]] std::uint64_t period, bool& finite) noexcept
{
    constexpr std::uint64_t step = scan_lanes<T>::step;
    constexpr std::uint64_t page = digest_period_bytes / sizeof(T);

    const std::uint64_t whole = count - count % step;
    if (whole == 0) return 0;
    scan_lanes<T> lanes(data);
    for (std::uint64_t first = 0; first < whole; first += page) {
        const std::uint64_t end = whole - first < page ? whole : first + page;
        const std::uint32_t* keys = digest_keys.key;
        for (std::uint64_t i = first; i < end; i += step, keys += step * sizeof(T) / 4)
            lanes.template add<with_digest>(data + i, keys);
        if constexpr (with_digest) {
            digest.add_sums(period + first / page, lanes.digest.sums(0, (end - first) / lanes.per_vector));
            lanes.digest = digest_lanes{};
        }
    }
    if constexpr (with_digest) digest.bytes += whole * sizeof(T);
    bool any_tiny = false;
    finite = lanes.range.finish(out, any_tiny);
    if constexpr (element_traits<T>::is_floating_point)
        if (any_tiny) count_tiny(data, whole, out);
    store(out.sum, lanes.sum);
    store(out.magnitudes, lanes.magnitudes);
    store(out.squares, lanes.even_squares);
    store(out.squares + 8, lanes.odd_squares);
    return whole;
}

#undef COLLPROBE_ISA_UNROLL

/// Sums of distances from `pivot` and of their squares, over the leading whole steps. All finite.
template <class T>
[[gnu::noinline]] std::uint64_t scan_distances(
    const T* data, std::uint64_t count, double pivot, distance_sums& out) noexcept
{
    const std::uint64_t whole = count - count % 16;
    doubles8 sum, squares;
    for (std::uint64_t i = 0; i < whole; i += 16) {
        doubles8 x, y;
        load16(data + i, x, y);
        x = distance(x, pivot);
        y = distance(y, pivot);
        accumulate(sum, x);
        accumulate_square<false>(squares, x);
        accumulate(sum, y);
        accumulate_square<false>(squares, y);
    }
    store(out.sum, sum);
    store(out.squares, squares);
    return whole;
}

} // namespace collprobe::detail::COLLPROBE_ISA_NAMESPACE
#endif
