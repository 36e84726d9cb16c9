// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <collprobe/comm/nccl/communicator.hpp>
#include <collprobe/order/nccl/ordered.hpp>

#include "order/reports.hpp"
#include "support/checks.hpp"
#include "tests/support/stand_in/nccl_ranks.hpp"
#include "tests/support/stand_in/stand_in.hpp"

namespace collprobe::testing::stream_order_stand_in_test {

// What CUDA and NCCL calls tell the checker: those of the library by themselves, foreign ones by the wrappers.
// Compiled with COLLPROBE_STREAM_ORDER=1, as is the stand-in.

TEST_CASE("a buffer that is overwritten before the end of the group that reads it is reported")
{
    const clean_stand_in clean;
    stream_order checker;
    checker.install();
    check_all(run_each_nccl(2, {.mode = nccl::blocking_mode::blocking}, [](testing::nccl_owner& comm) {
        const cuda::stream on;
        const cuda::buffer<float> full(128), shard(64);
        void* const sent = shard.data();
        for (const bool overwrites : {false, true}) {
            ordered::touch(on.get(), {}, {view<float>(shard)}, "adam");
            require(ordered::group_start() == ncclSuccess, "start");
            require(ordered::all_gather(sent, full.data(), 64, ncclFloat32, comm.native_handle(), on.get())
                    == ncclSuccess,
                "gather");
            if (overwrites) require(ordered::memset_async(sent, 0, 256, on.get()) == cudaSuccess, "fill");
            require(ordered::group_end() == ncclSuccess, "end");
        }
        require(ordered::stream_synchronize(on.get()) == cudaSuccess, "synchronize");
    }));
    CAPTURE(messages(checker));
    CHECK(kinds(checker) == list{hazard_kind::overwritten_in_group});
}

TEST_CASE("a size in bytes in the place of a count of floats is reported before the call is made")
{
    const clean_stand_in clean;
    stream_order checker({.on_hazard = stream_order::raise});
    checker.install();
    std::uint32_t raw_line = 0;
    check_all(run_each_nccl(1, {}, [&](testing::nccl_owner& comm) {
        const cuda::stream owner;
        const cudaStream_t stream = owner.get();
        void* loss = nullptr;
        const auto sum = [&](std::size_t elements) {
            raw_line = __LINE__ + 1;
            return ordered::all_reduce(loss, loss, elements, ncclFloat, ncclSum, comm.native_handle(), stream);
        };
        require(ordered::malloc(&loss, sizeof(float)) == cudaSuccess, "malloc");
        require(ordered::memset_async(loss, 0, sizeof(float), stream) == cudaSuccess, "memset");
        CHECK_THROWS_AS((void)sum(sizeof(float)), error);
        require(sum(1) == ncclSuccess, "all_reduce");
        require(ordered::stream_synchronize(stream) == cudaSuccess, "stream_synchronize");
        require(ordered::free(loss) == cudaSuccess, "free");
    }));
    CAPTURE(messages(checker));
    REQUIRE(kinds(checker) == list(2, hazard_kind::beyond_allocation));
    const auto found = checker.hazards();
    for (std::size_t at = 0; at < 2; ++at) {
        CHECK(found[at].earlier.bytes.bytes == sizeof(float));
        CHECK(found[at].later.bytes.bytes == sizeof(float) * sizeof(float));
        CHECK(found[at].later.mode == (at % 2 == 0 ? memory_access::read : memory_access::write));
        CHECK(found[at].later.where.line == raw_line);
        CHECK(std::string(found[at].later.operation) == "ncclAllReduce");
    }
}

} // namespace collprobe::testing::stream_order_stand_in_test
