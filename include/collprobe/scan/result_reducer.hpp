// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/scan/detail/merge_statistics.hpp>
#include <collprobe/scan/detail/scan_result.hpp>
#include <collprobe/scan/digest.hpp>
#include <collprobe/scan/statistics.hpp>
#include <collprobe/simd/gradual_underflow.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// The outcome of one read of a collective's result, together with the local input if that still exists.
struct result_record {
    std::uint64_t digest;
    double sum_of_squares; ///< times 2^(-2 scale)
    double dot; ///< of input and result, element by element; NaN by bits if the input was overwritten
    std::int32_t scale;
    std::int32_t padding;
};

/// Reads a result once: its digest, its norm and, if `input` is not null, its dot with the input. A reducer for the
/// devices' `reduce`. The norm has the bits that `statistics_reducer` gives.
template <floating_element T>
struct result_reducer {
    static constexpr std::uint64_t block = statistics_reducer<T, true>::block;
    struct partial {
        digest_state digest;
        double sum_of_squares = 0; ///< times 2^(-2 scale)
        double dot = 0;
        std::int32_t scale = 0;
        bool any = false; ///< a finite element is not zero; then no other may change the scale
    };
    using has_own_kernel = void; // on a GPU: scan/cuda/result_reducer.cuh

    view<const T> result;
    const T* input = nullptr;

    COLLPROBE_HD static constexpr partial identity() noexcept { return {}; }
    /// Takes in a block: `first` is a multiple of `block` and `count` at most `block`. Host only.
    void run(partial& into, std::uint64_t first, std::uint64_t count) const noexcept
    {
        run(into, first, count, best_isa());
    }
    /// The same on a path that this machine supports: for tests.
    void run(partial& into, std::uint64_t first, std::uint64_t count, isa path) const noexcept
    {
        const gradual_underflow guard;
        partial next;
        const auto sums = result_block::of(path, result.data() + first, input == nullptr ? nullptr : input + first,
            count, next.digest, first * sizeof(T));
        next.sum_of_squares = sums.squares;
        next.dot = input == nullptr ? not_a_number() : sums.dot;
        next.scale = sums.scale;
        next.any = sums.any;
        merge_partials(into, next);
    }
    static void merge(partial& into, const partial& next) noexcept
    {
        const gradual_underflow guard;
        merge_partials(into, next);
    }
    COLLPROBE_HD static result_record finish(const partial& all) noexcept
    {
        return {all.digest.finish(), all.sum_of_squares, all.dot, all.scale, 0};
    }

private:
    /// Not inlined: see `gradual_underflow`.
    [[gnu::noinline]] static void merge_partials(partial& into, const partial& next) noexcept
    {
        into.digest.merge(next.digest);
        into.dot += next.dot;
        const bool keeps = into.any && (!next.any || into.scale > next.scale);
        const std::int32_t scale = keeps ? into.scale : next.scale;
        into.sum_of_squares = rescaled(into.sum_of_squares, into.scale, scale)
            + rescaled(next.sum_of_squares, next.scale, scale);
        into.scale = scale;
        into.any = into.any || next.any;
    }
};

} // namespace collprobe::detail
