// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/record/quantisation.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/quant/detail/codec_kernels.hpp>
#include <collprobe/quant/detail/wire.hpp>
#include <collprobe/quant/format.hpp>

namespace collprobe::inline COLLPROBE_ABI {

namespace detail {

/// The element types that become codes.
template <class T>
concept has_codes = floating_element<T> && (sizeof(T) == 2 || sizeof(T) == 4);

} // namespace detail

/// Codes of the equal slices of a buffer of T, to be gathered as often as wanted: `examples/coded_weights.cpp`.
/// Slice r is message r. Blocks begin with each slice. The last slices may be shorter, or empty; their messages have
/// the size of the others. For kernels a program includes quant/cuda/codec_kernels.cuh.
template <detail::has_codes T>
class slice_codec {
public:
    /// `slice`: elements of a slice; `count`: of the buffer.
    /// \throws error `invalid_argument` for a quantisation that does not exist, and for feedback, which has no place.
    slice_codec(const quantisation& how, std::uint64_t slices, std::uint64_t slice, std::uint64_t count,
        call_site where = call_site::current())
        : how_(detail::codec::of<T>(how)), seed_(how.seed)
    {
        require_valid(how, "slice_codec", where);
        detail::require(how.feedback == error_feedback::none, "slice_codec", "feedback is not none", where);
        cut_.messages = static_cast<std::uint32_t>(slices);
        cut_.block = how.block;
        cut_.stride = slice;
        cut_.length = slice;
        cut_.count = count;
    }

    std::uint64_t message_bytes() const noexcept
    {
        return detail::wire_layout::of(how_, cut_.blocks_per_message()).bytes();
    }

    /// Enqueues the encoding of one slice, which may have another element type; a number that T cannot hold becomes
    /// NaN. `rank`, `draw`: with stochastic rounding equal numbers get equal random bits. `errors`: memory of the
    /// device for what the codes do to the numbers; 10 log10(squares / error_squares) is their SQNR in dB. `scratch`:
    /// of work that runs one after the other.
    template <class Device, detail::has_codes Source>
    void encode(typename Device::stream_ref on, view<const Source> slice, unsigned char* message, int rank,
        std::uint64_t draw, quantisation_errors* errors, typename Device::workspace& scratch) const
    {
        detail::message_slices one = cut_;
        one.messages = 1;
        one.count = slice.count();
        const detail::dither noise{seed_ ^ detail::mix64(draw), nullptr, static_cast<std::uint32_t>(rank), 0};
        Device::reduce(on,
            detail::encode_reducer<Source>{{how_, noise}, one, slice.data(), message, message_bytes()},
            one.blocks(), errors, scratch);
    }
    /// Enqueues the decoding of all messages to the buffer, and writes the number of elements that are not finite.
    template <class Device>
    void decode(typename Device::stream_ref on, const unsigned char* messages, view<T> to, std::uint64_t* nonfinite,
        typename Device::workspace& scratch) const
    {
        Device::reduce(on, detail::decode_reducer<T>{how_, cut_, messages, message_bytes(), to.data()}, cut_.blocks(),
            nonfinite, scratch);
    }

private:
    detail::codec how_;
    std::uint64_t seed_;
    detail::message_slices cut_;
};

} // namespace collprobe::inline COLLPROBE_ABI
