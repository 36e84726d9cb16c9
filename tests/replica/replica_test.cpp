// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <vector>

#include <collprobe/replica/replica.hpp>

#include "support/element_types.hpp"

namespace collprobe::testing::replica_test {

TEST_CASE("the elements of a replica are the view that it was made of")
{
    testing::for_all_element_types([]<class T>(T) {
        std::vector<T> data(5);
        const replica of{view<T>(data)};
        CHECK(of.type == element_traits<T>::type);
        CHECK(of.as<T>().data() == data.data());
        CHECK(of.as<T>().count() == 5);
        CHECK(of.size_bytes() == 5 * sizeof(T));
        CHECK(of.bytes().count() == 5 * sizeof(T));
    });
}

TEST_CASE("a replica of nothing is empty")
{
    const replica none;
    CHECK(none.count == 0);
    CHECK(none.size_bytes() == 0);
}

} // namespace collprobe::testing::replica_test
