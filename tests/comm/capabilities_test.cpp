// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// The smallest legal communicator works under every wrapper and algorithm; one that says more of itself gets what that
// is for.
#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/audit/audit.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/node_groups.hpp>
#include <collprobe/device/host/device.hpp>
#include <collprobe/fault/faulty.hpp>
#include <collprobe/guard/copy_then_all_gather.hpp>
#include <collprobe/inspect/inspect.hpp>
#include <collprobe/reduce/reproducible.hpp>
#include <collprobe/replica/agreement.hpp>
#include <collprobe/step/probed.hpp>

#include "support/errors.hpp"

namespace collprobe::testing::capabilities_test {
namespace {

/// One rank alone: what the concept asks for, and nothing else. `Self` may say more.
template <class Self>
struct one_rank : collectives<Self, host::device> {
    int rank() const noexcept { return 0; }
    int size() const noexcept { return 1; }
    template <element T>
    void make(const collective_call& call, host::stream_ref on)
    {
        if (call.what == collective::barrier || call.send == call.receive) return;
        host::device::copy(on, call.sent<T>(), call.received<T>(), call.where);
    }
};
struct smallest : one_rank<smallest> {};
static_assert(communicator<smallest>);

const std::vector<fault> two_faults = {{.rank = 0, .call = 0}, {.rank = 0, .call = 1}};

/// Each wrapper in turn does `use(wrapper, stream)` with a communicator of its own.
template <class Comm, class Use>
void with_each_wrapper(const Comm& world, Use use)
{
    const host::stream stream;
    for (const bool statistics : {true, false}) {
        probed comm{world, {.statistics = statistics}, audit()};
        use(comm, stream);
    }
    {
        faulty comm{world, two_faults};
        use(comm, stream);
    }
    {
        reproducible comm{world};
        use(comm, stream);
    }
}

/// Says all that a communicator may say of itself.
struct telling : one_rank<telling> {
    struct facts {
        int entered = 0, inside = 0, waits = 0, open = 0, closed = 0, outside_a_group = 0;
        bool has_failed = false, collects = false;
        const void* elsewhere = nullptr; ///< memory that nobody may read
    };
    struct scope {
        facts* of;
        explicit scope(facts* to) : of(to) { ++of->entered, ++of->inside; }
        scope(const scope&) = delete;
        ~scope() { --of->inside; }
    };
    struct group {
        facts* of;
        void end(call_site) { --of->open, ++of->closed; }
    };
    facts* of;
    explicit telling(facts& to) : of(&to) {}

    std::string name() const { return "the world"; }
    std::int64_t timeout_ms() const noexcept { return 123; }
    scope device_scope() const { return scope(of); }
    bool enqueues_at_once() const noexcept { return !of->collects; }
    group group_scope(call_site)
    {
        ++of->open;
        return {of};
    }
    void synchronize(host::stream_ref on, call_site where) const
    {
        ++of->waits;
        on.synchronize(20'000, where);
    }
    void check(call_site where) const
    {
        if (of->has_failed) throw error(status::peer_failure, "rank 3 is gone", {.call = "check", .where = where});
    }
    template <class T>
    void check_buffer(view<T> data, const char* argument, collective call, host::stream_ref, call_site where) const
    {
        if (data.data() == nullptr || data.data() != of->elsewhere) return;
        throw error(status::invalid_argument, std::string(argument) + " is elsewhere",
            {.call = collprobe::name(call), .where = where});
    }
    template <element T>
    void make(const collective_call& call, host::stream_ref on)
    {
        if (of->open == 0) ++of->outside_a_group;
        one_rank::make<T>(call, on);
    }
};

} // namespace

TEST_CASE("capabilities - the smallest communicator works under every wrapper")
{
    std::vector<float> send(8, 3.0f), receive(8);
    with_each_wrapper(smallest(), [&](auto& comm, const host::stream& stream) {
        receive.assign(8, 0.0f);
        comm.all_reduce(view<const float>(send), view(receive), reduction::sum, stream);
        comm.reduce_scatter(view<const float>(send), view(receive), reduction::sum, stream);
        comm.all_gather(view<const float>(send), view(receive), stream);
        comm.all_to_all(view<const float>(send), view(receive), stream);
        comm.broadcast(view<const float>(send), view(receive), 0, stream);
        stream.synchronize(20'000);
        CHECK(receive == send);
        CHECK(comm.timeout_ms() == 30'000);
    });

    const host::stream stream;
    {
        reproducible inner{smallest()};
        faulty faults{std::move(inner), {}};
        probed comm{std::move(faults), {}, audit()};
        comm.all_reduce(view<const float>(send), view(receive), reduction::sum, stream);
        comm.end_step(7, {}, stream);
        stream.synchronize(20'000);
        step_record seen;
        CHECK((comm.poll(seen) && seen.calls.size() == 1 && seen.findings.empty() && seen.calls[0].audit.checked));
        CHECK(&comm.innermost() == &comm.base().base().base()); // its own messages pass by all adaptors
    }
    smallest world;
    CHECK(&world.innermost() == &world);
    agreement check(world);
    const std::vector<replica> list{view(send)};
    CHECK(check.agreed(view<const replica>(list), stream));
    CHECK(inspect<float>(world, stream, 4).communicator.empty());
    copy_then_all_gather(send, receive, world, stream, {}, {}).synchronize(20'000);
    CHECK(receive == send);
}

TEST_CASE("capabilities - every wrapper tells the name, enters the device, keeps the time-out and asks before it reads")
{
    telling::facts facts;
    // Not this process's memory: to read it would end the test.
    const view<const float> elsewhere(reinterpret_cast<const float*>(std::uintptr_t{4096}), 4);
    facts.elsewhere = elsewhere.data();
    std::vector<float> send(4, 3.0f), receive(4);
    with_each_wrapper(telling(facts), [&](auto& comm, const host::stream& stream) {
        const auto sum = [&](view<const float> from) {
            const auto thrown = error_of([&] { comm.all_reduce(from, view(receive), reduction::sum, stream); });
            stream.synchronize(20'000);
            return thrown ? std::string(thrown->what()) : "accepted";
        };
        CHECK(comm.timeout_ms() == 123);
        const int before = facts.entered;
        CHECK(before > 0);
        // Inside a group what would come before the call is refused.
        facts.collects = true;
        receive.assign(4, 0.0f);
        CHECK(contains(sum(send), detail::inside_a_group));
        CHECK(receive == std::vector<float>(4, 0.0f));
        facts.collects = false;
        CHECK(sum(send) == "accepted");
        CHECK(facts.entered > before);
        if constexpr (!requires { comm.injected(); }) { // `faulty` leaves that to what it wraps
            CHECK(contains(sum({nullptr, 4}),
                "send is null with count 4 (reported by rank 0 of 1 of communicator 'the world')"));
            CHECK(contains(sum(elsewhere), "send is elsewhere"));
        }
        CHECK(facts.inside == 0);
        facts.entered = 0;
    });
    const auto thrown = error_of([&] { faulty faults{telling(facts), {{.kind = fault_kind::bit_flips, .stride = 0}}}; });
    CHECK((thrown && thrown->communicator() == "the world"));
}

TEST_CASE("capabilities - a wait of the host is the communicator's, many gathers are one group, inside one nothing waits")
{
    telling::facts facts;
    telling world(facts);
    const host::stream stream;
    agreement check(world);
    std::vector<float> a(4, 1.0f), b(4, 2.0f), to_a(4), to_b(4);
    const std::vector<replica> list{view(a)};
    CHECK(check.agreed(view<const replica>(list), stream));
    CHECK(facts.waits == 1);
    inspect<float>(world, stream, 4);
    CHECK(facts.waits > 1);
    CHECK(facts.closed == 0);

    facts.outside_a_group = 0;
    const std::vector<gather_item<host::device, float>> items{{a, to_a}, {b, to_b}};
    copy_then_all_gather(items, world, stream, {}, {}).synchronize(20'000);
    CHECK((facts.open == 0 && facts.closed == 1 && facts.outside_a_group == 0));
    CHECK((to_a == a && to_b == b));

    facts.collects = true;
    const auto refused = [](auto use) {
        const auto thrown = error_of(use);
        CHECK((thrown && thrown->code() == status::unsupported && contains(thrown->what(), detail::inside_a_group)));
    };
    refused([&] { check.agreed(view<const replica>(list), stream); });
    refused([&] { inspect<float>(world, stream, 4); });
    refused([&] { copy_then_all_gather(a, to_a, world, stream, {}, {}); });
}

} // namespace collprobe::testing::capabilities_test
