// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <array>
#include <span>
#include <type_traits>
#include <vector>

#include <collprobe/core/view.hpp>

namespace collprobe::testing::view_test {

using collprobe::view;

TEST_CASE("a view comes from any contiguous container and adds const, never drops it")
{
    std::vector<float> vector(3);
    const std::vector<float> constant(3);
    std::array<float, 4> array{};
    CHECK(view<float>(vector).count() == 3);
    CHECK(view<const float>(vector).count() == 3);
    CHECK(view<const float>(constant).count() == 3);
    CHECK(view<float>(array).count() == 4);
    CHECK(view<float>(std::span<float>(vector).subspan(1)).count() == 2);
    CHECK(view<const float>(view<float>(vector)).data() == vector.data());
    static_assert(std::is_same_v<decltype(view(vector)), view<float>>);
    static_assert(std::is_same_v<decltype(view(constant)), view<const float>>);
    static_assert(!std::is_constructible_v<view<float>, const std::vector<float>&>);
    static_assert(!std::is_constructible_v<view<float>, view<const float>>);
    static_assert(!std::is_constructible_v<view<float>, std::vector<double>&>);
    static_assert(!std::is_constructible_v<view<float>, std::vector<int>&>);
    static_assert(std::is_trivially_copyable_v<view<float>>);
}

TEST_CASE("a view tells whether its elements lie where their type may")
{
    alignas(8) unsigned char bytes[32] = {};
    const auto at = [&](std::size_t offset) { return reinterpret_cast<float*>(bytes + offset); };
    CHECK(view<float>(at(0), 2).aligned());
    CHECK(view<float>(at(4), 2).aligned());
    CHECK_FALSE(view<float>(at(1), 2).aligned());
    CHECK_FALSE(view<const float>(at(6), 2).aligned());
    CHECK(view<unsigned char>(bytes + 3, 2).aligned());
    CHECK(view<float>(at(1), 0).aligned()); // there is no element that could lie wrong
    CHECK(view<float>().aligned());
}

} // namespace collprobe::testing::view_test
