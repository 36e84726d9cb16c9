// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

#include <collprobe/comm/local/run.hpp>

#include "support/checks.hpp"
#include "support/rank_memory.hpp"
#include "support/run_ranks.hpp"

namespace collprobe::testing::local_run_test {
namespace {

constexpr int sizes[] = {2, 3, 8};
constexpr int deadline_s = 60;

} // namespace

TEST_CASE("run rethrows the first cause and not a consequence")
{
    for (const int n : sizes) {
        for (int culprit = 0; culprit < n; culprit += n - 1) {
            const testing::watchdog guard("run", deadline_s);
            std::atomic<int> consequences{0};
            try {
                local::run(n, [&](local::communicator& comm) {
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

} // namespace collprobe::testing::local_run_test
