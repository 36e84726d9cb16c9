// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Parts of a tensor in a GPU's memory have the digests of the host, bit for bit.
#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <type_traits>
#include <vector>

#include <collprobe/collprobe.cuh>
#include <collprobe/scan/tensor_part.hpp>

#include "scan/device_copy.cuh"
#include "support/needs_gpu.hpp"

using namespace collprobe;
using gpu = collprobe::cuda::device;

namespace {

bool same(const detail::digest_state& a, const detail::digest_state& b)
{
    return a.first == b.first && a.second == b.second && a.bytes == b.bytes;
}

template <class T>
void check_part(const tensor_shape& shape, const tensor_box& box, const tensor_shape& strides, std::uint64_t count)
{
    std::mt19937_64 random(count);
    std::vector<T> host(count);
    for (T& each : host) {
        const std::uint64_t bits = random();
        std::memcpy(&each, &bits, sizeof(T));
    }
    std::vector<element_cast> casts;
    if (std::is_same_v<T, float>) {
        casts = {{element_type::bfloat16, cast_rounding::nearest_even}, {element_type::bfloat16, cast_rounding::toward_zero},
            {element_type::float16, cast_rounding::nearest_even}, {element_type::float16, cast_rounding::toward_zero}};
    }
    const testing::device_copy<T> copy(host, sizeof(T));
    const collprobe::cuda::stream stream;
    const part_digests found
        = digest_part_on<gpu>(stream, {copy.elements(), shape, box, strides}, view<const element_cast>(casts));
    const part_digests expected
        = digest_part_and_casts({view<const T>(host), shape, box, strides}, view<const element_cast>(casts));
    CHECK(same(found.state, expected.state));
    CHECK(same(found.content, expected.content));
    REQUIRE(found.casts.size() == expected.casts.size());
    for (std::size_t i = 0; i < casts.size(); ++i) CHECK(same(found.casts[i], expected.casts[i]));
}

template <class T>
void check_parts()
{
    check_part<T>({7, 300}, {{}, {7, 300}}, {300, 1}, 2100);
    check_part<T>({50, 61}, {{3, 5}, {40, 33}}, {70, 1}, 3000); // with gaps
    check_part<T>({50, 61}, {{3, 5}, {40, 33}}, {1, 41}, 2000); // transposed
    check_part<T>({9, 11, 13}, {{1, 2, 3}, {4, 5, 6}}, {30, 6, 1}, 120);
    check_part<T>({9, 11}, {{1, 2}, {0, 5}}, {5, 1}, 0);
}

} // namespace

TEST_CASE("a GPU gives the digests of the host for parts with gaps, transposed ones and casts")
{
    check_parts<std::uint8_t>();
    check_parts<bfloat16>();
    check_parts<float>();
    check_parts<double>();
}
