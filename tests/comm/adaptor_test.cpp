// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include <collprobe/comm/adaptor.hpp>
#include <collprobe/comm/capabilities.hpp>
#include <collprobe/comm/local/communicator.hpp>

#include "conformance/communicator_conformance.hpp"
#include "support/rank_memory.hpp"
#include "support/run_ranks.hpp"

using namespace collprobe;

namespace {

/// An adaptor as a user would write one: it replaces one call.
template <communicator Comm>
class counting : public adaptor<Comm> {
    using base_type = adaptor<Comm>;

public:
    using typename base_type::stream_ref;
    counting(Comm comm, std::uint64_t& elements) : base_type(comm), elements_(&elements) {}

    template <element T>
        requires has_all_reduce<Comm, T>
    void all_reduce(std::type_identity_t<view<const T>> send, view<T> receive, reduction operation, stream_ref on,
        call_site where = call_site::current())
    {
        *elements_ += send.count();
        base_type::all_reduce(send, receive, operation, on, where);
    }

private:
    std::uint64_t* elements_;
};

using twice = adaptor<adaptor<local::communicator>>;
static_assert(full_communicator<twice, float> && full_communicator<counting<local::communicator>, float16>);
// What the wrapped communicator has not, the adaptor has not.
static_assert(!has_device_scope<local::communicator> && !has_device_scope<twice>);

struct only_ranks {
    using device = host::device;
    int rank() const noexcept { return 2; }
    int size() const noexcept { return 3; }
};
static_assert(communicator<adaptor<only_ranks>>);
static_assert(!has_all_reduce<adaptor<only_ranks>, float> && !has_barrier<adaptor<only_ranks>>
    && !has_split<adaptor<only_ranks>>);

/// One that owns what it stands for: it can be moved, not copied.
struct only_movable : adaptor<local::communicator> {
    using adaptor<local::communicator>::adaptor;
    only_movable(only_movable&&) = default;
};
static_assert(full_communicator<adaptor<only_movable>, float>);
static_assert(!has_all_reduce<adaptor<only_ranks>, float> && !has_device_scope<adaptor<only_movable>>);

// What it says beside the collectives comes through too.
template <class C>
concept can_fail = has_check<C> && has_synchronize<C> && has_timed_synchronize<C> && has_abort<C>;
struct watched : only_ranks {
    std::string called;
    std::string* log = nullptr;
    const std::string& name() const { return called; }
    void check(call_site where) const { *log += "check from line " + std::to_string(where.line) + ";"; }
    void synchronize(host::stream_ref, call_site = {}) const { *log += "synchronize;"; }
    void synchronize(host::stream_ref, std::int64_t timeout_ms, call_site = {}) const
    {
        *log += "synchronize within " + std::to_string(timeout_ms) + ";";
    }
    void abort(const std::string& reason) const { *log += "abort: " + reason; }
};
static_assert(can_fail<adaptor<adaptor<watched>>> && !can_fail<adaptor<only_ranks>>);
static_assert(has_name<twice> && !has_name<adaptor<only_ranks>>);

struct twice_provider {
    using communicator = twice;
    testing::local_provider inner;
    int size() const { return inner.size(); }
    template <class Body>
    void run(Body body) const
    {
        inner.run([&](local::communicator& world) {
            twice comm{adaptor(world)};
            body(comm);
        });
    }
};

struct moved_provider {
    using communicator = adaptor<adaptor<only_movable>>;
    testing::local_provider inner;
    int size() const { return inner.size(); }
    template <class Body>
    void run(Body body) const
    {
        inner.run([&](local::communicator& world) {
            communicator first{adaptor{only_movable(world)}};
            communicator comm(std::move(first));
            conformance::require(&detail::innermost(comm) == &comm.base().base().base(), "not the same communicator");
            body(comm);
        });
    }
};

} // namespace

TEST_CASE("a communicator that cannot be copied conforms when it was moved in, and with what wraps it")
{
    CHECK_NOTHROW(conformance::check_types(moved_provider{{3}}, 67));
    CHECK_NOTHROW(conformance::check_calls(moved_provider{{3}}, 50));
    CHECK_NOTHROW(conformance::check_barrier(moved_provider{{3}}));
}

TEST_CASE("a communicator wrapped twice conforms as it does bare")
{
    for (const int ranks : {1, 3}) {
        CAPTURE(ranks);
        CHECK_NOTHROW(conformance::check_types(twice_provider{{ranks}}, 67));
        CHECK_NOTHROW(conformance::check_calls(twice_provider{{ranks}}, 50));
        CHECK_NOTHROW(conformance::check_barrier(twice_provider{{ranks}}));
    }
}

TEST_CASE("a derived adaptor replaces one call and keeps the others")
{
    std::uint64_t elements[2] = {};
    CHECK_NOTHROW(testing::local_provider{2}.run([&](local::communicator& world) {
        const host::stream stream;
        counting comm(world, elements[world.rank()]);
        std::vector<float> values(10, 1.0f), all(20);
        comm.all_reduce(view<const float>(values), view<float>(values), reduction::sum, stream);
        comm.all_gather(view<const float>(values), view<float>(all), stream);
        stream.synchronize(20'000);
        conformance::require(all[19] == 2.0f, "wrong result");
    }));
    CHECK(elements[0] == 10);
    CHECK(elements[1] == 10);
}

TEST_CASE("errors, the time-out and the caller's line come through")
{
    const adaptor alone{only_ranks()};
    CHECK(alone.rank() == 2);
    CHECK(alone.size() == 3);
    CHECK(alone.timeout_ms() == 30'000);
    const auto outcomes
        = testing::run_each(local::group(2, {.timeout_ms = 1'234, .name = "wrapped"}), [](local::communicator& world) {
              const host::stream stream;
              twice comm{adaptor(world)};
              conformance::require(comm.timeout_ms() == 1'234, "wrong time-out");
              testing::rank_memory memory(8);
              if (comm.rank() == 0) {
                  comm.all_reduce(view<const float>(nullptr, 8), memory.out(), reduction::sum, stream);
              } else {
                  comm.all_reduce(memory.in(), memory.out(), reduction::sum, stream);
                  stream.synchronize(20'000);
              }
          });
    const std::optional<error> own = outcomes[0].failure();
    REQUIRE(own);
    CHECK(own->code() == status::invalid_argument);
    CHECK(std::string(own->what()).find("adaptor_test.cpp") != std::string::npos);
    CHECK(std::string(own->what()).find("wrapped") != std::string::npos);
    REQUIRE(outcomes[1].failure());
    CHECK(outcomes[1].failure()->culprits() == std::vector<int>{0});
}

TEST_CASE("a name, failures and waits come through")
{
    std::string log;
    const adaptor<adaptor<watched>> comm{adaptor{watched{{}, "the name", &log}}};
    CHECK(&comm.name() == &comm.base().base().name());
    CHECK(&detail::innermost(comm) == &comm.base().base());
    comm.check(call_site::current());
    const host::stream stream;
    comm.synchronize(stream);
    comm.synchronize(stream, 7);
    comm.abort("no more");
    CHECK(log.starts_with("check from line "));
    CHECK(log.find("line 0;") == std::string::npos);
    CHECK(log.ends_with("synchronize;synchronize within 7;abort: no more"));
}

TEST_CASE("calls that are parts of calls of other sizes do not match")
{
    for (const std::uint64_t other : {5u, 6u}) {
        const local::group group(2, {.timeout_ms = 60'000});
        const auto outcomes = testing::run_each(group, [&](local::communicator& world) {
            const host::stream stream;
            twice comm{adaptor(world)};
            comm.part_of(world.rank() == 0 ? 5 : other, element_type::float32);
            testing::rank_memory memory(8);
            comm.all_to_all(memory.in(), memory.out(), stream);
            comm.part_of(0, {});
            comm.barrier(stream);
            stream.synchronize(20'000);
        });
        for (const auto& outcome : outcomes) {
            const std::optional<error> failure = outcome.failure();
            CHECK(failure.has_value() == (other != 5));
            if (!failure) continue;
            CHECK(failure->code() == status::mismatch);
            CHECK(std::string(failure->what()).find("as part of 6") != std::string::npos);
        }
    }
}
