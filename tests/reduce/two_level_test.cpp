// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Sums in two levels: bytes, choice, errors. Their bits: two_level_bits_test.cpp.
#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/comm/node_groups.hpp>

#include "reduce/reduction_cases.hpp"

using namespace collprobe;
using namespace collprobe::testing;

using std::uint64_t;

namespace {

/// What all handles of a rank and of its parts have sent.
struct traffic {
    uint64_t bytes = 0, calls = 0;
};

/// Counts what a rank sends. A part of it counts by itself.
class counted_world : public counted<local::communicator> {
    using base_type = counted<local::communicator>;

public:
    explicit counted_world(local::communicator comm, std::shared_ptr<traffic> into = std::make_shared<traffic>())
        : base_type(comm, into->bytes, into->calls), sent(into)
    {
    }
    std::optional<counted_world> split(int color, int key, call_site where = call_site::current())
    {
        return counted_world(*base_type::split(color, key, where));
    }
    std::shared_ptr<traffic> sent;
};

} // namespace

TEST_CASE("the bytes within and across the nodes are those of the formula, and those that were sent")
{
    for (const auto& [nodes_wanted, node_ranks_wanted] : {std::pair{2, 2}, {2, 4}, {4, 2}}) {
        const auto m = static_cast<uint64_t>(nodes_wanted);
        const auto g = static_cast<uint64_t>(node_ranks_wanted);
        const int ranks = nodes_wanted * node_ranks_wanted;
        CHECK_NOTHROW(local_provider{ranks}.run([&](local::communicator& plain) {
            counted_world world(plain);
            node_groups nodes(world, static_cast<int>(g));
            host::stream stream;
            const auto check = [&]<class T, class Contract>(T, Contract keeps, uint64_t count, uint64_t leaves,
                                   bool scatter, uint64_t scratch, uint64_t partial_bytes) {
                traffic& within = *nodes.within_node().sent;
                traffic& across = *nodes.across_nodes().sent;
                within = across = *world.sent = {};
                reproducible comm(
                    world, keeps, nodes, {.scratch_bytes = scratch, .algorithm = reduction_algorithm::two_level});
                std::vector<T> send(count * leaves), receive(scatter ? count / (m * g) : count);
                const reduction_outcome outcome = scatter
                    ? comm.reduce_scatter(view<const T>(send), view<T>(receive), reduction::sum, stream,
                          {.leaves = leaves})
                    : comm.all_reduce(
                          view<const T>(send), view<T>(receive), reduction::sum, stream, {.leaves = leaves});
                stream.synchronize(soon_ms);
                require(outcome.algorithm == reduction_algorithm::two_level, "another algorithm");
                require(world.sent->calls == 0, "the world was used");
                require(outcome.collectives == within.calls + across.calls, "other calls than the outcome says");
                require(outcome.bytes_across_nodes == across.bytes, "other bytes across than the outcome says");
                require(outcome.bytes_sent == within.bytes + across.bytes, "other bytes than the outcome says");
                if (count % (m * g * 8) != 0) return;
                const uint64_t own = count * sizeof(T);
                const uint64_t gathered = scatter ? 0 : 1;
                require(within.bytes == (leaves + gathered) * own / g * (g - 1), "bytes within");
                require(across.bytes == (partial_bytes + gathered * sizeof(T)) * (count / g) / m * (m - 1),
                    "bytes across");
            };
            using enum reproducibility;
            for (const uint64_t scratch : {uint64_t{1} << 13, uint64_t{1} << 20}) {
                for (const bool scatter : {false, true}) {
                    const uint64_t count = 512 * m * g;
                    check(float{}, contract<size_invariant>{}, count, 1, scatter, scratch, 8);
                    check(float{}, contract<size_invariant, accumulation::float32>{}, count, 3, scatter, scratch, 4);
                    check(bfloat16{}, contract<size_invariant>{}, count, 1, scatter, scratch, 8);
                    check(bfloat16{}, contract<size_invariant, accumulation::float32>{}, count, 2, scatter, scratch, 4);
                    check(double{}, contract<size_invariant>{}, count, 1, scatter, scratch, 16);
                    check(float16{}, contract<correctly_rounded>{}, count, 1, scatter, scratch, g == 2 ? 4 : 8);
                    check(bfloat16{}, contract<correctly_rounded>{}, count, 1, scatter, scratch, 2 * g);
                    check(float{}, contract<correctly_rounded>{}, count, 1, scatter, scratch, 4 * g);
                    check(float{}, contract<correctly_rounded>{}, count, 6, scatter, scratch, 40);
                }
                for (const uint64_t odd : {0u, 1u, 1003u, 4099u}) {
                    check(float{}, contract<size_invariant>{}, odd, 2, false, scratch, 8);
                }
            }
        }));
    }
}

TEST_CASE("the choice: two levels wherever there are nodes, and never by size if that would change bits")
{
    using enum reduction_algorithm;
    const auto chosen = [](uint64_t ranks, uint64_t ranks_per_node, uint64_t bytes, bool order_matters) {
        return detail::algorithm_for({.order_matters = order_matters, .bytes = bytes, .one_shot_bytes = 1 << 16,
            .ranks = ranks, .ranks_per_node = ranks_per_node});
    };
    for (const uint64_t bytes : {uint64_t{0}, uint64_t{100}, uint64_t{1} << 30}) {
        CHECK((chosen(16, 8, bytes, true) == two_level));
        CHECK((chosen(16, 8, bytes, false) == (bytes > 4096 ? two_level : one_shot)));
        for (const uint64_t no_second_level : {0u, 1u, 16u}) {
            CHECK((chosen(16, no_second_level, bytes, true) == (bytes > 4096 ? exchange : one_shot)));
            CHECK((chosen(16, no_second_level, bytes, false) == (bytes > 4096 ? exchange : one_shot)));
        }
    }
    CHECK_NOTHROW(local_provider{4}.run([](local::communicator& world) {
        host::stream stream;
        node_groups nodes(world, 2);
        std::vector<float> send(8, 1.0f), receive(8);
        std::vector<double> gram(16);
        const auto algorithm_of = [&](auto& comm, const reduction_extras& extras) {
            const auto outcome
                = comm.all_reduce(view<const float>(send), view<float>(receive), reduction::sum, stream, extras);
            stream.synchronize(soon_ms);
            require(receive == std::vector<float>(8, 4.0f), "wrong sum");
            return outcome;
        };
        reproducible rounded(world, contract<reproducibility::size_invariant>{}, nodes);
        reproducible exact(world, contract<reproducibility::order_invariant>{}, nodes);
        reproducible always(world, contract<reproducibility::order_invariant>{}, nodes, {.algorithm = two_level});
        reproducible flat(world, contract<reproducibility::order_invariant>{}, nodes, {.algorithm = exchange});
        require(algorithm_of(rounded, {}).algorithm == two_level, "a small sum that rounds");
        require(algorithm_of(exact, {}).algorithm == one_shot, "a small exact sum");
        require(algorithm_of(always, {}).algorithm == two_level, "an exact sum in two levels");
        require(algorithm_of(flat, {}).algorithm == exchange, "an exchange");
        require(algorithm_of(flat, {}).bytes_across_nodes * 3 == algorithm_of(flat, {}).bytes_sent * 2,
            "two of three peers are in the other node");
        // A Gram matrix needs all terms in one place.
        require(algorithm_of(always, {.gram = view<double>(gram)}).algorithm == exchange, "with a Gram matrix");
        require(world.rank() != 0 || gram[0] == 4, "no Gram matrix");
    }));
}

namespace {

using exact_in_two = reproducible<local::communicator, contract<reproducibility::correctly_rounded>,
    node_groups<local::communicator>>;

bool has(const std::optional<error>& failure, const char* part)
{
    return failure && std::string(failure->what()).find(part) != std::string::npos;
}

/// What a call on two nodes of two ends with; `call(comm, stream, memory)`.
template <class Call>
std::vector<rank_outcome> outcomes_of(Call call)
{
    return run_each(local::group(4, {.timeout_ms = 60'000}), [&](local::communicator& world) {
        host::stream stream;
        node_groups nodes(world, 2);
        exact_in_two comm(world, {}, nodes, {.algorithm = reduction_algorithm::two_level});
        std::vector<float> memory(64, 7.0f);
        try {
            call(comm, stream, memory);
            stream.synchronize(soon_ms);
        } catch (...) {
            try { // a call that fails may have enqueued reads of the memory
                stream.synchronize(soon_ms);
            } catch (const error&) {
            }
            require(memory == std::vector<float>(64, 7.0f), "something was written");
            throw;
        }
    });
}

} // namespace

TEST_CASE("a bad argument is named on its rank, and no rank waits for it")
{
    const auto sum = [](exact_in_two& comm, host::stream& stream, view<const float> send, view<float> receive) {
        comm.all_reduce(send, receive, reduction::sum, stream);
    };
    struct bad_call {
        const char* message;
        uint64_t send_count, receive_count, receive_at;
    };
    for (const bad_call& bad : {bad_call{"send has 9 elements", 9, 8, 16}, {"overlap", 8, 8, 4}}) {
        const auto outcomes
            = outcomes_of([&](exact_in_two& comm, host::stream& stream, std::vector<float>& memory) {
                  const view<const float> in(memory);
                  const view<float> out(memory);
                  if (comm.rank() != 1) return sum(comm, stream, in.part(0, 8), out.part(16, 8));
                  sum(comm, stream, in.part(0, bad.send_count), out.part(bad.receive_at, bad.receive_count));
              });
        CHECK(has(outcomes[1].failure(), bad.message));
        CHECK(outcomes[1].failure()->code() == status::invalid_argument);
        for (const std::size_t peer : {0u, 2u, 3u}) {
            const std::optional<error> told = outcomes[peer].failure();
            REQUIRE(told);
            CHECK(told->code() == status::peer_failure);
        }
    }
}

TEST_CASE("ranks with different counts, in a node or across nodes, get an error that says so")
{
    const auto outcomes_with = [](auto is_other) {
        return outcomes_of([&](exact_in_two& comm, host::stream& stream, std::vector<float>& memory) {
            const uint64_t count = is_other(comm.rank()) ? 9 : 8;
            comm.all_reduce(view<const float>(memory).part(0, count), view<float>(memory).part(16, count),
                reduction::sum, stream);
        });
    };
    // Who compares the counts first has a mismatch; others may hear of it before they compare.
    const auto check = [](const std::vector<rank_outcome>& outcomes, std::size_t first) {
        int noticed = 0;
        for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
            const std::optional<error> failure = outcomes[rank].failure();
            REQUIRE(failure);
            if (failure->code() != status::mismatch) CHECK(failure->code() == status::peer_failure);
            else if (rank >= first) ++noticed;
            else FAIL("rank ", rank, " compares no counts that differ");
            CHECK(has(failure, "9"));
        }
        CHECK(noticed > 0);
    };
    check(outcomes_with([](int rank) { return rank == 3; }), 2); // its node notices, and the other node hears of it
    check(outcomes_with([](int rank) { return rank >= 2; }), 0); // across the nodes
}

TEST_CASE("two levels without nodes, with those of other ranks, or with too little memory are refused")
{
    CHECK_NOTHROW(local_provider{4}.run([](local::communicator& world) {
        const contract<reproducibility::correctly_rounded> exact;
        const auto refused_with = [](status code, const char* text, auto make) {
            try {
                make();
            } catch (const error& failure) {
                return failure.code() == code && std::string(failure.what()).find(text) != std::string::npos;
            }
            return false;
        };
        require(refused_with(status::unsupported, "needs node_groups",
                    [&] { reproducible(world, exact, {.algorithm = reduction_algorithm::two_level}); }),
            "no nodes");
        node_groups nodes(world, 2);
        require(refused_with(status::invalid_argument, "not those of the communicator",
                    [&] { reproducible(nodes.within_node(), exact, nodes); }),
            "nodes of a larger world");
        require(refused_with(status::invalid_argument, "scratch_bytes is 448: 4 ranks with 1 leaves need",
                    [&] { reproducible(world, exact, nodes, {.scratch_bytes = 448}); }),
            "too little memory");
        reproducible comm(world, exact, nodes, {.scratch_bytes = 4096});
        host::stream stream;
        std::vector<float> send(64), receive(1);
        require(refused_with(status::invalid_argument, "64 leaves need", [&] {
            comm.all_reduce(
                view<const float>(send), view<float>(receive), reduction::sum, stream, {.leaves = 64});
        }), "too little memory for leaves");
    }));
}
