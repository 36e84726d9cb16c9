// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Weights handed over: 8 ranks of a trainer have rows of a matrix, 16 ranks of an engine have fewer rows, in bfloat16.
// The receipts agree, until one bit of the engine flips.
#include <cstdint>
#include <cstdio>
#include <vector>

#include <collprobe/collprobe.hpp>
#include <collprobe/replica/receipt.hpp>

using namespace collprobe;

namespace {

constexpr std::uint64_t side = 512;
constexpr tensor_shape shape{side, side};

/// Rank r of `ranks` has every element of a slice, along rows (0) or columns (1).
template <element T>
receipt receipt_of(int ranks, int along, view<const element_cast> casts, int damaged_rank = -1)
{
    receipt all;
    local::run(ranks, [&](local::communicator& world) {
        const std::uint64_t width = side / static_cast<std::uint64_t>(ranks);
        tensor_box mine{{0, 0}, shape};
        mine.first.size[along] = width * static_cast<std::uint64_t>(world.rank());
        mine.extent.size[along] = width;
        std::vector<T> weights;
        for (std::uint64_t i = 0; i < mine.extent.elements(); ++i) {
            const std::uint64_t row = mine.first.size[0] + i / mine.extent.size[1];
            const std::uint64_t column = mine.first.size[1] + i % mine.extent.size[1];
            weights.push_back(T(static_cast<float>(row * side + column) * 0.001f));
        }
        if constexpr (sizeof(T) == 2) weights[1234].bits ^= static_cast<std::uint16_t>(world.rank() == damaged_rank);

        receipt own(1000, world.rank()); // of step 1000
        own.add("h.0.weight", {view(weights), shape, mine}, casts);
        host::stream stream;
        const receipt merged = gather_receipts(world, own, stream);
        if (world.rank() == 0) all = merged;
    });
    return all;
}

void show(const char* who, const receipt& found, const receipt& expected)
{
    const auto digest = static_cast<unsigned long long>(found.tensors()[0].whole().finish());
    std::printf("%s: %016llx of %zu parts\n", who, digest, found.tensors()[0].parts.size());
    for (const receipt_finding& each : verify(expected, found)) std::printf("    %s\n", describe(each).c_str());
}

} // namespace

int main()
{
    const element_cast to_bfloat16{element_type::bfloat16, cast_rounding::nearest_even};
    const receipt trainer = receipt_of<float>(8, 0, {&to_bfloat16, 1});
    show("trainer, 8 ranks", trainer, trainer);
    show("trainer, 16 ranks", receipt_of<float>(16, 1, {&to_bfloat16, 1}), trainer);
    show("engine, 16 ranks", receipt_of<bfloat16>(16, 0, {}), trainer);
    show("engine, damaged", receipt_of<bfloat16>(16, 0, {}, 11), trainer);
}
