// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include <collprobe/comm/local/run.hpp>

#include "support/checks.hpp"
#include "support/rank_memory.hpp"
#include "support/run_ranks.hpp"

namespace collprobe::testing::local_run_test {
namespace {

constexpr int sizes[] = {2, 3, 8};
constexpr int deadline_s = 60;

template <class Comm, class Fn>
void run_ranks(int n, Fn fn)
{
    if constexpr (std::is_same_v<Comm, local::communicator>) local::run(n, fn);
    else local::run_on<host::device>(n, {}, fn);
}

} // namespace

TEST_CASE_TEMPLATE("run rethrows the first cause and not a consequence", Comm, local::communicator,
    local::device_communicator<host::device>)
{
    for (const int n : sizes) {
        for (int culprit = 0; culprit < n; culprit += n - 1) {
            const testing::watchdog guard("run", deadline_s);
            std::atomic<int> consequences{0};
            try {
                run_ranks<Comm>(n, [&](Comm& comm) {
                    rank_memory m(16);
                    const host::stream stream;
                    if (comm.rank() == culprit) throw std::out_of_range("no such shard");
                    try {
                        comm.all_reduce(m.in(), m.out(), reduction::sum, stream);
                        stream.synchronize();
                    } catch (const error& failure) {
                        if (failure.code() == status::peer_failure && failure.culprits() == std::vector<int>{culprit}
                            && contains(failure.what(), "no such shard") && m.untouched()) {
                            ++consequences;
                        }
                        throw;
                    }
                });
                FAIL("run did not throw");
            } catch (const std::out_of_range& cause) {
                CHECK(std::string(cause.what()) == "no such shard");
            }
            CHECK(consequences == n - 1);
        }
    }
}

TEST_CASE("run wakes ranks that wait in a part or in a split for a rank that is gone")
{
    const testing::watchdog guard("run", deadline_s);
    std::atomic<int> named{0};
    CHECK_THROWS_WITH_AS(local::run(4,
                             [&](local::communicator& comm) {
                                 auto part = comm.split(0, -comm.rank()); // rank 3 is rank 0 of the part
                                 auto nested = part->split(0, 0);
                                 if (comm.rank() == 3) throw std::runtime_error("gone");
                                 const host::stream stream;
                                 try {
                                     if (comm.rank() == 0) (void)comm.split(0, 0);
                                     nested->barrier(stream);
                                     stream.synchronize();
                                 } catch (const error& failure) {
                                     const std::vector<int> culprit{comm.rank() == 0 ? 3 : 0};
                                     if (failure.culprits() == culprit) ++named;
                                     throw;
                                 }
                             }),
        "gone", std::runtime_error);
    CHECK(named == 3);
}

TEST_CASE("a failure in a part names its culprit as the group knows it")
{
    const testing::watchdog guard("run", deadline_s);
    std::atomic<int> named{0};
    try {
        local::run(4, [&](local::communicator& comm) {
            auto part = comm.split(comm.rank() / 2, 0);
            const host::stream stream;
            if (comm.rank() == 3) part->fail("bad batch"); // rank 1 of its part
            if (comm.rank() < 2) {
                try {
                    comm.barrier(stream);
                    stream.synchronize();
                } catch (const error& failure) {
                    if (failure.culprits() == std::vector<int>{3}) ++named;
                    throw;
                }
            }
            part->barrier(stream);
            stream.synchronize();
        });
        FAIL("run did not throw");
    } catch (const error& failure) {
        CHECK(failure.code() == status::peer_failure);
        CHECK(contains(failure.what(), "bad batch"));
    }
    CHECK(named == 2);
}

} // namespace collprobe::testing::local_run_test
