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

#include <collprobe/device/host/device.hpp>

#include "device/stream_cases.hpp"

namespace collprobe::testing::host_test {

using host::device;

namespace {

/// Takes 20 ms for a block.
struct slow {
    using partial = int;
    static constexpr std::uint64_t block = 8;
    static partial identity() { return 0; }
    void run(partial&, std::uint64_t, std::uint64_t) const
    {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    static void merge(partial&, partial) {}
    static int finish(partial all) { return all; }
};

} // namespace

TEST_CASE("buffers own aligned memory and move")
{
    host::buffer<double> empty;
    CHECK(empty.size() == 0);
    CHECK(empty.data() == nullptr);
    host::buffer<double> full(100);
    CHECK(full.size() == 100);
    CHECK(reinterpret_cast<std::uintptr_t>(full.data()) % 64 == 0);
    for (double& x : full) x = 2.5;
    full[99] = 3.5;
    double* const where = full.data();
    host::buffer<double> moved(std::move(full));
    CHECK(moved.data() == where);
    empty = std::move(moved);
    CHECK(empty.data() == where);
    CHECK(empty[99] == 3.5);
    CHECK(host::buffer<char>(0).data() == nullptr);
    struct alignas(128) wide {
        char bytes[128];
    };
    CHECK(reinterpret_cast<std::uintptr_t>(host::buffer<wide>(3).data()) % 128 == 0);
    CHECK(view<const double>(empty).count() == 100);
}

TEST_CASE("a reduction notes when it began and when its result was written, if asked")
{
    CHECK(nanoseconds_between(0xffffffffu, 1) == 512.0); // across the end of the range
    CHECK(nanoseconds_between(1, 0xffffffffu) == -512.0);
    const host::stream stream;
    device::workspace workspace;
    int result = 1;
    clock_stamp stamps[4] = {7, 7, 7, 7};
    const clock_stamp before = detail::host_stamp();
    device::reduce(stream, slow{}, 1, &result, workspace, {&stamps[0], &stamps[1]});
    device::reduce(stream, slow{}, 1, &result, workspace, {nullptr, &stamps[2]});
    device::reduce(stream, slow{}, 1, &result, workspace);
    stream.synchronize(soon_ms);
    const clock_stamp after = detail::host_stamp();
    CHECK(nanoseconds_between(before, stamps[0]) >= 0);
    CHECK(nanoseconds_between(stamps[0], stamps[1]) >= 19e6);
    CHECK(nanoseconds_between(stamps[1], stamps[2]) >= 19e6);
    CHECK(nanoseconds_between(stamps[2], after) >= 19e6);
    CHECK(stamps[3] == 7);
}

} // namespace collprobe::testing::host_test
