// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <collprobe/device/host/device.hpp>
#include <collprobe/quant/detail/block.hpp>
#include <collprobe/quant/slice_codec.hpp>

#include "support/checks.hpp"

namespace collprobe::testing::slice_codec_test {

using std::uint64_t;

namespace {

using device = host::device;

/// Of very different magnitudes.
template <class T>
std::vector<T> weights(uint64_t count)
{
    std::mt19937_64 random(count + 1);
    std::vector<T> made(count);
    for (T& each : made) {
        const float fraction = static_cast<float>(random() % 2000) / 1000 - 1;
        each = static_cast<T>(std::ldexp(fraction, static_cast<int>(random() % 12) - 6));
    }
    return made;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b)
{
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

/// What the blocks of all slices decode to, each by itself.
template <class T, class Source>
std::vector<T> decoded_blocks(uint64_t slices, const std::vector<Source>& from, const quantisation& how)
{
    const detail::gradual_underflow as_ieee_has_it;
    const detail::codec codec = detail::codec::of<T>(how);
    const uint64_t slot = (from.size() + slices - 1) / slices;
    std::vector<T> all;
    while (all.size() < from.size()) {
        const uint64_t left = std::min<uint64_t>(slot - all.size() % slot, from.size() - all.size());
        const auto count = static_cast<std::uint32_t>(std::min<uint64_t>(left, how.block));
        std::vector<float> block(how.block), decoded(how.block);
        for (std::uint32_t i = 0; i < count; ++i) block[i] = static_cast<float>(from[all.size() + i]);
        std::vector<unsigned char> codes(codec.code_bytes());
        detail::encoded_block made;
        detail::encode_blocks(detail::isa::portable, codec, block.data(), count, nullptr, codes.data(), false, &made);
        detail::decode_block(detail::isa::portable, codec, made.by.scale, codes.data(), decoded.data());
        for (std::uint32_t i = 0; i < count; ++i) all.push_back(static_cast<T>(decoded[i]));
    }
    return all;
}

/// What all ranks' shards decode to: each encoded by itself.
template <class T, class Source>
struct gathered {
    std::vector<T> all;
    std::vector<quantisation_errors> errors; ///< by slice
    uint64_t nonfinite = 0;

    gathered(uint64_t slices, const std::vector<Source>& from, const quantisation& how, uint64_t draw = 1)
        : all(from.size(), T(-77.0f)), errors(slices)
    {
        const uint64_t slot = (from.size() + slices - 1) / slices;
        const slice_codec<T> codec(how, slices, slot, from.size());
        const host::stream on;
        device::workspace scratch;
        std::vector<unsigned char> messages(slices * codec.message_bytes(), 0xa5);
        for (uint64_t slice = 0; slice < slices; ++slice) {
            const uint64_t first = std::min<uint64_t>(slice * slot, from.size());
            const view<const Source> shard = view<const Source>(from).part(first, std::min(slot, from.size() - first));
            codec.template encode<device>(on, shard, messages.data() + slice * codec.message_bytes(),
                static_cast<int>(slice), draw, &errors[slice], scratch);
        }
        codec.template decode<device>(on, messages.data(), view<T>(all), &nonfinite, scratch);
        on.synchronize(soon_ms);
    }
};

template <class T, class Source>
void check_all(const quantisation& how)
{
    for (const uint64_t slices : {1u, 2u, 3u}) {
        for (const uint64_t count : {0u, 1u, 2u, 5u, 31u, 129u, 384u, 1001u}) {
            CAPTURE(slices);
            CAPTURE(count);
            const std::vector<Source> from = weights<Source>(count);
            CHECK(same_bits(gathered<T, Source>(slices, from, how).all, decoded_blocks<T>(slices, from, how)));
        }
    }
}

} // namespace

TEST_CASE("slices decode to what their blocks do, whatever the types and the sizes")
{
    check_all<bfloat16, float>({});
    check_all<float, float>({.block = 32});
    check_all<float16, float>({.format = code_format::int4, .block = 64});
    check_all<bfloat16, bfloat16>({.format = code_format::int4});
    check_all<float, float16>({.block = 256});
}

TEST_CASE("a number that the type cannot hold is NaN, nothing beside it is, and the errors are those of the codes")
{
    std::vector<float> x = weights<float>(600);
    x[307] = 1e6f;
    x[500] = -std::numeric_limits<float>::infinity();
    const gathered<float16, float> found(2, x, {.format = code_format::int4});
    double squares = 0;
    double noise = 0;
    for (uint64_t i = 0; i < 600; ++i) {
        REQUIRE(is_finite(found.all[i]) == (i != 307 && i != 500));
        if (i >= 300) continue;
        const double error = static_cast<double>(static_cast<float>(found.all[i])) - static_cast<double>(x[i]);
        squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
        noise += error * error;
    }
    CHECK(found.nonfinite == 2);
    CHECK(found.errors[0].nonfinite == 0);
    CHECK(found.errors[1].nonfinite == 2);
    CHECK(found.errors[0].squares == doctest::Approx(squares).epsilon(1e-5));
    CHECK(found.errors[0].error_squares == doctest::Approx(noise).epsilon(1e-3)); // decoded elements are rounded, too
}

TEST_CASE("stochastic codes are a function of seed, draw and slice")
{
    std::vector<float> x = weights<float>(500);
    x.insert(x.end(), x.begin(), x.begin() + 500); // both slices have the same elements
    const auto coded = [&](uint64_t seed, uint64_t draw) {
        return gathered<float, float>(2, x, {.rounding = code_rounding::stochastic, .seed = seed}, draw).all;
    };
    const std::vector<float> first = coded(1, 1);
    CHECK(same_bits(first, coded(1, 1)));
    CHECK_FALSE(same_bits(first, coded(1, 2)));
    CHECK_FALSE(same_bits(first, coded(2, 1)));
    CHECK_FALSE(std::equal(first.begin(), first.begin() + 500, first.begin() + 500));
}

TEST_CASE("a codec that does not exist is refused, and so is feedback, for which there is no place")
{
    const auto refused = [](const quantisation& how) {
        return refusal([&] { (void)slice_codec<float>(how, 2, 100, 200); });
    };
    CHECK(contains(refused({.block = 48}), "block is 48"));
    CHECK(contains(refused({.feedback = error_feedback::all}), "feedback is not none"));
    CHECK(refused({}) == "accepted"); // the control
}

} // namespace collprobe::testing::slice_codec_test
