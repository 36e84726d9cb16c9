// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/scan/statistics.hpp>
#include <collprobe/sum/dot.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// The outcome of one read of a collective's result, together with the local input if that still exists.
struct result_record {
    std::uint64_t digest;
    double sum_of_squares; ///< times 2^(-2 scale)
    double dot; ///< of input and result, element by element; NaN by bits if the input was overwritten
    std::int32_t scale;
    std::int32_t padding;
};

/// Reads a result once: its digest, its norm and, if `input` is not null, its dot with the input.
template <element T>
struct result_reducer {
    using inner = statistics_reducer<T, true>;
    struct partial {
        typename inner::partial result;
        double dot;
    };
    static constexpr std::uint64_t block = inner::block;
    using has_own_kernel = void; // on a GPU: scan/cuda/result_reducer.cuh

    view<const T> result;
    const T* input = nullptr;

    COLLPROBE_HD static partial identity() noexcept { return {inner::identity(), 0}; }
    void run(partial& into, std::uint64_t first, std::uint64_t count) const
    {
        inner{result}.run(into.result, first, count);
        if (input == nullptr) {
            into.dot = not_a_number();
            return;
        }
        // Both runs are short enough to be in the L1 cache by now.
        into.dot += dot(input + first, result.data() + first, count);
    }
    /// Adds one element: the work of one device thread.
    COLLPROBE_HD void add(partial& into, std::uint64_t index) const noexcept
    {
        inner{result}.add(into.result, index);
        into.dot += input == nullptr ? not_a_number() : dot(input + index, result.data() + index, 1);
    }
    COLLPROBE_HD static void merge(partial& into, const partial& next) noexcept
    {
        inner::merge(into.result, next.result);
        into.dot += next.dot;
    }
    COLLPROBE_HD static result_record finish(const partial& all) noexcept
    {
        const statistics summary = inner::finish(all.result);
        return {summary.digest, summary.sum_of_squares, all.dot, summary.scale, 0};
    }
};

} // namespace collprobe::detail
