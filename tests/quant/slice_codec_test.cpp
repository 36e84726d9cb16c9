// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include <collprobe/device/host/device.hpp>
#include <collprobe/quant/slice_codec.hpp>

#include "quant/coded_weights.hpp"
#include "support/checks.hpp"

namespace collprobe::testing::slice_codec_test {

using std::uint64_t;

namespace {

using device = host::device;

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
            const gathered<T, Source> found(slices, weights_of<Source>(0, count, 3), how);
            CHECK(same_bits(found.all, coded_weights<T, Source>(count, slices, 3, how)));
        }
    }
}

} // namespace

TEST_CASE("slices decode to what the definition of a code says, whatever the types and the sizes")
{
    check_all<bfloat16, float>({});
    check_all<float, float>({.block = 32});
    check_all<float16, float>({.format = code_format::int4, .block = 64});
    check_all<bfloat16, bfloat16>({.format = code_format::int4});
    check_all<float, float16>({.block = 256});
}

TEST_CASE("a number that the type cannot hold is NaN, nothing beside it is, and the errors are those of the codes")
{
    std::vector<float> x = weights_of<float>(0, 600, 1);
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
    std::vector<float> x = weights_of<float>(0, 500, 1);
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
