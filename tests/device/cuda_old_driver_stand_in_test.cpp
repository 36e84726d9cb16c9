// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include <doctest/doctest.h>

#include <collprobe/device/cuda/device.hpp>

#include "tests/support/stand_in/stand_in.hpp"

namespace collprobe::testing::cuda_old_driver_stand_in_test {

// A program of its own: what was looked up once is not looked up again.
TEST_CASE("with a driver that lacks what is looked up, nothing is known, and nothing fails")
{
    stand_in::fail_next("cudaGetDriverEntryPoint", cudaErrorNotSupported);
    stand_in::fail_next("cudaGetDriverEntryPoint", cudaErrorNotSupported);
    float* memory = nullptr;
    REQUIRE(cudaMalloc(reinterpret_cast<void**>(&memory), 4) == cudaSuccess);
    CHECK(cuda::detail::bytes_in_allocation(memory, 16) == 16);
    CHECK(cuda::detail::has_context(7));
    CHECK(cudaGetLastError() == cudaSuccess);
    CHECK(stand_in::calls("cudaGetDriverEntryPoint") == 2);
    CHECK(cuda::detail::bytes_in_allocation(memory, 16) == 16);
    CHECK(stand_in::calls("cuPointerGetAttributes") == 0);
    CHECK(cuda::detail::driver_function("cuThereIsNone", 7000) == nullptr);
    CHECK(cudaFree(memory) == cudaSuccess);
}

} // namespace collprobe::testing::cuda_old_driver_stand_in_test
