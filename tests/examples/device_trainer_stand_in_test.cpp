// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What `silent_inconsistency --device cuda` asks of CUDA, on the stand-in for its runtime.
#include <doctest/doctest.h>

#include <collprobe/device/cuda/device.hpp>

#include "support/stand_in/kernels.hpp"
#include "trainer_runs.hpp"

using namespace trainer_runs;

TEST_CASE("ranks that share two GPUs train as on the host")
{
    const options given = small_run(3, 6);
    require_alike(on_host<float>(given), on_device<float, collprobe::cuda::device>(given), 1e-5);
}

TEST_CASE("faults, which take values to the host and back, get the host's verdict")
{
    for (const fault_kind kind : {fault_kind::scale, fault_kind::stale, fault_kind::nan}) {
        // What is judged by earlier steps needs 32 of them.
        const std::uint64_t step = kind == fault_kind::scale ? 40 : 3;
        options given = small_run(8, step + 2);
        given.injected = fault_of(1, kind, step, 0);
        CAPTURE(static_cast<int>(kind));
        const outcome host_run = on_host<float>(given);
        CHECK_FALSE(host_run.verdict().empty());
        CHECK(on_device<float, collprobe::cuda::device>(given).verdict() == host_run.verdict());
    }
}
