// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/core/widen.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/detail/reduce_blocks.hpp>
#include <collprobe/detail/target.hpp>
#include <collprobe/scan/detail/merge_statistics.hpp>
#include <collprobe/scan/detail/scan_block.hpp>
#include <collprobe/scan/digest.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// Reduces a buffer to its `statistics`, in one read, by blocks of a fixed length.
///
/// A reducer for the devices' `reduce`: `run` takes in one block, `merge` joins the partials of two disjoint parts,
/// `finish` gives the result. With the fixed tree of `detail::reduce_block_range` the bits of the result depend on
/// the buffer alone, not on threads or processor: each element of a block has its fixed lane in each sum, in AVX2,
/// AVX-512 and portable code. `add`, one element at a time, gives the same counts, extrema and digest; its moments
/// round differently. All moments do so if the including file is compiled with -ffast-math.
///
/// Accuracy, relative: `l1` and `sum_of_squares` 1e-12; `mean` 1e-12 of the mean magnitude; `m2` 1e-12 while |mean|
/// is below some 100 standard deviations. Beyond that, or with a subnormal mean, the error of `m2` grows like 2^-53
/// |mean| / deviation, because two blocks' rounded means are subtracted. 64-bit integers beyond 2^53 are first
/// rounded to double. Doubles whose squares would overflow or underflow are scaled (`statistics::scale`).
///
/// Cost: one read of memory; no allocation. A block whose mean is large against its deviation is read again from the
/// cache. A block with NaN or infinity is read again by scalar code.
template <element T, bool with_digest>
struct statistics_reducer {
    /// Elements of a block. A block is long enough to make the work per block cheap, and short enough for the
    /// second-level cache. Its bytes are a multiple of 128, as the digest's fast path requires, and counters in the
    /// lanes of a vector do not overflow.
    static constexpr std::uint64_t block = sizeof(T) == 1 ? 4096 : 16384;

    struct partial {
        statistics value;
        detail::digest_state digest;
    };
    using has_own_kernel = void; // on a GPU: scan/cuda/statistics.cuh

    view<const T> input;

    COLLPROBE_HD static constexpr partial identity() noexcept
    {
        partial result;
        result.value.type = element_traits<T>::type;
        result.value.has_digest = with_digest ? 1 : 0;
        return result;
    }

    /// Takes in the `count` elements from `first` on. For reproducible bits, give it whole fixed blocks (`first` a
    /// multiple of `block`, `count` at most `block`). Other parts of at most `block` elements are valid too.
    /// Preconditions: host only. `into` is `identity()` or covers other elements.
    /// Cost: with a digest, a part that is no fixed block is read a second time from the cache.
    void run(partial& into, std::uint64_t first, std::uint64_t count) const noexcept
    {
        run(into, first, count, detail::best_isa());
    }

    /// The same on a path that this machine supports: for tests and benchmarks.
    void run(partial& into, std::uint64_t first, std::uint64_t count, detail::isa path) const noexcept
    {
        if (count == 0) return;
        const detail::gradual_underflow guard;
        if (into.value.count == 0) return run_block(into, first, count, path);
        partial next = identity();
        run_block(next, first, count, path);
        merge(into, next);
    }

    /// Takes in the element at `index`.
    COLLPROBE_HD void add(partial& into, std::uint64_t index) const noexcept
    {
        const T element = input[index];
        partial next = identity();
        if constexpr (with_digest) next.digest.add(index * sizeof(T), element);
        statistics& s = next.value;
        s.count = 1;
        if (!is_finite(element)) {
            if (is_nan(element)) s.nan = 1;
            else if (detail::is_negative(element)) s.negative_infinity = 1;
            else s.positive_infinity = 1;
            s.first_nonfinite = index;
        } else {
            s.zero = detail::is_zero(element) ? 1 : 0;
            s.subnormal = detail::is_subnormal(element) ? 1 : 0;
            const double x = s.zero != 0 ? 0 : detail::widen(element);
            s.minimum = s.maximum = s.mean = x;
            s.l1 = s.absolute_maximum = detail::absolute(x);
            double scaled = s.l1;
            if constexpr (std::is_same_v<T, double>) {
                s.scale = detail::scale_for(s.absolute_maximum);
                int exponent = -s.scale;
                if (s.subnormal != 0) { // the caller's build may flush it to zero: an integer times 2^-1074 instead
                    scaled = static_cast<double>(detail::bit_cast<std::uint64_t>(scaled));
                    exponent -= 1074;
                }
                scaled *= detail::power_of_two(exponent);
            }
            s.sum_of_squares = scaled * scaled;
        }
        merge(into, next);
    }

    /// Joins the partial of other elements of the same buffer.
    COLLPROBE_HD static void merge(partial& into, const partial& next) noexcept
    {
        into.digest.merge(next.digest);
        if constexpr (!detail::on_device) {
            if (detail::gradual_underflow::flushing())
                return detail::merge_statistics_guarded<T>(into.value, next.value);
        }
        detail::merge_statistics<T>(into.value, next.value);
    }

    /// The result. A device kernel and the host finish a partial alike.
    COLLPROBE_HD static constexpr statistics finish(const partial& from) noexcept
    {
        statistics result = from.value;
        result.digest = with_digest ? from.digest.finish() : 0;
        return result;
    }

private:
    // Not inlined, so that the arithmetic stays between the two writes of the floating-point mode.
    [[gnu::noinline]] void run_block(
        partial& into, std::uint64_t first, std::uint64_t count, detail::isa path) const noexcept
    {
        const T* const data = input.data() + first;
        detail::block_sums sums;
        // One instance of the kernel: where it cannot compute the digest, its digest is dropped.
        const bool digest_in_kernel = first * sizeof(T) % 128 == 0;
        detail::digest_state dropped;
        if (with_digest && !digest_in_kernel)
            into.digest.merge(detail::digest_bytes(path, reinterpret_cast<const unsigned char*>(data),
                count * sizeof(T), first * sizeof(T)));
        detail::scan_block<T, with_digest>(path, data, count, sums, digest_in_kernel ? into.digest : dropped,
            digest_in_kernel ? first * sizeof(T) : 0);
        detail::finish_block(path, data, first, count, sums, into.value);
    }
};

/// The `statistics` of a buffer from one read, computed on the calling thread.
///
/// Shapes: `input`: elements in host memory, aligned for T; a count of 0 is legal.
/// \throws error `invalid_argument` on a null pointer with a count above 0 and on a misaligned one.
/// Accuracy, cost and reproducibility: see `statistics_reducer`.
/// Source: for the merge of moments, Chan, Golub and LeVeque (1979).
template <element T>
statistics compute_statistics(
    view<const T> input, bool with_digest = true, call_site where = call_site::current())
{
    detail::require_data(input, "compute_statistics", where);
    detail::require_aligned(input, "compute_statistics", where);
    if (with_digest) {
        const statistics_reducer<T, true> reducer{input};
        return reducer.finish(detail::reduce_blocks(reducer, input.count()));
    }
    const statistics_reducer<T, false> reducer{input};
    return reducer.finish(detail::reduce_blocks(reducer, input.count()));
}

} // namespace collprobe
