// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include <collprobe/device/host/device.hpp>
#include <collprobe/guard/guarded.hpp>

#include "support/checks.hpp"
#include "support/host_gate.hpp"
#include "support/run_ranks.hpp"

namespace collprobe::testing::guarded_test {
namespace {

using device = host::device;
using buffer = guarded<device, float>;
void fill(buffer& into, host::stream_ref on, float value)
{
    into.write(on, [&](view<float> data) { device::fill(on, data, value); });
}
/// What a reader on `on` sees, when it is done.
float read(buffer& from, host::stream_ref on)
{
    float seen = 0;
    from.read(on, [&](view<const float> data) { on.enqueue([&seen, data] { seen = data[0]; }); });
    on.synchronize(soon_ms);
    return seen;
}

} // namespace

TEST_CASE("readers do not wait for each other, nor accesses of disjoint parts")
{
    const watchdog guard("the test", 60);
    const host::stream a, b;
    buffer data(16);
    fill(data, a, 1);
    a.synchronize(soon_ms);
    CHECK(data.generation() == 1);
    const host_gate closed;
    closed.close(a);
    data.read(a, [](view<const float>) {});
    CHECK(read(data, b) == 1);
    data.write(0, 8, a, [&](view<float> part) { device::fill(a, part, 2.0f); });
    data.write(8, 8, b, [&](view<float> part) {
        CHECK(part.count() == 8);
        b.enqueue([] {});
    });
    CHECK(!b.query()); // it waits for the reader of everything on a
    closed.open();
    b.synchronize(soon_ms);
    a.synchronize(soon_ms);

    const host_gate again;
    again.close(a);
    data.write(0, 8, a, [&](view<float> part) { device::fill(a, part, 3.0f); });
    data.write(8, 8, b, [&](view<float> part) { device::fill(b, part, 4.0f); });
    b.synchronize(soon_ms);
    CHECK(data.memory()[8] == 4);
    again.open();
    a.synchronize(soon_ms);
}

TEST_CASE("many writers of parts stay a bounded history")
{
    const host::stream a, b;
    buffer data(4096);
    for (int round = 0; round < 50; ++round) {
        for (std::uint64_t part = 0; part < 64; ++part) {
            const host::stream_ref on = part % 2 == 0 ? a : b;
            data.write(part * 64, 64, on, [&](view<float> some) { device::fill(on, some, 1.0f); });
        }
        a.synchronize(soon_ms);
        b.synchronize(soon_ms);
    }
    CHECK(data.history("size", call_site::current()).size() <= 64);
    fill(data, a, 2);
    CHECK(data.history("size", call_site::current()).size() == 1);
    a.synchronize(soon_ms);
}

TEST_CASE("a release comes behind everything, and the destructor waits or gives the memory up")
{
    const watchdog guard("the test", 60);
    const host::stream a, b;
    {
        const host_gate closed;
        buffer data(16);
        fill(data, a, 1);
        a.synchronize(soon_ms);
        closed.close(a);
        data.read(a, [](view<const float>) {});
        data.order_release(b);
        b.enqueue([] {});
        CHECK(!b.query());
        CHECK_THROWS_AS(data.synchronize(10), error);
        closed.open();
        b.synchronize(soon_ms);
        data.synchronize(soon_ms);
    }
    const host_gate closed;
    {
        buffer given_up(16, 10);
        closed.close(a);
        fill(given_up, a, 1);
    }
    closed.open(); // what is written then must still be there: a sanitizer would tell
    a.synchronize(soon_ms);
}

TEST_CASE("what threw while it enqueued still counts as an access")
{
    const watchdog guard("the test", 60);
    const host::stream a, b;
    buffer data(16);
    fill(data, b, 1);
    const host_gate closed;
    closed.close(a);
    CHECK_THROWS_AS(data.write(a, [&](view<float> all) {
        device::fill(a, all, 2.0f);
        throw std::runtime_error("after half of it");
    }), std::runtime_error);
    CHECK(data.generation() == 0); // half of it may be written: nobody reads that by mistake
    CHECK_THROWS_AS(data.read(b, [](view<const float>) {}), error);
    data.set_generation(1);
    data.read(b, [](view<const float>) {});
    CHECK(!b.query());
    closed.open();
    b.synchronize(soon_ms);
}

TEST_CASE("parts that are not there are refused")
{
    const host::stream a;
    buffer data(16);
    CHECK_THROWS_AS(data.write(10, 7, a, [](view<float>) {}), error);
    CHECK_THROWS_AS(data.write(17, 0, a, [](view<float>) {}), error);
    CHECK_THROWS_AS(data.write(UINT64_MAX, 2, a, [](view<float>) {}), error);
    CHECK_THROWS_AS(data.read(a, [](view<const float>) {}), error); // nothing was written
    data.set_generation(7);
    data.read(a, [](view<const float> all) { CHECK(all.count() == 16); });
    buffer moved(std::move(data));
    CHECK(moved.generation() == 7);
    CHECK_THROWS_AS(data.write(a, [](view<float>) {}), error);
    CHECK_THROWS_WITH_AS(data.read(a, [](view<const float>) {}), doctest::Contains("was moved from"), error);
    CHECK_THROWS_AS(data.order_release(a), error);
    CHECK_THROWS_AS(data.synchronize(1), error);
}

} // namespace collprobe::testing::guarded_test
