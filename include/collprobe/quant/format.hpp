// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include <collprobe/core/config.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/record/quantisation.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// To the nearest code, ties to even; or to one of the two neighbours, with the probabilities that make the
/// mean right.
enum class code_rounding : std::uint8_t { nearest, stochastic };

/// Whether every rank keeps the errors of its roundings to codes and adds them to the next elements, at 4 bytes an
/// element.
enum class error_feedback : std::uint8_t { none, all };

constexpr const char* name(code_rounding rounding) noexcept
{
    return rounding == code_rounding::nearest ? "nearest" : "stochastic";
}
constexpr const char* name(error_feedback kept) noexcept { return kept == error_feedback::none ? "none" : "all"; }

/// How elements become codes. Equal on all ranks. The elements of a block share a scale, a bfloat16, by which the
/// largest magnitude becomes the largest code; the scale is rounded up, so that no code is clipped.
struct quantisation {
    code_format format = code_format::int8;
    std::uint32_t block = 128; ///< elements that share a scale: a power of two, 32 to 1024
    code_rounding rounding = code_rounding::nearest;
    std::uint64_t seed = 0x13198a2e03707344u; ///< of stochastic rounding and of the rotation's signs
    /// Rotates each block by a Hadamard matrix of at most 128 rows and random signs, which makes heavy tails
    /// Gaussian. An element that is not finite then makes the elements of its rotation NaN.
    bool rotate = false;
    error_feedback feedback = error_feedback::none;
};

COLLPROBE_HD constexpr bool is_integer(code_format format) noexcept { return format != code_format::e4m3; }
COLLPROBE_HD constexpr int bits_of(code_format format) noexcept { return format == code_format::int4 ? 4 : 8; }

/// The largest magnitude of a code.
COLLPROBE_HD constexpr float largest_code(code_format format) noexcept
{
    return format == code_format::int8 ? 127.0f : format == code_format::int4 ? 7.0f : 448.0f;
}

/// \throws error `invalid_argument`, which names the member, for a quantisation that does not exist.
inline void require_valid(const quantisation& how, const char* call, call_site where)
{
    const auto refuse = [&](const std::string& message) {
        throw error(status::invalid_argument, message, {.call = call, .where = where});
    };
    if (how.format > code_format::e4m3) refuse("format is no code_format");
    if (how.block < 32 || how.block > 1024 || (how.block & (how.block - 1)) != 0) {
        refuse("block is " + std::to_string(how.block) + ", not a power of two from 32 to 1024");
    }
    if (how.feedback != error_feedback::none && how.rounding == code_rounding::stochastic) {
        refuse(
            "feedback and stochastic rounding: feedback would carry the noise that stochastic rounding adds");
    }
}

} // namespace collprobe::inline COLLPROBE_ABI
