// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/comm/node_groups.hpp>
#include <collprobe/guard/shard.hpp>

#include "support/checks.hpp"
#include "support/count_allocations.hpp"
#include "support/host_gate.hpp"
#include "support/run_ranks.hpp"

using namespace collprobe;
using namespace collprobe::testing;

using std::uint64_t;

namespace {

using device = host::device;
constexpr int poison = -77;

/// Element `index` of the parameter in a generation; exact in bfloat16 below index 100.
template <class T>
T value(uint64_t index, uint64_t generation = 1)
{
    return static_cast<T>(static_cast<float>(index + 1 + 100 * (generation - 1)));
}
template <class T>
bool same(T a, T b)
{
    return static_cast<float>(a) == static_cast<float>(b);
}

/// Whether `data` is the parameter from element `first` on, and zero behind its end.
template <class T>
bool is_parameter(view<const T> data, uint64_t first, uint64_t count, uint64_t generation = 1)
{
    for (uint64_t i = 0; i < data.count(); ++i) {
        if (!same(data[i], first + i < count ? value<T>(first + i, generation) : T{})) return false;
    }
    return true;
}
template <class T>
bool is_parameter(const std::vector<T>& data, uint64_t count, uint64_t generation = 1)
{
    return is_parameter(view<const T>(data), 0, count, generation);
}

template <class T>
void fill_slice(view<T> slice, shard_layout::range range, uint64_t generation = 1)
{
    for (uint64_t i = 0; i < slice.count(); ++i) slice[i] = value<T>(range.first + i, generation);
}
template <class Shard>
void write_primary(Shard& shard, host::stream_ref on, uint64_t generation = 1)
{
    shard.write_primary(on, [&](auto slice) {
        require(slice.count() == shard.primary_range().count, "another slice");
        on.enqueue([slice, range = shard.primary_range(), generation] { fill_slice(slice, range, generation); });
    });
}

/// Counts the bytes that its all-gathers send. What it is split into counts by itself.
class counting : public adaptor<counting, local::communicator> {
public:
    using adaptor::adaptor;
    template <element T>
    void make(const collective_call& call, stream_ref on)
    {
        if (call.what == collective::all_gather) *sent += static_cast<uint64_t>(size() - 1) * call.bytes_sent(rank()).size();
        adaptor::make<T>(call, on);
    }
    std::optional<counting> split(int color, int key, call_site where = call_site::current())
    {
        return counting(*adaptor::split(color, key, where));
    }
    std::shared_ptr<uint64_t> sent = std::make_shared<uint64_t>(0);
};

using shard_of_floats = secondary_shard<local::communicator, float>;

/// Runs `body(world)` on the ranks of `nodes` nodes of `ranks_per_node`.
template <class Body>
void run(int nodes, int ranks_per_node, Body body)
{
    local_provider{nodes * ranks_per_node}.run(body);
}
/// With a shard of `count` elements and three streams, on two nodes of two ranks.
template <class Body>
void run_with_shard(uint64_t count, Body body)
{
    run(2, 2, [&](local::communicator& world) {
        node_groups nodes(world, 2);
        shard_of_floats shard(nodes, count);
        const host::stream a, b, c;
        body(nodes, shard, a.get(), b.get(), c.get());
        for (const host::stream_ref each : {a.get(), b.get(), c.get()}) each.synchronize(soon_ms);
    });
}

/// A shard of `count` elements through its life, against what its elements must be.
template <class T>
void check_shard(node_groups<counting>& nodes, uint64_t count, host::stream_ref on)
{
    const auto k = static_cast<uint64_t>(nodes.nodes()), z = static_cast<uint64_t>(nodes.ranks_per_node());
    secondary_shard<counting, T> shard(nodes, count);
    const auto check = [&](uint64_t generation) {
        std::vector<T> parameter(shard.padded_count(), static_cast<T>(static_cast<float>(poison)));
        auto done = shard.gather(parameter, on, {}, {});
        require(done.path() == gather_path::send_source || count == 0, "the shard was copied");
        done.synchronize(soon_ms);
        require(is_parameter(parameter, count, generation), "another parameter");
        const view<T> kept = shard.secondary().memory();
        const uint64_t first = static_cast<uint64_t>(nodes.local_rank()) * kept.count();
        require(is_parameter(view<const T>(kept), first, count, generation), "another secondary shard");
    };
    require(shard.padded_count() >= count && shard.padded_count() < count + k * z, "padded to another count");
    shard.secondary().write(on, [&](view<T> all) { device::fill(on, all, static_cast<T>(static_cast<float>(poison))); });
    write_primary(shard, on);
    auto made = shard.regenerate(on, {}, {});
    require(made.path() == gather_path::in_place || count == 0, "the primary slice was copied");
    check(1);
    const uint64_t slot = shard.padded_count() / (k * z);
    require(*nodes.across_nodes().sent == (k - 1) * slot * sizeof(T), "other bytes between the nodes");
    require(*nodes.within_node().sent == (z - 1) * k * slot * sizeof(T), "other bytes within the node");

    // Of slices elsewhere: of the same type, and of one to be rounded.
    std::vector<T> slice(shard.primary_range().count);
    fill_slice(view<T>(slice), shard.primary_range());
    shard.secondary().write(on, [&](view<T> all) { device::fill(on, all, static_cast<T>(static_cast<float>(poison))); });
    shard.regenerate(slice, on, {}, {});
    check(1);
    guarded<device, double> master(slice.size());
    master.write(on, [&](view<double> all) {
        on.enqueue([all, range = shard.primary_range()] { fill_slice(all, range); });
    });
    shard.regenerate(master, on, {}, {});
    check(1);
    require(shard.generation() == 1 && shard.primary_generation() == 1, "another generation than the source's");

    require(shard.total_bytes()
            == shard_volume{*nodes.across_nodes().sent, *nodes.within_node().sent}, "other bytes are reported");
    require(shard.total_bytes() == 3 * (shard.regenerate_bytes() + shard.gather_bytes()), "other bytes in total");
    *nodes.across_nodes().sent = 0;
    *nodes.within_node().sent = 0;
}

} // namespace

TEST_CASE("every rank gets the parameter and its secondary shard, padded with zeros, by the bytes of the formula")
{
    for (int nodes = 1; nodes <= 4; ++nodes) {
        for (int ranks_per_node = 1; ranks_per_node <= 4; ++ranks_per_node) {
            CAPTURE(nodes);
            CAPTURE(ranks_per_node);
            CHECK_NOTHROW(run(nodes, ranks_per_node, [&](local::communicator& world) {
                counting counted(world);
                node_groups groups(counted, ranks_per_node);
                const host::stream on;
                for (uint64_t count = 0; count <= 100; ++count) {
                    check_shard<float>(groups, count, on);
                    check_shard<bfloat16>(groups, count, on);
                }
            }));
        }
    }
}

TEST_CASE("a gather waits for the regeneration on another stream, and without the guard reads the old shard")
{
    run_with_shard(37, [](auto& nodes, auto& shard, host::stream_ref compute, host::stream_ref on, host::stream_ref other) {
        std::vector<float> parameter(shard.padded_count());
        write_primary(shard, compute);
        shard.regenerate(on, {}, {}).synchronize(soon_ms);
        for (const bool guarded_call : {false, true}) {
            const uint64_t generation = guarded_call ? 3 : 2;
            write_primary(shard, compute, generation);
            compute.synchronize(soon_ms);
            const host_gate closed;
            closed.close(on);
            shard.regenerate(on, {}, {});
            if (guarded_call) {
                shard.gather(parameter, other, {}, {});
                require(!other.query(), "it did not wait");
            } else {
                nodes.within_node().all_gather(
                    view<const float>(shard.secondary().memory()), view<float>(parameter), other);
                other.synchronize(soon_ms);
                require(!is_parameter(parameter, 37, generation), "the control read the new shard");
            }
            closed.open();
            on.synchronize(soon_ms);
            other.synchronize(soon_ms);
            require(is_parameter(parameter, 37, generation) == guarded_call, "another generation");
        }
    });
}

TEST_CASE("a regeneration waits for the write on another stream, and without the guard sends the old slice")
{
    run_with_shard(37, [](auto& nodes, auto& shard, host::stream_ref compute, host::stream_ref on, host::stream_ref) {
        write_primary(shard, compute);
        shard.regenerate(on, {}, {}).synchronize(soon_ms);
        const auto kept = shard.secondary().memory();
        const auto first = shard.layout().secondary().first;
        for (const bool guarded_call : {false, true}) {
            const host_gate closed;
            closed.close(compute);
            write_primary(shard, compute, 2);
            if (guarded_call) {
                shard.regenerate(on, {}, {});
                require(!on.query(), "it did not wait");
            } else {
                const uint64_t slot = shard.layout().slot();
                nodes.across_nodes().all_gather(view<const float>(kept.part(shard.layout().node * slot, slot)), kept, on);
                on.synchronize(soon_ms);
                require(is_parameter(view<const float>(kept), first, 37, 1), "the control did not send the old slice");
            }
            closed.open();
            compute.synchronize(soon_ms);
            on.synchronize(soon_ms);
            require(is_parameter(view<const float>(kept), first, 37, 2) == guarded_call, "another generation");
        }
    });
}

TEST_CASE("the primary slice is not written under a gather that reads, nor the shard made anew")
{
    run_with_shard(37, [](auto&, auto& shard, host::stream_ref compute, host::stream_ref on, host::stream_ref other) {
        std::vector<float> parameter(shard.padded_count());
        const auto range = shard.primary_range();
        write_primary(shard, compute);
        shard.regenerate(on, {}, {}).synchronize(soon_ms);
        for (const bool guarded_call : {false, true}) {
            const host_gate closed;
            closed.close(on);
            auto done = shard.gather(parameter, on, {}, {});
            if (guarded_call) {
                write_primary(shard, compute, 2);
                require(!compute.query(), "the write did not wait");
                shard.regenerate(other, {}, {});
                require(!other.query(), "the regeneration did not wait");
            } else {
                // Its own slice is written past the guard, and before the gather.
                const uint64_t place = shard.layout().node * shard.layout().slot();
                const view<float> slice = shard.secondary().memory().part(place, range.count);
                compute.enqueue([=] { fill_slice(slice, range, 3); });
                compute.synchronize(soon_ms);
            }
            closed.open();
            done.synchronize(soon_ms);
            require(is_parameter(parameter, 37, 1) == guarded_call, "the gather read another generation");
            compute.synchronize(soon_ms);
            other.synchronize(soon_ms);
            if (guarded_call) {
                shard.gather(parameter, compute, {}, {}).synchronize(soon_ms);
                require(is_parameter(parameter, 37, 2), "the new generation is not there");
            } else {
                write_primary(shard, compute, 1);
                shard.regenerate(on, {}, {}).synchronize(soon_ms);
            }
        }
    });
}

TEST_CASE("a shard that was never made, is stale or was invalidated is not gathered")
{
    // A refusal is final for a communicator, and for what it has in a stream: each has its own.
    std::vector<float> parameter(4);
    const auto refused = [&](auto use) {
        auto world = local::group(1).communicator(0);
        node_groups nodes(world, 1);
        shard_of_floats shard(nodes, 4);
        const host::stream on;
        return error_of([&] { use(shard, on.get()); });
    };
    const auto made = [&](auto then) {
        return [&, then](shard_of_floats& shard, host::stream_ref on) {
            write_primary(shard, on);
            shard.regenerate(on, {}, {});
            then(shard, on);
            shard.gather(parameter, on, {}, {}).synchronize(soon_ms);
        };
    };
    CHECK(!refused(made([](auto&, auto) {})));
    CHECK(is_parameter(parameter, 4));
    const char* const none = "was never made, could not be made or was invalidated";
    CHECK(mentions(refused([&](auto& shard, host::stream_ref on) { shard.gather(parameter, on, {}, {}); }), none));
    CHECK(mentions(refused(made([](auto& shard, auto) { shard.invalidate(); })), none));
    CHECK(mentions(refused([&](auto& shard, host::stream_ref on) { shard.regenerate(on, {}, {}); }),
        "primary slice was never written"));
    const auto stale = refused(made([&](auto& shard, host::stream_ref on) { write_primary(shard, on, 2); }));
    CHECK(mentions(stale, "made of generation 1 of the primary slice, which now has 2"));
    CHECK(stale->code() == status::invalid_argument);
    CHECK(mentions(refused(made([&](auto& shard, host::stream_ref on) {
        const auto fails = [](auto) { throw std::runtime_error("before it wrote"); };
        CHECK_THROWS_AS(shard.write_primary(on, fails), std::runtime_error);
    })), "which now has 2"));
    CHECK(mentions(refused(made([&](auto& shard, host::stream_ref on) {
        shard.gather(parameter, on, {}, {}, 1);
        shard.gather(parameter, on, {}, {}, 2);
    })), "it has generation 1, and 2 is asked for"));
    CHECK(!refused(made([&](auto& shard, host::stream_ref on) {
        write_primary(shard, on, 2);
        shard.regenerate(on, {}, {});
        shard.gather(parameter, on, {}, {}, 2);
    })));
    // A write that failed leaves no slice to regenerate or to read.
    CHECK(mentions(refused(made([&](auto& shard, host::stream_ref on) {
        const auto fails = [](auto) { throw std::runtime_error("half of it is written"); };
        CHECK_THROWS_AS(shard.write_primary(on, fails), std::runtime_error);
        CHECK_THROWS_AS(shard.read_primary(on, [](auto) {}), error);
        shard.regenerate(on, {}, {});
    })), "may have left half of it"));
    // The slice can be read as soon as it is written; that makes nothing stale, and nothing fresh.
    CHECK(mentions(refused(made([&](auto& shard, host::stream_ref on) {
        shard.read_primary(on, [&](auto slice) { CHECK(slice.count() == 4); });
        CHECK(shard.generation() == 1);
        write_primary(shard, on, 2);
        shard.read_primary(on, [&](auto slice) { on.enqueue([slice] { CHECK(slice[0] == value<float>(0, 2)); }); });
        on.synchronize(soon_ms);
    })), "which now has 2"));
    // Nor read otherwise.
    CHECK(mentions(refused(made([&](auto& shard, host::stream_ref on) {
        write_primary(shard, on, 2);
        shard.secondary().read(on, [](auto) {});
    })), "nothing was written"));
}

TEST_CASE("a source elsewhere gives its generation, which a gather may ask for")
{
    run_with_shard(10, [](auto&, auto& shard, host::stream_ref compute, host::stream_ref on, host::stream_ref) {
        std::vector<float> parameter(shard.padded_count());
        guarded<device, float> master(shard.primary_range().count);
        for (uint64_t generation = 1; generation <= 3; ++generation) {
            master.write(compute, [&](view<float> all) {
                compute.enqueue([all, range = shard.primary_range(), generation] { fill_slice(all, range, generation); });
            });
            shard.regenerate(master, on, {}, {});
            shard.gather(parameter, on, {}, {}, master.generation()).synchronize(soon_ms);
            require(is_parameter(parameter, 10, generation), "another parameter");
        }
    });
}

TEST_CASE("peers hear of a shard that is stale on one rank")
{
    local::group ranks(2, {.timeout_ms = 20'000});
    const auto outcomes = run_each(ranks, [](local::communicator& world) {
        node_groups nodes(world, 2);
        shard_of_floats shard(nodes, 4);
        const host::stream on;
        std::vector<float> parameter(4);
        write_primary(shard, on);
        shard.regenerate(on, {}, {}).synchronize(soon_ms);
        if (world.rank() == 1) write_primary(shard, on, 2);
        shard.gather(parameter, on, {}, {}).synchronize(soon_ms);
    });
    REQUIRE(outcomes[1].failure());
    CHECK(mentions(outcomes[1].failure(), "stale"));
    REQUIRE(outcomes[0].failure());
    CHECK(outcomes[0].failure()->code() == status::peer_failure);
    CHECK(outcomes[0].failure()->culprits() == std::vector<int>{1});
}

TEST_CASE("counts that are not the layout's are refused with both")
{
    std::vector<float> five(5), four(4);
    const auto refused = [&](uint64_t count, auto use) {
        auto world = local::group(1).communicator(0);
        node_groups nodes(world, 1);
        const host::stream on;
        return error_of([&] {
            shard_of_floats shard(nodes, count);
            use(shard, on.get());
        });
    };
    CHECK(mentions(refused(4, [&](auto& shard, host::stream_ref on) { shard.regenerate(five, on, {}, {}); }),
        "source.count() is 5, and the primary slice of this rank has 4"));
    CHECK(mentions(refused(4, [&](auto& shard, host::stream_ref on) { shard.gather(five, on, {}, {}); }),
        "destination.count() is 5, and padded_count() 4"));
    CHECK(mentions(refused(UINT64_MAX / 2, [](auto&, auto) {}), "count 9223372036854775807 is impossibly large"));
    CHECK(!refused(4, [&](auto& shard, host::stream_ref on) {
        shard.regenerate(four, on, {}, {});
        shard.gather(four, on, {on}, {on});
    }));
}

TEST_CASE("the host waits for nothing and allocates nothing in the life of a shard")
{
    run(1, 1, [](local::communicator& world) {
        node_groups nodes(world, 1);
        shard_of_floats shard(nodes, 64);
        const host::stream compute, on;
        guarded<device, float> parameter(64);
        const auto step = [&] {
            write_primary(shard, compute);
            shard.regenerate(on, {}, {});
            shard.gather(parameter, on, {}, {compute});
            parameter.read(compute, [](view<const float>) {});
        };
        for (int i = 0; i < 200; ++i) step();
        compute.synchronize(soon_ms);
        on.synchronize(soon_ms);
        const uint64_t waited = compute.synchronizations() + on.synchronizations();
        const long before = allocations.load();
        for (int i = 0; i < 20; ++i) step();
        CHECK(allocations.load() == before);
        CHECK(compute.synchronizations() + on.synchronizations() == waited);
        compute.synchronize(soon_ms);
        on.synchronize(soon_ms);
    });
}
