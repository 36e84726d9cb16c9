// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include <collprobe/quant/detail/block_cursor.hpp>

using collprobe::detail::block_cursor;
using collprobe::detail::message_slices;

TEST_CASE("a cursor is at every block where the division says it is")
{
    std::mt19937 random(1);
    for (int round = 0; round < 300; ++round) {
        message_slices cut;
        cut.messages = 1 + static_cast<unsigned>(random() % 6);
        cut.slices_per_message = 1 + static_cast<unsigned>(random() % 4);
        cut.block = 32u << random() % 4;
        cut.length = 1 + random() % 700;
        cut.first = random() % 50;
        cut.stride = cut.first + cut.length + random() % 9;
        cut.count = random() % (cut.stride * cut.messages * cut.slices_per_message + 2);
        std::vector<std::uint32_t> slices(cut.messages * cut.slices_per_message);
        std::iota(slices.begin(), slices.end(), 0u);
        std::shuffle(slices.begin(), slices.end(), random);
        if (round % 2 == 0) cut.slice_of = slices.data();
        for (const unsigned step : {1u, 3u, 64u}) {
            std::uint64_t index = random() % cut.blocks();
            block_cursor cursor(cut, index);
            for (; index < cut.blocks(); index += step, cursor.advance(cut, step)) {
                const std::uint64_t place = index / cut.blocks_per_slice();
                const std::uint64_t in_part = index % cut.blocks_per_slice() * cut.block;
                const std::uint64_t slice = cut.slice_of == nullptr ? place : slices[place];
                const std::uint64_t element = slice * cut.stride + cut.first + in_part;
                const std::uint64_t end
                    = std::min({in_part + cut.block, cut.length, in_part + cut.count - std::min(cut.count, element)});
                const message_slices::place found = cursor.place(cut);
                const bool same = found.message == index / cut.blocks_per_message()
                    && found.block == index % cut.blocks_per_message() && found.element == element
                    && found.count == end - in_part && cursor.slice(cut) == place
                    && cursor.in_slice() == index % cut.blocks_per_slice();
                CHECK(same);
            }
        }
    }
}
