// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// The same 16 micro-batch gradients on 2, 4, 8 and 16 ranks: under the contract the average has the same bits.
#include <cstdio>
#include <vector>

#include <collprobe/collprobe.hpp>
#include <collprobe/reduce.hpp>

using namespace collprobe;

namespace {

constexpr unsigned micro_batches = 16;
constexpr std::size_t count = 1000;

float term(unsigned micro_batch, std::size_t index)
{
    const auto mixed = (static_cast<unsigned>(index) * 2654435761u) ^ (micro_batch * 40503u);
    return static_cast<float>(mixed % 100'003u) / 997.0f - 50.0f;
}

} // namespace

int main()
{
    for (const int ranks : {2, 4, 8, 16}) {
        local::run(ranks, [&](local::communicator& world) {
            // A leaf for each micro-batch of this rank, one behind the other.
            const unsigned leaves = micro_batches / static_cast<unsigned>(ranks);
            std::vector<float> terms, native(count), average(count);
            for (unsigned leaf = 0; leaf < leaves; ++leaf) {
                for (std::size_t i = 0; i < count; ++i) terms.push_back(term(static_cast<unsigned>(world.rank()) * leaves + leaf, i));
            }
            std::vector<float> sum(count); // what a trainer accumulates, in the order of its micro-batches
            for (std::size_t i = 0; i < terms.size(); ++i) sum[i % count] += terms[i] / static_cast<float>(leaves);

            host::stream stream;
            world.all_reduce(sum, view(native), reduction::average, stream);
            reproducible exact{world, contract<reproducibility::correctly_rounded>{}};
            exact.all_reduce(terms, view(average), reduction::average, stream, {.leaves = leaves});
            stream.synchronize();
            if (world.rank() != 0) return;
            std::printf("%2d ranks: native %016llx, correctly rounded %016llx\n", ranks,
                static_cast<unsigned long long>(digest(view<const float>(native))),
                static_cast<unsigned long long>(digest(view<const float>(average))));
        });
    }
}
