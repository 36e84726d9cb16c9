// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
#include <initializer_list>

#include <collprobe/reduce/detail/exchange_plan.hpp>

using collprobe::detail::exchange_plan;

TEST_CASE("pieces cover a buffer without gaps, fit the room, and their parts are whole words")
{
    for (const std::uint64_t ranks : {1u, 2u, 3u, 8u, 33u}) {
        for (const std::uint64_t unit : {2u, 4u, 8u}) {
            for (const std::uint64_t room : {ranks * unit, ranks * unit + 1, 5 * ranks * unit, std::uint64_t{1} << 20}) {
                for (const std::uint64_t count : {std::uint64_t{0}, std::uint64_t{1}, unit, ranks * unit - 1, ranks * unit,
                         ranks * unit + 1, 3 * ranks * unit + 5, std::uint64_t{70'001}}) {
                    CAPTURE(ranks);
                    CAPTURE(unit);
                    CAPTURE(room);
                    CAPTURE(count);
                    const exchange_plan plan(count, ranks, unit, room);
                    std::uint64_t covered = 0;
                    std::uint64_t padding = 0;
                    exchange_plan::piece piece = plan.next({});
                    for (; piece.count != 0; piece = plan.next(piece)) {
                        REQUIRE(piece.first == covered);
                        REQUIRE(piece.part % unit == 0);
                        REQUIRE(piece.part * ranks <= room);
                        REQUIRE(piece.count <= piece.part * ranks);
                        REQUIRE((piece.padded || piece.count == piece.part * ranks));
                        covered += piece.count;
                        padding += piece.part * ranks - piece.count;
                    }
                    REQUIRE(covered == count);
                    REQUIRE(padding < ranks * unit); // less than a word a rank travels for nothing
                    if (count % (ranks * unit) == 0) REQUIRE(padding == 0);
                }
            }
        }
    }
}
