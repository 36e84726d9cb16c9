// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What `silent_inconsistency --device cuda` runs, on the CPU as a device.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <collprobe/core/element.hpp>
#include <collprobe/device/host/device.hpp>

#include "trainer_runs.hpp"

using namespace trainer_runs;
using device = collprobe::host::device;

TEST_CASE("on a device the losses of all ranks are those of the host, step by step")
{
    for (const setting seeds : {setting::strict, setting::significant}) {
        const options given = small_run(4, 20);
        const outcome device_run = on_device<float, device>(given, seeds);
        require_alike(on_host<float>(given, seeds), device_run, 1e-5);
        CHECK(device_run.records.back().loss.mean < 0.9 * device_run.records.front().loss.mean); // it learns
        CHECK(device_run.verdict().empty());
    }
}

TEST_CASE("also where gradients travel in 16 bits")
{
    const options given = small_run(3, 10);
    // One gradient on the other side of a rounding moves a weight by 2^-8 or 2^-11 of a step.
    require_alike(on_host<collprobe::bfloat16>(given), on_device<collprobe::bfloat16, device>(given), 1e-3);
    require_alike(on_host<collprobe::float16>(given), on_device<collprobe::float16, device>(given), 1e-3);
}

TEST_CASE("a run on a device gives the same bits again")
{
    const options given = small_run(3, 5);
    const outcome first = on_device<float, device>(given);
    const outcome again = on_device<float, device>(given);
    CHECK(first.weights == again.weights);
    for (std::size_t step = 0; step < 5; ++step)
        CHECK(first.records[step].losses == again.records[step].losses);
}

TEST_CASE("an injected fault gets the verdict that it gets on the host")
{
    for (const fault_kind kind :
        {fault_kind::scale, fault_kind::noise, fault_kind::stale, fault_kind::duplicate, fault_kind::nan}) {
        // What is judged by earlier steps needs 32 of them.
        const bool is_number = kind == fault_kind::scale || kind == fault_kind::noise;
        const std::uint64_t step = is_number ? 40 : 6;
        options given = small_run(8, step + 2);
        given.injected = fault_of(2, kind, step, std::nullopt);
        if (kind != fault_kind::duplicate) given.injected->bucket = 1;
        CAPTURE(static_cast<int>(kind));
        const outcome host_run = on_host<float>(given);
        const outcome device_run = on_device<float, device>(given);
        REQUIRE_FALSE(device_run.verdict().empty());
        CHECK(device_run.verdict() == host_run.verdict());
        CHECK(device_run.verdict()[0].rfind(std::to_string(step) + ": rank ", 0) == 0);
        CHECK(device_run.skipped_updates == (kind == fault_kind::nan ? 1 : 0));
        CHECK(host_run.skipped_updates == device_run.skipped_updates);
        CHECK(device_run.weights.size() == 1);
    }
}

TEST_CASE("without dropout, too, and with one rank")
{
    options given = small_run(1, 5);
    given.dropout = 0;
    require_alike(on_host<float>(given), on_device<float, device>(given), 1e-5);
}
