// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/local/communicator.hpp>

#include "conformance/communicator_conformance.hpp"
#include "support/errors.hpp"
#include "support/rank_memory.hpp"
#include "support/run_ranks.hpp"

namespace collprobe::testing::adaptor_test {
namespace {

// This class stands in include/collprobe/comm/README.md.
/// Delays the calls of one rank: its stream sleeps before each.
template <communicator Comm>
class delaying : public adaptor<delaying<Comm>, Comm> {
public:
    delaying(Comm comm, int rank, int ms) : adaptor<delaying, Comm>(std::move(comm)), rank_(rank), ms_(ms) {}
    template <element T>
    auto make(const collective_call& call, stream_ref_of<Comm> on)
    {
        const auto sleep = [ms = ms_] { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); };
        if (this->rank() == rank_) on.enqueue(sleep);
        return this->comm_.template make<T>(call, on);
    }

private:
    int rank_, ms_;
};
// To here.

/// Changes nothing.
template <communicator Comm>
struct plain : adaptor<plain<Comm>, Comm> {
    using adaptor<plain, Comm>::adaptor;
};
template <class Comm>
plain(Comm) -> plain<Comm>;

using twice = plain<plain<local::communicator>>;
static_assert(communicator<twice>);

template <class Self>
struct only_ranks : collectives<Self, host::device> {
    int rank() const noexcept { return 2; }
    int size() const noexcept { return 3; }
};

/// Has barriers alone.
struct only_barrier : only_ranks<only_barrier> {
    static constexpr bool has_collective(collective what) noexcept { return what == collective::barrier; }
    template <element T>
    void make(const collective_call& call, host::stream_ref)
    {
        last = call.what;
    }
    collective last = collective::split;
};
static_assert(communicator<plain<only_barrier>>);

/// One that owns what it stands for: it can be moved, not copied.
struct only_movable : plain<local::communicator> {
    using plain<local::communicator>::plain;
    only_movable(only_movable&&) = default;
};
static_assert(communicator<plain<only_movable>>);

/// Says everything that a communicator may say beside its calls.
struct watched : only_ranks<watched> {
    std::string called;
    std::string* log = nullptr;

    watched(std::string name, std::string& to) : called(std::move(name)), log(&to) {}
    template <element T>
    void make(const collective_call&, host::stream_ref)
    {
    }
    const std::string& name() const { return called; }
    void check(call_site where) const { *log += "check from line " + std::to_string(where.line) + ";"; }
    void synchronize(host::stream_ref, call_site = {}) const { *log += "synchronize;"; }
    void synchronize(host::stream_ref, std::int64_t timeout_ms, call_site = {}) const
    {
        *log += "synchronize within " + std::to_string(timeout_ms) + ";";
    }
    void next_step(host::stream_ref, call_site = {}) { *log += "next step;"; }
    bool enqueues_at_once() const { return false; }
    auto group_scope(call_site = {}) const
    {
        *log += "group;";
        return detail::nothing_to_leave();
    }
    bool follow_group(group_follower&) const { return true; }
    void fail(const std::string& reason) const { *log += "fail: " + reason; }
};

template <class Inner = local::communicator>
auto provider_of(int ranks)
{
    return testing::wrapped_provider{testing::local_provider{ranks}, [](local::communicator& world) {
        plain<plain<Inner>> first{plain{Inner(world)}};
        plain<plain<Inner>> comm(std::move(first));
        conformance::require(&comm.innermost() == &comm.base().base().innermost(), "not the same communicator");
        return comm;
    }};
}

} // namespace

TEST_CASE("a communicator wrapped twice conforms as it does bare")
{
    for (const int ranks : {1, 3}) {
        CAPTURE(ranks);
        const auto provider = provider_of(ranks);
        CHECK_NOTHROW(conformance::check_types(provider, 67));
        CHECK_NOTHROW(conformance::check_calls(provider, 50));
        CHECK_NOTHROW(conformance::check_barrier(provider));
    }
    CHECK_NOTHROW(conformance::check_refusals(provider_of(3)));
}

TEST_CASE("a communicator that cannot be copied conforms when it was moved in, and with what wraps it")
{
    CHECK_NOTHROW(conformance::check_type<float>(provider_of<only_movable>(3), 67));
}

TEST_CASE("errors, the time-out and the caller's line come through")
{
    const plain alone{only_barrier()};
    CHECK(alone.rank() == 2);
    CHECK(alone.size() == 3);
    CHECK(alone.timeout_ms() == 30'000);
    const auto outcomes
        = testing::run_each(local::group(2, {.timeout_ms = 1'234, .name = "wrapped"}), [](local::communicator& world) {
              const host::stream stream;
              twice comm{plain(world)};
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
    plain<plain<watched>> comm{plain{watched("the name", log)}};
    CHECK(&comm.name() == &comm.base().base().name());
    CHECK(&comm.innermost() == &comm.base().base());
    CHECK_FALSE(comm.enqueues_at_once());
    comm.check(call_site::current());
    const host::stream stream;
    comm.synchronize(stream);
    comm.synchronize(stream, 7);
    comm.next_step(stream);
    comm.group_scope().end({}); // stops here
    comm.fail("no more");
    CHECK(log.starts_with("check from line "));
    CHECK(log.find("line 0;") == std::string::npos);
    CHECK(log.ends_with("synchronize;synchronize within 7;next step;fail: no more"));
}

TEST_CASE("a collective that a communicator does not have is refused by it and by what wraps it")
{
    plain<plain<only_barrier>> comm{plain{only_barrier()}};
    const host::stream stream;
    std::vector<float> values(3);
    comm.barrier(stream);
    CHECK(comm.innermost().last == collective::barrier);
    const auto thrown = testing::error_of([&] { comm.all_reduce(view(values), reduction::sum, stream); });
    REQUIRE(thrown);
    CHECK(thrown->code() == status::unsupported);
    CHECK(std::string(thrown->what()).find("all_reduce: unsupported: the communicator does not have this collective "
                                           "(reported by rank 2 of 3) [") != std::string::npos);
    CHECK(std::string(thrown->what()).find("adaptor_test.cpp") != std::string::npos);
}

TEST_CASE("an adaptor that delays one rank's calls delays all")
{
    for (const int late : {1, 9}) { // there is no rank 9
        const std::int64_t begin = detail::deadline::now_ns(); // before the late rank's thread begins
        local::run(3, [&](local::communicator& world) {
            delaying comm(world, late, 30);
            std::vector<float> values(4, 1.0f);
            const host::stream stream;
            comm.all_reduce(view(values), reduction::sum, stream);
            stream.synchronize(20'000);
            const std::int64_t taken = detail::deadline::now_ns() - begin;
            conformance::require(values[3] == 3.0f, "wrong sum");
            conformance::require(late == 9 || taken >= 30'000'000, "no delay");
        });
    }
}

} // namespace collprobe::testing::adaptor_test
