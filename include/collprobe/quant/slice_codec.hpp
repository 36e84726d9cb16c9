// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/record/quantisation.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/quant/detail/codec_kernels.hpp>
#include <collprobe/quant/detail/wire.hpp>
#include <collprobe/quant/format.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// The element types that become codes.
template <class T>
concept has_codes = floating_element<T> && (sizeof(T) == 2 || sizeof(T) == 4);

/// Messages of the equal slices of a buffer of T: slice r is message r. Blocks begin with each slice. The last slices
/// may be shorter, or empty; their messages have the size of the others.
template <has_codes T>
class slice_codec {
public:
    slice_codec(const quantisation& how, std::uint64_t slices, std::uint64_t slice, std::uint64_t count) noexcept
        : how_(codec::of<T>(how)), seed_(how.seed)
    {
        cut_.messages = static_cast<std::uint32_t>(slices);
        cut_.block = how.block;
        cut_.stride = slice;
        cut_.length = slice;
        cut_.count = count;
    }

    std::uint64_t message_bytes() const noexcept { return wire_layout::of(how_, cut_.blocks_per_message()).bytes(); }

    /// Enqueues the encoding of one slice, which may have another element type; a number that T cannot hold becomes
    /// NaN. `draw`: slices that are encoded with the same number get the same random bits.
    /// `probed`: writes what it did to the numbers to `*errors`; otherwise only their count.
    template <class Device, has_codes Source>
    void encode(typename Device::stream_ref on, view<const Source> slice, unsigned char* message, std::uint32_t rank,
        std::uint64_t draw, bool probed, quantisation_errors* errors, typename Device::workspace& scratch) const
    {
        message_slices one = cut_;
        one.messages = 1;
        one.count = slice.count();
        const dither noise{seed_ ^ mix64(draw), nullptr, rank, 0};
        Device::reduce(on,
            encode_reducer<Source>{{how_, noise, nullptr, probed}, one, slice.data(), message, message_bytes()},
            one.blocks(), errors, scratch);
    }
    /// Enqueues the decoding of all messages to the buffer, and writes the number of elements that are not finite.
    template <class Device>
    void decode(typename Device::stream_ref on, const unsigned char* messages, view<T> to, std::uint64_t* nonfinite,
        typename Device::workspace& scratch) const
    {
        Device::reduce(on, decode_reducer<T>{how_, cut_, messages, message_bytes(), to.data()}, cut_.blocks(),
            nonfinite, scratch);
    }

private:
    codec how_;
    std::uint64_t seed_;
    message_slices cut_;
};

} // namespace collprobe::inline COLLPROBE_ABI::detail
