// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/core/widen.hpp>
#include <collprobe/detail/reduce_blocks.hpp>
#include <collprobe/scan/digested.hpp>
#include <collprobe/scan/dotted.hpp>
#include <collprobe/scan/norm.hpp>
#include <collprobe/scan/one_read.hpp>

namespace collprobe::inline COLLPROBE_ABI {
namespace detail {

/// `digest_bytes` counts what was read; on a GPU the buffer's size stands for it.
template <element T>
COLLPROBE_HD constexpr std::uint64_t finish_digest(digest_state sums, const view<const T>& data) noexcept
{
    sums.bytes = data.count() * sizeof(T);
    return sums.finish();
}
/// The magnitude with these bits, also where the program flushes subnormal numbers to zero.
template <floating_element T>
COLLPROBE_HD double magnitude_of(typename element_traits<T>::bits_type bits) noexcept
{
    using traits = element_traits<T>;
    if constexpr (sizeof(T) < 8) {
        if (bits <= traits::fraction_mask)
            return static_cast<double>(bits) * power_of_two(traits::min_exponent - traits::digits + 1);
    }
    return widen(bit_cast<T>(bits));
}
template <floating_element T>
COLLPROBE_HD statistics make_statistics(
    const view<const T>& data, const digest_state& digest, const typename norm<T>::taken& values) noexcept
{
    statistics result;
    result.count = data.count();
    result.zero = values.zero;
    result.first_nonfinite = values.first_nonfinite;
    result.digest = finish_digest(digest, data);
    result.absolute_maximum = magnitude_of<T>(values.largest);
    result.sum = values.sum;
    result.sum_of_squares = values.squares;
    result.nan = values.nan;
    result.positive_infinity = values.positive_infinity;
    result.negative_infinity = values.negative_infinity;
    return result;
}

} // namespace detail

/// Reduces a buffer to its `statistics` in one read. A reducer for the devices' `reduce`.
///
/// Accuracy, relative: `sum_of_squares` 1e-12, and of elements of 8 and 16 bits 4e-6 at most (1e-7 as a rule); `sum`
/// the same of the sum of magnitudes. Doubles: a square beyond the largest double makes the sum infinite, and squares
/// below the least one are lost. All but the two sums are exact.
/// Cost: one read of memory; no allocation.
template <floating_element T>
struct statistics_reducer : detail::one_read<T, detail::both<detail::digested, detail::norm<T>>> {
    using base = detail::one_read<T, detail::both<detail::digested, detail::norm<T>>>;
    using typename base::partial;

    constexpr explicit statistics_reducer(view<const T> input) noexcept : base(input) {}

    COLLPROBE_HD statistics finish(const partial& from) const noexcept
    {
        return detail::make_statistics(this->data, from.first, from.second);
    }
};

/// The `statistics` of a buffer from one read, computed on the calling thread.
///
/// Shapes: `input`: elements in host memory, aligned for T; a count of 0 is legal.
/// \throws error `invalid_argument` on a null pointer with a count above 0 and on a misaligned one.
/// Accuracy and cost: see `statistics_reducer`. The bits depend on the buffer alone.
template <floating_element T>
statistics compute_statistics(view<const T> input, call_site where = call_site::current())
{
    detail::require_data(input, "compute_statistics", where);
    detail::require_aligned(input, "compute_statistics", where);
    const statistics_reducer<T> reducer(input);
    return reducer.finish(detail::reduce_blocks(reducer, input.count()));
}

namespace detail {

/// The outcome of one read of a collective's result, together with the local input if that still exists.
struct result_record {
    std::uint64_t digest;
    double sum_of_squares;
    double dot; ///< of input and result, element by element; NaN by bits if the input was overwritten
    std::uint64_t first_nonfinite = no_index; ///< index of the first NaN or infinity, if there is any
    std::uint32_t nonfinite; ///< NaN and infinities, up to 2^32 - 1
    std::uint32_t padding = 0;
};
static_assert(sizeof(result_record) == 40);

/// Reads a result once. All but the dot has the bits of `statistics_reducer`. `input`: as many elements as the result,
/// or null.
template <floating_element T>
struct result_reducer : one_read<T, both<digested, both<dotted<T>, norm<T, false>>>> {
    using base = one_read<T, both<digested, both<dotted<T>, norm<T, false>>>>;
    using without_dot = one_read<T, both<digested, norm<T, false>>>;
    using typename base::partial;

    constexpr explicit result_reducer(view<const T> result, const T* input = nullptr) noexcept
        : base(result, {{}, {{input}, {}}})
    {
    }
    void run(partial& into, std::uint64_t first, std::uint64_t count) const noexcept
    {
        run(into, first, count, best_isa());
    }
    void run(partial& into, std::uint64_t first, std::uint64_t count, isa path) const noexcept
    {
        if (this->of.second.first.other != nullptr) return base::run(into, first, count, path);
        typename without_dot::partial part{into.first, into.second.second};
        without_dot(this->data).run(part, first, count, path);
        into = {part.first, {{not_a_number()}, part.second}};
    }
    COLLPROBE_HD result_record finish(const partial& from) const noexcept
    {
        const auto& values = from.second.second;
        return {finish_digest(from.first, this->data), values.squares, from.second.first.dot, values.first_nonfinite,
            static_cast<std::uint32_t>(lesser(values.nonfinite(), 0xffffffffu))};
    }
};

/// Reduces a buffer to its digest alone: the bits of `digest(input)`, on every device. Only bytes count, so one kernel
/// reduces buffers of any type as bytes: `digest_reducer<std::uint8_t>`.
template <element T>
struct digest_reducer : one_read<T, digested> {
    using base = one_read<T, digested>;
    using typename base::partial;

    COLLPROBE_HD constexpr explicit digest_reducer(view<const T> input = {}) noexcept : base(input) {}

    /// Of the part `index`, if the input has parts of `count` elements.
    COLLPROBE_HD digest_reducer part(std::uint64_t index, std::uint64_t count) const noexcept
    {
        return digest_reducer(this->data.part(index * count, count));
    }
    /// Of all parts from `index` on.
    digest_reducer from_part(std::uint64_t index, std::uint64_t count) const noexcept
    {
        return digest_reducer(this->data.part(index * count, this->data.count() - index * count));
    }
    COLLPROBE_HD constexpr std::uint64_t finish(const partial& from) const noexcept
    {
        return finish_digest(from, this->data);
    }
};

/// The statistics of integers, of which only count and digest are known: the norm is NaN.
template <element T>
struct count_reducer : one_read<T, digested> {
    using base = one_read<T, digested>;

    constexpr explicit count_reducer(view<const T> input) noexcept : base(input) {}

    COLLPROBE_HD statistics finish(const typename base::partial& from) const noexcept
    {
        statistics result;
        result.count = this->data.count();
        result.digest = finish_digest(from, this->data);
        result.sum = result.sum_of_squares = not_a_number();
        return result;
    }
};

} // namespace detail
} // namespace collprobe
