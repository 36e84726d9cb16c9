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

using namespace collprobe;
using testing::contains;
using testing::error_of;

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

const std::vector<fault> one_fault = {{.kind = fault_kind::bit_flips, .phase = fault_phase::after, .rank = 0, .call = 0}};

/// Each wrapper in turn does `use(wrapper, stream)` with a communicator of its own.
template <class Comm, class Use>
void with_each_wrapper(const Comm& world, Use use)
{
    const host::stream stream;
    {
        probed comm{world};
        use(comm, stream);
    }
    {
        probed comm{world, {.statistics = false}, audit()};
        use(comm, stream);
    }
    {
        faulty comm{world, one_fault};
        use(comm, stream);
    }
    {
        reproducible comm{world};
        use(comm, stream);
    }
}

/// Has a name, and memory that it refuses before anybody reads it.
struct named : one_rank<named> {
    std::string name() const { return "the world"; }
    template <class T>
    void check_buffer(view<T> data, const char* argument, collective call, host::stream_ref, call_site where) const
    {
        if (data.data() == nullptr) return;
        throw error(status::invalid_argument, std::string(argument) + " is elsewhere",
            {.call = collprobe::name(call), .communicator = "", .where = where});
    }
};

/// Collects calls, but those of its group alone.
struct grouping : one_rank<grouping> {
    struct scope {
        int* open;
        int* closed;
        void end(call_site) { --*open, ++*closed; }
    };
    int open = 0;
    int closed = 0;
    scope group_scope(call_site)
    {
        ++open;
        return {&open, &closed};
    }
    template <element T>
    void make(const collective_call& call, host::stream_ref on)
    {
        CHECK(open == 1);
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
    }
    smallest world;
    agreement check(world);
    const std::vector<replica> list{view(send)};
    CHECK(check.agreed(view<const replica>(list), stream));
    CHECK(inspect<float>(world, stream, 4).communicator.empty());
    copy_then_all_gather(send, receive, world, stream, {}, {}).synchronize(20'000);
    CHECK(receive == send);
}

TEST_CASE("capabilities - a name is in every message, and a buffer that the call would refuse is not read")
{
    // Not this process's memory: to read it would end the test.
    const view<const float> elsewhere(reinterpret_cast<const float*>(std::uintptr_t{4096}), 4);
    std::vector<float> receive(4);
    const host::stream stream;
    const auto refused = [&](auto& comm) {
        const auto sum = [&](view<const float> send) {
            const auto thrown = error_of([&] { comm.all_reduce(send, view(receive), reduction::sum, stream); });
            stream.synchronize(20'000);
            return thrown ? std::string(thrown->what()) : "accepted";
        };
        CHECK(contains(sum({nullptr, 4}),
            "send is null with count 4 (reported by rank 0 of 1 of communicator 'the world')"));
        CHECK(contains(sum(elsewhere), "send is elsewhere"));
    };
    probed probe{named()};
    refused(probe);
    probed audited{named(), {.statistics = false}, audit()};
    refused(audited);
    reproducible exact{named()};
    refused(exact);
    const auto thrown = error_of([] { faulty faults{named(), {{.kind = fault_kind::bit_flips, .stride = 0}}}; });
    CHECK((thrown && thrown->communicator() == "the world"));
}

TEST_CASE("capabilities - the device is entered, and left, and the time-out is that of every wrapper")
{
    static int entered = 0;
    static int inside = 0;
    struct scope {
        scope() { ++entered, ++inside; }
        scope(const scope&) = delete;
        ~scope() { --inside; }
    };
    struct placed : one_rank<placed> {
        scope device_scope() const { return {}; }
        std::int64_t timeout_ms() const noexcept { return 123; }
    };
    std::vector<float> send(8, 3.0f), receive(8);
    with_each_wrapper(placed(), [&](auto& comm, const host::stream& stream) {
        const int before = entered;
        CHECK(before > 0);
        CHECK(comm.timeout_ms() == 123);
        comm.all_reduce(view<const float>(send), view(receive), reduction::sum, stream);
        stream.synchronize(20'000);
        CHECK(entered > before);
        CHECK(inside == 0);
        entered = 0;
    });
}

TEST_CASE("capabilities - a failure ends a wait")
{
    struct failed : one_rank<failed> {
        void check(call_site where) const
        {
            throw error(status::peer_failure, "rank 3 is gone", {.call = "check", .communicator = "", .where = where});
        }
    };
    probed comm{failed()};
    std::vector<float> weights(8, 1.0f);
    host::event go;
    const host::stream producer, stream;
    std::atomic<bool> open{false};
    producer.enqueue([&open] {
        while (!open.load()) {
        }
    });
    go.record(producer);
    stream.wait(go);
    comm.expect_equal("weights", view<const float>(weights), stream);
    comm.end_step(0, stream);
    step_record record;
    const auto thrown = error_of([&] { comm.wait(record); });
    open.store(true);
    CHECK((thrown && thrown->code() == status::peer_failure));
    stream.synchronize(20'000);
}

TEST_CASE("capabilities - a wait of the host is the communicator's")
{
    struct waiting : one_rank<waiting> {
        int* waits;
        void synchronize(host::stream_ref on, call_site where) const
        {
            ++*waits;
            on.synchronize(20'000, where);
        }
    };
    int waits = 0;
    waiting world;
    world.waits = &waits;
    const host::stream stream;
    agreement check(world);
    std::vector<float> weights(8, 1.0f);
    const std::vector<replica> list{view(weights)};
    CHECK(check.agreed(view<const replica>(list), stream));
    CHECK(waits == 1);
    inspect<float>(world, stream, 4);
    CHECK(waits > 1);
}

TEST_CASE("capabilities - what cannot be put right fails")
{
    struct part : one_rank<part> {
        int size() const noexcept { return 3; } // another than this rank has asked for
        std::string* log = nullptr;
        void fail(const std::string& reason) const { *log += reason + ";"; }
    };
    struct world_of_four : one_rank<world_of_four> {
        std::string* log = nullptr;
        int size() const noexcept { return 4; }
        std::optional<part> split(int, int, call_site)
        {
            part made;
            made.log = log;
            return made;
        }
    };
    std::string log;
    world_of_four world;
    world.log = &log;
    const auto thrown = error_of([&] { node_groups<world_of_four>(world, 2); });
    CHECK((thrown && thrown->code() == status::mismatch));
    CHECK(log == "ranks_per_node is 2 here, and another on some ranks;ranks_per_node is 2 here, and another on some ranks;");
}

TEST_CASE("capabilities - inside a group what would come before the call is refused")
{
    struct collecting : one_rank<collecting> {
        bool enqueues_at_once() const noexcept { return false; }
    };
    std::vector<float> send(8, 3.0f), receive(8, 0.0f);
    const auto refused = [](auto use) {
        const auto thrown = error_of(use);
        CHECK((thrown && thrown->code() == status::unsupported));
        CHECK((thrown && contains(thrown->what(), detail::inside_a_group)));
    };
    with_each_wrapper(collecting(), [&](auto& comm, const host::stream& stream) {
        refused([&] { comm.all_reduce(view<const float>(send), view(receive), reduction::sum, stream); });
        CHECK(receive == std::vector<float>(8, 0.0f));
    });
    collecting world;
    const host::stream stream;
    agreement check(world);
    const std::vector<replica> list{view(send)};
    refused([&] { check.agreed(view<const replica>(list), stream); });
    refused([&] { inspect<float>(world, stream, 4); });
    refused([&] { copy_then_all_gather(send, receive, world, stream, {}, {}); });
}

TEST_CASE("capabilities - many gathers are one group")
{
    grouping world;
    std::vector<float> a(4, 1.0f), b(4, 2.0f), to_a(4), to_b(4);
    const host::stream stream;
    const std::vector<gather_item<host::device, float>> items{{a, to_a}, {b, to_b}};
    copy_then_all_gather(items, world, stream, {}, {}).synchronize(20'000);
    CHECK((world.open == 0 && world.closed == 1));
    CHECK((to_a == a && to_b == b));
}

TEST_CASE("capabilities - messages of an adaptor's own pass by all adaptors")
{
    reproducible inner{smallest()};
    probed comm{std::move(inner)};
    CHECK(&comm.innermost() == &comm.base().base());
    smallest alone;
    CHECK(&alone.innermost() == &alone);
}
