// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// No include guard: simd/dispatch.hpp includes this once per instruction set.
#if defined(COLLPROBE_ISA_NAMESPACE)
namespace collprobe::inline COLLPROBE_ABI::detail::COLLPROBE_ISA_NAMESPACE {

[[gnu::always_inline]] inline eight_ints magnitudes_of(eight_floats x) noexcept
{
    return reinterpret_cast<eight_ints>(x) & 0x7fffffff;
}

/// `block_range::extreme` of floats, in multiples of 32. Not finite ones count too. Without signs unless they
/// are wanted.
template <bool with_signs>
[[gnu::always_inline]] inline std::uint32_t extreme_of(const float* x, std::uint32_t count) noexcept
{
    using keys = std::conditional_t<with_signs, eight_words, eight_ints>;
    keys most[4] = {};
    for (std::uint32_t i = 0; i < count; i += 32) {
        COLLPROBE_ISA_UNROLL
        for (std::uint32_t k = 0; k < 4; ++k) {
            keys next;
            if constexpr (with_signs) {
                const auto bits = load<eight_words>(x + i + 8 * k);
                next = bits << 1 | bits >> 31;
            } else {
                next = magnitudes_of(load<eight_floats>(x + i + 8 * k));
            }
            most[k] = lanewise_maximum(most[k], next);
        }
    }
    const keys all = lanewise_maximum(lanewise_maximum(most[0], most[1]), lanewise_maximum(most[2], most[3]));
    const auto extreme = static_cast<std::uint32_t>(highest_lane(all));
    return with_signs ? extreme : extreme << 1;
}

/// Thirty-two numbers of 32 bits, as the bytes that they fit in.
[[gnu::always_inline]] inline vector<char, 32> bytes_of(const eight_ints (&codes)[4]) noexcept
{
    using v8si = vector<int, 32>;
    using v16hi = vector<short, 32>;
    const v16hi low = __builtin_ia32_packssdw256(codes[0], codes[1]);
    const v16hi high = __builtin_ia32_packssdw256(codes[2], codes[3]);
    const auto bytes = reinterpret_cast<v8si>(__builtin_ia32_packsswb256(low, high));
    return reinterpret_cast<vector<char, 32>>(
        __builtin_ia32_permvarsi256(bytes, v8si{0, 4, 1, 5, 2, 6, 3, 7}));
}
[[gnu::always_inline]] inline void store_codes(
    const eight_ints (&codes)[4], bool as_nibbles, unsigned char* to) noexcept
{
    const vector<char, 32> bytes = bytes_of(codes);
    if (!as_nibbles) {
        __builtin_memcpy(to, &bytes, 32);
        return;
    }
    const auto pairs = reinterpret_cast<vector<std::uint16_t, 32>>(bytes);
    const halves_of<vector<std::uint16_t, 32>> halves((pairs & 0xf) | (pairs >> 4 & 0xf0));
    using v8hi = vector<short, 16>;
    const auto nibbles = __builtin_ia32_packuswb128(
        reinterpret_cast<v8hi>(halves.both[0]), reinterpret_cast<v8hi>(halves.both[1]));
    __builtin_memcpy(to, &nibbles, 16);
}

/// The sum of the lanes of three vectors.
struct three_sums {
    float sum[4];

    [[gnu::always_inline]] three_sums(eight_floats a, eight_floats b, eight_floats c) noexcept
    {
        const eight_floats ab = __builtin_ia32_haddps256(a, b);
        const eight_floats cc = __builtin_ia32_haddps256(c, c);
        const halves_of<eight_floats> halves(__builtin_ia32_haddps256(ab, cc));
        const auto all = halves.both[0] + halves.both[1];
        __builtin_memcpy(sum, &all, sizeof sum);
    }
};

/// The codes of a block of finite elements. Integers, `symmetric` or `signed_maximum`, nearest.
template <bool probed, bool clips>
[[gnu::always_inline]] inline void encode_elements(const codec& how, const block_scale& by,
    const float* elements, std::uint32_t extreme, unsigned char* to, block_errors& errors) noexcept
{
    const bool as_nibbles = how.format == code_format::int4;
    const int most = as_nibbles ? 7 : 127;
    const eight_floats inverse = eight_floats{} + by.inverse;
    const auto half = eight_ints{} + bit_cast<std::int32_t>(bit_cast<float>(extreme >> 1) / 2);
    eight_floats squares[2] = {};
    eight_floats error_squares[2] = {};
    eight_floats error_sum = {};
    eight_ints largest = {};
    eight_ints zeros = {};
    eight_ints zero_codes = {};
    eight_ints outliers = {};
    eight_ints clipped = {};
    for (std::uint32_t i = 0; i < how.block; i += 32) {
        eight_ints codes[4];
        COLLPROBE_ISA_UNROLL
        for (std::uint32_t k = 0; k < 4; ++k) {
            const auto x = load<eight_floats>(elements + i + 8 * k);
            const eight_floats value = x * inverse;
            eight_ints code = __builtin_ia32_cvtps2dq256(value);
            if constexpr (clips) code = lanewise_minimum(code, eight_ints{} + most);
            codes[k] = code;
            if constexpr (probed) {
                const eight_floats error = __builtin_convertvector(code, eight_floats) - value;
                squares[k % 2] += value * value;
                error_squares[k % 2] += error * error;
                error_sum += error;
                largest = lanewise_maximum(largest, magnitudes_of(error));
                const eight_ints magnitude = magnitudes_of(x);
                zeros += magnitude == 0;
                zero_codes += code == 0;
                outliers += magnitude > half;
                if constexpr (clips)
                    clipped += magnitudes_of(error) > bit_cast<std::int32_t>(0.5f + 0x1p-10f);
            }
        }
        store_codes(codes, as_nibbles, to + (as_nibbles ? i / 2 : i));
    }
    if constexpr (probed) {
        const three_sums sums(squares[0] + squares[1], error_squares[0] + error_squares[1], error_sum);
        errors.squares = sums.sum[0];
        errors.error_squares = sums.sum[1];
        errors.error_sum = sums.sum[2];
        errors.largest = bit_cast<float>(highest_lane(largest));
        errors.zeros = static_cast<std::uint32_t>(-sum_of_lanes(zeros));
        errors.zeroed = static_cast<std::uint32_t>(-sum_of_lanes(zero_codes)) - errors.zeros;
        errors.outliers = static_cast<std::uint32_t>(-sum_of_lanes(outliers));
        errors.saturated = static_cast<std::uint32_t>(-sum_of_lanes(clipped));
    }
}

/// Encodes a whole block, or returns false if it has elements that are not finite. `errors->largest_at` is
/// not set.
inline bool encode_integers(const codec& how, const float* elements, unsigned char* to, block_errors* errors,
    block_range& range, block_scale& by) noexcept
{
    const bool clips = how.rule == scaling::signed_maximum;
    range.extreme = clips ? extreme_of<true>(elements, how.block) : extreme_of<false>(elements, how.block);
    if (range.extreme >> 1 >= how.overflow) {
        range = {};
        return false;
    }
    by = scale_of(how, range);
    block_errors none;
    block_errors& into = errors == nullptr ? none : *errors;
    if (errors == nullptr && clips) encode_elements<false, true>(how, by, elements, range.extreme, to, into);
    else if (errors == nullptr) encode_elements<false, false>(how, by, elements, range.extreme, to, into);
    else if (clips) encode_elements<true, true>(how, by, elements, range.extreme, to, into);
    else encode_elements<true, false>(how, by, elements, range.extreme, to, into);
    return true;
}

/// Thirty-two codes as vectors of 32 bits, from `from`.
[[gnu::always_inline]] inline void load_codes(
    bool as_nibbles, const unsigned char* from, eight_ints (&codes)[4]) noexcept
{
    signed char bytes[32];
    if (as_nibbles) {
        using v16qu = vector<unsigned char, 16>;
        const auto pairs = load<v16qu>(from);
        const v16qu low = pairs & 0xf;
        const v16qu high = pairs >> 4;
        using v16qi = vector<signed char, 16>;
        const auto first = reinterpret_cast<v16qi>(__builtin_shufflevector(low, high, 0, 16, 1, 17, 2, 18, 3,
                                                       19, 4, 20, 5, 21, 6, 22, 7, 23)
                               ^ 8)
            - 8;
        const auto second = reinterpret_cast<v16qi>(__builtin_shufflevector(low, high, 8, 24, 9, 25, 10, 26,
                                                        11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
                                ^ 8)
            - 8;
        __builtin_memcpy(bytes, &first, 16);
        __builtin_memcpy(bytes + 16, &second, 16);
    } else {
        __builtin_memcpy(bytes, from, 32);
    }
    COLLPROBE_ISA_UNROLL
    for (int k = 0; k < 4; ++k) codes[k] = ints_of_bytes(bytes + 8 * k);
}

/// Decodes a block of integers, `symmetric` or `signed_maximum`, as if no code stood for NaN; says whether
/// one does. Blocks whose scale could reach beyond `how.largest` are not for this function.
template <bool add>
inline bool decode_integers(
    const codec& how, const block_scale& by, const unsigned char* from, float* elements) noexcept
{
    const bool as_nibbles = how.format == code_format::int4;
    const int nan = how.rule == scaling::symmetric ? nan_code(how) : -0x7fffffff;
    const eight_floats scale = eight_floats{} + by.scale;
    eight_ints nans = {};
    for (std::uint32_t i = 0; i < how.block; i += 32) {
        eight_ints codes[4];
        load_codes(as_nibbles, from + (as_nibbles ? i / 2 : i), codes);
        COLLPROBE_ISA_UNROLL
        for (std::uint32_t k = 0; k < 4; ++k) {
            nans |= codes[k] == nan;
            eight_floats x = __builtin_convertvector(codes[k], eight_floats) * scale;
            float* const to = elements + i + 8 * k;
            if constexpr (add) {
                asm("" : "+" COLLPROBE_ISA_REGISTER(x)); // rounded before it is added
                x = load<eight_floats>(to) + x;
            }
            __builtin_memcpy(to, &x, sizeof x);
        }
    }
    return lowest_lane(nans) != 0;
}

} // namespace collprobe::inline COLLPROBE_ABI::detail::COLLPROBE_ISA_NAMESPACE
#endif
