// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include <collprobe/quant/detail/block_cursor.hpp>

namespace collprobe::testing::block_cursor_test {

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
        // Runs have all blocks from one on, whole ones of a slice together.
        const std::uint64_t first = random() % cut.blocks();
        const std::uint64_t count = random() % (cut.blocks() - first + 1);
        std::uint64_t next = first;
        collprobe::detail::for_each_run(cut, first, count,
            [&](std::uint64_t number, const block_cursor& cursor, const message_slices::place& run) {
                CHECK(number == next);
                CHECK(run.count <= 1024);
                std::uint64_t element = run.element;
                std::uint32_t left = run.count;
                do {
                    const message_slices::place one = block_cursor(cut, next).place(cut);
                    const bool same = one.element == element && one.count <= left
                        && cursor.slice(cut) == next / cut.blocks_per_slice()
                        && (run.count == one.count || one.count == cut.block);
                    CHECK(same);
                    element += one.count;
                    left -= one.count;
                    ++next;
                } while (left != 0);
                const bool has_room = run.count % cut.block == 0 && run.count + cut.block <= 1024;
                if (has_room && run.count != 0 && next < first + count) {
                    const block_cursor behind(cut, next);
                    const bool is_whole = behind.place(cut).count == cut.block;
                    CHECK((!is_whole || behind.slice(cut) != cursor.slice(cut)));
                }
            });
        CHECK(next == first + count);
    }
}

} // namespace collprobe::testing::block_cursor_test
