// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <latch>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>

#include "support/checks.hpp"
#include "support/held_clock.hpp"
#include "support/rank_memory.hpp"
#include "support/run_ranks.hpp"
#include "support/unequal_calls.hpp"

namespace collprobe::testing::local_errors_test {

namespace {

constexpr int sizes[] = {2, 3, 8};

std::vector<int> all_ranks(int n)
{
    std::vector<int> ranks;
    for (int rank = 0; rank < n; ++rank) ranks.push_back(rank);
    return ranks;
}

/// Every rank calls `call(comm, stream, memory)` and synchronises; buffers must stay untouched, also
/// after the collective that each rank tries afterwards and that must fail at the call.
template <class Call>
std::vector<rank_outcome> fail_in(const local::group& ranks, Call call)
{
    std::vector<char> intact(static_cast<std::size_t>(ranks.size()), 0);
    std::vector<char> refused(static_cast<std::size_t>(ranks.size()), 0);
    const auto outcomes = run_each(ranks, [&](local::communicator& comm) {
        const auto rank = static_cast<std::size_t>(comm.rank());
        rank_memory memory(64);
        std::exception_ptr thrown;
        {
            const host::stream stream;
            try {
                call(comm, stream, memory);
                stream.synchronize();
            } catch (...) {
                thrown = std::current_exception();
            }
            try {
                comm.all_reduce(memory.in(), memory.out(), reduction::sum, stream);
            } catch (const error&) {
                refused[rank] = 1;
            }
        }
        intact[rank] = memory.untouched() ? 1 : 0;
        if (thrown) std::rethrow_exception(thrown);
    });
    for (std::size_t rank = 0; rank < intact.size(); ++rank) {
        CAPTURE(rank);
        CHECK(intact[rank] == 1);
        CHECK(refused[rank] == 1);
    }
    return outcomes;
}

/// A wait for peers in the next call on `on`, of the host or of the stream, is that of `rank`.
void number_waits(const held_clock& clock, int rank, host::stream_ref on)
{
    clock.i_am(rank);
    on.enqueue([&clock, rank] { clock.i_am(rank); });
}

} // namespace

TEST_CASE("buffers that overlap are told the pointer that they have in place")
{
    const struct {
        collective what;
        element_type type;
        std::uintptr_t send, receive;
        std::uint64_t send_count, receive_count;
        const char* flaw; ///< behind "send and receive overlap: in place "; null: none
    } calls[]{
        {collective::all_gather, element_type::float32, 0x1000, 0x1000, 16, 64,
            "send is receive + 32 elements, 0x1080, and it is 0x1000, receive + 0 elements"},
        {collective::all_gather, element_type::float32, 0xfc4, 0x1000, 16, 64,
            "send is receive + 32 elements, 0x1080, and it is 0xfc4, receive - 15 elements"},
        {collective::all_gather, element_type::float32, 0x1080, 0x1000, 16, 64, nullptr},
        {collective::reduce_scatter, element_type::float64, 0x1000, 0x1000, 64, 16,
            "receive is send + 32 elements, 0x1100, and it is 0x1000, send + 0 elements"},
        {collective::reduce_scatter, element_type::float64, 0x1000, 0x1100, 64, 16, nullptr},
        {collective::all_reduce, element_type::float32, 0x1004, 0x1000, 16, 16,
            "send is receive + 0 elements, 0x1000, and it is 0x1004, receive + 1 elements"},
        {collective::all_reduce, element_type::float32, 0x1000, 0x1000, 16, 16, nullptr},
    };
    for (const auto& each : calls) {
        const collective_call call{.what = each.what, .type = each.type, .send = reinterpret_cast<void*>(each.send),
            .send_count = each.send_count, .receive = reinterpret_cast<void*>(each.receive), .receive_count = each.receive_count};
        CHECK(detail::flaw_of_arguments(call, 2, 4) // rank 2 of 4
            == (each.flaw == nullptr ? "" : std::string("send and receive overlap: in place ") + each.flaw));
    }
}

TEST_CASE("unequal calls are listed by groups of ranks and nothing is written")
{
    for (const int n : sizes) {
        for (const auto& each : testing::unequal_calls<local::communicator>()) {
            const int odd_one = n / 2;
            const local::group ranks(n, {.name = "dp"});
            const auto outcomes = fail_in(ranks, [&](local::communicator& comm, host::stream_ref on, rank_memory& m) {
                (comm.rank() == odd_one ? each.bad : each.good)(comm, on, m);
            });
            // With two ranks nobody can say who is right.
            const std::vector<int> culprits = n == 2 ? all_ranks(2) : std::vector<int>{odd_one};
            for (int rank = 0; rank < n; ++rank) {
                check_error(outcomes[static_cast<std::size_t>(rank)], rank, status::mismatch, culprits,
                    {each.majority, "rank " + std::to_string(odd_one) + ": " + each.minority, "'dp'"});
            }
        }
    }
}

TEST_CASE("a mismatch message compresses ranks and names a tie")
{
    const local::group ranks(8);
    const auto outcomes = fail_in(ranks, [](local::communicator& comm, host::stream_ref on, rank_memory& m) {
        const std::uint64_t count = comm.rank() == 7 ? 7 : comm.rank() == 3 ? 5 : 8;
        comm.all_reduce(m.in().part(0, count), m.out().part(0, count), reduction::sum, on);
    });
    check_error(outcomes[0], 0, status::mismatch, {3, 7},
        {"ranks 0-2, 4-6: all_reduce of float, count 8, sum; rank 3: count 5; rank 7: count 7"});

    const auto tied = fail_in(local::group(4), [](local::communicator& comm, host::stream_ref on, rank_memory& m) {
        comm.broadcast(m.in(), m.out(), comm.rank() / 2, on);
    });
    check_error(tied[1], 1, status::mismatch, {0, 1, 2, 3}, {"ranks 0-1: broadcast of float, count 64, root 0; ranks 2-3: root 1"});
}

TEST_CASE("missing ranks are named after the time-out and later arrivals fail at once")
{
    for (const int n : sizes) {
        const held_clock clock;
        const local::group ranks(n, {.timeout_ms = 150});
        const std::vector<int> absent = n == 8 ? std::vector<int>{2, 6, 7} : std::vector<int>{n - 1};
        const auto is_absent = [&](int rank) { return std::count(absent.begin(), absent.end(), rank) != 0; };
        std::vector<int> present = all_ranks(n);
        std::erase_if(present, is_absent);
        std::atomic<std::size_t> waiting{present.size()};
        const auto outcomes = fail_in(ranks, [&](local::communicator& comm, host::stream_ref on, rank_memory& m) {
            if (comm.rank() == absent[0]) {
                clock.advance_ms(149, present);
                clock.await_questions(0, 1); // it woke up too early, and waits on
                CHECK(waiting == present.size());
                clock.advance_ms(1);
            }
            if (!is_absent(comm.rank())) number_waits(clock, comm.rank(), on);
            else while (waiting != 0) std::this_thread::yield();
            // The time stands still: what an absent rank calls now fails at once, or hangs.
            try {
                comm.all_reduce(m.in(), m.out(), reduction::sum, on);
                on.synchronize();
            } catch (...) {
                if (!is_absent(comm.rank())) --waiting;
                throw;
            }
        });
        const std::string who = n == 8 ? "ranks 2, 6-7" : "rank " + std::to_string(n - 1);
        for (int rank = 0; rank < n; ++rank) {
            check_error(outcomes[static_cast<std::size_t>(rank)], rank, status::timeout, absent,
                {who + " did not arrive at all_reduce (call 0", "150 ms"});
        }
    }
}

TEST_CASE("work that fails before a collective is the failure of its rank")
{
    for (const int n : sizes) {
        const int culprit = n / 2;
        const local::group ranks(n);
        const auto outcomes = fail_in(ranks, [&](local::communicator& comm, host::stream_ref on, rank_memory& m) {
            if (comm.rank() == culprit) on.enqueue([] { throw std::runtime_error("the kernel failed"); });
            comm.all_reduce(m.in(), m.out(), reduction::sum, on);
        });
        for (int rank = 0; rank < n; ++rank) {
            const rank_outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
            if (rank != culprit) {
                check_error(outcome, rank, status::peer_failure, {culprit},
                    {"rank " + std::to_string(culprit) + " could not take part in all_reduce", "the kernel failed"});
                continue;
            }
            // The rank itself gets its own exception.
            CHECK_THROWS_WITH_AS(std::rethrow_exception(outcome.thrown), "the kernel failed", std::runtime_error);
        }
    }
}

TEST_CASE("fail on a handle ends what waits on all ranks")
{
    for (const int n : sizes) {
        const local::group ranks(n);
        std::latch waiting(n - 1);
        const auto outcomes = fail_in(ranks, [&](local::communicator& comm, host::stream_ref on, rank_memory& m) {
            if (comm.rank() == 0) {
                waiting.wait();
                comm.fail("loss is not finite");
                comm.fail("a second reason is ignored");
            } else {
                on.enqueue([&] { waiting.count_down(); });
            }
            comm.all_reduce(m.in(), m.out(), reduction::sum, on);
        });
        for (int rank = 0; rank < n; ++rank) {
            check_error(outcomes[static_cast<std::size_t>(rank)], rank, status::peer_failure, {0},
                {"rank 0 gave up: loss is not finite"});
        }
    }
}

TEST_CASE("a call that never gets its turn behind an earlier one on another stream times out")
{
    const held_clock clock;
    const local::group ranks(2, {.timeout_ms = 150});
    std::latch failed(2);
    const auto outcomes = run_each(ranks, [&](local::communicator& comm) {
        const host::stream blocked;
        const host::stream later;
        blocked.enqueue([&] { failed.wait(); });
        comm.barrier(blocked);
        later.enqueue([&, rank = comm.rank()] { clock.i_am(rank); });
        comm.barrier(later);
        if (comm.rank() == 0) clock.advance_ms(150, {0, 1});
        const auto release = [&] { failed.count_down(); };
        try {
            later.synchronize();
        } catch (...) {
            release();
            throw;
        }
        release();
    });
    for (int rank = 0; rank < 2; ++rank) {
        const auto failure = outcomes[static_cast<std::size_t>(rank)].failure();
        REQUIRE(failure);
        CHECK(failure->code() == status::timeout);
        CHECK(contains(failure->what(), "an earlier call of the same rank, on another stream"));
        CHECK(failure->culprits().size() == 1);
    }
}

TEST_CASE("split times out naming the ranks that did not call")
{
    for (const int n : sizes) {
        const held_clock clock;
        const local::group ranks(n, {.timeout_ms = 100});
        std::latch done(n - 1);
        std::vector<int> others = all_ranks(n);
        others.erase(others.begin());
        const auto outcomes = run_each(ranks, [&](local::communicator& comm) {
            clock.i_am(comm.rank());
            if (comm.rank() == 0) {
                clock.advance_ms(100, others);
                done.wait();
                (void)comm.split(0, 0); // too late: fails at once
                return;
            }
            try {
                (void)comm.split(0, 0);
            } catch (...) {
                done.count_down();
                throw;
            }
            done.count_down();
        });
        for (int rank = 0; rank < n; ++rank) {
            check_error(outcomes[static_cast<std::size_t>(rank)], rank, status::timeout, {0},
                {"rank 0 did not arrive at split (call 0 of split)", "100 ms"});
        }
    }
}

TEST_CASE("a part fails alone and so does its parent")
{
    const local::group ranks(4);
    const auto outcomes = run_each(ranks, [&](local::communicator& comm) {
        auto part = comm.split(comm.rank() / 2, 0);
        const std::string own = part->name();
        if (own != "local/split0.color" + std::to_string(comm.rank() / 2)) throw std::runtime_error("name: " + own);
        rank_memory m(8);
        const host::stream stream;
        if (comm.rank() == 0) part->fail("only this part");
        if (comm.rank() < 2) {
            bool told = false;
            try {
                part->all_reduce(m.in(), m.out(), reduction::sum, stream);
                stream.synchronize();
            } catch (const error& failure) {
                told = failure.code() == status::peer_failure && failure.communicator() == own;
            }
            if (!told) throw std::runtime_error("the part did not fail");
        } else {
            part->all_reduce(m.in(), m.out(), reduction::sum, stream);
            stream.synchronize();
        }
        comm.barrier(stream);
        stream.synchronize();
        if (comm.rank() == 3) comm.fail("now the parent");
        if (comm.rank() < 2) return;
        part->barrier(stream);
        stream.synchronize();
    });
    testing::check_all(outcomes);
}

TEST_CASE("a group refuses what it cannot be")
{
    CHECK(contains(testing::refusal([] { local::group(0); }), "ranks is 0, not between 1 and 256"));
    CHECK(contains(testing::refusal([] { local::group(-3); }), "ranks is -3"));
    CHECK(contains(testing::refusal([] { local::group(257); }), "ranks is 257"));
    CHECK(contains(testing::refusal([] { local::group(2, {.timeout_ms = 0}); }), "timeout_ms is 0"));
    CHECK(contains(testing::refusal([] { local::group(2, {.order = static_cast<local::reduction_order>(9)}); }), "order"));
    CHECK(contains(testing::refusal([] { (void)local::group(2).communicator(2); }), "rank 2 is not between 0 and 1"));
    CHECK(contains(testing::refusal([] { (void)local::group(2).communicator(-1); }), "rank -1"));
    CHECK(contains(testing::refusal([] { local::run(0, [](local::communicator&) {}); }), "ranks is 0"));
    CHECK(local::group(256).size() == 256);
}

TEST_CASE("failures under load neither hang nor write after the failure")
{
    // A rank aborts at a random moment of a stream of collectives; a collective is done by all or by none.
    const testing::watchdog guard("aborts", 60);
    for (int round = 0; round < 60; ++round) {
        constexpr int n = 4;
        const local::group ranks(n);
        std::vector<std::vector<std::int64_t>> values(n, std::vector<std::int64_t>(64, 1));
        run_each(ranks, [&](local::communicator& comm) {
            auto& mine = values[static_cast<std::size_t>(comm.rank())];
            const host::stream stream;
            try {
                for (int call = 0; call < 40; ++call) {
                    if (comm.rank() == round % n && call == round % 37) comm.fail("now");
                    comm.all_reduce(view<const std::int64_t>(mine), view<std::int64_t>(mine), reduction::sum, stream);
                }
                stream.synchronize();
            } catch (const error&) {
            }
        });
        for (const auto& rank : values) CHECK(rank == values[0]);
    }
}

TEST_CASE("handles outlive their group and may go while work is queued")
{
    std::vector<std::int32_t> value(10, 21);
    {
        const host::stream stream;
        stream.enqueue([] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
        auto comm = local::group(1).communicator(0);
        auto copy = comm;
        auto moved = std::move(comm);
        CHECK(copy.rank() == 0);
        moved.all_reduce(view<const std::int32_t>(value), view<std::int32_t>(value), reduction::sum, stream);
        copy.barrier(stream);
    }
    CHECK(value[9] == 21);
}

} // namespace collprobe::testing::local_errors_test
