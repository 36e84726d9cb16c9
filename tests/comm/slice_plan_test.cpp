// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
#include <initializer_list>

#include <collprobe/comm/slice_plan.hpp>

namespace collprobe::testing::slice_plan_test {

using collprobe::detail::slice_plan;

TEST_CASE("pieces cover a buffer or each of its slices without gaps, fit the room, and pad less than a unit a slice")
{
    for (const std::uint64_t slices : {1u, 2u, 3u, 8u, 33u}) {
        for (const std::uint64_t unit : {2u, 8u, 128u}) {
            for (const std::uint64_t most : {unit, 5 * unit, 10'000 * unit}) {
                for (const std::uint64_t count : {std::uint64_t{0}, std::uint64_t{1}, unit, slices * unit - 1,
                         slices * unit, slices * unit + 1, 3 * slices * unit + 5, std::uint64_t{70'001}}) {
                    CAPTURE(slices);
                    CAPTURE(unit);
                    CAPTURE(most);
                    CAPTURE(count);
                    for (const std::uint64_t stride : {std::uint64_t{0}, count}) {
                        const slice_plan plan{slices, stride, stride == 0 ? count : slices * stride, unit, most};
                        const std::uint64_t each = stride == 0 ? slices : 1; // slices that the covered elements are of
                        std::uint64_t covered = 0, before = 0;
                        bool padded = false;
                        slice_plan::piece piece = plan.next({});
                        for (; piece.count != 0; piece = plan.next(piece)) {
                            REQUIRE(!padded); // only the last one
                            REQUIRE(piece.first == covered);
                            REQUIRE(piece.before == before);
                            REQUIRE(piece.length <= most);
                            REQUIRE(piece.count == each * piece.length);
                            if (stride == 0) REQUIRE(piece.length % unit == 0);
                            covered += piece.count;
                            before += (piece.length + unit - 1) / unit * unit;
                            padded = plan.is_padded(piece);
                        }
                        REQUIRE(plan.slice_elements() == before);
                        REQUIRE(covered >= count);
                        REQUIRE(covered - count < slices * unit);
                        REQUIRE(padded == (covered > count));
                        if (stride != 0) REQUIRE(covered == stride);
                    }
                }
            }
        }
    }
}

} // namespace collprobe::testing::slice_plan_test
