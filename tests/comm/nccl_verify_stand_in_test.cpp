// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What `verify_calls` sees of calls that adaptors make in parts.
#include <doctest/doctest.h>

#include <cstdint>
#include <latch>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <collprobe/comm/nccl/communicator.hpp>
#include <collprobe/reduce/reproducible.hpp>

#include "tests/support/stand_in/nccl_ranks.hpp"
#include "tests/support/stand_in/stand_in_test_tools.hpp"

using namespace collprobe;
using nccl::blocking_mode;
using testing::clean_stand_in;
using testing::contains;
using testing::device_values;
using testing::rank_outcome;
using testing::run_each_nccl;

namespace {

constexpr blocking_mode modes[] = {blocking_mode::blocking, blocking_mode::non_blocking};
constexpr int deadline_s = 20;
constexpr int ranks = 3;
constexpr int odd_one = 1;

using exact = reproducible<nccl::communicator_ref, contract<reproducibility::correctly_rounded>>;

template <class Body>
std::vector<rank_outcome> run_sums(blocking_mode mode, bool verify, Body body)
{
    const nccl::options settings{.timeout_ms = 60'000, .name = "dp", .mode = mode, .verify_calls = verify};
    return run_each_nccl(ranks, settings, [&](nccl::communicator& world) {
        exact comm(world, {}, {.algorithm = reduction_algorithm::exchange});
        const cuda::stream stream;
        const device_values<float> send(64, 1.0f);
        const device_values<float> receive(64, 0.0f);
        try {
            body(comm, send, receive, stream);
        } catch (...) { // what was enqueued before still uses the buffers
            stream.synchronize(testing::soon_ms);
            throw;
        }
        world.synchronize(stream);
    }, deadline_s);
}

/// Sums the first `count` elements.
void sum(exact& comm, const device_values<float>& send, const device_values<float>& receive, std::uint64_t count,
    cuda::stream_ref on)
{
    comm.all_reduce(send.in().part(0, count), receive.out().part(0, count), reduction::sum, on);
}

void check_failure(const rank_outcome& outcome, status code, const std::vector<int>& culprits, const char* text)
{
    const std::optional<error> failure = outcome.failure();
    REQUIRE(failure);
    const std::string what = failure->what();
    CAPTURE(what);
    CHECK(std::string(name(failure->code())) == name(code));
    CHECK(failure->culprits() == culprits);
    CHECK(contains(what, text));
}

} // namespace

TEST_CASE("a sum in parts with another count is a mismatch that names the rank on every rank")
{
    const clean_stand_in clean;
    for (const blocking_mode mode : modes) {
        // Padded to pieces of the same size.
        const auto outcomes = run_sums(mode, true, [](exact& comm, auto& send, auto& receive, cuda::stream_ref on) {
            sum(comm, send, receive, comm.rank() == odd_one ? 11 : 10, on);
        });
        for (const rank_outcome& outcome : outcomes) {
            check_failure(outcome, status::mismatch, {odd_one}, "rank 1: as part of 11");
        }
    }
}

TEST_CASE("the same sum without verified calls is silently wrong")
{
    const clean_stand_in clean;
    const auto outcomes = run_sums(blocking_mode::blocking, false,
        [](exact& comm, auto& send, auto& receive, cuda::stream_ref on) {
            sum(comm, send, receive, comm.rank() == odd_one ? 11 : 10, on);
        });
    for (const rank_outcome& outcome : outcomes) CHECK_FALSE(outcome.thrown);
}

TEST_CASE("a bad argument that the adaptor finds on one rank is told to the peers in the call")
{
    const clean_stand_in clean;
    for (const blocking_mode mode : modes) {
        const auto outcomes = run_sums(mode, true, [](exact& comm, auto& send, auto& receive, cuda::stream_ref on) {
            if (comm.rank() != odd_one) return sum(comm, send, receive, 10, on);
            comm.all_reduce(send.in().part(0, 10), receive.out().part(0, 9), reduction::sum, on);
        });
        for (int rank = 0; rank < ranks; ++rank) {
            const rank_outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
            if (rank == odd_one) check_failure(outcome, status::invalid_argument, {}, "send has 10 elements");
            else check_failure(outcome, status::peer_failure, {odd_one}, "rank 1 gave a bad argument");
        }
    }
}

TEST_CASE("a bad color of a split is told to the peers in the call")
{
    const clean_stand_in clean;
    const auto outcomes = run_each_nccl(ranks, {.timeout_ms = 60'000, .verify_calls = true},
        [](nccl::communicator& world) { (void)world.split(world.rank() == odd_one ? -7 : 0, 0); }, deadline_s);
    for (int rank = 0; rank < ranks; ++rank) {
        const rank_outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
        if (rank == odd_one) check_failure(outcome, status::invalid_argument, {odd_one}, "color -7");
        else check_failure(outcome, status::peer_failure, {odd_one}, "rank 1 gave a bad argument");
    }
}

TEST_CASE("verified sums in parts of equal counts are right, and calls of their own between them too")
{
    const clean_stand_in clean;
    for (const blocking_mode mode : modes) {
        const auto outcomes = run_sums(mode, true, [](exact& comm, auto& send, auto& receive, cuda::stream_ref on) {
            for (const std::uint64_t count : {10u, 11u, 64u}) {
                sum(comm, send, receive, count, on);
                comm.all_reduce(send.in(), send.out(), reduction::max, on);
            }
            comm.base().synchronize(on);
            if (!receive.all(3.0f)) throw std::runtime_error("wrong sum");
        });
        for (const rank_outcome& outcome : outcomes) CHECK_FALSE(outcome.thrown);
    }
}

TEST_CASE("the memory of a comparison that hangs outlives the communicator")
{
    const clean_stand_in clean;
    for (const blocking_mode mode : modes) {
        std::latch gone(1);
        const auto outcomes = run_each_nccl(2, {.mode = mode}, [&](nccl::communicator& owner) {
            const cuda::stream stream;
            const device_values<float> values(8, 1.0f);
            const nccl::options settings{.timeout_ms = owner.rank() == 0 ? 100 : 10'000, .mode = mode,
                .abort_on_failure = nccl::abort_policy::never, .verify_calls = true};
            if (owner.rank() == 0) {
                const auto late = testing::error_of([&] {
                    nccl::communicator_ref comm(owner.native_handle(), settings);
                    comm.barrier(stream);
                });
                gone.count_down();
                if (!late || late->code() != status::timeout) throw std::runtime_error("no time-out");
                return;
            }
            nccl::communicator_ref comm(owner.native_handle(), settings);
            gone.wait();
            // Comes to the comparison, which writes on both ranks, and makes no call behind it.
            comm.broadcast(values.in(), values.out(), 5, stream);
        }, deadline_s);
        CHECK_FALSE(outcomes[0].thrown);
        check_failure(outcomes[1], status::invalid_argument, {1}, "root 5");
    }
}
