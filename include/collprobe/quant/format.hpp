// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include <collprobe/core/config.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/record/quantisation.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// The type of a block's scale. It is rounded up, so that no code is clipped. A product of a code and a
/// bfloat16 scale is exact in float.
enum class scale_format : std::uint8_t { bfloat16, float32 };

/// To the nearest code, ties to even; or to one of the two neighbours, with the probabilities that make the
/// mean right.
enum class code_rounding : std::uint8_t { nearest, stochastic };

/// Who keeps the error of a rounding and adds it to the next one: no rank; the owner of a slice, for the
/// rounding of the sum; or every rank, for its own gradient too, at 4 bytes an element.
enum class error_feedback : std::uint8_t { none, owner, all };

constexpr const char* name(scale_format scale) noexcept
{
    return scale == scale_format::bfloat16 ? "bfloat16" : "float32";
}
constexpr const char* name(code_rounding rounding) noexcept
{
    return rounding == code_rounding::nearest ? "nearest" : "stochastic";
}
constexpr const char* name(error_feedback kept) noexcept
{
    switch (kept) {
    case error_feedback::none: return "none";
    case error_feedback::owner: return "owner";
    case error_feedback::all: return "all";
    }
    return "unknown";
}

/// How elements become codes. Equal on all ranks.
struct quantisation {
    code_format format = code_format::int8;
    std::uint32_t block = 128; ///< elements that share a scale: a power of two, 32 to 4096
    scaling rule = scaling::symmetric;
    scale_format scale = scale_format::bfloat16;
    code_rounding rounding = code_rounding::nearest;
    std::uint64_t seed = 0x13198a2e03707344u; ///< of stochastic rounding and of the rotation's signs
    /// Rotates each block by a Hadamard matrix of at most 128 rows and random signs, which makes heavy tails
    /// Gaussian. An element that is not finite then makes the elements of its rotation NaN.
    bool rotate = false;
    error_feedback feedback = error_feedback::none;
};

COLLPROBE_HD constexpr bool is_integer(code_format format) noexcept
{
    return format == code_format::int8 || format == code_format::int4;
}
COLLPROBE_HD constexpr int bits_of(code_format format) noexcept { return format == code_format::int4 ? 4 : 8; }

/// The largest magnitude of a code that `symmetric` uses.
COLLPROBE_HD constexpr float largest_code(code_format format) noexcept
{
    switch (format) {
    case code_format::int8: return 127;
    case code_format::int4: return 7;
    case code_format::e4m3: return 448;
    case code_format::e5m2: return 57344;
    }
    return 0;
}

/// \throws error `invalid_argument`, which names the member, for a quantisation that does not exist.
inline void require_valid(const quantisation& how, const char* call, call_site where)
{
    const auto refuse = [&](const std::string& message) {
        throw error(status::invalid_argument, message, {.call = call, .where = where});
    };
    if (how.format > code_format::e5m2) refuse("format is no code_format");
    if (how.block < 32 || how.block > 4096 || (how.block & (how.block - 1)) != 0) {
        refuse("block is " + std::to_string(how.block) + ", not a power of two from 32 to 4096");
    }
    if (how.rule != scaling::symmetric && !is_integer(how.format)) {
        refuse(
            std::string("rule is ") + name(how.rule) + ", and " + name(how.format) + " codes are symmetric");
    }
    if (how.rule == scaling::signed_maximum && how.rounding == code_rounding::stochastic) {
        refuse("rounding is stochastic: signed_maximum clips one side, so the mean would be wrong");
    }
    if (how.feedback != error_feedback::none && how.rounding == code_rounding::stochastic) {
        refuse(
            "feedback and stochastic rounding: feedback would carry the noise that stochastic rounding adds");
    }
}

} // namespace collprobe::inline COLLPROBE_ABI
