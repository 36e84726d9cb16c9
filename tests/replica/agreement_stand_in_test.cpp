// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Agreement, search and repair over NCCL and on CUDA streams: devices, groups, captures.
#include <doctest/doctest.h>

#include <cstdint>
#include <stdexcept>
#include <vector>

#include <collprobe/replica/majority_repair.hpp>

#include "step/nccl_steps.hpp"
#include "support/checks.hpp"
#include "tests/support/stand_in/stand_in_test_tools.hpp"

namespace collprobe::testing::agreement_stand_in_test {

TEST_CASE("damage is found and repaired over NCCL, on devices that are not the current one")
{
    for (const int ranks : {1, 3, 8}) {
        CAPTURE(ranks);
        CHECK_NOTHROW(run_nccl(ranks, [&](testing::nccl_owner& world) {
            const bool bad = world.rank() == 1;
            agreement check(world, {.max_buffers = 3});
            const cuda::device_guard here(world.device_ordinal());
            device_vector<float> weights(20'011);
            device_vector<std::int64_t> step(1);
            device_vector<bfloat16> layer(300);
            const cuda::stream stream;
            const auto clean = gradient(0, 1, 20'011);
            std::vector<float> mine = clean;
            if (bad) mine[17] = mine[20'000] = -3;
            weights.set(mine, stream);
            step.set({7}, stream);
            layer.set(std::vector<bfloat16>(300, bfloat16(bad ? 1.0f : 2.0f)), stream);
            const std::vector<replica> all{view<float>(weights), view<std::int64_t>(step), view<bfloat16>(layer)};
            const cuda::device_guard elsewhere((world.device_ordinal() + 1) % 8);

            require(check.agreed(all, stream) == (ranks == 1), "the comparison was wrong");
            const std::vector<disagreement> found = check.locate(all, stream);
            if (ranks > 1) {
                require(found.size() == 2 && found[1].buffer == 2, "which buffers");
                const collprobe::difference& what = found[0].differences[0];
                require(what.rank == 1 && what.first == 17 && what.last == 20'000 && what.elements == 2, "where");
                require(found[1].differences[0].elements == 300, "all of the layer");
            }
            const repair_result result = majority_repair(check, all, stream);
            require(result.repaired && result.rounds == (ranks == 1 ? 0 : 1), "not repaired");
            for (std::size_t i = 0; i < clean.size(); ++i)
                require(to_bits(weights.data()[i]) == to_bits(clean[i]), "other bits");
            require(to_bits(layer.data()[299]) == to_bits(bfloat16(2.0f)), "other bits in the layer");
        }));
    }
}

TEST_CASE("inside a group and in a capture a comparison is refused")
{
    CHECK_NOTHROW(run_nccl(1, [](testing::nccl_owner& world) {
        const cuda::device_guard here(world.device_ordinal());
        agreement check(world);
        device_vector<float> data(10);
        const cuda::stream stream;
        data.set(std::vector<float>(10), stream);
        const std::vector<replica> all{view<float>(data)};
        {
            nccl::group together;
            const auto refused = error_of([&] { check.agreed(all, stream); });
            require(refused && refused->code() == status::unsupported, "a comparison in a group was accepted");
            together.end();
        }
        {
            const captured_graph capturing(stream);
            require(contains(refusal([&] { check.agreed(all, stream); }), "capturing"), "a captured one was accepted");
        }
        require(check.agreed(all, stream), "and works behind it");
    }));
}

} // namespace collprobe::testing::agreement_stand_in_test
