// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/sum/accumulation.hpp>
#include <collprobe/sum/exact_sum.hpp>
#include <collprobe/sum/partial_rows.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// How the sum of a node's terms of an element travels to the other nodes.
enum class partial_form : std::uint8_t {
    number, ///< one number of the accumulator's type
    pair, ///< a compensated sum: two numbers
    terms, ///< the terms themselves
    words, ///< a long integer
};

/// The partial sums of an accumulator.
template <accumulation in, floating_element T>
struct partial_sums {
    /// The type of `number`. For an exact sum it is used only where fp64 is exact.
    using number = std::conditional_t<in == accumulation::native, T,
        std::conditional_t<in == accumulation::float32, float, double>>;
    using pair = compensated_type<T>;

    /// Whether sums in `number` are exact for any values of so many terms.
    static constexpr bool number_is_exact(std::uint64_t terms) noexcept { return terms <= exact_terms_in_float64<T>; }

    /// Bytes of an element. `node_terms`: terms that a node adds.
    static constexpr std::uint64_t bytes(partial_form form, std::uint64_t node_terms) noexcept
    {
        switch (form) {
        case partial_form::number: return sizeof(number);
        case partial_form::pair: return 2 * sizeof(pair);
        case partial_form::terms: return node_terms * sizeof(T);
        case partial_form::words: return exact_sum<T>::words * sizeof(std::uint32_t);
        }
        return 0;
    }

    /// An accumulator that rounds has one form, since the bits of a sum depend on it. An exact partial sum takes the
    /// form of the fewest bytes: all give the same bits. No fixed number of bytes below these holds every exact sum:
    /// terms of a wide range need them all, and a message's size must be known before its data are.
    static constexpr partial_form form(std::uint64_t node_terms, std::uint64_t all_terms) noexcept
    {
        if constexpr (in == accumulation::compensated) {
            return partial_form::pair;
        } else if constexpr (in != accumulation::exact) {
            return partial_form::number;
        } else {
            const partial_form sum = number_is_exact(all_terms) ? partial_form::number : partial_form::words;
            return bytes(sum, node_terms) <= bytes(partial_form::terms, node_terms) ? sum : partial_form::terms;
        }
    }
};

} // namespace collprobe::detail
