// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include <doctest/doctest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/comm/agreed.hpp>
#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/reduce/reproducible.hpp>

#include "conformance/communicator_conformance.hpp"
#include "support/checks.hpp"
#include "support/hot_path.hpp"
#include "support/rank_memory.hpp"
#include "support/run_ranks.hpp"
#include "support/unequal_calls.hpp"

namespace collprobe::testing::agreed_test {
namespace {

using local_agreed = agreed<local::communicator>;

const auto sum_8 = [](local_agreed& c, host::stream_ref on, rank_memory& m) {
    c.all_reduce(m.in().part(0, 8), m.out().part(0, 8), reduction::sum, on);
};
/// Ranks that make a right call, and then what `call(comm, stream, memory)` makes.
template <class Call>
std::vector<rank_outcome> after_a_right_call(int ranks, Call call, agreed_options options = {})
{
    return run_each(local::group(ranks, {.timeout_ms = 60'000, .name = "dp"}), [&](local::communicator& world) {
        local_agreed comm(world, options);
        rank_memory memory(64), kept(64);
        const host::stream stream;
        sum_8(comm, stream, kept);
        const auto thrown = error_of([&] { call(comm, stream, memory); });
        stream.synchronize();
        if (!thrown) return;
        if (!memory.untouched()) throw std::runtime_error("something was written");
        const auto later = error_of([&] { comm.barrier(stream); });
        if (!later || later->code() != thrown->code()) throw std::runtime_error("not final");
        throw *thrown;
    });
}

} // namespace

TEST_CASE("an agreed communicator conforms")
{
    for (const int ranks : {1, 3}) {
        const wrapped_provider provider{local_provider{ranks}, [](auto& world) { return agreed(world); }};
        CHECK_NOTHROW(conformance::check_type<bfloat16>(provider, 67));
        CHECK_NOTHROW(conformance::check_calls(provider, 50));
        if (ranks > 1) CHECK_NOTHROW(conformance::check_refusals(provider));
    }
}

TEST_CASE("the ranks are told who calls something else, and nothing is written")
{
    for (const int n : {2, 3, 5}) {
        for (const auto& each : unequal_calls<local_agreed>()) {
            const int odd_one = n / 2;
            const auto outcomes = after_a_right_call(n, [&](local_agreed& comm, host::stream_ref on, rank_memory& m) {
                (comm.rank() == odd_one ? each.bad : each.good)(comm, on, m);
            });
            // With two ranks nobody can say who is right.
            const std::vector<int> culprits = n == 2 ? std::vector<int>{0, 1} : std::vector<int>{odd_one};
            for (int rank = 0; rank < n; ++rank) {
                check_error(outcomes[static_cast<std::size_t>(rank)], rank, status::mismatch, culprits,
                    {"the ranks disagree in call 1 of the communicator: ", each.majority,
                        "rank " + std::to_string(odd_one) + ": " + each.minority, "'dp'"});
            }
        }
    }
}

TEST_CASE("names are compared, lines only where they are asked for")
{
    const auto named = [](const char* name) { return call_site::named(name); };
    const struct {
        call_site most, of_rank_1;
        bool lines;
        const char* message; ///< null: they agree
    } calls[]{
        // A message has room for the end of a name.
        {named("blocks.11.attention.query.bias"), named("blocks.11.attention.query.weight"), false,
            "ranks 0, 2: all_reduce of float, count 8, sum, named '...attention.query.bias'; rank 1: named "
            "'..ttention.query.weight' ("},
        {named("blocks.12.attention.query.weight"), named("blocks.11.attention.query.weight"), false,
            "; rank 1: named '..ttention.query.weight', which begins in another way"},
        {named("wte"), call_site::current(), false, "named 'wte'; rank 1: without a name"},
        {{"a.cpp", "", 7}, {"a.cpp", "", 8}, false, nullptr},
        {{"a.cpp", "", 7}, {"a.cpp", "", 8}, true, "sum, a.cpp:7; rank 1: a.cpp:8"},
        // Folders do not count, the files' names do.
        {{"/here/a.cpp", "", 7}, {"/there/a.cpp", "", 7}, true, nullptr},
        {{"/here/a.cpp", "", 7}, {"/there/b.cpp", "", 7}, true, "a.cpp:7; rank 1: b.cpp:7"},
    };
    for (const auto& each : calls) {
        const auto outcomes = after_a_right_call(3, [&](local_agreed& comm, host::stream_ref on, rank_memory& m) {
            const call_site where = comm.rank() == 1 ? each.of_rank_1 : each.most;
            comm.all_reduce(m.in().part(0, 8), m.out().part(0, 8), reduction::sum, on, where);
        }, {.lines = each.lines});
        CAPTURE(&each - calls);
        const auto failure = outcomes[0].failure();
        REQUIRE(failure.has_value() == (each.message != nullptr));
        if (!failure) continue;
        CHECK(failure->code() == status::mismatch);
        CHECK(contains(failure->what(), each.message));
        CHECK(failure->culprits() == std::vector<int>{1});
    }
}

TEST_CASE("ranks that have made different numbers of calls are told")
{
    const auto outcomes = run_each(local::group(3), [](local::communicator& world) {
        std::optional<local_agreed> comm(std::in_place, world);
        rank_memory memory(8);
        const host::stream stream;
        for (int call = 0; call < 2; ++call) sum_8(*comm, stream, memory);
        if (world.rank() == 1) comm.emplace(world); // forgets both
        sum_8(*comm, stream, memory);
    });
    for (int rank = 0; rank < 3; ++rank) {
        check_error(outcomes[static_cast<std::size_t>(rank)], rank, status::mismatch, {1},
            {"ranks 0, 2: all_reduce of float, count 8, sum; rank 1: after 0 calls, not 2"});
    }
}

TEST_CASE("a rank that does not come is a time-out")
{
    const auto outcomes = run_each(local::group(3, {.timeout_ms = 150}), [](local::communicator& world) {
        local_agreed comm(world);
        rank_memory memory(8);
        const host::stream stream;
        sum_8(comm, stream, memory);
        if (world.rank() == 1) return;
        const auto late = error_of([&] { sum_8(comm, stream, memory); });
        const auto later = error_of([&] { comm.barrier(stream); });
        if (!later || later->code() != status::timeout) throw std::runtime_error("not final");
        throw late.value();
    });
    for (const int rank : {0, 2}) {
        check_error(outcomes[static_cast<std::size_t>(rank)], rank, status::timeout, {1},
            {"rank 1 never came to call 1 of the communicator within 150 ms (all_reduce of float, count 8, sum)"});
    }
}

TEST_CASE("around other adaptors the caller's calls are compared, not their parts")
{
    using exact = reproducible<local::communicator, contract<reproducibility::correctly_rounded>>;
    const auto run = [](bool outermost, std::uint64_t other_count, std::uint64_t other_leaves = 1) {
        return run_each(local::group(3, {.timeout_ms = 60'000}), [&](local::communicator& world) {
            const auto work = [&](auto comm) {
                rank_memory memory(64);
                const host::stream stream;
                const bool is_other = comm.rank() == 1;
                const std::uint64_t count = is_other ? other_count : 10, leaves = is_other ? other_leaves : 1;
                comm.all_reduce(memory.in().part(0, count * leaves), memory.out().part(0, count), reduction::sum,
                    stream, {.leaves = leaves});
                stream.synchronize(20'000);
            };
            exact sums(world, {}, {.algorithm = reduction_algorithm::exchange});
            if (outermost) work(agreed(std::move(sums)));
            else work(std::move(sums));
        });
    };
    // Padded to pieces of the same size: without the comparison the wrong sum is not noticed.
    check_all(run(false, 11));
    check_all(run(true, 10));
    for (const rank_outcome& outcome : run(true, 11)) {
        check_error(outcome, status::mismatch, {1}, {"all_reduce of float, count 10, sum; rank 1: count 11"});
    }
    for (const rank_outcome& outcome : run(true, 10, 2)) {
        check_error(outcome, status::mismatch, {1}, {"all_reduce of float, count 10, sum; rank 1: leaves 2"});
    }
}

TEST_CASE("many right calls are made in silence, and after the first nothing is allocated")
{
    hot_path steady(3);
    check_all(run_each(local::group(3, {.timeout_ms = 60'000}), [&](local::communicator& world) {
        local_agreed comm(world, {.lines = true});
        std::vector<double> values(6, 1.0), all(18);
        const host::stream stream;
        const auto some = [&](int calls) {
            for (int call = 0; call < calls; ++call) {
                const std::uint64_t count = static_cast<std::uint64_t>(call % 6);
                switch (call % 4) {
                case 0: comm.all_reduce(view(values).part(0, count), reduction::max, stream); break;
                case 1: comm.broadcast(view(values).part(0, count), call % 3, stream, call_site::named("values")); break;
                case 2: comm.all_gather(view<const double>(values).part(0, count), view(all).part(0, 3 * count), stream); break;
                case 3: comm.barrier(stream); break;
                }
            }
            stream.synchronize(20'000);
        };
        some(100);
        steady.measure(world.rank(), host::stream(), [] {}, [&] { some(12'000); }, [] {});
        if (values[5] != 1.0 || all[11] != 1.0) throw std::runtime_error("wrong values");
    }));
    CHECK(steady.allocations() == 0);
}

} // namespace collprobe::testing::agreed_test
