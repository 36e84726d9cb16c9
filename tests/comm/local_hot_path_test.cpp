// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include <doctest/doctest.h>

#include <latch>
#include <stdexcept>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>

#include "support/hot_path.hpp"
#include "support/run_ranks.hpp"

namespace collprobe::testing::local_hot_path_test {

TEST_CASE("steady collectives allocate nothing and never wait for the host")
{
    for (const auto order :
        {local::reduction_order::linear, local::reduction_order::ring, local::reduction_order::tree}) {
        testing::hot_path steady(4);
        testing::local_provider{4, order}.run([&](local::communicator& comm) {
            std::vector<float16> send(640);
            std::vector<float16> receive(640);
            std::vector<float16> part(160);
            const view<const float16> in(send);
            const view<float16> out(receive);
            const host::stream stream;
            const auto work = [&] {
                for (int call = 0; call < 20; ++call) {
                    comm.all_reduce(in, out, reduction::average, stream);
                    comm.reduce_scatter(in, view<float16>(part), reduction::max, stream);
                    comm.all_gather(view<const float16>(part), out, stream);
                    comm.all_to_all(in, out, stream);
                    comm.broadcast(in, out, 2, stream);
                    comm.barrier(stream);
                }
            };
            steady.measure(comm.rank(), stream, work);
        });
        CHECK(steady.allocations() == 0);
        CHECK(steady.waits() == 0);
    }
}

TEST_CASE("a collective returns before its peers have called")
{
    std::latch all_returned(3);
    CHECK_NOTHROW(testing::local_provider{3}.run([&](local::communicator& comm) {
        std::vector<float> value(10, 1.0f);
        const host::stream stream;
        if (comm.rank() == 2) all_returned.wait(); // comes last, after the others' calls returned
        comm.all_reduce(view<const float>(value), view<float>(value), reduction::sum, stream);
        all_returned.count_down(comm.rank() == 2 ? 0 : comm.rank() == 0 ? 2 : 1);
        stream.synchronize();
        if (value[3] != 3.0f) throw std::runtime_error("wrong sum");
    }));
}

} // namespace collprobe::testing::local_hot_path_test
