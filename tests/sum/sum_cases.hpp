// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <collprobe/core/element.hpp>
#include <collprobe/detail/math.hpp>

namespace collprobe::testing {

/// Random bits, the same on every machine.
struct random_bits {
    std::uint64_t state;
    std::uint64_t operator()() { return collprobe::detail::mix64(state += 0x9e3779b97f4a7c15u); }
    /// 0 .. n - 1.
    std::uint64_t below(std::uint64_t n) { return (*this)() % n; }
    int between(int low, int high) { return low + static_cast<int>(below(static_cast<std::uint64_t>(high - low) + 1)); }
    bool one_in(std::uint64_t n) { return below(n) == 0; }
};

/// What is hard about a sum.
enum class difficulty {
    alike, ///< magnitudes within a few binades, as gradients have them
    any, ///< every finite bit pattern is as likely
    spread, ///< exponents over some 40 binades
    cancelling, ///< terms and their opposites, and a little rest
    tie, ///< on the midpoint of two elements, or off it by the smallest number there is
    subnormal,
    overflow_edge, ///< around the largest number, in and out of the range on the way
    zeros,
    not_finite, ///< infinities and NaN among the others
    count
};

template <collprobe::floating_element T>
struct sum_cases {
    using traits = collprobe::element_traits<T>;
    static constexpr int top_field = traits::max_exponent - traits::min_exponent + 1; // of finite numbers

    /// A finite number up to `top_field`; beyond it infinity or, with a fraction, NaN.
    static T of(bool negative, int field, std::uint64_t fraction)
    {
        constexpr std::uint64_t end = traits::smallest_nonfinite;
        fraction &= traits::fraction_mask;
        std::uint64_t magnitude = static_cast<std::uint64_t>(std::max(field, 0)) << (traits::digits - 1) | fraction;
        if (field > top_field) magnitude = end | fraction;
        else if (magnitude >= end) magnitude = end - 1;
        const std::uint64_t sign = negative ? std::uint64_t{traits::sign_mask} : 0;
        return collprobe::detail::bit_cast<T>(static_cast<typename traits::bits_type>(sign | magnitude));
    }
    static T opposite(T value)
    {
        return collprobe::detail::bit_cast<T>(
            static_cast<typename traits::bits_type>(collprobe::to_bits(value) ^ traits::sign_mask));
    }
    /// 2^exponent, if T has it.
    static T power(bool negative, int exponent)
    {
        const int field = exponent - traits::min_exponent + 1;
        if (field >= 1) return of(negative, field, 0);
        const int place = exponent - (traits::min_exponent - (traits::digits - 1));
        return of(negative, 0, place < 0 ? 0 : std::uint64_t{1} << place);
    }
    static T near_field(random_bits& random, int field, int reach)
    {
        return of(random.one_in(2), std::clamp(field + random.between(-reach, reach), 0, top_field), random());
    }

    /// `n` terms of one sum, in any order.
    static void fill(random_bits& random, difficulty kind, T* term, int n)
    {
        const int field = random.between(1, top_field);
        int next = 0;
        const auto put = [&](T value) {
            if (next < n) term[next++] = value;
        };
        switch (kind) {
        case difficulty::alike:
            while (next < n) put(near_field(random, field, 3));
            return;
        case difficulty::any:
            while (next < n) put(of(random.one_in(2), random.between(0, top_field), random()));
            return;
        case difficulty::spread:
            while (next < n) put(near_field(random, field, 20));
            return;
        case difficulty::cancelling:
            for (int rest = random.between(0, 2); rest > 0; --rest) put(near_field(random, random.between(0, top_field), 0));
            break;
        case difficulty::tie: {
            put(of(random.one_in(2), field, random()));
            const int half_unit = field - 1 + traits::min_exponent - traits::digits;
            const bool below = random.one_in(2);
            if (random.one_in(2)) {
                put(power(below, half_unit));
            } else {
                put(power(below, half_unit - 1));
                put(power(below, half_unit - 1));
            }
            if (random.one_in(2)) put(of(random.one_in(2), 0, 1));
            break;
        }
        case difficulty::subnormal:
            while (next < n) put(of(random.one_in(2), random.one_in(8) ? 1 : 0, random.one_in(2) ? random() : random.below(4)));
            return;
        case difficulty::overflow_edge:
            while (next < n) {
                const bool negative = random.one_in(3);
                const int half_unit = traits::max_exponent - traits::digits;
                switch (random.below(6)) {
                case 0:
                case 1: put(of(negative, top_field, ~std::uint64_t{0})); break;
                case 2: put(power(negative, half_unit)); break;
                case 3: put(power(negative, half_unit - 1)); break;
                case 4: put(of(negative, 0, 1)); break;
                default: put(near_field(random, top_field, 2)); break;
                }
            }
            return;
        case difficulty::zeros: {
            const bool all_negative = random.one_in(2);
            while (next < n) put(of(all_negative || random.one_in(2), 0, 0));
            return;
        }
        case difficulty::not_finite: {
            const auto which = random.between(0, 3);
            while (next < n) {
                if (random.one_in(static_cast<std::uint64_t>(n))) {
                    const bool negative = which == 1 || (which == 2 && random.one_in(2));
                    put(of(negative, top_field + 1, which == 3 ? random() | 1 : 0));
                } else {
                    put(near_field(random, field, 3));
                }
            }
            return;
        }
        case difficulty::count: break;
        }
        // Pairs that cancel fill the room, then all are mixed.
        while (next < n) {
            const T value = of(random.one_in(2), random.between(0, top_field), random());
            put(next + 1 < n ? value : T{});
            put(opposite(value));
        }
        shuffle(random, term, n);
    }

    static void shuffle(random_bits& random, T* term, int n)
    {
        for (int i = n - 1; i > 0; --i) std::swap(term[i], term[random.below(static_cast<std::uint64_t>(i) + 1)]);
    }
};

/// Mostly few terms, now and then thousands.
inline int random_terms(random_bits& random)
{
    const std::uint64_t size = random.below(1000);
    if (size < 600) return random.between(1, 4);
    if (size < 900) return random.between(5, 16);
    if (size < 990) return random.between(17, 64);
    return size < 999 ? random.between(65, 512) : random.between(513, 4096);
}

/// 1 in half of the cases; else the number of terms, a power of two, or any number.
inline std::uint32_t random_divisor(random_bits& random, int terms)
{
    switch (random.below(10)) {
    case 0:
    case 1: return static_cast<std::uint32_t>(terms);
    case 2: return std::uint32_t{1} << random.below(32);
    case 3:
    case 4: return static_cast<std::uint32_t>((random() >> 32) >> random.below(32)) | 1;
    default: return 1;
    }
}

} // namespace collprobe::testing
