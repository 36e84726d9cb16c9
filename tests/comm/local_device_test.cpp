// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// On the CPU as a device: the same events, copies and bodies of kernels as on a GPU.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <latch>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/detail/math.hpp>

#include "conformance/communicator_conformance.hpp"
#include "examples/support/device_ranks.hpp"
#include "support/checks.hpp"
#include "support/device_bits.hpp"
#include "support/rank_memory.hpp"
#include "support/run_ranks.hpp"
#include "support/element_types.hpp"

namespace collprobe::testing::local_device_test {

using local::reduction_order;

namespace {

using provider = testing::device_provider<host::device>;
using group_t = local::device_group<host::device>;
using comm_t = local::device_communicator<host::device>;

} // namespace

TEST_CASE("operations, counts and placements, splits, sequences of calls, stress and barriers conform over a device")
{
    for (const int ranks : {1, 2, 3, 5, 8, 16}) {
        CAPTURE(ranks);
        CHECK_NOTHROW(conformance::check_type<bfloat16>(provider{ranks}, ranks <= 5 ? 521 : 131));
        CHECK_NOTHROW(conformance::check_calls(provider{ranks}, ranks <= 8 ? 100 : 30));
        CHECK_NOTHROW(conformance::check_barrier(provider{ranks}));
        if (ranks > 1) CHECK_NOTHROW(conformance::check_refusals(provider{ranks}));
    }
}

TEST_CASE_TEMPLATE("a device gives the bits of local on the CPU", T, COLLPROBE_TEST_ELEMENT_TYPES)
{
    for (const int ranks : {1, 2, 3, 5, 8, 17, 64}) {
        CAPTURE(ranks);
        CHECK(testing::differing_reductions<host::device, T>(ranks, ranks < 64 ? 333 : 70) == 0);
    }
}

TEST_CASE("a device combines in the order of the ranks, and refuses other orders by name")
{
    for (const reduction_order order : {reduction_order::ring, reduction_order::tree}) {
        CHECK_THROWS_WITH_AS(group_t(2, {.order = order}),
            doctest::Contains((std::string("order is ") + local::name(order)).c_str()), error);
    }
}

TEST_CASE("collectives wait for the peers' calls and never for a stream")
{
    constexpr int n = 4;
    std::latch called(n);
    std::atomic<std::uint64_t> waits{0};
    CHECK_NOTHROW(provider{n}.run([&](comm_t& comm) {
        std::vector<std::int32_t> value(64, 1);
        std::vector<std::int32_t> gathered(64 * n);
        const host::stream stream;
        const host::stream other;
        // Nothing on these streams runs before every rank has made all its calls.
        stream.enqueue([&] { called.wait(); });
        other.enqueue([&] { called.wait(); });
        const view<const std::int32_t> in(value);
        for (int round = 0; round < 5; ++round) {
            comm.all_reduce(in, view<std::int32_t>(value), reduction::max, stream);
            comm.all_gather(in, view<std::int32_t>(gathered), other);
            comm.broadcast(in, view<std::int32_t>(value), 2, stream);
            comm.barrier(other);
        }
        waits += stream.synchronizations() + other.synchronizations();
        called.count_down();
        stream.synchronize();
        other.synchronize();
        conformance::require(value[63] == 1 && gathered[64 * n - 1] == 1, "wrong values");
    }));
    CHECK(waits == 0);
}

TEST_CASE("buffers are read when their stream has filled them and may be overwritten behind the call")
{
    // Each rank fills its buffer late and spoils it at once, at moments that differ between ranks and
    // rounds: without the waits for `ready` a peer reads too early, without those for `done` too late.
    constexpr int n = 3;
    constexpr std::uint64_t count = 600;
    const auto wanted = [](int round) {
        std::int64_t sum = 0;
        for (int rank = 0; rank < n; ++rank) sum += rank + 10 * round;
        return sum;
    };
    CHECK_NOTHROW(provider{n}.run([&](comm_t& comm) {
        std::vector<std::int64_t> value(count);
        std::vector<std::int64_t> copy(count);
        std::atomic<int> wrong{0};
        const view<std::int64_t> memory(value);
        const host::stream streams[2];
        std::uint64_t dice = 17u + static_cast<unsigned>(comm.rank());
        const auto nap = [&] { return std::chrono::microseconds((dice = detail::mix64(dice)) % 200); };
        for (int round = 0; round < 150; ++round) {
            // On one stream for a while, then on the other, which waits for the first.
            const host::stream_ref on = streams[round / 8 % 2];
            if (round % 8 == 0 && round != 0) {
                host::event last;
                last.record(streams[(round / 8 + 1) % 2]);
                on.wait(last);
            }
            on.enqueue([pause = nap()] { std::this_thread::sleep_for(pause); });
            host::device::fill(on, memory, comm.rank() + 10 * round);
            if (round % 3 == 0) {
                comm.all_reduce(view<const std::int64_t>(memory), view<std::int64_t>(copy), reduction::sum, on);
                host::device::fill(on, memory, -1);
            } else if (round % 3 == 1) {
                comm.all_reduce(view<const std::int64_t>(memory), memory, reduction::sum, on);
                host::device::copy(on, view<const std::int64_t>(memory), view<std::int64_t>(copy));
                host::device::fill(on, memory, -1);
            } else {
                const int root = round % n;
                comm.broadcast(view<const std::int64_t>(memory), memory, root, on);
                host::device::copy(on, view<const std::int64_t>(memory), view<std::int64_t>(copy));
                host::device::fill(on, memory, -1);
            }
            on.enqueue([&copy, &wrong, expected = round % 3 == 2 ? round % n + 10 * round : wanted(round)] {
                for (const std::int64_t x : copy) wrong += x == expected ? 0 : 1;
            });
            if (round % 16 == 5) std::this_thread::sleep_for(nap());
        }
        for (const host::stream& stream : streams) stream.synchronize();
        conformance::require(wrong == 0, "wrong values");
    }));
}

TEST_CASE("work that fails on a rank's stream fails the streams of all ranks and nothing is written")
{
    for (const int n : {2, 3, 8}) {
        for (const bool told_at_once : {false, true}) {
            const int culprit = n / 2;
            std::latch enqueued(n);
            std::latch failed(1);
            std::atomic<int> untouched{0};
            std::atomic<int> refused{0};
            const auto outcomes = run_each(group_t(n), [&](comm_t& comm) {
                rank_memory m(64);
                std::exception_ptr thrown;
                {
                    const host::stream stream;
                    if (comm.rank() == culprit) {
                        stream.enqueue([&] {
                            failed.count_down();
                            throw std::runtime_error("the kernel failed");
                        });
                    } else if (told_at_once) {
                        stream.enqueue([&] { failed.wait(); }); // the peers' streams come later than the failure
                    }
                    try {
                        comm.all_reduce(m.in(), m.out(), reduction::sum, stream);
                    } catch (...) {
                        thrown = std::current_exception();
                    }
                    enqueued.arrive_and_wait();
                    try {
                        stream.synchronize();
                    } catch (...) {
                        thrown = std::current_exception();
                    }
                    try {
                        comm.barrier(stream);
                    } catch (const error& failure) {
                        if (failure.code() == status::peer_failure && failure.culprits() == std::vector<int>{culprit}
                            && contains(failure.what(), "could not take part in all_reduce")
                            && contains(failure.what(), "the kernel failed")) {
                            ++refused;
                        }
                    }
                }
                untouched += m.untouched() ? 1 : 0;
                if (thrown) std::rethrow_exception(thrown);
            });
            CHECK(untouched == n);
            CHECK(refused == n);
            for (const rank_outcome& outcome : outcomes) {
                CHECK(outcome.thrown);
                CHECK(contains(detail::message_of(outcome.thrown), "the kernel failed"));
            }
        }
    }
}

TEST_CASE("a device group has at most 64 ranks")
{
    CHECK_THROWS_WITH_AS(group_t(65), doctest::Contains("ranks is 65, not between 1 and 64"), error);
    CHECK_THROWS_WITH_AS(local::run_on<host::device>(0, {}, [](comm_t&) {}),
        doctest::Contains("ranks is 0, not between 1 and 64"), error);
    CHECK(group_t(64).size() == 64);
}

} // namespace collprobe::testing::local_device_test
