// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/widen.hpp>
#include <collprobe/detail/target.hpp>

/// Sixteen bytes of a buffer at a time, as a GPU thread reads them. On the host the same code reads ordinary memory:
/// a test runs the schedule of a kernel there.
namespace collprobe::inline COLLPROBE_ABI::detail {

struct words16 {
    std::uint32_t w[4];
};

template <class T>
inline constexpr unsigned per_words16 = 16 / sizeof(T);

/// Element `e` of sixteen bytes.
template <element T>
COLLPROBE_HD constexpr T element_of(const words16& words, unsigned e) noexcept
{
    using bits = typename element_traits<T>::bits_type;
    if constexpr (sizeof(T) == 8)
        return bit_cast<T>(std::uint64_t{words.w[2 * e]} | std::uint64_t{words.w[2 * e + 1]} << 32);
    else if constexpr (sizeof(T) == 4) return bit_cast<T>(words.w[e]);
    else if constexpr (sizeof(T) == 2) return bit_cast<T>(static_cast<bits>(words.w[e / 2] >> (16 * (e % 2))));
    else return bit_cast<T>(static_cast<bits>(words.w[e / 4] >> (8 * (e % 4))));
}

/// Precondition: `from` is aligned to 16 bytes, and no thread writes the bytes while the kernel runs.
COLLPROBE_HD inline words16 load_aligned(const unsigned char* from) noexcept
{
    words16 words;
    load_constant_16(words.w, from);
    return words;
}

/// The bytes [begin, end) of sixteen; the others are zero and not read. One byte at a time: this is rare, so the code
/// is small and uses few registers.
COLLPROBE_HD inline words16 load_some(const unsigned char* from, unsigned begin, unsigned end) noexcept
{
    std::uint64_t low = 0;
    std::uint64_t high = 0;
    COLLPROBE_NO_UNROLL
    for (unsigned i = 16; i > 0; --i) {
        high = high << 8 | low >> 56;
        low = low << 8 | (i > begin && i <= end ? from[i - 1] : 0u);
    }
    return {{static_cast<std::uint32_t>(low), static_cast<std::uint32_t>(low >> 32), static_cast<std::uint32_t>(high),
        static_cast<std::uint32_t>(high >> 32)}};
}

/// A buffer as bytes.
struct byte_source {
    const unsigned char* data = nullptr;
    std::uint64_t bytes = 0;

    COLLPROBE_HD unsigned misalignment() const noexcept
    {
        return static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(data) % 16);
    }

    /// Loads `n` runs of sixteen bytes: those at `offset`, a multiple of 16, and at each `stride` further; all are in
    /// the buffer. In a buffer that is not aligned to 16 bytes each run is shifted together from the two aligned runs
    /// that hold it. If one of these reaches beyond the buffer, the bytes are read one by one.
    template <unsigned n>
    COLLPROBE_HD void load(words16 (&to)[n], std::uint64_t offset, unsigned stride = 0) const noexcept
    {
        if (misalignment() == 0) {
            COLLPROBE_UNROLL
            for (unsigned k = 0; k < n; ++k) to[k] = load_aligned(data + offset + k * stride);
        } else {
            // This is rarer, so the code is small: the runs move up through the places.
            COLLPROBE_NO_UNROLL
            for (unsigned k = 0; k < n; ++k) {
                COLLPROBE_UNROLL
                for (unsigned place = 0; place + 1 < n; ++place) to[place] = to[place + 1];
                to[n - 1] = load_shifted(offset + k * stride);
            }
        }
    }

private:
    COLLPROBE_HD words16 load_shifted(std::uint64_t offset) const noexcept
    {
        const unsigned shift = misalignment();
        if (offset == 0 || offset + 32 - shift > bytes) return load_some(data + offset, 0, 16);
        const words16 low = load_aligned(data + offset - shift);
        const words16 high = load_aligned(data + offset - shift + 16);
        std::uint32_t run[8];
        for (unsigned i = 0; i < 4; ++i) run[i] = low.w[i];
        for (unsigned i = 0; i < 4; ++i) run[4 + i] = high.w[i];
        if ((shift & 8) != 0)
            for (unsigned i = 0; i < 6; ++i) run[i] = run[i + 2];
        if ((shift & 4) != 0)
            for (unsigned i = 0; i < 5; ++i) run[i] = run[i + 1];
        const unsigned bits = shift % 4 * 8;
        words16 words;
        for (unsigned i = 0; i < 4; ++i)
            words.w[i] = static_cast<std::uint32_t>((std::uint64_t{run[i + 1]} << 32 | run[i]) >> bits);
        return words;
    }
};

} // namespace collprobe::detail
