// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Without a tool the adaptor only forwards. (It needs CUDA's headers, as the other tests over stand-ins.)
#include <doctest/doctest.h>

#include <vector>

#include <collprobe/comm/cuda/nvtx_ranges.hpp>
#include <collprobe/comm/local/communicator.hpp>

#include "conformance/communicator_conformance.hpp"
#include "support/run_ranks.hpp"

namespace collprobe::testing::nvtx_no_tool_stand_in_test {

TEST_CASE("without a tool nothing is pushed, and calls pass")
{
    CHECK_NOTHROW(testing::local_provider{3}.run([](local::communicator& world) {
#if __has_include(<nvtx3/nvToolsExt.h>)
        conformance::require(detail::nvtx_names::of_process().domain == nullptr, "a tool is there");
        nvtx_ranges comm(world);
#else
        local::communicator& comm = world;
#endif
        const host::stream stream;
        const std::vector<float> send(6, 1.0f);
        std::vector<float> receive(6);
        comm.all_reduce(view<const float>(send), view<float>(receive), reduction::sum, stream);
        comm.barrier(stream);
        stream.synchronize(20'000);
        conformance::require(receive == std::vector<float>(6, 3.0f), "not the sum");
    }));
}

} // namespace collprobe::testing::nvtx_no_tool_stand_in_test
