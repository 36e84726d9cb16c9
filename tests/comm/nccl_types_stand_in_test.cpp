// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include <doctest/doctest.h>

#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <collprobe/collprobe.hpp>
#include <collprobe/comm/nccl/types.hpp>

using namespace collprobe;

TEST_CASE("half stays CUDA's behind using namespace collprobe")
{
    const half value = __float2half(1.5f);
    static_assert(std::is_same_v<decltype(value), const __half>);
    CHECK(static_cast<float>(float16::from_bits(__half_as_ushort(value))) == 1.5f);
}
