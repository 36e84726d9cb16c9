// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/widen.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/scan/detail/scan_block.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// Sums by lane over a block: of squares in the lanes of `block_sums`, of products in those of `dot`.
struct result_sums {
    double squares[8] = {};
    double products[8] = {};
};

} // namespace collprobe::detail

#include <collprobe/scan/detail/result_kernel.hpp>

/// What a block of a result in host memory is read for.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// The largest finite magnitude.
template <floating_element T>
double absolute_maximum(const T* data, std::uint64_t count) noexcept
{
    using traits = element_traits<T>;
    typename traits::bits_type most = 0;
    for (std::uint64_t i = 0; i < count; ++i) {
        const auto size = static_cast<typename traits::bits_type>(to_bits(data[i]) & ~traits::sign_mask);
        if (size > most && size < traits::smallest_nonfinite) most = size;
    }
    return widen(bit_cast<T>(most));
}

/// Digest, norm, dot and non-finite elements of a block. Not inlined: see `gradual_underflow`.
struct result_block {
    double squares = 0; ///< sum over the finite elements, times 2^(-2 scale)
    double dot = 0; ///< with `other`
    std::int32_t scale = 0;
    bool any = false; ///< a finite element is not zero
    std::uint64_t nonfinite = 0;
    std::uint64_t first_nonfinite = 0; ///< in the block; if there is any

    /// `first_byte`: offset of the block in its buffer, a multiple of 128.
    template <floating_element T>
    [[gnu::noinline]] static result_block of([[maybe_unused]] isa path, const T* data, const T* other,
        std::uint64_t count, digest_state& digest, std::uint64_t first_byte) noexcept
    {
        result_sums sums;
        std::uint64_t done = 0;
        if (other != nullptr)
            done = COLLPROBE_ON_ISA(path, 0, scan_result<T, true>(data, other, count, sums, digest, first_byte));
        else done = COLLPROBE_ON_ISA(path, 0, scan_result<T, false>(data, other, count, sums, digest, first_byte));
        digest.merge(digest_bytes(path, reinterpret_cast<const unsigned char*>(data + done), (count - done) * sizeof(T),
            first_byte + done * sizeof(T)));
        for (std::uint64_t i = done; i < count; ++i) {
            const double x = widen(data[i]);
            sums.squares[lane_position<T>(i) % 8] += opaque(x * x);
            if (other != nullptr) sums.products[i % 8] += opaque(x * widen(other[i]));
        }
        const double(&p)[8] = sums.products;
        result_block out;
        out.dot = ((p[0] + p[4]) + (p[1] + p[5])) + ((p[2] + p[6]) + (p[3] + p[7]));
        out.squares = add_lanes(sums.squares);
        out.any = true;
        // In this range no square overflowed and none that counts underflowed: the largest magnitude is in the range
        // that needs no scale.
        constexpr bool is_double = sizeof(T) == 8;
        if (is_finite(out.squares) && (!is_double || (out.squares > 0x1p-780 && out.squares < 0x1p939))) return out;
        return of_rare(data, count, out.dot);
    }

private:
    /// The block has elements that are not finite, or needs a scale, or is zero.
    template <floating_element T>
    static result_block of_rare(const T* data, std::uint64_t count, double dot) noexcept
    {
        const double most = absolute_maximum(data, count);
        result_block out{.dot = dot, .scale = sizeof(T) == 8 ? scale_for(most) : 0, .any = most != 0};
        const double factor = power_of_two(-out.scale);
        double squares[8] = {};
        for (std::uint64_t i = 0; i < count; ++i) {
            if (!is_finite(data[i])) {
                if (out.nonfinite++ == 0) out.first_nonfinite = i;
                continue;
            }
            const double x = sizeof(T) == 8 ? opaque(widen(data[i]) * factor) : widen(data[i]);
            squares[lane_position<T>(i) % 8] += opaque(x * x);
        }
        out.squares = add_lanes(squares);
        return out;
    }
};

} // namespace collprobe::detail
