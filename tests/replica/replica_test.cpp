// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include <collprobe/replica/replica.hpp>

#include "support/element_types.hpp"

namespace collprobe::testing::replica_test {

TEST_CASE("a replica knows its elements, bytes and type")
{
    std::vector<bfloat16> weights(3);
    std::vector<std::int64_t> steps(1);
    const std::vector<replica> all{view(weights), view(steps)};
    CHECK(all[0].type == element_type::bfloat16);
    CHECK(all[0].size_bytes() == 6);
    CHECK(all[1].bytes().count() == 8);
    CHECK(all[1].as<std::int64_t>().data() == steps.data());
}

TEST_CASE("the elements of a replica are the view that it was made of")
{
    testing::for_all_element_types([]<class T>(T) {
        std::vector<T> data(5);
        const replica of{view<T>(data)};
        CHECK(of.type == element_traits<T>::type);
        CHECK(of.as<T>().data() == data.data());
        CHECK(of.as<T>().count() == 5);
    });
}

TEST_CASE("a replica of nothing is empty")
{
    const replica none;
    CHECK(none.count == 0);
    CHECK(none.size_bytes() == 0);
}

} // namespace collprobe::testing::replica_test
