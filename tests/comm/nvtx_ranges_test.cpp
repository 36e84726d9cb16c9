// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Without a tool, with NVTX's headers or without them, the adaptor only forwards.
#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/comm/nvtx_ranges.hpp>
#include <collprobe/reduce/reproducible.hpp>

#include "conformance/communicator_conformance.hpp"
#include "support/run_ranks.hpp"

using namespace collprobe;

namespace {

using ranged = nvtx_ranges<local::communicator>;
static_assert(full_communicator<ranged, float> && full_communicator<nvtx_ranges<ranged>, bfloat16>);
static_assert(has_split<ranged> && has_name<ranged> && !has_group_scope<ranged> && !has_follow_group<ranged>);
// Extras pass where the wrapped communicator takes them.
using ranged_reproducible = nvtx_ranges<reproducible<local::communicator>>;
static_assert(detail::has_all_reduce_with_extras<ranged_reproducible, float>);
static_assert(detail::has_reduce_scatter_with_extras<ranged_reproducible, float>);
static_assert(!detail::has_all_reduce_with_extras<ranged, float>);

/// One rank alone that has groups and does nothing.
struct idle {
    using device = host::device;
    struct scope {
        int* ended;
        void end(call_site = {}) { ++*ended; }
    };
    int* calls;
    int* ended;

    int rank() const noexcept { return 0; }
    int size() const noexcept { return 1; }
    scope group_scope(call_site = {}) const { return {ended}; }
    bool follow_group(group_follower&) const { return true; }
    template <element T>
    [[gnu::noinline]] void all_reduce(std::type_identity_t<view<const T>>, view<T>, reduction, host::stream_ref,
        call_site = call_site::current())
    {
        ++*calls;
    }
};
struct only_ranks {
    using device = host::device;
    int rank() const noexcept { return 0; }
    int size() const noexcept { return 1; }
};
static_assert(communicator<nvtx_ranges<only_ranks>> && !has_barrier<nvtx_ranges<only_ranks>>
    && !has_split<nvtx_ranges<only_ranks>> && !has_all_reduce<nvtx_ranges<only_ranks>, float>);
static_assert(has_group_scope<nvtx_ranges<idle>> && has_follow_group<nvtx_ranges<idle>>);

struct ranged_provider {
    using communicator = ranged;
    testing::local_provider inner;
    int size() const { return inner.size(); }
    template <class Body>
    void run(Body body) const
    {
        inner.run([&](local::communicator& world) {
            ranged comm(world);
            body(comm);
        });
    }
};

} // namespace

TEST_CASE("a communicator with ranges conforms as the one it wraps does")
{
    for (const int ranks : {1, 3}) {
        CAPTURE(ranks);
        CHECK_NOTHROW(conformance::check_types(ranged_provider{{ranks}}, 67));
        CHECK_NOTHROW(conformance::check_calls(ranged_provider{{ranks}}, 50));
        CHECK_NOTHROW(conformance::check_barrier(ranged_provider{{ranks}}));
    }
}

TEST_CASE("groups and reductions with leaves pass through")
{
    int calls = 0;
    int ended = 0;
    nvtx_ranges comm(idle{&calls, &ended});
    const host::stream stream;
    detail::as_one_group(comm, {}, [&] {
        comm.all_reduce(view<const float>(), view<float>(), reduction::sum, stream);
        CHECK(ended == 0);
    });
    CHECK(calls == 1);
    CHECK(ended == 1);

    CHECK_NOTHROW(testing::local_provider{2}.run([](local::communicator& world) {
        const host::stream on;
        nvtx_ranges comm_of_leaves{reproducible(world), 7};
        const std::vector<float> send = {1, 2, 4, 8};
        std::vector<float> receive(2);
        const reduction_outcome outcome = comm_of_leaves.all_reduce(
            view<const float>(send), view<float>(receive), reduction::sum, on, {.leaves = 2});
        on.synchronize(20'000);
        conformance::require(outcome.terms == 4, "not the leaves of both ranks");
        conformance::require(receive == std::vector<float>{10, 20}, "not their sum");
    }));
}

TEST_CASE("the number of a communicator is the same on its ranks and differs by name and size")
{
    std::vector<std::uint64_t> seen;
    for (const char* name : {"a", "b"}) {
        for (const int ranks : {1, 2}) {
            std::vector<std::uint64_t> of(static_cast<std::size_t>(ranks));
            local::run(ranks, {.name = name}, [&](local::communicator& world) {
                of[static_cast<std::size_t>(world.rank())] = detail::hash_of_communicator(world);
            });
            for (const std::uint64_t each : of) CHECK(each == of[0]);
            for (const std::uint64_t other : seen) CHECK(of[0] != other);
            seen.push_back(of[0]);
        }
    }
}

TEST_CASE("without a tool a range costs next to nothing")
{
    int calls = 0;
    int ended = 0;
    idle bare{&calls, &ended};
    nvtx_ranges comm(bare);
    const host::stream stream;
    std::vector<float> values(4);
    const auto time = [&](auto& called) {
        constexpr int repeats = 200'000;
        const auto begun = std::chrono::steady_clock::now();
        for (int i = 0; i < repeats; ++i) {
            called.all_reduce(view<const float>(values), view<float>(values), reduction::sum, stream);
        }
        return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begun).count() / repeats;
    };
    time(bare);
    const double plain = time(bare);
    const double with_range = time(comm);
    MESSAGE("NVTX " << COLLPROBE_NVTX << ": a call takes " << plain << " ns, with a range " << with_range << " ns");
    CHECK(calls == 600'000);
}
