// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include <collprobe/core/element.hpp>
#include <collprobe/quant/format.hpp>

/// Weights, and what codes make of them: by the definition of a code in quant/README.md, one element after the other.
namespace collprobe::testing {

/// Element `index` of all weights in a generation, of very different magnitudes.
inline float weight(std::uint64_t index, std::uint64_t generation)
{
    std::mt19937_64 random(index * 1000 + generation);
    const float fraction = static_cast<float>(random() % 2000) / 1000 - 1;
    return std::ldexp(fraction, static_cast<int>(random() % 12) - 6);
}
template <class T>
std::vector<T> weights_of(std::uint64_t first, std::uint64_t count, std::uint64_t generation)
{
    std::vector<T> made(count);
    for (std::uint64_t i = 0; i < count; ++i) made[i] = static_cast<T>(weight(first + i, generation));
    return made;
}

/// The elements of one block, as symmetric codes with a bfloat16 scale that are rounded to nearest decode to.
template <class T>
void code_block(std::vector<float>& block, const quantisation& how)
{
    const double most_code = how.format == code_format::int8 ? 127 : 7;
    double largest = 0;
    for (const float x : block) {
        if (std::isfinite(x)) largest = std::max(largest, std::abs(static_cast<double>(x)));
    }
    const double wanted = std::max(largest / most_code, 0x1p-126);
    int exponent = 0;
    const double mantissa = std::frexp(wanted, &exponent);
    const auto scale = static_cast<float>(std::ldexp(std::ceil(std::ldexp(mantissa, 8)), exponent - 8));
    const float inverse = 1.0f / scale;
    for (float& x : block) {
        const float product = x * inverse;
        const double code = std::clamp(std::nearbyint(static_cast<double>(product)), -most_code, most_code);
        x = static_cast<float>(code * static_cast<double>(scale)) + 0.0f;
    }
}

/// All ranks' weights, as each rank gathers them.
template <class T, class Source>
std::vector<T> coded_weights(std::uint64_t count, std::uint64_t ranks, std::uint64_t generation, const quantisation& how)
{
    const std::uint64_t slot = (count + ranks - 1) / ranks;
    std::vector<T> all(count);
    for (std::uint64_t first = 0; first < count; first += slot) {
        for (std::uint64_t at = first; at < std::min(first + slot, count); at += how.block) {
            const std::uint64_t end = std::min({at + how.block, first + slot, count});
            std::vector<float> block;
            for (std::uint64_t i = at; i < end; ++i)
                block.push_back(static_cast<float>(static_cast<Source>(weight(i, generation))));
            code_block<T>(block, how);
            for (std::uint64_t i = at; i < end; ++i) all[i] = static_cast<T>(block[i - at]);
        }
    }
    return all;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b)
{
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

} // namespace collprobe::testing
