// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <latch>
#include <new>
#include <stdexcept>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>

#include "support/count_allocations.hpp"
#include "support/run_ranks.hpp"

using namespace collprobe;

TEST_CASE("steady collectives allocate nothing and never wait for the host")
{
    for (const auto order :
        {local::reduction_order::linear, local::reduction_order::ring, local::reduction_order::tree}) {
        std::latch warm(4);
        std::latch counted(4);
        std::latch worked(4);
        std::atomic<long> before{0};
        std::atomic<long> after{0};
        std::atomic<std::uint64_t> waits{0};
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
            // The queue keeps what it ever needed: let it be longer here than it can get below.
            for (int round = 0; round < 2; ++round) {
                std::latch go(1);
                stream.enqueue([&go] { go.wait(); });
                work();
                work();
                go.count_down();
                stream.synchronize();
            }
            warm.arrive_and_wait();
            if (comm.rank() == 0) before = allocations.load();
            counted.arrive_and_wait();
            const std::uint64_t waited = stream.synchronizations();
            work();
            waits += stream.synchronizations() - waited;
            stream.synchronize();
            worked.arrive_and_wait();
            if (comm.rank() == 0) after = allocations.load();
        });
        CHECK(after - before == 0);
        CHECK(waits == 0);
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
