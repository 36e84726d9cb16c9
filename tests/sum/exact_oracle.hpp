// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/element.hpp>

namespace collprobe::testing {

/// What the exact sum of elements over a divisor rounds to, by schoolbook arithmetic that shares no step with
/// the library: positive and negative terms are summed apart, carries move on at once, and the quotient is
/// found bit by bit.
template <collprobe::floating_element T>
class exact_oracle {
    using traits = collprobe::element_traits<T>;
    static constexpr int least = traits::min_exponent - (traits::digits - 1);
    static constexpr int words = (traits::max_exponent + 1 - least + 64) / 64 + 2;

public:
    void add(T value)
    {
        ++terms_;
        const auto bits = std::uint64_t{collprobe::to_bits(value)};
        const bool negative = (bits & traits::sign_mask) != 0;
        const auto field = static_cast<int>((bits & traits::exponent_mask) >> (traits::digits - 1));
        const std::uint64_t fraction = bits & traits::fraction_mask;
        if ((bits & ~std::uint64_t{traits::sign_mask}) >= traits::smallest_nonfinite) {
            ++(fraction != 0 ? nans_ : negative ? minus_infinities_ : infinities_);
            return;
        }
        minus_zeros_ += negative && field == 0 && fraction == 0 ? 1 : 0;
        std::uint64_t* const sum = negative ? minus_ : plus_;
        if (field == 0) add_shifted(sum, fraction, 0);
        else add_shifted(sum, fraction + (std::uint64_t{1} << (traits::digits - 1)), field - 1);
    }

    template <collprobe::floating_element U = T>
    U round(std::uint32_t divisor = 1) const
    {
        using to = collprobe::element_traits<U>;
        constexpr int top_field = to::max_exponent - to::min_exponent + 2;
        if (nans_ > 0 || (infinities_ > 0 && minus_infinities_ > 0)) {
            return collprobe::detail::bit_cast<U>(to::quiet_nan);
        }
        if (infinities_ + minus_infinities_ > 0) return put_together<U>(minus_infinities_ > 0, top_field, 0);

        int order = 0;
        for (int i = words - 1; i >= 0 && order == 0; --i) {
            if (plus_[i] != minus_[i]) order = plus_[i] > minus_[i] ? 1 : -1;
        }
        if (order == 0) return put_together<U>(terms_ > 0 && minus_zeros_ == terms_, 0, 0);
        const bool negative = order < 0;
        const std::uint64_t* const more = negative ? minus_ : plus_;
        const std::uint64_t* const less = negative ? plus_ : minus_;
        std::uint64_t magnitude[words];
        std::uint64_t borrow = 0;
        for (int i = 0; i < words; ++i) {
            magnitude[i] = more[i] - less[i] - borrow;
            borrow = more[i] < less[i] || (more[i] == less[i] && borrow != 0) ? 1 : 0;
        }
        const auto bit = [&](int i) -> std::uint64_t { return i < 0 ? 0 : magnitude[i / 64] >> (i % 64) & 1; };

        // Long division, the quotient's bit of weight 2^exponent at a time, down to half a unit of the result.
        int i = 64 * words - 1;
        while (bit(i) == 0) --i;
        int exponent = least + i;
        int unit = to::min_exponent - (to::digits - 1);
        std::uint64_t kept = 0;
        std::uint64_t rest = 0;
        bool half = false;
        for (; exponent >= unit - 1; --exponent) {
            rest = 2 * rest + bit(exponent - least);
            const bool one = rest >= divisor;
            if (one) rest -= divisor;
            if (exponent == unit - 1) {
                half = one;
            } else {
                kept = 2 * kept + (one ? 1 : 0);
                if (kept == 1 && exponent - (to::digits - 1) > unit) unit = exponent - (to::digits - 1);
            }
        }
        bool below = rest != 0;
        for (int k = exponent - least; k >= 0 && !below; --k) {
            if (k % 64 == 63 && magnitude[k / 64] == 0) k -= 63;
            else below = bit(k) != 0;
        }
        if (half && (below || kept % 2 != 0)) ++kept;
        const std::uint64_t hidden = std::uint64_t{1} << (to::digits - 1);
        if (kept == 2 * hidden) {
            kept = hidden;
            ++unit;
        }
        if (kept < hidden) return put_together<U>(negative, 0, kept);
        const int field = unit + to::digits - 1 - to::min_exponent + 1;
        if (field >= top_field) return put_together<U>(negative, top_field, 0);
        return put_together<U>(negative, field, kept - hidden);
    }

private:
    static void add_shifted(std::uint64_t* sum, std::uint64_t significand, int by)
    {
        const std::uint64_t low = significand << (by % 64);
        std::uint64_t high = by % 64 == 0 ? 0 : significand >> (64 - by % 64);
        std::uint64_t* word = sum + by / 64;
        *word += low;
        if (*word < low) ++high; // the significand leaves room
        while (high != 0) {
            *++word += high;
            high = *word < high ? 1 : 0;
        }
    }

    template <class U>
    static U put_together(bool negative, int field, std::uint64_t fraction)
    {
        using to = collprobe::element_traits<U>;
        const std::uint64_t sign = negative ? std::uint64_t{to::sign_mask} : 0;
        const std::uint64_t magnitude = static_cast<std::uint64_t>(field) << (to::digits - 1) | fraction;
        // Infinity; without infinities the one NaN, beside which there are numbers of the same exponent.
        const std::uint64_t end = to::smallest_nonfinite;
        return collprobe::detail::bit_cast<U>(
            static_cast<typename to::bits_type>(sign | (magnitude < end ? magnitude : end)));
    }

    std::uint64_t plus_[words] = {};
    std::uint64_t minus_[words] = {};
    std::uint64_t terms_ = 0;
    std::uint64_t minus_zeros_ = 0;
    std::uint64_t nans_ = 0;
    std::uint64_t infinities_ = 0;
    std::uint64_t minus_infinities_ = 0;
};

} // namespace collprobe::testing
