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
    std::uint32_t nonfinite; ///< NaN and infinities, up to 2^32 - 1
    std::uint64_t first_nonfinite = no_index; ///< index of the first one, if there is any
};

/// Reads a result once: its digest, the norm of its finite elements, the others' number and first index and, if `input`
/// is not null, its dot with the input. A reducer for the devices' `reduce`. All but the dot has the bits that
/// `statistics_reducer` gives.
template <floating_element T>
struct result_reducer {
    static constexpr std::uint64_t block = statistics_reducer<T, true>::block;
    struct partial {
        digest_state digest;
        double sum_of_squares = 0; ///< times 2^(-2 scale)
        double dot = 0;
        std::int32_t scale = 0;
        bool any = false; ///< a finite element is not zero; then no other may change the scale
        std::uint64_t nonfinite = 0;
        std::uint64_t first_nonfinite = no_index;
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
        next.nonfinite = sums.nonfinite;
        if (sums.nonfinite != 0) next.first_nonfinite = first + sums.first_nonfinite;
        merge_partials(into, next);
    }
    static void merge(partial& into, const partial& next) noexcept
    {
        const gradual_underflow guard;
        merge_partials(into, next);
    }
    COLLPROBE_HD static result_record finish(const partial& all) noexcept
    {
        constexpr std::uint64_t most = 0xffffffff;
        return {all.digest.finish(), all.sum_of_squares, all.dot, all.scale,
            static_cast<std::uint32_t>(all.nonfinite < most ? all.nonfinite : most), all.first_nonfinite};
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
        into.nonfinite += next.nonfinite;
        if (next.first_nonfinite < into.first_nonfinite) into.first_nonfinite = next.first_nonfinite;
    }
};

} // namespace collprobe::detail
